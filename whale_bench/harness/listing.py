"""Models that name several answers and prefer none: what a harness makes of their replies is its own choice.

    listed = choices(puzzle, puzzles, "many")           # every legal move of the puzzle, one of them right
    ScriptedModel(lister(listed))                       # says them all, in an order drawn by seed

With "many" a reply names every legal move (Chess Puzzles) or up to eight answers, with "two" the right one
and a wrong one, which is always the same of an example. No order says which is right: whoever takes the
first, the last, or votes over several replies, is right for `listed.chance` of them on average. A harness
that is right more often looked at the answers.

An answer is said in every form that a harness is likely to read; in Chess Puzzles also in the tags and under
the keys that stand in the context. Wrong answers look like right ones: another number of about the same size,
the answer to another question.

Not covered: harnesses that recognise these replies; answers without digits in Math, which are left out.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from whale_bench.harness.parrots import Replies
from whale_bench.models.base import Request
from whale_envs.core import Example
from whale_envs.seeding import derive_rng

LISTS = ("two", "many")
"""How many answers a reply names, by name of the parrot."""

_MOST = 8
"""Answers named in "many", where they are not legal moves."""

_FORMS = "Final answer: {0}\n[{0}]\n\\boxed{{{0}}}\n<move>{0}</move>\n<answer>{0}</answer>"
_NUMBER = re.compile(r"\d+")
_TAG = re.compile(r"<([A-Za-z_]\w{0,20})>")
_KEY = re.compile(r'"([A-Za-z_]\w{0,20})"\s*:')


class Listed(NamedTuple):
    """Answers to one example."""

    texts: tuple[str, ...]
    """Those that are right come first; empty where none could be made."""
    right: int

    @property
    def chance(self) -> float:
        """Of being right, for whoever does not look at the answers."""
        return self.right / max(len(self.texts), 1)


def choices(example: Example, examples: Sequence[Any], which: str) -> Listed:
    """What the parrot `which` of `LISTS` names for one of these examples; a pure function."""
    count = 2 if which == "two" else _MOST
    rng = derive_rng("listing", 0, example.id, which)
    gold: Any = example.gold
    if hasattr(example, "fen"):
        return _moves(example, None if which == "many" else rng)
    if isinstance(gold, str):
        found = {gold: None} | {_like(gold, rng): None for _ in range(4 * count)}
    else:
        known = {form.casefold() for form in gold}
        others = [e.gold[0] for e in examples if not known & {form.casefold() for form in e.gold}]
        rng.shuffle(others)
        found = dict.fromkeys([gold[0], *others])
    texts = tuple(found)[:count]
    return Listed(texts, 1) if len(texts) > 1 else Listed((), 0)


def lister(listed: Listed, domain: str) -> Replies:
    """A model that says all of these answers."""

    def reply(request: Request) -> str:
        if not listed.texts:
            return "I do not know."
        order = list(listed.texts)
        derive_rng("listing", request.seed).shuffle(order)
        asked = _asked_for(request, order) if domain == "chess_puzzles" else []
        return "\n".join([*asked, *(_FORMS.format(text) for text in order)])

    return reply


def _moves(puzzle: Any, rng: Any) -> Listed:
    """Every legal first move, or, with `rng`, the solution's and one that is wrong."""
    import chess

    from whale_envs.chess_puzzles.notation import legal_moves

    board = chess.Board(puzzle.fen)
    board.push_uci(puzzle.trigger)
    legal = legal_moves(board)
    right = [uci for uci, san in legal if uci == puzzle.gold[0] or san.endswith("#")]
    wrong = [uci for uci, _ in legal if uci not in right]
    if not wrong:
        return Listed((), 0)
    if rng is not None:
        return Listed((puzzle.gold[0], rng.choice(wrong)), 1)
    return Listed((*right, *wrong), len(right))


def _like(gold: str, rng: Any) -> str:
    """The answer with another number for one of its numbers; the answer itself where it has none."""
    numbers = list(_NUMBER.finditer(gold))
    if not numbers:
        return gold
    at = rng.choice(numbers)
    old = int(at[0])
    new = abs(old + rng.choice((-1, 1)) * rng.randint(1, max(3, old // 4)))
    return f"{gold[: at.start()]}{new}{gold[at.end() :]}"


def _asked_for(request: Request, order: Sequence[str]) -> list[str]:
    """All of them in every tag and under every key that stands in the context."""
    shown = "\n".join(message.content for message in request.messages if message.role != "assistant")
    tags = dict.fromkeys(tag for tag in _TAG.findall(shown) if tag not in ("move", "answer"))
    return [
        *(f"<{tag}>{', '.join(order)}</{tag}>" for tag in tags),
        *(json.dumps({key: list(order)}) for key in dict.fromkeys(_KEY.findall(shown))),
    ]
