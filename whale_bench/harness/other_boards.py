"""Whether what a chess harness points to follows from the board, which it is not to play from.

    finding = await other_boards(harness, puzzles)       # None where it does not

A harness may show, order and group legal moves by how the observation writes them: by marks, by the letter of
the piece that moves, by their place in the list, or at random by `view.seed`. Here observations are shown to
it again, changed (`boards.py`) so that such a harness points to the same moves, in the same order:

- the opponent's pieces stand on each other's squares, in FEN and diagram, and the list of legal moves is the
  same. The same moves have to be mentioned in messages and nudges, on the first turn, after a reply without a
  move, and after the solution's first move; and a reply with one move, or with two in either order, has to be
  read as the same move;
- one legal move is written as another that has the same place in the list: the rest have to be mentioned as
  before. It is heard where that differs for two moves.

One that evaluates a position, searches it, or looks it up in a table, by whatever spelling, follows the
change. No model plays; it takes some hundred hook calls for each puzzle.

Not covered: later positions; a harness that knows such changed positions from real ones; one that goes by
what stays the same: the moves' own names, the moving side's pieces, which squares are empty (the parrots hear
it if that tells enough); hints in words. Not fair to: a harness that draws by the text of the observation
where `view.seed` would do, or groups captures by what they take; the finding says what to do instead.
"""

import asyncio
import contextlib
import copy
import itertools
from collections.abc import AsyncGenerator, Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from whale_bench.harness.base import Act, Ask, Nudge, Reply, Turn, View
from whale_bench.harness.boards import names_of, pieces_moved, placement, renamings
from whale_bench.harness.dry_run import line_of
from whale_bench.harness.findings import Finding
from whale_bench.harness.parrots import choice, mentioned, shown
from whale_envs import RolloutError, make_env
from whale_envs.seeding import derive_rng, derive_seed

if TYPE_CHECKING:
    from whale_bench.harness.host import HarnessHost, HostDecision

FEWEST = 2
"""Puzzles on which it has to show; a table of fewer is worth nothing."""

_BOARDS = 2
"""Changed boards of each position."""
_READ = 12
"""Replies that are read for each puzzle, each with a legal move; first those that take or give check."""
_PAIRS = 4
"""Pairs of those that are read, in both orders."""
_RENAMED = 2
"""Moves that are written as others, one at a time."""
_POINTING = ("told", "starred", "rated")
"""Parrots whose choice does not follow from which moves are mentioned in which order."""
_NO_MOVE = "I am not sure."
_DOMAIN = "chess_puzzles"
_LATE = "harness_timeout"

_WHY = {
    "board": "goes by the pieces on the board, or knows the position, on {} of {} puzzles: where the "
    "opponent's pieces stand on each other's squares, with the same legal moves, it points to other moves",
    "list": "knows the list of legal moves, on {} of {} puzzles: where one move of the list is written as "
    "another, it points to other moves among the rest",
}
_INSTEAD = (
    "; a harness does not play (group moves by what their names say, and draw by view.seed, not by the text)"
)


async def other_boards(harness: "HarnessHost", puzzles: Sequence[Any], *, seed: int = 0) -> Finding | None:
    """What follows the board; harness code's failures are compared like its answers, but for its being late.

    Args:
        harness: open.
        puzzles: whose positions are shown to it, in any number.
        seed: of the changes and of the replies.
    """
    told = await asyncio.gather(*(_differs(harness, puzzle, seed) for puzzle in puzzles))
    for kind, why in _WHY.items():
        hooks = [one.hook for one in told if one is not None and one.kind == kind]
        if len(hooks) >= FEWEST:
            place = f"{harness.name}:{line_of(harness.source, hooks[0])}"
            why = why.format(len(hooks), len(puzzles))
            return Finding(_DOMAIN, f"{place}: {hooks[0]} {why}{_INSTEAD}")
    return None


class _Told(NamedTuple):
    hook: str
    kind: str


class _Scene(NamedTuple):
    """A puzzle's first position and what is said and shown in it."""

    view: View
    replies: Sequence[str]
    """That are read there, one at a time."""
    after: Sequence[tuple[str, str, str, str]]
    """Reply, observation, feedback and event of a first turn that messages are asked after."""


class _Points(NamedTuple):
    """What one answer points to."""

    kind: str
    """Name of its type, or the reason of a failure."""
    moves: tuple[str, ...] = ()
    """That it names, in order; of an action, its text."""
    choices: tuple[str, ...] = ()
    """Of the parrots in `_POINTING`."""


async def _differs(harness: "HarnessHost", puzzle: Any, seed: int) -> _Told | None:
    """The hook that answers otherwise on a changed observation, and what was changed."""
    rng = derive_rng("other boards", seed, puzzle.id)
    scene = await _scene(puzzle, seed, rng)
    before = [one async for one in _transcript(harness, scene)]
    for _ in range(_BOARDS):
        changed = _transcript(harness, _on_other_board(scene, rng.randrange(2**32)))
        async with contextlib.aclosing(changed):
            for hook, points in before:
                if not _alike(points, (await anext(changed))[1]):
                    return _Told(hook, "board")
    listed = await _list_differs(harness, scene.view, before[0][1], rng)
    return _Told("messages", "list") if listed else None


async def _scene(puzzle: Any, seed: int, rng: Random) -> _Scene:
    env = make_env(_DOMAIN, examples=[puzzle])
    opening, _ = env.reset(options={"example_id": puzzle.id})
    number = derive_seed("other boards", seed, puzzle.id)
    view = View(_DOMAIN, opening, opening, max_turns=env.max_turns, seed=number)
    after = []
    for action in (_NO_MOVE, puzzle.gold[0]):
        observation, _, terminated, truncated, info = await env.astep(action)
        if not (terminated or truncated):
            after.append((_playing(action), observation, info["feedback"], info["event"]))
    legal = list(names_of(opening).items())
    forcing = sorted(rng.sample(legal, len(legal)), key=lambda move: not set("#+x") & set(move[0]))
    return _Scene(view, list(_replies([uci for _, uci in forcing])), after)


def _replies(moves: Sequence[str]) -> Iterator[str]:
    yield from map(_playing, moves[:_READ])
    for one, other in itertools.islice(itertools.pairwise(moves), _PAIRS):
        yield from (f"<move>{a}</move> or <move>{b}</move>" for a, b in ((one, other), (other, one)))


def _playing(move: str) -> str:
    return move if move == _NO_MOVE else f"I play {move}: <move>{move}</move>"


def _on_other_board(scene: _Scene, number: int) -> _Scene:
    """The scene where the opponent's pieces have changed squares, in each position in one way."""

    def moved(text: str) -> str:
        return pieces_moved(text, derive_rng("board", number, placement(text)))

    opening = moved(scene.view.opening)
    return scene._replace(
        view=msgspec.structs.replace(scene.view, opening=opening, observation=opening),
        after=[(said, moved(text), feedback, event) for said, text, feedback, event in scene.after],
    )


async def _transcript(harness: "HarnessHost", scene: _Scene) -> AsyncGenerator[tuple[str, _Points], None]:
    """Hook and what it points to, of every call of a scene."""
    view = scene.view
    asked, state = await _call(harness, view, {})
    yield "messages", _points(asked, view)
    for said in scene.replies:
        decision, _ = await _call(harness, view, state, Reply(said))
        yield "read", _points(decision, view)
    for said, observation, feedback, event in scene.after:
        decision, kept = await _call(harness, view, state, Reply(said))
        yield "read", _points(decision, view)
        if isinstance(decision, Nudge):
            turn = Turn(Reply(said), None, decision.message, decision.message, "nudge")
            later = msgspec.structs.replace(view, turns=(turn,))
        else:
            action = decision.action if isinstance(decision, Act) else said
            turn = Turn(Reply(said), action, observation, feedback, event)
            later = msgspec.structs.replace(view, observation=observation, turns=(turn,))
        asked, _ = await _call(harness, later, kept)
        yield "messages", _points(asked, later)


async def _list_differs(harness: "HarnessHost", view: View, before: _Points, rng: Random) -> bool:
    """Whether two moves, each written as another, change to which of the rest is pointed."""
    changes = list(itertools.islice(renamings(view.opening, rng), _RENAMED))
    for opening, *both in changes:
        other = msgspec.structs.replace(view, opening=opening, observation=opening)
        after = _points((await _call(harness, other, {}))[0], other)
        rest = [
            points._replace(moves=tuple(move for move in points.moves if move not in both), choices=())
            for points in (before, after)
        ]
        same_choices = all(
            one == two or one in both or two in both
            for one, two in zip(before.choices, after.choices, strict=False)
        )
        if _alike(*rest) and (same_choices or before.kind != after.kind):
            return False
    return len(changes) == _RENAMED


async def _call(
    harness: "HarnessHost", view: View, state: dict[str, Any], reply: Reply | None = None
) -> "tuple[HostDecision | str, dict[str, Any]]":
    """An answer and the state; the reason of a failure."""
    try:
        return await harness.call(msgspec.structs.replace(view, state=copy.deepcopy(state)), reply)
    except RolloutError as error:
        return error.reason, {}


def _points(decision: "HostDecision | str", view: View) -> _Points:
    """What an answer is, the moves that it names, in order or as an action, and what parrots make of it."""
    match decision:
        case Act():
            return _Points("Act", (decision.action,))
        case Ask():
            replies = {turn.reply.text for turn in view.turns}
            texts = [
                str(one["content"])
                for one in decision.messages
                if one["role"] != "assistant" or one["content"] not in replies
            ]
        case Nudge():
            texts = [decision.message]
        case _:
            return _Points(decision if isinstance(decision, str) else "Stop")
    names = names_of(view.observation)
    legal = set(names.values())
    if placement(view.opening) != placement(view.observation):
        # A piece of the first position, as in "Nf6", may be called like a move of the second.
        names = {}
    text = shown("\n".join(texts))
    for board in (view.opening, view.observation):
        text = text.replace(placement(board) or "\n", "\n")
    moves = tuple(move for word in mentioned(text, names) for move in (word, f"{word}q") if move in legal)
    pointed = tuple(choice([text], _DOMAIN, parrot, view.seed) for parrot in _POINTING)
    return _Points(type(decision).__name__, moves, pointed)


def _alike(one: _Points, other: _Points) -> bool:
    """Whether two answers point to the same; being late is the machine's, where only one is."""
    return one == other or (one.kind == _LATE) != (other.kind == _LATE)
