"""The symbolic helper's own program: compares two LaTeX answers with math-verify.

    python -P symbolic_child.py 5 1234     # control socket, host; started by `symbolic_process.py`

The process that is started loads the libraries and compares nothing itself but a few warming examples,
whenever it has nothing else to do. An order on the control socket is "fork", with a socket for the
child, or a child's number, which is then waited for. A child says its number; then a line in is a JSON
list [gold, answer, CPU seconds], a line out {"same": bool}, {"limit": why} where the text was too much
for the limits, or {"error": what} where the libraries failed, each with the "cpu" it took. It imports
nothing else of this package.

A child protects its host: the kernel ends it at its CPU time, even inside a long C call, it can take
`OWN_BYTES` of address space beyond what its parent has, and it ends with its parent, which ends with
its host. math-verify's own limits are off, for they need the main thread's signals.

math-verify rounds absolutely, so that all tiny numbers are equal to it: whatever it finds equal is
computed again here (at three points where it holds symbols), relatively: to 500 digits, or to more
where exponents in the text could hide a difference beyond those, or else it must be proved. Decimals
in an expression are fractions; a decimal alone must be the other number cut or rounded where it
stops, with at least 10 significant digits.

Not covered: structure, identical texts and plain numbers, which `equality.py` has already decided.
"""

import contextlib
import ctypes
import gc
import json
import logging
import os
import re
import resource
import select
import signal
import socket
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

NICE = 1
"""Niceness of a child, so that its parent can always fork another."""
OWN_BYTES = 32 * 1024 * 1024
"""Address space that a child may take beside its parent's; ordinary comparisons take less than 4 MB."""
SURE_DIGITS = 10
_DECIMAL = re.compile(r"[+-]?(\d*)\.(\d+)\Z", re.ASCII)
_DECIMAL_INSIDE = re.compile(r"(?<![\d.])(\d*)\.(\d+)(?![\d.])", re.ASCII)
_EXPONENT = re.compile(r"(?:\^|\*\*)\s*[{(]*\s*[+-]?\s*(\d{1,9})|(!)", re.ASCII)
DIGITS = 500
MOST_DIGITS = 20_000
_POINTS = ((3, 7), (11, 13), (17, 29))
"""Seeds of the points at which expressions with symbols are compared."""


def compare(gold: str, answer: str) -> bool:
    """Whether math-verify and the check at many digits both find the two equal.

    Only a text that math-verify can read as a whole counts; by default it would settle for a part.
    """
    from math_verify import LatexExtractionConfig, parse, verify

    # The host has taken the units away; math-verify would take h, m and ab for units too.
    reading = replace(LatexExtractionConfig().normalization_config, units=False)
    whole: dict[str, Any] = {
        "extraction_config": [LatexExtractionConfig(normalization_config=reading)],
        "extraction_mode": "first_match",
        "fallback_mode": "no_fallback",
        "parsing_timeout": None,
    }
    parsed = [parse(f"\\boxed{{{exact(text)}}}", **whole) for text in (gold, answer)]
    if not all(parsed):
        return False
    first, second = one_meaning(parsed[0][0], parsed[1][0])
    if not verify(first, second, timeout_seconds=None):
        return False
    return holds(first, second, gold, answer)


def one_meaning(*values: Any) -> list[Any]:
    """The values with one symbol for one name; i is the imaginary unit, but for an index or beside j.

    math-verify guesses from the text whether symbols are real, so `2i` and `2 i` would differ.
    """
    import sympy

    kinds = (sympy.Basic, sympy.MatrixBase)
    symbols = set[Any]().union(*(v.atoms(sympy.Symbol) for v in values if isinstance(v, kinds)))
    free = set[Any]().union(*(v.free_symbols for v in values if isinstance(v, kinds)))
    named = {str(symbol) for symbol in symbols}
    imaginary = "i" in named and "j" not in named and not any(str(s) == "i" for s in symbols - free)
    known = {
        s: sympy.I if imaginary and str(s) == "i" else sympy.Symbol(str(s), real=None if imaginary else True)
        for s in symbols
    }
    return [v.xreplace(known) if isinstance(v, kinds) else v for v in values]


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
        return not any(isinstance(v, sympy.Expr) for v in values)  # math-verify: 2 is the set {2}
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


# --- processes ---------------------------------------------------------------------------------------

_DEATH_SIGNAL = 1
_WARMING = (
    ("x^2-1", "(x-1)(x+1)"), ("[1,2)", "[1,2)"), (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
    (r"\begin{pmatrix}1&\sqrt{2}\\3&4\end{pmatrix}", r"\begin{pmatrix}1&\sqrt{2}\\3&4\end{pmatrix}"),
    (r"\{1,2\}", r"\{1,2\}"), ("x+y=3", "y+x=3"), ("x<3", "3>x"), (r"\sin(x)^2+\cos(x)^2", "1"),
    (r"\frac{x^2-4}{x-2}", "x+2"), (r"\log_2 8", "3"), (r"\ln 6", r"\ln 2+\ln 3"), (r"e^{i\pi}", "-1"),
    (r"\sqrt[3]{2}", "2^{1/3}"), (r"\int_0^1 2xdx", "1"), (r"\sum_{k=1}^{3}k", "6"),
)  # fmt: skip
"""Examples that fill the libraries' tables, so that children need not."""


def task(line: bytes) -> dict[str, object]:
    gold, answer, seconds = json.loads(line)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return {"same": compare(gold, answer)}
    except (MemoryError, RecursionError, OverflowError) as error:
        return {"limit": type(error).__name__}
    except Exception as error:  # noqa: BLE001 - reported as a fault of the verifier, never as a verdict
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def child(line: socket.socket, parent: int) -> NoReturn:
    """A forked child: tasks until nobody asks."""
    with contextlib.suppress(BaseException):
        end_with(parent)
        os.nice(NICE)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + OWN_BYTES, size + OWN_BYTES))
        line.sendall(b"%d\n" % os.getpid())
        with line.makefile("rb") as lines:
            for asked in lines:
                began = time.process_time()
                reply = task(asked)
                reply["cpu"] = time.process_time() - began
                line.sendall(json.dumps(reply).encode() + b"\n")
    os._exit(0)


def end_with(parent: int) -> None:
    """Has the kernel end this process with its parent."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def serve(control: socket.socket, host: int) -> None:
    """Follows the host's orders until it is gone."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    warming = list(reversed(_WARMING))
    while os.getppid() == host:
        if not poll.poll(0 if warming else 1000):
            if warming:
                with contextlib.suppress(Exception):  # it only takes longer then
                    compare(*warming.pop())
            continue
        order, files, _, _ = socket.recv_fds(control, 64, 1)
        if not order:
            return
        if order != b"fork":
            with contextlib.suppress(ChildProcessError):
                os.waitpid(int(order), 0)
            continue
        line = socket.socket(fileno=files[0])
        gc.freeze()  # else a collection in the child would copy all of the parent's memory
        parent = os.getpid()
        if not os.fork():
            control.close()
            child(line, parent)
        line.close()


def main() -> None:
    control, host = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    compare("\\sqrt{8}", "2\\sqrt{2}")  # loads the libraries and their tables
    gc.collect()
    serve(control, host)


if __name__ == "__main__":
    main()
