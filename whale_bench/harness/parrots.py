"""Models without a thought: they copy a move or a number out of what they are shown.

    replies = PARROTS["chess_puzzles"]["last"]
    ScriptedModel(replies)                              # the last move that stands in the context

A parrot has no skill, so what it scores, the harness wrote into its context. `MARKED` are the chess
parrots that also go by the marks of the observation (mate, check, capture): under h0 they show what
grouping moves by these marks may give, which is allowed.

Every reply says its choice in all forms that a harness is likely to read.

Not covered: choices written in words, or in notation other than UCI and the observation's own SAN.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import permutations
from types import MappingProxyType

from whale_bench.models.base import Request
from whale_envs.seeding import derive_rng

ANY = "any"
"""The parrot that says any move or number it has seen."""

Replies = Callable[[Request], str]
_Choose = Callable[[Sequence[str], int], str]

_UCI = r"(?<![A-Za-z0-9])[a-h][1-8][a-h][1-8][qrbn]?(?![A-Za-z0-9])"
_SAN = r"(?<![A-Za-z0-9])(?:O-O(?:-O)?|[KQRBN]?[a-h]?[1-8]?x?[a-h][1-8](?:=[QRBN])?)[+#]?(?![A-Za-z0-9+#])"
_MOVE = re.compile(rf"{_UCI}|{_SAN}")
_LISTED = re.compile(rf"\[({_UCI})\] ({_SAN})")
_NUMBER = re.compile(r"\\frac\{-?\d+\}\{-?\d+\}|-?\d+(?:\.\d+)?(?:/\d+)?")
_SAID = {
    "chess_puzzles": "Final answer: {0}\n[{0}]\n<answer>{0}</answer>\n\\boxed{{{0}}}\n<move>{0}</move>",
    "math_python": "Final answer: {0}\n<answer>{0}</answer>\n\\boxed{{{0}}}",
}


def _first(found: Sequence[str], seed: int) -> str:  # noqa: ARG001 - as the others
    return found[0]


def _last(found: Sequence[str], seed: int) -> str:  # noqa: ARG001
    return found[-1]


def _most(found: Sequence[str], seed: int) -> str:  # noqa: ARG001
    return Counter(found).most_common(1)[0][0]


def _any(found: Sequence[str], seed: int) -> str:
    return derive_rng("parrot", seed).choice(found)


def _copy(request: Request, *, domain: str, choose: _Choose, whole: bool) -> str:
    """A choice from the last message, or from all but the model's own."""
    shown = [message.content for message in request.messages if message.role != "assistant"]
    text = "\n".join(shown if whole else shown[-1:])
    found = _moves(text, "\n".join(shown)) if domain == "chess_puzzles" else _NUMBER.findall(text)
    return _SAID[domain].format(choose(found, request.seed)) if found else "I do not know."


def _moves(text: str, everything: str) -> list[str]:
    """Every mention of a move, as UCI; SAN where the observation says which move it is."""
    names = {san: uci for uci, san in _LISTED.findall(everything)}
    spelled = (names.get(word, word) for word in _MOVE.findall(text))
    return [word for word in spelled if re.fullmatch(_UCI, word)]


def _marked(request: Request, *, marks: str, last: bool) -> str:
    """The first or last move whose SAN has the first of those marks that any has."""
    listed = _LISTED.findall(request.messages[-1].content)
    groups = [[uci for uci, san in listed if mark in san] for mark in marks] + [[uci for uci, _ in listed]]
    found = next((group for group in groups if group), None)
    return _SAID["chess_puzzles"].format(found[-1 if last else 0]) if found else "I do not know."


def _parrots(domain: str) -> Mapping[str, Replies]:
    ways: dict[str, tuple[_Choose, bool]] = {
        "first": (_first, False),
        "last": (_last, False),
        "last of all": (_last, True),
        "most": (_most, True),
        ANY: (_any, True),
    }
    return MappingProxyType(
        {
            name: partial(_copy, domain=domain, choose=choose, whole=whole)
            for name, (choose, whole) in ways.items()
        }
    )


PARROTS: Mapping[str, Mapping[str, Replies]] = MappingProxyType({d: _parrots(d) for d in _SAID})
"""By domain and name."""

MARKED: Mapping[str, Replies] = MappingProxyType(
    {
        f"{marks} {'last' if last else 'first'}": partial(_marked, marks=marks, last=last)
        for marks in map("".join, permutations("#+x"))
        for last in (False, True)
    }
)
"""Of Chess Puzzles, by name."""
