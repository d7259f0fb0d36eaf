r"""Text to index terms, as Anserini's DefaultEnglishAnalyzer has it, without Java.

    >>> analyse("The dancers' 3.5-mile walk; Rembrandt's C++ tours")
    ['dancer', '3.5', 'mile', 'walk', 'rembrandt', 'c', 'tour']

Words by Unicode's rules of word boundaries (UAX #29), without the English possessive, in lower case,
without 33 stop words, stemmed by `porter`. Han, Hiragana and emoji give a term each, a run of Katakana,
Thai, Lao, Burmese or Khmer gives one. Any text is analysed; what holds no words gives no terms.

Equal to Lucene 9's on European text and on most other. Known to differ: Hebrew quotation marks
after words, the Arabic decimal sign, digits with marks, Katakana joined to words by
low lines, letters in circles, flags, and characters that Unicode got after version 12 (some of them are
words here and nothing there), and words of more than 255 characters made of low lines.

Not covered: other languages' stop words and stemmers, and phrases: a query is a bag of words here too.
"""

import functools
import re

from whale_envs.retrieval.porter import stem

STOP_WORDS = frozenset({
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it",
    "no", "not", "of", "on", "or", "such", "that", "the", "their", "then", "there", "these", "they",
    "this", "to", "was", "will", "with",
})  # fmt: skip

MAX_WORD_CHARS = 255
"""Longer words are cut into pieces of this length."""

_CACHED_WORDS = 1 << 18

# Marks and format characters belong to the character before them.
_MARKS = (
    "\u00ad\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a"
    "\u061c\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed\u0711\u0730-\u074a"
    "\u07a6-\u07b0\u07eb-\u07f3\u07fd\u0816-\u0819\u081b-\u0823\u0825-\u0827\u0829-\u082d\u0859-\u085b"
    "\u0898-\u089f\u08ca-\u08e1\u08e3-\u0903\u093a-\u093c\u093e-\u094f\u0951-\u0957\u0962\u0963"
    "\u0981-\u0983\u09bc\u09be-\u09cd\u09d7\u09e2\u09e3\u09fe-\u0a03\u0a3c-\u0a51\u0a70\u0a71\u0a75"
    "\u0a81-\u0a83\u0abc\u0abe-\u0acd\u0ae2\u0ae3\u0afa-\u0b03\u0b3c\u0b3e-\u0b57\u0b62\u0b63\u0b82"
    "\u0bbe-\u0bcd\u0bd7\u0c00-\u0c04\u0c3c\u0c3e-\u0c56\u0c62\u0c63\u0c81-\u0c83\u0cbc\u0cbe-\u0cd6"
    "\u0ce2\u0ce3\u0d00-\u0d03\u0d3b\u0d3c\u0d3e-\u0d4d\u0d57\u0d62\u0d63\u0d81-\u0d83\u0dca-\u0ddf"
    "\u0df2\u0df3\u0f18\u0f19\u0f35\u0f37\u0f39\u0f3e\u0f3f\u0f71-\u0f84\u0f86\u0f87\u0f8d-\u0fbc\u0fc6"
    "\u135d-\u135f\u1712-\u1715\u1732-\u1734\u1752\u1753\u1772\u1773\u180b-\u180f\u1885\u1886\u18a9"
    "\u1920-\u193b\u1a17-\u1a1b\u1a7f\u1ab0-\u1b04\u1b34-\u1b44\u1b6b-\u1b73\u1b80-\u1b82\u1ba1-\u1bad"
    "\u1be6-\u1bf3\u1c24-\u1c37\u1cd0-\u1cd2\u1cd4-\u1ce8\u1ced\u1cf4\u1cf7-\u1cf9\u1dc0-\u1dff"
    "\u200c-\u200f\u202a-\u202e\u2060-\u206f\u20d0-\u20f0\u2cef-\u2cf1\u2d7f\u2de0-\u2dff\u302a-\u302f"
    "\u3099\u309a\ua66f-\ua672\ua674-\ua67d\ua69e\ua69f\ua6f0\ua6f1\ua802\ua806\ua80b\ua823-\ua827"
    "\ua82c\ua880\ua881\ua8b4-\ua8c5\ua8e0-\ua8f1\ua8ff\ua926-\ua92d\ua947-\ua953\ua980-\ua983"
    "\ua9b3-\ua9c0\uaa29-\uaa36\uaa43\uaa4c\uaa4d\uaaeb-\uaaef\uaaf5\uaaf6\uabe3-\uabea\uabec\uabed"
    "\ufb1e\ufe00-\ufe0f\ufe20-\ufe2f\ufeff\uff9e\uff9f\U000e0100-\U000e01ef"
)
_ALONE = "\u2e80-\u2e99\u2e9b-\u2ef3\u2f00-\u2fd5\u3007\u3021-\u3029\u3038-\u303a\u3041-\u3096\u309d-\u309f"
_ALONE += "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U0001b001\U0001f200\U00020000-\U0002ffff"
_EMOJI = (
    "\u00a9\u00ae\u203c\u2049\u2122\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u2388\u23cf\u23e9-\u23f3\u23f8-"
    "\u23fa\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u2605\u2607-\u2612\u2614-\u2685\u2690-\u2705\u2708-\u2712"
    "\u2714\u2716\u271d\u2721\u2728\u2733\u2734\u2744\u2747\u274c\u274e\u2753-\u2755\u2757\u2763-\u2767\u2795-"
    "\u2797\u27a1\u27b0\u27bf\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\u3030\u303d\u3297\u3299\U0001f000-"
    "\U0001f0ff\U0001f10d-\U0001f10f\U0001f12f\U0001f16c-\U0001f16f\U0001f18e\U0001f191-\U0001f19a\U0001f201-"
    "\U0001f20f\U0001f21a\U0001f22f\U0001f232-\U0001f23a\U0001f23c-\U0001f23f\U0001f249-\U0001f3fa\U0001f400-"
    "\U0001f53d\U0001f546-\U0001f64f\U0001f680-\U0001f6ff\U0001f774-\U0001f77f\U0001f7d5-\U0001f7ff\U0001f90c-"
    "\U0001f93a\U0001f93c-\U0001f945\U0001f947-\U0001fbef"
)
# Thai, Lao, Burmese, Khmer and their relatives write no spaces: a term is a run.
_UNSPACED = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ecd\u0edc-\u0edf\u1000-\u103f\u1050-\u108f\u109a-\u109f\u1780-\u17d3\u17d7"
    "\u17dc\u17dd\u1950-\u19ca\u19de\u19df\u1a20-\u1a7c\ua9e0-\ua9ef\ua9fa-\ua9fe\uaa60-\uaadf"
)
_KATAKANA = (
    "\u3031-\u3035\u309b\u309c\u30a0-\u30fa\u30fc-\u30ff\u31f0-\u31ff\u32d0-\u32fe\u3300-\u3357\uff66-\uff9d"
)
# Python counts fractions, superscripts and digits in circles among word characters; Unicode's rules don't.
_NO_WORDS = (
    "\u00b2\u00b3\u00b9\u00bc-\u00be\u09f4-\u09f9\u2070\u2074-\u2079\u2080-\u2089\u2150-\u215f\u2189\u2460-"
    "\u249b\u24ea-\u24ff\u2776-\u2793\u2cfd\u3192-\u3195\u3220-\u3229\u3248-\u324f\u3251-\u325f\u3280-\u3289"
    "\u32b1-\u32bf"
)
_OUT = rf"{_ALONE}{_EMOJI}{_UNSPACED}{_KATAKANA}{_NO_WORDS}"
_LETTER = rf"[^\W\d_{_OUT}]"
_APOSTROPHES = frozenset("'\u2019\uff07")
_SINGLE_QUOTES = "'\u2018\u2019\u2024\uff07.\uff0e\ufe52"
_BETWEEN_LETTERS = rf"[:\u00b7\u0387\u05f4\u2027\ufe13\ufe55\uff1a{_SINGLE_QUOTES}]"
_BETWEEN_DIGITS = (
    rf"[,;\u037e\u0589\u060c\u060d\u066c\u07f8\u2044\ufe10\ufe14\ufe50\ufe54\uff0c\uff1b{_SINGLE_QUOTES}]"
)
_LOW_LINES = r"\u202f\u203f\u2040\u2054\ufe33\ufe34\ufe4d-\ufe4f\uff3f"
_RUN = rf"[^\W{_OUT}](?:[^\W{_OUT}]+|[{_MARKS}]+)*"
_ANY_WORD = (
    rf"[{_ALONE}][{_MARKS}]*"
    rf"|[{_EMOJI}](?:[{_MARKS}\U0001f3fb-\U0001f3ff]|(?<=\u200d)[{_EMOJI}])*"
    rf"|[{_UNSPACED}][{_UNSPACED}{_MARKS}]*"
    rf"|[{_KATAKANA}][{_KATAKANA}{_MARKS}]*"
    rf"|{_RUN}(?:(?:(?:(?<=[^\W\d_{_OUT}])|(?<=[{_MARKS}])){_BETWEEN_LETTERS}[{_MARKS}]*(?={_LETTER})"
    rf"|(?<=\d){_BETWEEN_DIGITS}(?=\d)|(?<=[\u05d0-\u05ea])\"(?=[\u05d0-\u05ea])|[{_LOW_LINES}]+(?=[^\W{_OUT}])){_RUN})*"
)
_ASCII_WORD = re.compile(
    r"[A-Za-z0-9_]+(?:(?:(?<=[A-Za-z])[.:'](?=[A-Za-z])|(?<=[0-9])[.,;'](?=[0-9]))[A-Za-z0-9_]+)*"
)


def words(text: str) -> list[str]:
    """The words of `text` in order, as they stand, none longer than MAX_WORD_CHARS."""
    found = (_ASCII_WORD if text.isascii() else _any_word()).findall(text)
    if len(text) <= MAX_WORD_CHARS or max(map(len, found), default=0) <= MAX_WORD_CHARS:
        return found
    pieces = range(0, len(text), MAX_WORD_CHARS)
    return [word[i : i + MAX_WORD_CHARS] for word in found for i in pieces[: -(-len(word) // MAX_WORD_CHARS)]]


@functools.cache
def _any_word() -> re.Pattern[str]:
    """Compiled when it is first needed, for that takes 20 ms."""
    return re.compile(_ANY_WORD)


def term(word: str) -> str:
    """The index term of one word; empty where there is none: a stop word, or low lines only."""
    if word[-2:-1] in _APOSTROPHES and word[-1] in "sS":
        word = word[:-2]
    # Java lowers one character at a time: a final sigma is no exception, a dotted I loses its dot.
    word = word.lower() if word.isascii() else "".join(letter.lower()[0] for letter in word)
    return "" if word in STOP_WORDS or not word.strip("_") else stem(word)


class _Terms(dict[str, str]):
    """Terms of the words seen lately, for a text is mostly of words seen before."""

    def __missing__(self, word: str) -> str:
        if len(self) >= _CACHED_WORDS:
            self.clear()
        self[word] = found = term(word)
        return found


_TERMS = _Terms()


def analyse(text: str) -> list[str]:
    """The index terms of any text, in order, repeated as they are."""
    return list(filter(None, map(_TERMS.__getitem__, words(text))))
