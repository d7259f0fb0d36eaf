r"""Decides whether two answers are equal: by structure and exact numbers, else by a symbolic helper.

    >>> same(r"\frac13", "0.33", undecided)
    False
    >>> same(r"\{1,3\}", r"\{3,1\}", undecided)
    True

In this order, on cleaned texts (`answers.clean`):

* Identical texts are equal, whatever they hold.
* A comma is a thousands separator only in a whole number in groups of three (`12,500`); else it
  separates. Tuples and intervals compare in order, sets without; a bare list is unordered beside
  another list or a set, and ordered beside a tuple. Matrices compare entry by entry.
* Numbers compare exactly. The one tolerance: a decimal of at least `SURE_DIGITS` significant digits
  equals an exact number with no finite decimal if it is that number cut or rounded where it stops.
* The factor 100 is used only where a percent sign stands: `50\%` equals `50\%`, `50`, `0.5`, `\frac12`.
* A unit on one side only is ignored, if it is one of the units in `values.py`: other words after a
  number (`5\text{ trillion}`, `16\text{ (wrong)}`) change it. Two different units make different answers.
* Of `x=5` only the 5 counts beside an answer that is no equation. A gold equation that assigns
  nothing (`x+y=5`) is not equal to its right side. An answer's sides must all be the gold answer, but
  for plain names and, in front, a sum of different names (`m+n=25`, `x=5+20=25`, `25=n`).
* Letters of different case are different symbols, Greek ones too. A single letter is a symbol, never a
  unit, but in `\text` or `\mathrm`: `5 m` is not 5. A free i is the imaginary unit, but beside a j.
* A prime (`f'`) or a crossing-out changes what it is at.
* `x=5,y=3` is the pair of its values in the order written, so equal to `(5,3)`, and to `y=3,x=5` only
  beside another list.
* A decimal that goes on (`10...`, `10\ldots`) is not told how, so equal to nothing but itself.
* An exponent too large to be written out, or a power of more than `MOST_POWER_BITS`, is too complex.

What this leaves open (radicals, symbols, relations) goes to `symbolic(gold, answer) -> bool`, except
texts in which that would have to guess, such as `3 4` or `5\text{ (or 7)}`: they are wrong.

Not covered: unit conversion, numbers in words, intervals with reversed brackets (`]3,7[`).
"""

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any, TypeAlias

from whale_envs.math_python.answers import clean, closing_brace, squeeze
from whale_envs.math_python.labels import is_label
from whale_envs.math_python.rational import TooBigError, evaluate
from whale_envs.math_python.spelling import LETTERS, SPELLED, plain_constants, spell
from whale_envs.math_python.values import (
    MOST_ITEMS,
    Equation,
    Group,
    Matrix,
    Number,
    Relation,
    TooComplexError,
    Value,
    Words,
    join_thousands,
    read_value,
    split_unit,
)

SURE_DIGITS = 10
"""Significant digits from which on a decimal may stand for an exact number it cannot write out."""
MOST_CHARS = 2_000
"""Longest answer that is looked into; a longer one is right only if it is identical."""

MOST_POWER_BITS = 1_000_000
"""Largest power of a number that the symbolic helper is asked about."""

_MOST_DEPTH = 6
_POWER = re.compile(r"([\d.]*)[)}\]]*\s*(?:\^|\*\*)\s*(\{|\d{1,9})", re.ASCII)

Symbolic: TypeAlias = Callable[[str, str], bool]


class UndecidedError(Exception):
    """Two answers need the symbolic helper."""


_NEVER_EQUAL: list[set[type]] = [
    {Number, Group}, {Number, Matrix}, {Number, Words}, {Number, Relation}, {Group, Matrix},
    {Group, Words}, {Matrix, Words}, {Matrix, Relation}, {Words, Relation},
]  # fmt: skip
_UNSURE = re.compile(r"(?<![_^\d])\d+\s+[\d.]|\$|[\x00-\x08\x0b-\x1f\ud800-\udfff]")
"""What math-verify would read as it likes: it makes 7 of "3 4" and 12 of "5 $ 7"."""
_TEXT = re.compile(r"\\(?:text|mbox|textrm|textbf|textit|mathrm|rm)(?![A-Za-z])")
"""Words inside a formula: math-verify passes over them, so that "5 (or 7)" would be 5."""
_HEDGE = re.compile(r"\.\.\.|…|\\[lcd]?dots|['’′]|\\(?:prime|[bx]?cancel|not|sout|st)(?![A-Za-z])")
"""Marks that math-verify passes over."""
_TEXT_WORDS = re.compile(r"\\(?:text|mbox|textrm|textbf|textit|mathrm|rm)\s*\{([^{}]*)\}")
_LAST_TEXT = re.compile(rf"\s*{_TEXT_WORDS.pattern}(?:\s*\^\s*(?:\d|\{{\s*-?\d\s*\}}))?\Z")
_INTEGER = re.compile(r"[+-]?\d{1,1000}\Z", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(\d*)\.(\d+)\Z", re.ASCII)
_GREEK = (
    r"\\(?:alpha|beta|gamma|delta|epsilon|varepsilon|theta|lambda|mu|phi|varphi|rho|sigma|tau|omega|psi|eta|kappa"
    r"|ell|Delta|Omega|Phi|Sigma|Lambda|Gamma|Theta)(?![A-Za-z])"
)
_NAME = (
    rf"(?:[A-Za-z]|{_GREEK}|\\(?:mathrm|mathbf|mathcal|overline|vec|hat|bar)\s*\{{\s*[A-Za-z]{{1,3}}\s*\}}"
    r"|[A-Z]{2,4})(?:_(?:\w|\{[\w, ]{1,12}\}))?'{0,2}"
)
_ASSIGNED = re.compile(
    rf"(?:{_NAME}|{_NAME}\s*\(\s*[\w\\,\s+\-]{{1,20}}\)|\(\s*{_NAME}(?:\s*,\s*{_NAME}){{1,5}}\s*\)|\|\s*{_NAME}\s*\|"
    rf"|\\(?:angle|triangle)\s*[A-Z]{{1,3}})\Z"
)
_SUM = re.compile(rf"{_NAME}(?:\s*\+\s*{_NAME}){{1,9}}\Z")


def undecided(*_: str) -> bool:
    """A symbolic helper that only says that one is needed.

    Raises:
        UndecidedError: always.
    """
    raise UndecidedError


def same(gold: str, answer: str, symbolic: Symbolic) -> bool:
    """Whether two answers, without their boxes, are equal.

    Raises:
        TooComplexError: it cannot be told within the limits; count the answer as wrong.
    """
    if _INTEGER.match(gold) and _INTEGER.match(answer):
        return int(gold) == int(answer)
    if max(len(gold), len(answer)) > MOST_CHARS:
        return gold.strip() == answer.strip()
    return _same(clean(gold), clean(answer), symbolic, 0)


def _same(gold: str, answer: str, symbolic: Symbolic, depth: int) -> bool:
    if _INTEGER.match(gold) and _INTEGER.match(answer):
        return int(gold) == int(answer)
    if squeeze(gold) == squeeze(answer):
        return bool(gold)
    if not gold or not answer:
        return False
    if depth > _MOST_DEPTH:
        raise TooComplexError("nested too deeply")
    a, b = _value(gold), _value(answer)
    if b is None and a is not None:  # an ordinary gold answer is no number of that size
        raise TooComplexError("a number in it is too large to be written out")
    if isinstance(a, Equation) or isinstance(b, Equation):
        return _with_equation(a, b, (gold, answer), symbolic, depth + 1)
    if type(a) is type(b) and (compare := _COMPARE.get(type(a))) is not None:
        return compare(a, b, symbolic, depth + 1)
    never = (a is None) != (b is None) or {type(a), type(b)} in _NEVER_EQUAL
    return not never and ((a is not None and a == b) or _ask(gold, answer, symbolic))


def _said(text: str) -> list[str]:
    """The words inside a formula."""
    return [" ".join(words.split()).lower() for words in _TEXT_WORDS.findall(text)]


def _ask(gold: str, answer: str, symbolic: Symbolic) -> bool:
    """Asks the symbolic helper, without units, and only where it has nothing to guess."""
    (gold, unit), (answer, other) = split_unit(join_thousands(gold)), split_unit(join_thousands(answer))
    if unit and other and unit != other:
        return False
    gold, answer = (plain_constants(clean(text)) for text in (gold, answer))
    if _UNSURE.search(answer) or (_HEDGE.search(answer) and not _HEDGE.search(gold)):
        return False
    if not _TEXT.search(answer):
        gold = clean(_LAST_TEXT.sub("", gold)) or gold  # a unit that we do not know
    elif _said(gold) != _said(answer):
        return False
    if _grows(gold) or _grows(answer):
        raise TooComplexError("a power in it is too large")
    return symbolic(*spell(gold, answer))


def _grows(text: str) -> bool:
    """Whether it holds a power that nobody could write out."""
    for power in _POWER.finditer(text):
        start = power.end()
        end = closing_brace(text, start, len(text)) if power[2] == "{" else None
        try:
            exponent = evaluate(text[start:end] if end is not None else power[2])
        except TooBigError:
            return True
        digits = len((power[1] or "").replace(".", ""))
        if exponent is not None and digits and abs(exponent) * digits * 4 > MOST_POWER_BITS:
            return True
    return False


def _value(text: str) -> Value | None:
    """What it is, or None where it is arithmetic on numbers too large to be written out."""
    try:
        return read_value(text)
    except TooBigError:
        return None


def _same_number(a: Number, b: Number, *_: object) -> bool:
    if a.unit and b.unit and a.unit != b.unit:
        return False
    if b.unit.startswith("base ") and not a.unit:
        return _in_base(b) == a.value
    if a.percent == b.percent:
        return a.value == b.value or _written_out(a, b)
    percent, other = (a, b) if a.percent else (b, a)
    if other.unit:
        return False
    return other.value in (percent.value, percent.value / 100)


def _in_base(number: Number) -> int | None:
    base = int(number.unit.removeprefix("base "))
    try:
        return int(number.text.strip(), base)
    except ValueError:
        return None


def _written_out(a: Number, b: Number) -> bool:
    """Whether one is an exact number without a finite decimal and the other its decimal, long enough."""
    first, second = _DECIMAL.match(a.text.strip()), _DECIMAL.match(b.text.strip())
    if (first is None) == (second is None):
        return False
    decimal, exact = (a, b) if first else (b, a)
    digits = first or second
    assert digits is not None
    rest = exact.value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    significant = len((digits[1] + digits[2]).lstrip("0"))
    if rest == 1 or significant < SURE_DIGITS:
        return False
    unit = Fraction(1, 10 ** len(digits[2]))
    gap = abs(decimal.value) - abs(exact.value)
    same_sign = (decimal.value < 0) == (exact.value < 0)
    return same_sign and (-unit < gap <= 0 or abs(gap) <= unit / 2)  # cut, or rounded


def _same_group(a: Group, b: Group, symbolic: Symbolic, depth: int) -> bool:
    kinds = {a.kind, b.kind}
    if len(kinds) == 2 and kinds not in ({",", "()"}, {",", "{}"}):
        return False
    if "{}" not in kinds and len(a.items) != len(b.items):
        return False
    if "()" in kinds or kinds & {"[]", "(]", "[)"}:
        return all(_same(x, y, symbolic, depth) for x, y in zip(a.items, b.items, strict=True))
    if "{}" in kinds:
        return _covers(a.items, b.items, symbolic, depth) and _covers(b.items, a.items, symbolic, depth)
    rest = list(b.items)
    for item in a.items:
        index = next((i for i, other in enumerate(rest) if _same(item, other, symbolic, depth)), None)
        if index is None:
            return False
        del rest[index]
    return True


def _covers(a: tuple[str, ...], b: tuple[str, ...], symbolic: Symbolic, depth: int) -> bool:
    return all(any(_same(x, y, symbolic, depth) for y in b) for x in a)


def _same_matrix(a: Matrix, b: Matrix, symbolic: Symbolic, depth: int) -> bool:
    if [len(row) for row in a.rows] != [len(row) for row in b.rows] or sum(map(len, a.rows)) > MOST_ITEMS:
        return False
    pairs = (pair for r, s in zip(a.rows, b.rows, strict=True) for pair in zip(r, s, strict=True))
    return all(_same(clean(x), clean(y), symbolic, depth) for x, y in pairs)


def _same_words(a: Words, b: Words, *_: object) -> bool:
    return a.text == b.text


_COMPARE: dict[type, Callable[[Any, Any, Symbolic, int], bool]] = {
    Number: _same_number,
    Group: _same_group,
    Matrix: _same_matrix,
    Words: _same_words,
}


def _with_equation(
    a: Value | None, b: Value | None, texts: tuple[str, str], symbolic: Symbolic, depth: int
) -> bool:
    """Compares where at least one of the two is an equation."""
    if isinstance(a, Equation) and isinstance(b, Equation):
        return _same_equation(a, b, symbolic, depth)
    if isinstance(a, Equation):
        return _assigns(a) and _same(clean(a.right), texts[1], symbolic, depth)
    assert isinstance(b, Equation)
    return _gives(texts[0], b, symbolic, depth)


def _assigns(equation: Equation) -> bool:
    """Whether the left side only names what the right side is."""
    return _is_name(equation.left)


def _is_name(text: str) -> bool:
    return _ASSIGNED.match(text) is not None or is_label(text)


def _is_sum(text: str) -> bool:
    terms = [term.strip() for term in text.split("+")]
    return _SUM.match(text) is not None and len(set(terms)) == len(terms)


def _parts(equation: Equation) -> list[str]:
    """The sides that are no names, cleaned."""
    sides = (equation.left, *equation.middle, equation.right)
    return [clean(side) for side in sides if not _is_name(side)] or [clean(equation.right)]


def _gives(gold: str, equation: Equation, symbolic: Symbolic, depth: int) -> bool:
    """Whether an answer's equation gives the gold answer: all its sides but names are that."""
    sides = [equation.left, *equation.middle, equation.right]
    if not all(sides):
        return False
    if _is_sum(sides[0]) and _exact(clean(sides[-1])) != 0:
        sides = sides[1:]
    values = [clean(side) for side in sides if not _is_name(side)]
    if not values:  # "x=y" for y
        values = [clean(equation.right)]
    if not _bare_letters(gold) and any(map(_bare_letters, values)):
        return False
    return all(_same(gold, value, symbolic, depth) for value in values)


def _exact(text: str) -> Fraction | None:
    try:
        return evaluate(text)
    except TooBigError:
        return None


def _bare_letters(text: str) -> bool:
    """Whether it holds a letter that is a variable; units and known words are none."""
    runs = (m["run"] for m in LETTERS.finditer(split_unit(text)[0]) if m["run"])
    return any(run not in SPELLED and not set(run) <= {"e", "i"} for run in runs)


def _same_equation(a: Equation, b: Equation, symbolic: Symbolic, depth: int) -> bool:
    if squeeze(a.left) == squeeze(b.right) and squeeze(a.right) == squeeze(b.left) and a.middle == b.middle:
        return True
    if _assigns(a) and _assigns(b):
        named = squeeze(a.left) == squeeze(b.left)
        return named and all(_same(clean(a.right), part, symbolic, depth) for part in _parts(b))
    if a.middle or b.middle:
        return False
    return symbolic(*spell(f"{a.left} = {a.right}", f"{b.left} = {b.right}"))
