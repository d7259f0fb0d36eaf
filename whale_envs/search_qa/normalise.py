r"""Short answers made comparable: exact match under both profiles, token F1, and "stands in a text".

    >>> exact_match(["1914–1918"], "1914-1918"), exact_match(["1914–1918"], "1914")
    (True, False)
    >>> exact_match(["Beyonce\u0301"], "beyoncé"), exact_match(["A"], "the"), exact_match(["C"], "C++")
    (True, False, False)

`paper` is the published rule (reference §4.1): lower case, ASCII punctuation deleted, a/an/the
dropped, white space folded. `standard` means to accept the same answer however it is typed, and
nothing else:

* Unicode: NFKC and case folding; invisible characters vanish; quotes and apostrophes are deleted.
* Dashes of every kind, slashes and other punctuation are spaces; a hyphen between letters may also be
  missing (`Spider-Man`, `Spider Man`, `Spiderman`), but 1-0 is not 10.
* Numbers: `1,234` is `1234`, `10²` is `10^2`; a point, a colon, a slash or a minus sign counts.
* `&` is "and"; `+`, `#` and `-` after a word stay (`C++`, `A-`), comparisons too (`≥5`). A currency or
  percent sign may be missing on one side, but two different ones differ.
* "the" is dropped anywhere, "a" and "an" before the first word (`Vitamin A` and `A minor` keep their
  letter), and never so that nothing is left.

A comparison is with each reference answer in turn; time is bounded.

Not covered: numbers written as words, dates in another order, names without their first name; that is
what aliases and the judge are for.
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

from whale_envs.core import Profile

ANSWER_CHARS = 2_000
"""No short answer is longer; what Unicode normalisation costs grows with the square of a run of accents."""

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PAPER_PUNCTUATION = str.maketrans("", "", string.punctuation)

_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_POWER = re.compile(r"(?<=\d)[⁰¹²³⁴-⁹⁺⁻]+")
_FRACTION = re.compile(r"(?<=\d)(?=[¼-¾⅐-⅞])")
_THIN = re.compile(r"(?<![\d.,])\d{1,3}(?:[\u00a0\u2009\u202f]\d{3})+(?!\d)")
_GONE = str.maketrans("", "", "™®©\ufe0e\ufe0f\u034f´ˈ′" + "".join(map(chr, range(0xE000, 0xE008))))
"""Deleted before normalisation, which would make letters or accents of them."""

_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)")
_MINUS = re.compile(r"(?<![\w)\]%])(?<![\w)\]%]\s)[-−–‐‑](?=\s?\.?\d)")
_ION = re.compile(r"(?<=\w)[-−–](?=$|[\s.,;)])")
_IN_NUMBER = re.compile(r"(?<=\d)([.,:/⁄^])(?=[\d+-])|(?<![\w.])(\.)(?=\d)")
_INITIALS = re.compile(r"(?<![^\W\d_])((?:[^\W\d_]\.)+[^\W\d_](?![^\W\d_])|(?:[^\W\d_]\.\s?){2,})")
_MARKS = {".": "\ue000", ",": "\ue001", ":": "\ue002", "/": "\ue005", "⁄": "\ue005", "^": "\ue006"}
"""Private stand-ins for the marks inside a number, which stay while all others go."""
_ION_MINUS = "\ue007"
_JOINED = re.compile(r"(?<=[^\W\d_])-(?=[^\W_])|(?<=\d)-(?=[^\W\d_])")
_PERCENT = re.compile(r"\b(?:percent|per cent)\b")
_SHARP = re.compile(r"\s*♯")
_KEPT_AFTER_WORD = re.compile(r"(?<=[\w+#])[+#]")
_INDEFINITE = re.compile(r"^\W*an?\s+(?!(?:minor|major|flat|sharp|positive|negative)\b)(?=[^\W\d])")
_POSSESSIVE = re.compile(r"['’]s\b")
_KEPT = "<>≤≥±√∞×÷‰%"
"""Signs that tell answers apart."""


def exact_match(golds: Iterable[str], answer: str, profile: Profile = "standard") -> bool:
    """Whether `answer` is one of the references; an empty one, or one beyond `ANSWER_CHARS`, never is."""
    if not answer.strip() or len(answer) > ANSWER_CHARS:
        return False
    if profile == "paper":
        said = paper_form(answer)
        return any(paper_form(gold) == said if said else gold.strip() == answer.strip() for gold in golds)
    return any(_same(gold, answer) for gold in golds)


def token_f1(golds: Iterable[str], answer: str) -> float:
    """Best F1 over the reference answers, of the words that the answer shares with one, in [0, 1]."""
    said = standard_form(answer[:ANSWER_CHARS]).split()
    best = 0.0
    for gold in golds:
        wanted = standard_form(gold).split()
        shared = sum((Counter(said) & Counter(wanted)).values())
        if shared:
            precision, recall = shared / len(said), shared / len(wanted)
            best = max(best, 2 * precision * recall / (precision + recall))
    return best


def stands_in(golds: Sequence[str], text: str) -> bool:
    """Whether a reference answer stands in the text as whole words, compared as under `standard`.

    A single letter has to stand there as it is: "a" is mostly no answer.
    """
    readings = {text, _POSSESSIVE.sub(" s", text)}
    padded = [f" {_words(t, articles=True, joined=joined)} " for t in readings for joined in (False, True)]
    for gold in golds:
        if len(gold.strip()) == 1 and gold.strip().isalpha():  # "A" is no article
            if re.search(rf"(?<!\w){gold.strip()}(?!\w)", text):
                return True
            continue
        wanted = {_words(gold, articles=True, joined=joined) for joined in (False, True)}
        wanted |= {words.removeprefix("the ") for words in wanted} | {standard_form(gold)}
        if any(f" {words} " in there for words in wanted - {""} for there in padded):
            return True
    return False


def paper_form(text: str) -> str:
    """The published normal form.

    >>> paper_form("The Hague, (Netherlands)")
    'hague netherlands'
    """
    bare = text.lower().translate(_PAPER_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


@lru_cache(maxsize=4_096)
def standard_form(text: str) -> str:
    """The normal form of the standard profile, with hyphens as spaces and units as signs.

    >>> standard_form("The “Dutch–Belgian” border, 1,234 km")
    'dutch belgian border 1234 km'
    """
    return _words(text)


def _same(gold: str, answer: str) -> bool:
    for joined in (False, True):
        wanted, said = (_words(text, joined=joined) for text in (gold, answer))
        if not wanted and not said:  # signs alone
            return _plain(gold) == _plain(answer)
        if wanted == said:
            return True
        bare, units = _without_units(wanted)
        bare_said, units_said = _without_units(said)
        if bare == bare_said and bare and not (units and units_said):
            return True
    return False


def _plain(text: str) -> str:
    """A text without what no one sees and with digits of one kind."""
    text = _POWER.sub(lambda m: "^" + m[0].translate(_RAISED), _FRACTION.sub(" ", text))
    text = _THIN.sub(lambda m: "".join(m[0].split()), text).translate(_GONE)
    text = unicodedata.normalize("NFKC", text).casefold()
    text = unicodedata.normalize("NFKC", text)  # folding can leave a text that is not composed
    text = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text)
    return " ".join(text.split())


def _words(text: str, *, articles: bool = False, joined: bool = False) -> str:
    text = _plain(text)
    if not articles:
        text = _INDEFINITE.sub("", text)
    text = _THOUSANDS.sub(lambda m: m[0].replace(",", ""), text)
    text = _MINUS.sub(" minus ", text)
    text = _IN_NUMBER.sub(lambda m: _MARKS[m[1]] if m[1] else f"0{_MARKS['.']}", text)
    text = _INITIALS.sub(lambda m: re.sub(r"[.\s]", "", m[0]) + " ", text)
    text = _PERCENT.sub("%", text).replace("&", " and ").replace("♭", " flat ")
    text = _ION.sub(_ION_MINUS, _SHARP.sub("#", text))
    if joined:
        text = _JOINED.sub("", "".join("-" if _is_dash(c) else c for c in text))
    text = _KEPT_AFTER_WORD.sub(lambda mark: _AFTER_WORD[mark[0]], text)
    words = "".join(map(_kept, text)).translate(_BACK).split()
    return " ".join(words if articles else _without_articles(words))


_AFTER_WORD = {"+": "\ue003", "#": "\ue004"}
_BACK = str.maketrans(
    {private: mark for mark, private in (_MARKS | _AFTER_WORD).items() if mark != "⁄"} | {_ION_MINUS: "-"}
)


@lru_cache(maxsize=4_096)
def _kept(character: str) -> str:
    """What stays of one character: itself, nothing, or a space."""
    if character in _QUOTES:
        return ""
    if character in _KEPT:
        return f" {character} "
    kind = unicodedata.category(character)
    if kind == "Cf":  # soft hyphens, joiners, direction marks
        return ""
    if kind == "Sc":
        return f" {character} "
    return " " if kind[0] in "PSZ" or kind in ("Cc", "Cs") else character


_QUOTES = "'\"`´‘’‚‛“”„‟‹›«»ʹʻʼʽʾʿˈ＇＂"


def _is_dash(character: str) -> bool:
    return character == "−" or unicodedata.category(character) == "Pd"


def _without_articles(words: list[str]) -> list[str]:
    return [word for word in words if word != "the"] or words


def _without_units(words: str) -> tuple[str, frozenset[str]]:
    tokens = words.split()
    units = frozenset(
        token for token in tokens if token in ("%", "‰") or unicodedata.category(token[0]) == "Sc"
    )
    return " ".join(token for token in tokens if token not in units), units
