"""Whether what a chess harness points to follows from the board, which it is not to play from.

    finding = await other_boards(harness, puzzles)       # None where it does not

A harness may show, order and group legal moves by how the observation writes them. Here each puzzle's opening
is shown to it again, changed so that no fair harness mentions other moves, or sooner:

- the pieces of both sides are others, in FEN and diagram, and the list of legal moves is the same: the same
  moves have to be mentioned, in the same order, and a reply has to be read as the same move;
- one legal move, neither the first nor the last, is left out: the other moves have to be mentioned as often.

One that evaluates a position, searches it, or looks it up in a table, by whatever spelling, follows the
change.
No model plays; it takes some thirty hook calls for each puzzle.

Not covered: positions after the first move; a harness that knows such changed positions from real ones; one
that goes by the names of the moves alone, which tell little (the parrots hear it if they tell enough).
"""

import asyncio
import copy
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from whale_bench.harness.base import Act, Ask, Reply, View
from whale_bench.harness.blind import first_moves
from whale_bench.harness.dry_run import line_of
from whale_bench.harness.findings import Finding
from whale_bench.harness.parrots import PARROTS, choice, mentioned
from whale_envs import RolloutError, make_env
from whale_envs.seeding import derive_rng, derive_seed

if TYPE_CHECKING:
    from whale_bench.harness.host import HarnessHost

FEWEST = 2
"""Puzzles on which it has to show; a table of fewer is worth nothing."""

_READ = 12
"""Replies that are read for each puzzle, each with a legal move; first those that take or give check."""
_OTHER = str.maketrans("pnrqPNRQ", "nqprQPNR")
"""Bishops stay: a black one looks like a file in the FEN."""
_SHORTER = "messages "
"""The hook, where only the shorter list made a difference."""
_CHANCE = 1 / 16
"""Share of the puzzles on which that may be, for a list may be cut or written without spaces."""
_DOMAIN = "chess_puzzles"


async def other_boards(harness: "HarnessHost", puzzles: Sequence[Any], *, seed: int = 0) -> Finding | None:
    """What follows the board; harness code's failures are compared like its answers.

    Args:
        harness: open.
        puzzles: whose openings are shown to it, in any number.
        seed: of the replies and of the moves that are left out.
    """
    told = await asyncio.gather(*(_differs(harness, puzzle, seed) for puzzle in puzzles))
    found = [hook for hook in told if hook and hook != _SHORTER]
    if len(shorter := [hook for hook in told if hook]) > max(FEWEST, _CHANCE * len(puzzles)):
        found = shorter
    if len(found) < FEWEST:
        return None
    hook = found[0].strip()
    return Finding(
        _DOMAIN,
        f"{harness.name}:{line_of(harness.source, hook)}: {hook} goes by the pieces on the board, or "
        f"knows the position, on {len(found)} of {len(puzzles)} puzzles: shown other pieces, or a move less, "
        "it points to other moves; a harness does not play",
    )


async def _differs(harness: "HarnessHost", puzzle: Any, seed: int) -> str:
    """The hook that answers otherwise on a changed opening; empty where none does."""
    rng = derive_rng("other boards", seed, puzzle.id)
    view = _view(puzzle, seed)
    _, legal = first_moves(puzzle)
    other = _with(view, _other_pieces(view.opening))
    (asked, state), (changed, other_state) = await _asked(harness, view), await _asked(harness, other)
    if _points(asked, view) != _points(changed, other):
        return "messages"
    if len(legal) > 2:
        gone = rng.randrange(1, len(legal) - 1)
        short = _with(view, view.opening.replace("[{}] {}, ".format(*legal[gone]), "", 1))
        left = Counter(mentioned((await _asked(harness, short))[0]))
        whole = Counter(mentioned(asked))
        names = {uci for uci, _ in legal} - {legal[gone][0]}
        if any(left[uci] != whole[uci] for uci in names):
            return _SHORTER
    drawn = sorted(rng.sample(legal, len(legal)), key=lambda move: not set("#+x") & set(move[1]))
    for uci, _ in drawn[:_READ]:
        if await _read(harness, view, state, uci) != await _read(harness, other, other_state, uci):
            return "read"
    return ""


def _view(puzzle: Any, seed: int) -> View:
    env = make_env(_DOMAIN, examples=[puzzle])
    opening, _ = env.reset(options={"example_id": puzzle.id})
    return View(
        _DOMAIN, opening, opening, max_turns=env.max_turns, seed=derive_seed("other boards", seed, puzzle.id)
    )


def _with(view: View, opening: str, state: dict[str, Any] | None = None) -> View:
    return View(
        view.domain,
        opening,
        opening,
        max_turns=view.max_turns,
        seed=view.seed,
        state=copy.deepcopy(state or {}),
    )


def _other_pieces(opening: str) -> str:
    """The opening with other pieces, in the FEN and below it."""
    head, fen, rest = opening.partition("FEN: ")
    place, space, rest = rest.partition(" ")
    fields, newline, rest = rest.partition("\n")
    rows, files, rest = rest.partition("\n  a b c")
    shown = f"{head}{fen}{place.translate(_OTHER)}{space}{fields}{newline}{rows.translate(_OTHER)}"
    return f"{shown}{files}{rest}"


async def _asked(harness: "HarnessHost", view: View) -> tuple[list[str], dict[str, Any]]:
    """The messages of the first turn, but the model's own, and the state; what it fails with, if it does."""
    try:
        decision, state = await harness.call(_with(view, view.opening))
    except RolloutError as error:
        return [error.reason], {}
    if not isinstance(decision, Ask):
        return [type(decision).__name__], state
    return [str(one["content"]) for one in decision.messages if one["role"] != "assistant"], state


def _points(texts: Sequence[str], view: View) -> tuple[list[str], list[str]]:
    """The moves that are mentioned, in order, and what each parrot makes of them."""
    place = re.escape(view.opening.partition("FEN: ")[2].partition(" ")[0])
    plain = [re.sub(place, "", text) for text in texts]
    return mentioned(plain), [choice(plain, _DOMAIN, parrot, view.seed) for parrot in PARROTS[_DOMAIN]]


async def _read(harness: "HarnessHost", view: View, state: dict[str, Any], uci: str) -> tuple[str, str]:
    """What a reply with one move is read as."""
    reply = Reply(f"I play {uci}: <move>{uci}</move>")
    try:
        decision, _ = await harness.call(_with(view, view.opening, state), reply)
    except RolloutError as error:
        return error.reason, ""
    return type(decision).__name__, decision.action if isinstance(decision, Act) else ""
