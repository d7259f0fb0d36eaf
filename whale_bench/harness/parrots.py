"""Models without a thought: they copy a move or a number out of what they are shown.

    replies = PARROTS["chess_puzzles"]["last"]
    ScriptedModel(replies)                              # the last move that stands in the context

A parrot has no skill, so what it scores, the harness wrote into its context. There is one for each way in
which a context can point to a choice: by its place ("first", "last", "last of all"), by saying it most often,
by a word before it ("told": best, hint, try), by a mark beside it ("starred") or by the highest number after
it ("rated"); and one that says any. Every reply says its choice in all forms that a harness is likely to
read.

Not covered: choices written in words, or in notation other than UCI and the observation's own SAN.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from whale_bench.models.base import Request
from whale_envs.seeding import derive_rng

Replies = Callable[[Request], str]
_Choose = Callable[[Sequence[str], int], str]

_UCI = r"(?<![A-Za-z0-9])[a-h][1-8][a-h][1-8][qrbn]?(?![A-Za-z0-9])"
_SAN = r"(?<![A-Za-z0-9])(?:O-O(?:-O)?|[KQRBN]?[a-h]?[1-8]?x?[a-h][1-8](?:=[QRBN])?)[+#]?(?![A-Za-z0-9+#])"
_MOVE = rf"(?:{_UCI}|{_SAN})"
_LISTED = re.compile(rf"\[({_UCI})\] ({_SAN})")
_NUMBER = r"(?:\\frac\{-?\d+\}\{-?\d+\}|-?\d+(?:\.\d+)?(?:/\d+)?)"
_POINTS = (
    r"(?i:\b(?:best|hint|suggest\w*|recommend\w*|strong\w*|consider\w*|try|engine|prefer\w*|likely|perhaps|"
    r"probably|may be|might be|should be|worth|look at|note|answer|result|choose|choice)\b)"
)
_STAR = r"(?:\*{1,2}|!{1,2}|[★☆✓✔→>]|->|=>)"
_STAR_AFTER = r"(?:\*{1,2}|!{1,2}|[★☆✓✔←<]|<-|<=)"
_RATED = re.compile(rf"({_MOVE})\]?[ \t]{{0,3}}[:=(|][ \t]{{0,3}}([-+]?\d+(?:\.\d+)?)")
_MOST = 65_536
"""Characters that a parrot looks at, the last ones; no prompt with examples is longer."""
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
    """The move with the highest number after it."""
    found = _RATED.findall(text)
    return [max(found, key=lambda one: float(one[1]))[0]] if found else []


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
POINTED = ("told", "rated")
"""Parrots that go by what no list of moves or numbers has: a word that recommends, a number that ranks."""

_OF_MOVES = ("starred", "rated")
"""In Math these would be products and equations."""


def choice(texts: Sequence[str], domain: str, parrot: str, seed: int = 0) -> str:
    """What that parrot says of these messages; empty where it has nothing to say."""
    way, everything = _WAYS[parrot], "\n".join(texts)[-_MOST:]
    text = everything if way.whole else "\n".join(texts[-1:])[-_MOST:]
    found = way.find(text, _CHOICE[domain])
    if domain == "chess_puzzles":
        found = _moves(found, everything)
    return way.choose(found, seed) if found else ""


def _moves(words: Sequence[str], everything: str) -> list[str]:
    """Mentions of moves, as UCI; SAN where the observation says which move it is."""
    names = {san: uci for uci, san in _LISTED.findall(everything)}
    spelled = (names.get(word, word) for word in words)
    return [word for word in spelled if re.fullmatch(_UCI, word)]


def mentioned(texts: Sequence[str]) -> list[str]:
    """Every mention of a chess move, as UCI, in order."""
    everything = "\n".join(texts)[-_MOST:]
    return _moves(_all(everything, _MOVE), everything)


def _reply(request: Request, *, domain: str, parrot: str) -> str:
    shown = [message.content for message in request.messages if message.role != "assistant"]
    found = choice(shown, domain, parrot, request.seed)
    return _SAID[domain].format(found) if found else "I do not know."


def _parrots(domain: str) -> Mapping[str, Replies]:
    names = [name for name in _WAYS if domain == "chess_puzzles" or name not in _OF_MOVES]
    return MappingProxyType({name: partial(_reply, domain=domain, parrot=name) for name in names})


PARROTS: Mapping[str, Mapping[str, Replies]] = MappingProxyType({d: _parrots(d) for d in _SAID})
"""By domain and name."""
