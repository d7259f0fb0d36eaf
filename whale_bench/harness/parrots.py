"""Models without a thought: they copy a move or a number out of what they are shown.

    replies = PARROTS["chess_puzzles"]["last"]
    ScriptedModel(replies)                              # the last move that stands in the context

A parrot has no skill, so what it scores, the harness wrote into its context. There is one for each way in
which a context can point to a choice: by its place ("first", "last", "last of all"), by saying it most often,
by a word before it ("told": best, hint, try), by a mark beside it ("starred") or by the highest number after
it ("rated"); and one that says any. Every reply says its choice in all forms that a harness is likely to
read.

Not covered: choices written in words, figurines or notation other than UCI and the observation's own SAN, in
upper and lower case; what stands in the middle of more than twice `_MOST` characters.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from types import MappingProxyType
from typing import NamedTuple

from whale_bench.models.base import Request
from whale_envs.seeding import derive_rng

Replies = Callable[[Request], str]
_Choose = Callable[[Sequence[str], int], str]

_UCI = r"[a-h][1-8][-\u2010-\u2015]?[a-h][1-8]=?[qrbn]?(?![a-z0-9])"
_SAN = r"(?:O-O(?:-O)?|[KQRBN]?[a-h]?[1-8]?x?[a-h][1-8](?:=[QRBN])?)[+#]?(?![a-z0-9+#])"
# What a move may begin with is asked first, for there are hundreds of texts and most of a text is none.
_BEGINS = "(?<![a-z0-9])(?=[a-hkqrnox1-8])"
_MOVE = rf"(?i:{_BEGINS}(?:{_UCI}|{_SAN}))"
_ONE_UCI = re.compile(_UCI, re.IGNORECASE)
_NOT_OF_UCI = re.compile("[^a-h1-8qrn]")
_LISTED = re.compile(rf"\[((?i:{_UCI}))\] ((?i:(?<![a-z0-9]){_SAN}))")
_NUMBER = r"(?:\\frac\{-?\d+\}\{-?\d+\}|-?\d+(?:\.\d+)?(?:/\d+)?)"
_POINTS = (
    r"(?i:\b(?:best|hint|suggest\w*|recommend\w*|strong\w*|consider\w*|try|engine|prefer\w*|likely|perhaps|"
    r"probably|may be|might be|should be|worth|look at|note|answer|result|choose|choice)\b)"
)
_STAR = r"(?:\*{1,2}|!{1,2}|[★☆✓✔→>]|->|=>)"
_STAR_AFTER = r"(?:\*{1,2}|!{1,2}|[★☆✓✔←<]|<-|<=)"
_RATED = re.compile(rf"({_MOVE})\]?[ \t]{{0,3}}[:=(|][ \t]{{0,3}}([-+]?\d+(?:\.\d+)?)")
_UNSEEN = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")
_RUNS = re.compile(r"[^\S\n]{2,}"), re.compile(r"\n\s+")
_MOST = 65_536
"""Characters that a parrot looks at, of the first and of the last ones; no prompt with examples is longer."""
_KEPT = 32
"""Texts of which it is remembered what they show; several parrots look at the same one in turn."""
_SAID = {
    "chess_puzzles": "Final answer: {0}\n[{0}]\n<answer>{0}</answer>\n\\boxed{{{0}}}\n<move>{0}</move>",
    "math_python": "Final answer: {0}\n<answer>{0}</answer>\n\\boxed{{{0}}}",
}
_CHOICE = {"chess_puzzles": _MOVE, "math_python": _NUMBER}


def _all(text: str, pattern: str) -> list[str]:
    return re.findall(pattern, text)


def _told(text: str, pattern: str) -> list[str]:
    """What follows a word that points to it, in its line."""
    return re.findall(rf"{_POINTS}[^\n]{{0,40}}?({pattern})", text)


def _starred(text: str, pattern: str) -> list[str]:
    """What has a mark beside it."""
    found = re.finditer(rf"{_STAR} ?\[?({pattern})|({pattern})\]? ?{_STAR_AFTER}", text)
    return [match[1] or match[2] for match in found]


def _rated(text: str, pattern: str) -> list[str]:  # noqa: ARG001 - as the others
    """The moves with a number after them, highest first."""
    return [move for move, _ in sorted(_RATED.findall(text), key=lambda one: -float(one[1]))]


def _first(found: Sequence[str], seed: int) -> str:  # noqa: ARG001 - as the others
    return found[0]


def _last(found: Sequence[str], seed: int) -> str:  # noqa: ARG001
    return found[-1]


def _most(found: Sequence[str], seed: int) -> str:  # noqa: ARG001
    return Counter(found).most_common(1)[0][0]


def _any(found: Sequence[str], seed: int) -> str:
    return derive_rng("parrot", seed).choice(found)


class _Way(NamedTuple):
    """How a parrot comes to its choice."""

    find: Callable[[str, str], list[str]]
    choose: _Choose
    whole: bool
    """Whether it looks at all messages but the model's own, and not at the last one alone."""


_WAYS = {
    "first": _Way(_all, _first, False),
    "last": _Way(_all, _last, False),
    "last of all": _Way(_all, _last, True),
    "most": _Way(_all, _most, True),
    "any": _Way(_all, _any, True),
    "told": _Way(_told, _first, True),
    "starred": _Way(_starred, _first, True),
    "rated": _Way(_rated, _first, True),
}
_OF_MOVES = ("starred", "rated")
"""In Math these would be products and equations."""


def choice(texts: Sequence[str], domain: str, parrot: str, seed: int = 0) -> str:
    """What that parrot says of these messages; empty where it has nothing to say."""
    way, everything = _WAYS[parrot], shown("\n".join(texts))
    text = everything if way.whole else shown("\n".join(texts[-1:]))
    found = way.find(text, _CHOICE[domain])
    if domain == "chess_puzzles":
        found = _moves(found, everything)
    return way.choose(found, seed) if found else ""


@lru_cache(_KEPT)
def shown(text: str) -> str:
    """A text as a reader sees it, without runs of blanks, and without the middle of a long one."""
    for run, one in zip(_RUNS, " \n", strict=True):
        text = run.sub(one, text)
    if len(text) > 2 * _MOST:
        text = f"{text[:_MOST]}\n{text[-_MOST:]}"
    return _UNSEEN.sub("", unicodedata.normalize("NFKC", text))


def _moves(words: Sequence[str], everything: str) -> list[str]:
    """Mentions of moves, as UCI; SAN where the observation says which move it is."""
    names = _listed(everything)
    spelled = (uci_of(word, names) for word in words)
    return [word for word in spelled if word]


@lru_cache(_KEPT)
def _listed(everything: str) -> Mapping[str, str]:
    return MappingProxyType({san: uci for uci, san in _LISTED.findall(everything)})


def uci_of(word: str, names: Mapping[str, str]) -> str:
    """The move that a word names, where `names` has those in SAN; empty for none."""
    if word in names:
        return names[word]
    if uci := _plain_uci(word):
        return uci
    plain = word.lower().rstrip("+#")
    same = {uci for san, uci in names.items() if san.lower().rstrip("+#") == plain}
    return same.pop() if len(same) == 1 else ""


@lru_cache(4096)
def _plain_uci(word: str) -> str:
    """A word in UCI without what it may be written with; empty for any other."""
    return _NOT_OF_UCI.sub("", word.lower()) if _ONE_UCI.fullmatch(word) else ""


def mentioned(text: str, names: Mapping[str, str]) -> list[str]:
    """Every mention of a chess move in a text that is `shown`, as UCI, in order."""
    spelled = (uci_of(word, names) for word in _all(text, _MOVE))
    return [word for word in spelled if word]


def _reply(request: Request, *, domain: str, parrot: str) -> str:
    said = _SAID[domain]
    seen = [
        one.content for one in request.messages if one.role != "assistant" or not _is_own(one.content, said)
    ]
    found = choice(seen, domain, parrot, request.seed)
    return said.format(found) if found else "I do not know."


def _is_own(text: str, said: str) -> bool:
    """Whether a parrot replied that; an assistant's message that none did was made up by the harness."""
    word = text.partition("\n")[0].removeprefix("Final answer: ")
    return text in (said.format(word), "I do not know.")


def _parrots(domain: str) -> Mapping[str, Replies]:
    names = [name for name in _WAYS if domain == "chess_puzzles" or name not in _OF_MOVES]
    return MappingProxyType({name: partial(_reply, domain=domain, parrot=name) for name in names})


PARROTS: Mapping[str, Mapping[str, Replies]] = MappingProxyType({d: _parrots(d) for d in _SAID})
"""By domain and name."""
