"""Builds the embedded puzzle file from two CSV files with the Lichess columns.

    python -m whale_envs.chess_puzzles.build_data ALL.csv MINI.csv lichess_puzzles.csv

Checks every row with python-chess, drops nothing silently, and writes the rows in order of their
position's hash with the splits of both tiers. The same input gives the same bytes.

Not covered: selecting the 480 puzzles of the mini tier (40 from each 200-point rating band, seed
20260), which is part of the input.
"""

import csv
import sys
from pathlib import Path

from whale_envs.chess_puzzles.examples import SIZES, assign_splits, make_puzzle, position_key, split_key
from whale_envs.errors import DataError

COLUMNS = ["PuzzleId", "FEN", "Moves", "Rating", "Themes", "GameUrl"]


def build(all_csv: Path, mini_csv: Path, out: Path) -> int:
    """Writes `out` and returns the number of puzzles.

    Raises:
        DataError: a row is wrong, or mini is no subset.
    """
    rows = {row["PuzzleId"]: row for row in _read(all_csv)}
    puzzles = {name: make_puzzle(row) for name, row in rows.items()}
    keys = {name: position_key(puzzle) for name, puzzle in puzzles.items()}
    mini_names = {row["PuzzleId"] for row in _read(mini_csv)}
    if missing := mini_names - rows.keys():
        raise DataError(f"mini puzzles that are not among all puzzles: {sorted(missing)}")
    mini = assign_splits((keys[name] for name in mini_names), SIZES["mini"])
    small = assign_splits(keys.values(), SIZES["small"], fixed=mini)
    with out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*COLUMNS, "MiniSplit", "SmallSplit"])
        for name in sorted(rows, key=lambda name: (split_key(keys[name]), name)):
            in_mini = mini[keys[name]] if name in mini_names else ""
            moves = " ".join((puzzles[name].trigger, *puzzles[name].gold))  # as plain UCI
            row = {**rows[name], "Moves": moves}
            writer.writerow([*(row[c] for c in COLUMNS), in_mini, small[keys[name]]])
    return len(rows)


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    count = build(*(Path(a) for a in sys.argv[1:4]))
    sys.stdout.write(f"{count} puzzles written to {sys.argv[3]}\n")
