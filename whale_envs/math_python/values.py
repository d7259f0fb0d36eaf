r"""Reads a cleaned answer into what it is: a number, a group, a matrix, an equation, words.

    >>> read_value(r"12,500\text{ cm}")
    Number(value=Fraction(12500, 1), text='12,500', percent=False, unit='cm')
    >>> read_value(r"[3,7)")
    Group(kind='[)', items=('3', '7'))

A comma is a thousands separator only in a whole number in groups of three; else it separates.
Between brackets it always separates. "and", "or" and semicolons separate too. What remains is
`Other`: it may be an expression with symbols, or nonsense.

Not covered: comparing (`equality.py`), arithmetic (`rational.py`), unit conversion.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from whale_envs.math_python.answers import clean
from whale_envs.math_python.rational import evaluate

MOST_ITEMS = 100


class TooComplexError(Exception):
    """An answer cannot be decided within the limits of time and size: it counts as wrong."""


class Number(NamedTuple):
    value: Fraction
    text: str
    """As written, without unit and percent sign."""
    percent: bool = False
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Several items; `kind` is the pair of brackets, "," for a bare list."""

    kind: str
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Equation:
    left: str
    right: str
    middle: tuple[str, ...] = ()
    """What stands between further equals signs."""


@dataclass(frozen=True, slots=True)
class Relation:
    text: str


@dataclass(frozen=True, slots=True)
class Words:
    text: str


@dataclass(frozen=True, slots=True)
class Other:
    text: str


Value: TypeAlias = Number | Group | Matrix | Equation | Relation | Words | Other

_INTEGER = re.compile(r"[+-]?\d{1,1000}\Z", re.ASCII)
_DIGIT = re.compile(r"\d", re.ASCII)
_MATRIX = re.compile(
    r"\\begin\s*\{([pbB]?matrix|smallmatrix|array)\}(?:\s*\{[lcr| ]{0,40}\})?(.*)\\end\s*\{\1\}\Z", re.DOTALL
)
_ONE_NUMBER = re.compile(
    r"(?:(?<=[=<>])|\A|(?<=\\[lg][et]))\s*[+-]?\s*(?:\\?\$)?\s*[1-9]\d{0,2}(?:,\d{3})+(?![\d,])", re.ASCII
)
"""A number with thousands separators where one begins: at the start or after a sign of comparison."""
_AND = re.compile(r"\\text\s*\{\s{0,4}(?:and|or|,)\s{0,4}\}|(?<=[\s\d)}])(?:and|or)(?=[\s\\(])|;")
_COMPARE = re.compile(r"<|>|\\(?:le|ge|ne|lt|gt|in|approx|equiv|sim|mid|to|cong)(?![A-Za-z])")
_MEMBER = re.compile(r"[A-Za-z]\s*\\in(?![A-Za-z])\s*")
_PERCENT = re.compile(r"\s*(?:\\?%|\\text\s*\{\s*(?:percent|\\?%)\s*\}|percent)\Z")
_MONEY = re.compile(r"([+-]?)\s*\\?\$\s*")
_UNIT = re.compile(
    r"(?:\s*(?P<text>\\(?:text|mathrm|mbox|textrm|rm)\s*\{[^{}\d]{1,40}\}(?:\s*\^\s*(?:\d|\{\s*-?\d\s*\}))?)"
    r"|\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})(?P<degree>)"
    r"|(?P<base>_(?:\d|\{\s*\d{1,2}\s*\}))"
    r"|\s+(?P<bare>[A-Za-z][A-Za-z]+(?: [A-Za-z]+){0,3}(?:\s*\^\s*(?:\d|\{\d\}))?))\Z"
)
_DIGITS = "-+(){} ,.0123456789ABCDEF"
_UNIT_COMMAND = re.compile(r"\\(?:text|mathrm|mbox|textrm|rm)|[{}.\\]")
_UNIT_NAMES = {"degrees": "degree", "deg": "degree", "dollars": "$", "dollar": "$", "usd": "$", "units": ""}
_UNIT_WORDS = """
    mm cm dm m km nm um in inch inches ft foot feet yd yard yards mi mile miles
    millimeter millimeters millimetre millimetres centimeter centimeters centimetre centimetres
    decimeter decimeters decimetre decimetres meter meters metre metres kilometer kilometers
    kilometre kilometres acre acres hectare hectares ha
    mg g kg gram grams gramme grammes kilogram kilograms kilo kilos milligram milligrams ton tons tonne
    tonnes lb lbs pound pounds oz ounce ounces
    ml cl dl l liter liters litre litres milliliter milliliters millilitre millilitres gallon gallons gal
    quart quarts pint pints cup cups teaspoon teaspoons tablespoon tablespoons cc
    ms s sec secs second seconds min mins minute minutes h hr hrs hour hours day days week weeks month
    months year years yr yrs decade decades century centuries am pm
    mph kph kmh kmph mps knot knots hz khz mhz hertz newton newtons n kn joule joules j kj calorie calories
    cal kcal watt watts w kw kwh volt volts v ohm ohms amp amps ampere amperes pascal pascals pa kpa mol
    moles mole kelvin celsius fahrenheit bit bits byte bytes bps
    degree degrees deg degs rad rads radian radians revolution revolutions rpm arcminutes arcseconds
    dollar dollars usd cent cents euro euros eur gbp penny pennies pence nickel nickels dime dimes quarters
    yuan rmb yen rupee rupees rs peso pesos bucks coin coins
    unit units square sq cubic per each of total ones
    point points vertex vertices edge edges face faces side sides diagonal diagonals line lines segment
    segments angle angles triangle triangles squares rectangle rectangles circle circles polygon polygons
    region regions cube cubes block blocks tile tiles cell cells row rows column columns
    people person persons man men woman women child children boy boys girl girls student students teacher
    teachers player players team teams member members family families adult adults worker workers guest
    guests friend friends passenger passengers
    way ways solution solutions arrangement arrangements permutation permutations combination
    combinations outcome outcomes case cases choice choices possibility possibilities sequence sequences
    subset subsets set sets function functions number numbers integer integers digit digits term terms value
    values factor factors divisor divisors multiple multiples prime primes zero zeros zeroes root roots
    path paths route routes step steps move moves turn turns round rounds game games match matches
    handshake handshakes committee committees page pages book books word words letter letters problem
    problems question questions test tests class classes grade grades mark marks
    apple apples orange oranges banana bananas egg eggs cookie cookies candy candies pizza pizzas slice
    slices piece pieces cake cakes pie pies sandwich sandwiches bottle bottles glass glasses
    marble marbles ball balls card cards die dice box boxes bag bags bucket buckets basket baskets chair
    chairs table tables seat seats pencil pencils pen pens stamp stamps ticket tickets toy toys sticker
    stickers flower flowers tree trees rose roses stone stones bead beads sticks stick shirt shirts shoe
    shoes sock socks hat hats item items object objects thing things
    car cars bus buses truck trucks train trains bike bikes bicycle bicycles boat boats house houses room
    rooms door doors window windows floor floors
    dog dogs cat cats fish bird birds chicken chickens cow cows horse horses sheep pig pigs duck ducks
    rabbit rabbits frog frogs animal animals spider spiders ant ants leg legs head heads
    lap laps trip trips blue red green white black yellow
"""
_UNITS = frozenset(_UNIT_WORDS.split())
"""Words that may stand after a number without changing it; all others make it something else."""
_NOT_FIRST = frozenset({"per", "of", "each", "total", "am", "pm", "ones"})
_CHOICE = re.compile(r"\(([A-Za-z])\)\Z")
_WORDS = re.compile(r"[A-Za-z][A-Za-z' .\-]*[A-Za-z.]\Z")
_BRACKETS = re.compile(r"\\\\|\\begin\s*\{|\\end\s*\{|\\[{}|]|\\[lr]angle(?![A-Za-z])|[()\[\]{}]|,|=|&")
_PAIRS = (
    ("\\{", "\\}", "{}"), ("\\langle", "\\rangle", "()"), ("(", ")", "()"),
    ("[", "]", "[]"), ("(", "]", "(]"), ("[", ")", "[)"),
)  # fmt: skip


def read_value(text: str) -> Value:
    """What a cleaned answer is.

    Raises:
        TooBigError: it is arithmetic on numbers too large to be written out.
        TooComplexError: it has more than `MOST_ITEMS` items.
    """
    if text[:1] in ("(", "[") and "," in text and (group := _read_group(text)) is not None:
        return group
    if (number := _read_number(text)) is not None:
        return number
    if (matrix := _MATRIX.match(text)) and "\\begin" not in matrix[2]:
        return _read_matrix(matrix[2])
    if (member := _MEMBER.match(text)) and member.end() < len(text):
        return read_value(text[member.end() :])
    text = join_thousands(text)
    return _read_listed(text) or _read_relation(text) or _read_group(text) or _read_words(text)


def join_thousands(text: str) -> str:
    r"""The text without thousands separators, if all its commas are such.

    >>> join_thousands(r"x=12,500\pi"), join_thousands("x=1,23"), join_thousands("x=1,000,y=2,000")
    ('x=12500\\pi', 'x=1,23', 'x=1,000,y=2,000')
    """
    if "," not in text:
        return text
    joined = _ONE_NUMBER.sub(lambda m: m[0].replace(",", ""), text)
    if joined == text or _AND.search(joined) or any(mark == "," for _, mark in _top_level(joined)):
        return text
    return joined


def _read_listed(text: str) -> Group | None:
    listed = _AND.sub(",", text)
    if listed != text:
        listed = re.sub(r",\s*,", ",", listed)
    commas = [at for at, mark in _top_level(listed) if mark == ","]
    return Group(",", _items(listed, commas)) if commas else None


def _read_relation(text: str) -> Relation | Equation | None:
    if _COMPARE.search(text):
        return Relation(text)
    marks = _top_level(text)
    equals = [at for at, mark in marks if mark == "=" and text[max(0, at - 1)] not in "<>!:\\"]
    if not equals:
        return None
    if len(equals) > MOST_ITEMS:
        raise TooComplexError(f"{len(equals)} equals signs")
    between = (text[a + 1 : b].strip() for a, b in pairwise(equals))
    return Equation(text[: equals[0]].strip(), text[equals[-1] + 1 :].strip(), tuple(filter(None, between)))


def _read_words(text: str) -> Words | Other:
    if letter := _CHOICE.match(text):
        return Other(letter[1])
    plain = plain_words(text)
    if _WORDS.match(plain) and (len(plain) >= 4 or (len(plain) >= 2 and "\\text" in text)):
        return Words(plain)
    return Other(text)


def _read_number(text: str) -> Number | None:
    if not _DIGIT.search(text):
        return None
    if _INTEGER.match(text):
        return Number(Fraction(int(text)), text)
    if (value := evaluate(text)) is not None:
        return Number(value, text)
    if (percent := _PERCENT.search(text)) is not None:
        core = text[: percent.start()]
        value = evaluate(core)
        return None if value is None else Number(value, core, percent=True)
    core, unit = split_unit(text)
    value = evaluate(core) if unit is not None else None
    return None if value is None else Number(value, core, unit=unit or "")


def split_unit(text: str) -> tuple[str, str | None]:
    """(the text before its unit, the unit), the latter None where there is none."""
    if (money := _MONEY.match(text)) or text.endswith("$"):
        return (money[1] + text[money.end() :] if money else text[:-1].removesuffix("\\")), "$"
    match = _UNIT.search(text[-120:])
    if match is None or match.start() == 0:
        return text, None
    core = text[: len(text) - (len(text[-120:]) - match.start())]
    if match["degree"] is not None:
        return core, "degree"
    if match["base"]:
        index = core.strip(_DIGITS) or not _DIGIT.search(core)  # as in a+b_1
        return (text, None) if index else (core, "base " + "".join(filter(str.isdigit, match["base"])))
    words = re.sub(r"\^\s*-?\s*\d", " ", _UNIT_COMMAND.sub(" ", match["text"] or match["bare"])).split()
    if not _are_units(words):
        return text, None
    words = _UNIT_COMMAND.sub(" ", match["text"] or match["bare"]).lower().split()
    unit = "".join(words)
    return core, _UNIT_NAMES.get(unit, unit if len(unit) < 3 else unit.removesuffix("s"))


def _are_units(words: list[str]) -> bool:
    """Whether words after a number name a unit: none that could change its value is among them."""
    names = [word for part in words for word in part.replace("-", "/").replace(".", "/").split("/")]
    if names in (["M"], ["K"], ["G"]):  # a million, a thousand, and the like
        return False
    names = [name.lower() for name in names]
    return bool(names) and names[0] not in _NOT_FIRST and all(name in _UNITS for name in names)


def _read_matrix(body: str) -> Matrix:
    rows: list[tuple[str, ...]] = []
    for line in re.split(r"\\\\(?:\s*\[[^\]]{0,12}\])?", body):
        if line.strip() or rows:
            rows.append(tuple(cell.strip() for cell in line.split("&")))
    while rows and not any(rows[-1]):
        rows.pop()
    return Matrix(tuple(rows))


def _read_group(text: str) -> Group | None:
    if text in ("\\emptyset", "\\{\\}"):
        return Group("{}", ())
    for left, right, kind in _PAIRS:
        if not (text.startswith(left) and text.endswith(right) and len(text) > len(left) + len(right)):
            continue
        inner = text[len(left) : -len(right)]
        inner = _AND.sub(",", inner) if kind == "{}" else inner
        marks = _top_level(inner)
        if any(mark == "!" for _, mark in marks):
            return None
        commas = [at for at, mark in marks if mark == ","]
        if commas or kind == "{}":
            return Group(kind, _items(inner, commas, bracketed=True))
    return None


def _top_level(text: str) -> list[tuple[int, str]]:
    """Where commas and equals signs stand outside all brackets; a mark "!" if brackets do not match."""
    marks: list[tuple[int, str]] = []
    depth = 0
    for token in _BRACKETS.finditer(text):
        word = token[0]
        if word in ("(", "[", "{", "\\{", "\\langle") or word.startswith("\\begin"):
            depth += 1 + word.startswith("\\begin")
        elif word in (")", "]", "}", "\\}", "\\rangle"):
            depth -= 1
            if depth < 0:
                return [(token.start(), "!")]
        elif word.startswith("\\end"):
            pass  # its closing brace ends the environment's name, and the environment is closed below
        elif word in (",", "=") and not depth:
            marks.append((token.start(), word))
    return marks


def _items(text: str, commas: list[int], *, bracketed: bool = False) -> tuple[str, ...]:
    """The items between commas; groups of three digits stay together where other commas have spaces."""
    cuts = commas
    spaced = [at for at in commas if text[at + 1 : at + 2].isspace()]
    if spaced and len(spaced) < len(commas):
        pieces = _cut(text, spaced)
        if all("," not in join_thousands(piece) for piece in pieces):
            cuts = spaced
    items = _cut(text, cuts)
    if not bracketed:
        items = [item for item in items if item]
    if len(items) > MOST_ITEMS:
        raise TooComplexError(f"{len(items)} items")
    return tuple(items) if items != [""] else ()


def _cut(text: str, cuts: list[int]) -> list[str]:
    starts = [0, *(at + 1 for at in cuts)]
    return [clean(text[a:b]) for a, b in zip(starts, [*cuts, len(text)], strict=True)]


def plain_words(text: str) -> str:
    """Words without wrapping commands, parentheses and case; a single letter keeps its case."""
    plain = re.sub(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s*\{([^{}]*)\}", r"\1", text)
    plain = re.sub(r"^\((.*)\)$", r"\1", plain.strip())
    plain = " ".join(plain.replace("~", " ").split()).strip(" .")
    return plain.casefold() if len(plain) > 1 else plain
