"""The puzzles: embedded tiers `mini` and `small`, and `full` from the Hugging Face hub.

    load_examples("mini", "test")          # 96 puzzles, no network

A row of the Lichess file gives the position before the opponent's move; the first listed move is
that move, and the rest is the solution, the opponent's replies included. All three tiers are split
by `split_key`, a seeded hash of the position that the solver sees, so that no position stands in
two splits, whatever its id (four positions of small have two puzzles each). Mini is a subset of
small and keeps its splits there; full leaves out every position that is embedded. One puzzle of
small/weight needs ten moves and so cannot be solved within the default nine turns.

    tier    weight  harness  dev  test   source
    mini       256       64   64    96   480 puzzles, 40 from each of 12 rating bands
    small    5,837      256  256   256   6,605 puzzles
    full    16,384      256  256   256   Lichess/chess-puzzles at a pinned revision

Not covered: training on more than these rows; other puzzle databases.
"""

import csv
import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import Any

import chess

from whale_envs.core import SPLITS, Example, ExampleSet, content_id
from whale_envs.errors import DataError, UnknownNameError

DOMAIN = "chess_puzzles"
SPLIT_SEED = 42
"""The published seed of the split (reference §4.3)."""

SIZES: Mapping[str, Mapping[str, int]] = {
    "mini": {"weight": 256, "harness": 64, "dev": 64, "test": 96},
    "small": {"weight": 5_837, "harness": 256, "dev": 256, "test": 256},
    "full": {"weight": 16_384, "harness": 256, "dev": 256, "test": 256},
}
"""Examples by tier and split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChessPuzzle(Example):
    """One puzzle. `gold` is the solution as UCI moves, the solver's first, replies in between."""

    fen: str
    """The position before the opponent's move."""
    trigger: str
    """The opponent's move, UCI; applied before the first observation."""
    rating: int | None = None
    """Lichess rating (Glicko-2 points)."""
    gold: tuple[str, ...] = field(repr=False)


def make_puzzle(row: Mapping[str, Any]) -> ChessPuzzle:
    """A puzzle from a row with the Lichess columns; all but FEN and Moves are optional.

    Moves are brought to plain UCI (castling given as king-takes-rook becomes the king's move).

    Raises:
        DataError: the position is impossible, a move is illegal, or there is nothing to solve.
    """
    name = _text(row.get("PuzzleId")) or "?"
    fen, words = row.get("FEN"), _words(row.get("Moves"))
    if not isinstance(fen, str) or len(words) < 2:
        raise DataError(
            f"puzzle {name}: needs a FEN and at least two moves, got {fen!r:.200} and {words!r:.200}"
        )
    try:
        board = chess.Board(fen)
        if not board.is_valid():
            raise ValueError(f"impossible position {fen!r}")
        moves = []
        for word in words:
            move = board.parse_uci(word)
            if not move:
                raise ValueError(f"null move {word!r}")
            moves.append(move.uci())
            board.push(move)
    except ValueError as error:
        raise DataError(f"puzzle {name}: {error}") from error
    return _puzzle(row, fen, tuple(moves))


def _puzzle(row: Mapping[str, Any], fen: str, moves: tuple[str, ...]) -> ChessPuzzle:
    rating = as_number(row.get("Rating"))
    groups = [("solver_moves", str(len(moves) // 2))]
    if rating is not None:
        low = int(rating) // 200 * 200
        groups.append(("rating_band", f"{low}-{low + 199}"))
    groups += [("theme", theme) for theme in _words(row.get("Themes"))]
    return ChessPuzzle(
        id=content_id(DOMAIN, fen, *moves),
        fen=fen,
        trigger=moves[0],
        rating=None if rating is None else int(rating),
        groups=tuple(groups),
        gold=moves[1:],
        source=_text(row.get("PuzzleId")),
    )


def _text(value: Any) -> str:
    """A cell's text; whatever stands where one is missing (None, NaN) is empty."""
    return value if isinstance(value, str) else ""


def _words(value: Any) -> list[str]:
    """The words of a cell that is one string or a list of strings; none where it is missing."""
    if isinstance(value, str):
        return value.split()
    try:
        return [word for word in value if isinstance(word, str)]
    except TypeError:
        return []


def as_number(value: Any) -> float | None:
    """A finite number, or None for whatever stands where one is missing."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def position_key(puzzle: ChessPuzzle) -> str:
    """Piece placement and side to move where the solver begins: what makes two puzzles the same."""
    board = chess.Board(puzzle.fen)
    board.push_uci(puzzle.trigger)
    return f"{board.board_fen()} {'w' if board.turn else 'b'}"


def split_key(position: str) -> str:
    """The seeded hash by which positions are ranked into splits."""
    return hashlib.sha256(f"{SPLIT_SEED}:{position}".encode()).hexdigest()


def assign_splits(
    positions: Iterable[str], sizes: Mapping[str, int], fixed: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Gives each position a split: in order of hash, the first of test, dev, harness with room.

    Puzzles that share a position share its split.

    Args:
        positions: a position key for each puzzle; their order does not matter.
        sizes: puzzles by split; must add up to the number of puzzles.
        fixed: positions whose split is already decided.

    Raises:
        DataError: the sizes do not add up.
    """
    puzzles = Counter(positions)
    splits = dict(fixed or {})
    room = {split: sizes[split] for split in ("test", "dev", "harness", "weight")}
    for position, split in splits.items():
        room[split] -= puzzles[position]
    for position in sorted(puzzles.keys() - splits.keys(), key=split_key):
        split = next((s for s in room if room[s] >= puzzles[position]), "weight")
        splits[position] = split
        room[split] -= puzzles[position]
    if any(room.values()):
        raise DataError(f"split sizes {dict(sizes)} do not fit {puzzles.total()} puzzles; left over: {room}")
    return splits


@lru_cache(maxsize=16)
def load_examples(tier: str, split: str) -> ExampleSet[ChessPuzzle]:
    """The puzzles of a tier's split, in fixed order.

    Raises:
        UnknownNameError: no such tier or split.
        DataError, InfrastructureError: the full tier cannot be had (see `hub.py`).
    """
    if tier not in SIZES:
        raise UnknownNameError("tier of chess_puzzles", tier, SIZES)
    if split not in SPLITS:
        raise UnknownNameError("split", split, SPLITS)
    if tier == "full":
        from whale_envs.chess_puzzles.hub import load_full

        puzzles: Sequence[ChessPuzzle] = load_full(split)
    else:
        column = "MiniSplit" if tier == "mini" else "SmallSplit"
        puzzles = [embedded_puzzle(row) for row in embedded_rows() if row[column] == split]
    if len(puzzles) != SIZES[tier][split]:
        raise DataError(
            f"{DOMAIN}/{tier}/{split} holds {len(puzzles)} puzzles, not the documented {SIZES[tier][split]}"
        )
    return ExampleSet(puzzles, name=f"{DOMAIN}/{tier}/{split}")


def embedded_rows() -> Iterator[dict[str, str]]:
    """The rows of the embedded file, with the columns MiniSplit and SmallSplit added."""
    text = (files("whale_envs") / "data" / DOMAIN / "lichess_puzzles.csv").read_text(encoding="utf-8")
    return csv.DictReader(text.splitlines())


def embedded_puzzle(row: Mapping[str, str]) -> ChessPuzzle:
    """A puzzle of the embedded file, whose rows were checked when it was built."""
    return _puzzle(row, row["FEN"], tuple(row["Moves"].split()))
