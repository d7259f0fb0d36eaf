r"""Reads arithmetic on integers and decimals exactly, in pure Python and in bounded time.

    >>> evaluate(r"3\frac{3}{4}")
    Fraction(15, 4)
    >>> evaluate(r"2\cdot 10^{-3}")
    Fraction(1, 500)

Understood: integers (leading zeros, thousands separators), decimals, repeating decimals
(`0.\overline{3}`), scientific notation, fractions, mixed numbers (an integer before a proper
fraction), + - * / with their LaTeX names, integer powers, factorials, binomials, parentheses.
Anything else is None. A number of more than `MOST_BITS` bits on the way is TooBigError: nothing here
computes a power tower.

Not covered: roots, symbols, functions; percent signs and units, which `equality.py` takes off.
"""

import math
import re
from fractions import Fraction
from typing import Final

MOST_BITS = 16_384
"""Largest numerator or denominator, in bits, of any number on the way."""

_MOST_DEPTH = 40


class TooBigError(ArithmeticError):
    """A number on the way would not fit into `MOST_BITS` bits."""


class _UnreadableError(Exception):
    pass


_INTEGER = re.compile(r"[+-]?\d+\Z", re.ASCII)
_TOKEN = re.compile(
    r"\s*(?:(?P<repeating>\d*\.\d*\\overline\s*\{\d+\})"
    r"|(?P<number>[1-9]\d{0,2}(?:(?:,\d{3})+(?:\.\d+)?(?![\d,])|(?: \d{3})+(?![\d ]))"
    r"|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,5}(?![\d.]))?)"
    r"|(?P<word>\\(?:frac|binom|cdot|times|div)(?![A-Za-z]))"
    r"|(?P<sign>\*\*|[-+*/^!(){}]))",
    re.ASCII,
)
_PLAIN = re.compile(
    r"([+-]?)(?:\\frac\{(-?\d+)\}\{(\d+)\}|(\d+)/(\d+)|(\d*)\.(\d+))\Z", re.ASCII
)  # most fractions and decimals, so that these need no parser
_REPEATING = re.compile(r"(\d*)\.(\d*)\\overline\s*\{(\d+)\}\Z", re.ASCII)
_TIMES: Final = {"*", "\\cdot", "\\times"}
_OVER: Final = {"/", "\\div"}


def evaluate(text: str) -> Fraction | None:
    """The exact value of an arithmetic expression, or None where it is none.

    Raises:
        TooBigError: a number on the way is too large.
    """
    if _INTEGER.match(text) and len(text) < 4000:
        return Fraction(int(text))
    if (plain := _PLAIN.match(text)) and len(text) < 4000:
        return _plain(*plain.groups())
    if not any(map(str.isdigit, text)):
        return None
    try:
        parser = _Parser(_tokens(text))
        value = parser.sum()
        return value if parser.done() else None
    except (_UnreadableError, ZeroDivisionError):
        return None


def _plain(sign: str, *parts: str | None) -> Fraction | None:
    top, bottom, first, second, whole, decimals = parts
    if decimals is not None:
        value = Fraction(int((whole or "") + decimals), 10 ** len(decimals))
    else:
        denominator = int(bottom or second or 0)
        if not denominator:
            return None
        value = Fraction(int(top or first or 0), denominator)
    return -value if sign == "-" else value


def _tokens(text: str) -> list[tuple[str, str, bool]]:
    """(kind, text, whether a space stands before it)."""
    found, position, end = [], 0, len(text.rstrip())
    while position < end:
        token = _TOKEN.match(text, position)
        if token is None or token.lastgroup is None:
            raise _UnreadableError
        kind, word = token.lastgroup, token[token.lastgroup]
        found.append((kind, word, token.start(kind) > position))
        position = token.end()
    return found


class _Parser:
    """Recursive descent over tokens; depth and sizes are bounded."""

    def __init__(self, tokens: list[tuple[str, str, bool]]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def done(self) -> bool:
        return self._at == len(self._tokens)

    def _peek(self, ahead: int = 0) -> tuple[str, str]:
        at = self._at + ahead
        return self._tokens[at][:2] if at < len(self._tokens) else ("end", "")

    def _take(self, word: str) -> bool:
        if self._peek()[1] == word:
            self._at += 1
            return True
        return False

    def _need(self, word: str) -> None:
        if not self._take(word):
            raise _UnreadableError

    def sum(self) -> Fraction:
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise _UnreadableError
        value = self._product()
        while (word := self._peek()[1]) in ("+", "-"):
            self._at += 1
            other = self._product()
            value = _bounded(value + other if word == "+" else value - other)
        self._depth -= 1
        return value

    def _product(self) -> Fraction:
        value = self._signed()
        while True:
            kind, word = self._peek()
            if word in _TIMES:
                self._at += 1
                value = _bounded(value * self._signed())
            elif word in _OVER:
                self._at += 1
                value = _bounded(value / self._signed())
            elif word in ("(", "\\frac", "\\binom"):
                value = _bounded(value * self._power())
            elif kind in ("number", "repeating"):
                raise _UnreadableError  # two numbers side by side mean nothing certain
            else:
                return value

    def _signed(self) -> Fraction:
        negative = False
        while (word := self._peek()[1]) in ("+", "-"):
            negative ^= word == "-"
            self._at += 1
        value = self._power()
        return -value if negative else value

    def _power(self) -> Fraction:
        base = self._postfix()
        if self._take("^") or self._take("**"):
            exponent = self._exponent()
            if self._peek()[1] in ("^", "**"):
                raise _UnreadableError
            return _power(base, exponent)
        return base

    def _exponent(self) -> Fraction:
        negative = self._take("-")
        kind, word = self._peek()
        if word in ("{", "("):
            value = self._atom()
        elif kind == "number":
            self._at += 1
            value = _number(word)
        else:
            raise _UnreadableError
        return -value if negative else value

    def _postfix(self) -> Fraction:
        value = self._mixed()
        while self._take("!"):
            if value.denominator != 1 or value < 0:
                raise _UnreadableError
            if value > 1000:
                raise TooBigError
            value = Fraction(math.factorial(int(value)))
        return _bounded(value)

    def _mixed(self) -> Fraction:
        """An atom, or a mixed number: an integer before a fraction of two numbers below one."""
        kind, word = self._peek()
        if kind != "number" or not word.isdigit():
            return self._atom()
        self._at += 1
        whole, start, tokens = Fraction(int(word)), self._at, list(self._tokens)
        if self._peek()[1] == "\\frac" and self._peek(1)[0] in ("number", "sign"):
            try:
                part = self._fraction(plain=True)
                if 0 < part < 1:
                    return whole + part
            except _UnreadableError:
                pass
            self._at, self._tokens = start, tokens
        elif (
            [self._peek(i)[0] for i in range(3)] == ["number", "sign", "number"]
            and self._peek(1)[1] == "/"
            and self._tokens[start][2]
        ):
            top, bottom = _number(self._peek(0)[1]), _number(self._peek(2)[1])
            if top.denominator == bottom.denominator == 1 and 0 < top < bottom:
                self._at += 3
                return whole + top / bottom
        return whole

    def _atom(self) -> Fraction:
        kind, word = self._peek()
        if kind == "number":
            self._at += 1
            return _number(word)
        if kind == "repeating":
            self._at += 1
            return _repeating(word)
        if word in ("(", "{"):
            self._at += 1
            value = self.sum()
            self._need(")" if word == "(" else "}")
            return value
        if word == "\\frac":
            return self._fraction(plain=False)
        if word == "\\binom":
            self._at += 1
            return _choose(self._argument(), self._argument())
        raise _UnreadableError

    def _fraction(self, *, plain: bool) -> Fraction:
        """A fraction and its arguments; where plain, these must be bare integers."""
        self._need("\\frac")
        start = self._at
        top, bottom = self._argument(), self._argument()
        words = (word for _, word, _ in self._tokens[start : self._at])
        if plain and not all(word in ("{", "}") or word.isdigit() for word in words):
            raise _UnreadableError
        return _bounded(top / bottom)

    def _argument(self) -> Fraction:
        """A braced expression, or as in TeX the one digit that follows."""
        kind, word = self._peek()
        if word == "{":
            return self._atom()
        if kind != "number" or not word.isdigit():
            raise _UnreadableError
        if len(word) == 1:
            self._at += 1
        else:
            self._tokens[self._at] = (kind, word[1:], False)
        return Fraction(int(word[0]))


def _number(word: str) -> Fraction:
    word = word.replace(",", "").replace(" ", "")
    mantissa, _, exponent = word.lower().partition("e")
    if exponent and abs(int(exponent)) > 4000:
        raise TooBigError
    whole, _, decimals = mantissa.partition(".")
    scale = int(exponent or 0) - len(decimals)
    value = Fraction(int((whole + decimals) or "0"))
    return value * 10**scale if scale >= 0 else value / Fraction(10**-scale)


def _repeating(word: str) -> Fraction:
    match = _REPEATING.match(word)
    assert match is not None
    whole, fixed, period = match.groups()
    shift = 10 ** len(fixed)
    head = Fraction(int((whole + fixed) or "0"), shift)
    return head + Fraction(int(period), shift * (10 ** len(period) - 1))


def _choose(top: Fraction, bottom: Fraction) -> Fraction:
    if top.denominator != 1 or bottom.denominator != 1 or top < 0 or bottom < 0:
        raise _UnreadableError
    if top > 4000:
        raise TooBigError
    return Fraction(math.comb(int(top), int(bottom)))


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise _UnreadableError
    power = int(exponent)
    if base == 0 and power <= 0:
        raise _UnreadableError
    if abs(base) in (0, 1):
        return Fraction(base ** (abs(power) % 2 + 2))
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(power) * bits > MOST_BITS + bits:
        raise TooBigError
    return _bounded(Fraction(base**power))


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MOST_BITS:
        raise TooBigError
    return value
