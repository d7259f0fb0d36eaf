"""The symbolic helper's own process: compares two LaTeX answers with math-verify, one line at a time.

    python -P symbolic_child.py        # started by `worker.py`; imports nothing else of this package

A line in is a JSON list [gold, answer, seconds]; a line out is {"same": bool}, {"limit": why} where
the text was too much for the limits, or {"error": what} where the libraries failed. The first line
out says that the libraries are loaded.

The process protects its host: 500 MB of address space, an alarm that the kernel delivers even
inside a long C call, and it ends when its host does. math-verify's own limits are off, for they
need the main thread's signals.

math-verify rounds absolutely, so that all tiny numbers are equal to it: whatever it finds equal is
computed again to 50 digits here (at three points where it holds symbols), relatively. Decimals in
the text make that 12 digits, and a decimal alone must be the other number cut or rounded where it
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
    """Whether math-verify and the check at 50 digits both find the two equal.

    Only a text that math-verify can read as a whole counts; by default it would settle for a part.
    """
    from math_verify import LatexExtractionConfig, parse, verify

    whole: dict[str, Any] = {
        "extraction_config": [LatexExtractionConfig()],
        "extraction_mode": "first_match",
        "fallback_mode": "no_fallback",
        "parsing_timeout": None,
    }
    parsed = [parse(f"\\boxed{{{text}}}", **whole) for text in (gold, answer)]
    if not all(parsed) or not verify(*parsed, timeout_seconds=None):
        return False
    return holds(parsed[0][0], parsed[1][0], gold, answer)


def holds(first: Any, second: Any, gold: str, answer: str) -> bool:
    """Whether equality stands at 50 digits; True where nothing can be computed."""
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
    digits = 12 if any(v.has(sympy.Float) for v in values) else 45
    pairs = [[number(v, point) for v in values] for point in points(symbols)]
    return all(a is None or b is None or close(a, b, digits) for a, b in pairs)


def proportional(first: Any, second: Any) -> bool:
    """Whether two equations, as left minus right side, are the same up to a factor."""
    symbols = names([first])
    if symbols != names([second]):
        return False
    factors = []
    for point in points(symbols):
        a, b = number(first, point), number(second, point)
        if a is not None and b is not None and a and b:
            factors.append(a / b)
    return all(close(factor, factors[0], 12) for factor in factors)


def names(values: list[Any]) -> list[str]:
    return sorted({str(symbol) for value in values for symbol in value.free_symbols})


def points(symbols: list[str]) -> list[dict[str, Any]]:
    """Where expressions are compared: three points, or one where there are no symbols."""
    import sympy

    places = _POINTS if symbols else _POINTS[:1]
    return [{s: sympy.Rational(p * (i + 2), q + i) for i, s in enumerate(symbols)} for p, q in places]


def close(a: Any, b: Any, digits: int) -> bool:
    return bool(abs(a - b) <= max(abs(a), abs(b)) / 10**digits)


def number(value: Any, point: dict[str, Any]) -> Any:
    """The value at a point to 60 digits, or None where it is not a finite number."""
    import sympy

    found = value.subs({symbol: point[str(symbol)] for symbol in value.free_symbols}).doit().evalf(60)
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
    gap = abs(other - decimal)
    finite = gap <= abs(decimal) * sympy.Float(10) ** -45
    return bool(finite or (len(digits) >= SURE_DIGITS and gap < sympy.Rational(1, 10**places)))


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
