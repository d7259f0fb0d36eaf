"""The `full` tier: puzzles of the Lichess database from the Hugging Face hub.

    load_full("test")             # scans the hub once, then reads the user's cache

The published rule (reference §4.3), made reproducible: rows are read in file order at a pinned
revision; each is checked move by move; lines of more than `MOST_PLIES` plies, repeated positions
and positions of the embedded tiers are left out; the seeded hash of the position decides the split,
in proportion to the sizes, and a split that is full takes no more. Test and dev are 256 each of the
test pool of 1,024, the lowest hashes first. Where the columns are there, rows that Lichess itself
holds doubtful (`trusted`) are left out, which the published rule did not do.

The database changes every month: the revision, not the name, says which puzzles these are.

Not covered: resuming a scan that was broken off; it starts anew.
"""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from whale_envs.chess_puzzles.examples import (
    SIZES,
    ChessPuzzle,
    as_number,
    embedded_puzzle,
    embedded_rows,
    make_puzzle,
    position_key,
    split_key,
)
from whale_envs.errors import DataError
from whale_envs.hub import show_progress, stream_rows
from whale_envs.paths import cache_dir, make_cached_folder, write_cached

HUB_ID = "Lichess/chess-puzzles"
REVISION = "479ea9bc9f681385f5adb23fa27a96c2dc8ae599"
MOST_PLIES = 9
"""Longest line, from the solver's first move, that the published set holds."""
SCAN_LIMIT = 2_000_000
"""Rows read at most before giving up on filling the splits."""
POOL = {"weight": 16_384, "harness": 256, "test": 1_024}
"""Published bucket sizes; dev comes out of the test pool."""

_COLUMNS = ["PuzzleId", "FEN", "Moves", "Rating", "Themes", "Split"]
_BITS = 2**64


def load_full(split: str) -> list[ChessPuzzle]:
    """The puzzles of a split of the full tier, from the cache or else from the hub.

    Args:
        split: one of `SPLITS`.

    Raises:
        UsageError: the extra is not installed, or the cache cannot be written to.
        InfrastructureError: the hub cannot be reached.
        DataError: the hub's rows are not what they should be.
    """
    path = cache_dir() / "chess_puzzles" / f"full-{REVISION[:12]}.csv"
    if not path.is_file():
        make_cached_folder(path.parent)
        save(choose(hub_rows(), progress=show_progress), path)
    with path.open(encoding="utf-8", newline="") as file:
        return [embedded_puzzle(row) for row in csv.DictReader(file) if row["Split"] == split]


def hub_rows(source: str = HUB_ID, **options: Any) -> Iterator[Mapping[str, Any]]:
    """Rows of the dataset in file order, streamed.

    Args:
        source: the dataset's id on the hub, or a format that `datasets` reads, such as "parquet".
        options: for `datasets.load_dataset`, such as data_files for a local file.

    Raises:
        UsageError, InfrastructureError, DataError: see `whale_envs.hub.stream_rows`.
    """
    if source == HUB_ID:
        options = {"revision": REVISION, **options}
    return stream_rows(source, needed=[{"FEN"}, {"Moves"}], **options)


def trusted(row: Mapping[str, Any]) -> bool:
    """Whether Lichess's own columns, as far as they are there, speak for the puzzle."""
    deviation, popularity, plays = (
        as_number(row.get(name)) for name in ("RatingDeviation", "Popularity", "NbPlays")
    )
    return (
        (deviation is None or deviation <= 90)
        and (popularity is None or popularity >= 80)
        and (plays is None or plays >= 300)
    )


def choose(
    rows: Iterable[Mapping[str, Any]],
    *,
    pool: Mapping[str, int] = POOL,
    held_out: int = SIZES["full"]["test"],
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, list[ChessPuzzle]]:
    """Puzzles by split, chosen by the rule in the module's docstring.

    Rows that are no puzzle (an impossible position, an illegal move) are left out: the database has
    had some. More than one in twenty is an error, for then the columns are not what they seem.

    Args:
        rows: rows with the Lichess columns, in file order.
        pool: bucket sizes.
        held_out: sizes of test and of dev, both from the pool's "test".
        progress: called now and then with (puzzles chosen, puzzles wanted).

    Raises:
        DataError: too many bad rows, or too few good ones.
    """
    seen = set(_embedded_positions())
    chosen: dict[str, list[tuple[str, ChessPuzzle]]] = {name: [] for name in pool}
    wanted, bad, scanned = sum(pool.values()), 0, 0
    for scanned, row in enumerate(rows, start=1):
        if scanned > SCAN_LIMIT or sum(map(len, chosen.values())) == wanted:
            break
        if not trusted(row):
            continue
        try:
            puzzle = make_puzzle(row)
        except DataError:
            bad += 1
            if bad > max(20, scanned // 20):
                raise DataError(
                    f"{bad} of the first {scanned} rows are no puzzles; is this the right file?"
                ) from None
            continue
        key = position_key(puzzle)
        if key in seen or len(puzzle.gold) > MOST_PLIES:
            continue
        seen.add(key)
        rank = split_key(key)
        bucket = _bucket(rank, pool, {name: len(held) for name, held in chosen.items()})
        chosen[bucket].append((rank, puzzle))
        if progress is not None and scanned % 500 == 0:
            progress(sum(map(len, chosen.values())), wanted)
    short = {name: len(held) for name, held in chosen.items() if len(held) < pool[name]}
    if short:
        raise DataError(f"{scanned} rows gave too few puzzles: {short}, wanted {dict(pool)}")
    by_hash = [puzzle for _, puzzle in sorted(chosen["test"], key=lambda pair: pair[0])]
    return {
        "weight": [puzzle for _, puzzle in chosen["weight"]],
        "harness": [puzzle for _, puzzle in chosen["harness"]],
        "dev": by_hash[held_out : 2 * held_out],
        "test": by_hash[:held_out],
    }


@lru_cache(maxsize=1)
def _embedded_positions() -> frozenset[str]:
    return frozenset(position_key(embedded_puzzle(row)) for row in embedded_rows())


def _bucket(rank: str, pool: Mapping[str, int], held: Mapping[str, int]) -> str:
    """The bucket a hash falls into, in proportion to the sizes; the next with room if it is full."""
    names = list(pool)
    point = int(rank[:16], 16) * sum(pool.values()) // _BITS
    index = 0
    while point >= pool[names[index]]:
        point -= pool[names[index]]
        index += 1
    order = names[index:] + names[:index]
    return next(name for name in order if held[name] < pool[name])


def save(chosen: Mapping[str, Iterable[ChessPuzzle]], path: Path) -> None:
    """Writes the chosen puzzles to the cache, whole or not at all; raises UsageError where it cannot."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for split, puzzles in chosen.items():
        for puzzle in puzzles:
            moves = " ".join((puzzle.trigger, *puzzle.gold))
            rating = "" if puzzle.rating is None else puzzle.rating
            themes = " ".join(value for name, value in puzzle.groups if name == "theme")
            writer.writerow([puzzle.source, puzzle.fen, moves, rating, themes, split])
    write_cached(path, text.getvalue().encode())
