"""The symbolic helper's own process: compares two LaTeX answers with math-verify, one line at a time.

    python -P symbolic_child.py        # started by `worker.py`; imports nothing else of this package

A line in is a JSON list [gold, answer, seconds]; a line out is {"same": bool}, {"limit": why} where
the text was too much for the limits, or {"error": what} where the libraries failed. The first line
out says that the libraries are loaded.

The process protects its host: 500 MB of address space, an alarm that the kernel delivers even
inside a long C call, and it ends when its host does. math-verify's own limits are off, for they
need the main thread's signals.

math-verify rounds absolutely, so that all tiny numbers are equal to it: whatever it finds equal is
computed again here (at three points where it holds symbols), relatively: to 500 digits, or to more
where exponents in the text could hide a difference beyond those, or else it must be proved. Decimals
in an expression are fractions; a decimal alone must be the other number cut or rounded where it
stops, with at least 10 significant digits.

Not covered: structure, identical texts and plain numbers, which `equality.py` has already decided.
"""

import contextlib
import json
import logging
import os
import re
import resource
import select
import signal
import sys
import threading
import warnings
from typing import Any

MEMORY_BYTES = 500 * 1024 * 1024
SURE_DIGITS = 10
_DECIMAL = re.compile(r"[+-]?(\d*)\.(\d+)\Z", re.ASCII)
_DECIMAL_INSIDE = re.compile(r"(?<![\d.])(\d*)\.(\d+)(?![\d.])", re.ASCII)
_EXPONENT = re.compile(r"(?:\^|\*\*)\s*[{(]*\s*[+-]?\s*(\d{1,9})|(!)", re.ASCII)
DIGITS = 500
MOST_DIGITS = 20_000
_POINTS = ((3, 7), (11, 13), (17, 29))
"""Seeds of the points at which expressions with symbols are compared."""


def limit() -> None:
    """Sets the limits of this process; none of them can be raised again."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def watch(source: int, host: int) -> None:
    """Ends this process when the host is gone, whatever the main thread is at."""
    poll = select.poll()
    poll.register(source, 0)  # hang-ups only
    while not poll.poll(1000) and os.getppid() == host:
        pass
    os._exit(0)


def compare(gold: str, answer: str) -> bool:
    """Whether math-verify and the check at many digits both find the two equal.

    Only a text that math-verify can read as a whole counts; by default it would settle for a part.
    """
    from math_verify import LatexExtractionConfig, parse, verify

    whole: dict[str, Any] = {
        "extraction_config": [LatexExtractionConfig()],
        "extraction_mode": "first_match",
        "fallback_mode": "no_fallback",
        "parsing_timeout": None,
    }
    parsed = [parse(f"\\boxed{{{exact(text)}}}", **whole) for text in (gold, answer)]
    if not all(parsed) or not verify(*parsed, timeout_seconds=None):
        return False
    return holds(parsed[0][0], parsed[1][0], gold, answer)


def exact(text: str) -> str:
    r"""The text with fractions for the decimals inside it.

    >>> exact("0.5x"), exact("0.5")
    ('{\\frac{5}{10}}x', '0.5')
    """
    if _DECIMAL.match(text.strip()):
        return text
    return _DECIMAL_INSIDE.sub(lambda m: f"{{\\frac{{{int(m[1] + m[2])}}}{{1{'0' * len(m[2])}}}}}", text)


def holds(first: Any, second: Any, gold: str, answer: str) -> bool:
    """Whether equality stands at high precision; True where nothing can be computed."""
    import sympy

    if isinstance(first, sympy.Eq) and isinstance(second, sympy.Eq):
        return proportional(first.lhs - first.rhs, second.lhs - second.rhs)
    values = [e.rhs if isinstance(e, sympy.Eq) else e for e in (first, second)]
    if not all(isinstance(v, sympy.Expr) for v in values):
        return True
    symbols = names(values)
    literals = [_DECIMAL.match(text.strip()) for text in (gold, answer)]
    if not symbols and any(literals):
        return written_out(values, literals)
    return alike(values, symbols, enough(gold, answer))


def alike(values: list[Any], symbols: list[str], digits: int) -> bool:
    """Whether two expressions have the same values, to so many digits where they can be had."""
    import sympy

    if any(v.has(sympy.Float) for v in values):
        return agree(values, symbols, 12)
    slow = (sympy.Integral, sympy.Sum, sympy.Product, sympy.Limit, sympy.Derivative)
    near = agree(values, symbols, 45)
    if not near or any(v.has(*slow) for v in values):
        return near
    if digits <= MOST_DIGITS:
        return agree(values, symbols, digits)
    return agree(values, symbols, DIGITS) and bool(sympy.simplify(values[0] - values[1]) == 0)


def enough(*texts: str) -> int:
    """Digits to which two different values agree at most, as far as their exponents tell."""
    size = 1
    for text in texts:
        for match in _EXPONENT.finditer(text):
            size = min(size * (1000 if match[2] else max(int(match[1]), 1)), 10**9)
    return DIGITS if size <= 200 else DIGITS + 3 * size


def agree(values: list[Any], symbols: list[str], digits: int) -> bool:
    """Whether two expressions have the same value to so many digits, at all points."""
    pairs = [[number(v, point, digits + 15) for v in values] for point in points(symbols)]
    return all(a is None or b is None or close(a, b, digits) for a, b in pairs)


def proportional(first: Any, second: Any) -> bool:
    """Whether two equations, as left minus right side, are the same up to a factor."""
    symbols = names([first])
    if symbols != names([second]):
        return False
    import sympy

    factors = []
    for point in points(symbols):
        a, b = (number(value, point, DIGITS + 15) for value in (first, second))
        if a is not None and b is not None and a and b:
            factors.append(a / b)
    digits = 12 if first.has(sympy.Float) or second.has(sympy.Float) else DIGITS - 15
    return all(close(factor, factors[0], digits) for factor in factors)


def names(values: list[Any]) -> list[str]:
    return sorted({str(symbol) for value in values for symbol in value.free_symbols})


def points(symbols: list[str]) -> list[dict[str, Any]]:
    """Where expressions are compared: three points, or one where there are no symbols."""
    import sympy

    places = _POINTS if symbols else _POINTS[:1]
    return [{s: sympy.Rational(p * (i + 2), q + i) for i, s in enumerate(symbols)} for p, q in places]


def close(a: Any, b: Any, digits: int) -> bool:
    return bool(abs(a - b) <= max(abs(a), abs(b)) / 10**digits)


def number(value: Any, point: dict[str, Any], digits: int = 60) -> Any:
    """The value at a point to so many digits, or None where it is not a finite number."""
    import sympy

    found = value.subs({symbol: point[str(symbol)] for symbol in value.free_symbols}).doit().evalf(digits)
    if not isinstance(found, sympy.Expr) or found.free_symbols or not found.is_finite:
        return None
    return found if found.is_number else None


def written_out(values: list[Any], literals: list[re.Match[str] | None]) -> bool:
    """Whether the decimal among the two is the other one, written out far enough."""
    if all(literals):
        return bool(values[0] == values[1])
    index = 0 if literals[0] else 1
    match = literals[index]
    assert match is not None
    import sympy

    decimal = sympy.Rational(match[0])
    other = number(values[1 - index], {})
    places, digits = len(match[2]), (match[1] + match[2]).lstrip("0")
    if other is None:
        return False
    if abs(other - decimal) <= abs(decimal) * sympy.Float(10) ** -45:
        return agree([decimal, values[1 - index]], [], DIGITS)
    unit, gap = sympy.Rational(1, 10**places), abs(decimal) - abs(other)
    near = (-unit < gap <= 0) or abs(gap) <= unit / 2  # cut, or rounded
    return bool(len(digits) >= SURE_DIGITS and decimal * other > 0 and near)


def answer_line(line: bytes) -> dict[str, object]:
    gold, answer, seconds = json.loads(line)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return {"same": compare(gold, answer)}
    except (MemoryError, RecursionError, OverflowError) as error:
        return {"limit": type(error).__name__}
    except Exception as error:  # noqa: BLE001 - reported as a fault of the verifier, never as a verdict
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def main() -> None:
    source, sink = os.dup(0), os.fdopen(os.dup(1), "wb", buffering=0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    host = int(sys.argv[1])
    limit()
    threading.Thread(target=watch, args=(source, host), daemon=True).start()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    compare("\\sqrt{8}", "2\\sqrt{2}")  # loads the libraries and their tables
    sink.write(b'{"ready": true}\n')
    with contextlib.suppress(BrokenPipeError), os.fdopen(source, "rb") as lines:
        for line in lines:
            sink.write(json.dumps(answer_line(line)).encode() + b"\n")


if __name__ == "__main__":
    main()
