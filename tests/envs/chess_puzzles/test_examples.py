"""The embedded puzzles: true, split by rule, stable; and what is refused as a puzzle."""

import csv
import hashlib
from collections import Counter
from functools import cache
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

import chess
import pytest

from whale_envs import SPLITS, DataError, load_examples, make_env
from whale_envs.chess_puzzles import SIZES, ChessPuzzle, make_puzzle
from whale_envs.chess_puzzles.build_data import COLUMNS, build
from whale_envs.chess_puzzles.examples import (
    assign_splits,
    embedded_puzzle,
    embedded_rows,
    position_key,
    split_key,
)

from .positions import BACK_RANK

FILE = files("whale_envs") / "data" / "chess_puzzles" / "lichess_puzzles.csv"
TIERS = ("mini", "small")


@cache
def rows() -> tuple[dict[str, str], ...]:
    return tuple(embedded_rows())


@cache
def positions() -> dict[str, str]:
    """Position key by puzzle name."""
    return {row["PuzzleId"]: position_key(embedded_puzzle(row)) for row in rows()}


def everything(tier: str) -> list[ChessPuzzle]:
    return [puzzle for split in SPLITS for puzzle in load_examples("chess_puzzles", tier, split)]


# --- the file ------------------------------------------------------------------------------------


def test_the_file_is_the_one_that_was_reviewed() -> None:
    digest = hashlib.sha256(FILE.read_bytes()).hexdigest()
    assert digest == "8f1c2bf2d98a88411d93824c4fb0ac7bd8156d6095696150f4835c89591c897e"


def test_every_row_is_a_legal_puzzle_and_is_loaded_as_checked() -> None:
    assert len(rows()) == 6_605
    for row in rows():
        assert make_puzzle(row) == embedded_puzzle(row)


def test_every_line_ends_with_the_solvers_move() -> None:
    assert all(len(puzzle.gold) % 2 == 1 for puzzle in everything("small"))


def test_the_builder_gives_the_same_bytes_from_the_rows_in_any_order(tmp_path: Path) -> None:
    shuffled = list(rows())
    Random(0).shuffle(shuffled)
    mini = [row for row in shuffled if row["MiniSplit"]]
    for name, held in (("all.csv", shuffled), ("mini.csv", mini)):
        with (tmp_path / name).open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(held)
    assert build(tmp_path / "all.csv", tmp_path / "mini.csv", tmp_path / "out.csv") == 6_605
    assert (tmp_path / "out.csv").read_bytes() == FILE.read_bytes()


def test_the_builder_refuses_a_mini_tier_from_elsewhere(tmp_path: Path) -> None:
    for name, held in (("all.csv", rows()[:2]), ("mini.csv", rows()[2:3])):
        with (tmp_path / name).open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(held)
    with pytest.raises(
        DataError, match=f"mini puzzles that are not among all puzzles: .*{rows()[2]['PuzzleId']}"
    ):
        build(tmp_path / "all.csv", tmp_path / "mini.csv", tmp_path / "out.csv")


# --- the splits ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("tier", "count"), [("mini", 480), ("small", 6_605)])
def test_the_splits_hold_every_puzzle_of_the_tier_once(tier: str, count: int) -> None:
    ids = Counter(puzzle.id for puzzle in everything(tier))
    assert (len(ids), ids.total()) == (count, count)
    assert {split: len(load_examples("chess_puzzles", tier, split)) for split in SPLITS} == SIZES[tier]


@pytest.mark.parametrize("tier", TIERS)
def test_no_position_stands_in_two_splits(tier: str) -> None:
    where: dict[str, set[str]] = {}
    for split in SPLITS:
        for puzzle in load_examples("chess_puzzles", tier, split):
            where.setdefault(position_key(puzzle), set()).add(split)
    assert all(len(splits) == 1 for splits in where.values())
    assert len(where) == len(everything(tier)) - (4 if tier == "small" else 0), "four positions have twins"


def test_no_game_stands_in_two_splits() -> None:
    games = Counter(row["GameUrl"].split("#")[0].removesuffix("/black") for row in rows())
    assert games.total() == len(games)


def test_mini_puzzles_keep_their_split_in_small() -> None:
    assert all(row["SmallSplit"] == row["MiniSplit"] for row in rows() if row["MiniSplit"])


def test_the_shipped_splits_are_what_the_rule_gives() -> None:
    mini_names = [row["PuzzleId"] for row in rows() if row["MiniSplit"]]
    mini = assign_splits((positions()[name] for name in mini_names), SIZES["mini"])
    small = assign_splits(positions().values(), SIZES["small"], fixed=mini)
    for row in rows():
        key = positions()[row["PuzzleId"]]
        assert row["SmallSplit"] == small[key]
        assert row["MiniSplit"] in ("", mini.get(key))


def test_the_splits_do_not_depend_on_the_order_of_the_rows() -> None:
    keys = [f"position {i}" for i in range(40)]
    sizes = {"weight": 25, "harness": 5, "dev": 4, "test": 6}
    assert assign_splits(keys, sizes) == assign_splits(keys[::-1], sizes)


def test_the_lowest_hashes_are_the_test_split() -> None:
    keys = [f"position {i}" for i in range(40)]
    splits = assign_splits(keys, {"weight": 25, "harness": 5, "dev": 4, "test": 6})
    ranked = [splits[key] for key in sorted(keys, key=split_key)]
    assert ranked == ["test"] * 6 + ["dev"] * 4 + ["harness"] * 5 + ["weight"] * 25


def test_twins_share_a_split_even_where_it_is_nearly_full() -> None:
    keys = [f"twin {i}" for i in range(20)] * 2 + [f"single {i}" for i in range(10)]
    sizes = {"weight": 35, "harness": 7, "dev": 5, "test": 3}
    splits = assign_splits(keys, sizes)
    assert Counter(splits[key] for key in keys) == sizes


def test_sizes_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(DataError, match="do not fit 3 puzzles"):
        assign_splits(["a", "b", "c"], {"weight": 1, "harness": 1, "dev": 1, "test": 1})


# --- ids and groups ------------------------------------------------------------------------------

PINNED = {
    ("mini", "weight"): (
        "chess_puzzles-65709dabf9fa61de",
        "chess_puzzles-d516e7cc267d6eec",
        "dc933b51311a39e4",
    ),
    ("mini", "harness"): (
        "chess_puzzles-155b0452a88193b6",
        "chess_puzzles-714af6e4e416036d",
        "509550060a2e13eb",
    ),
    ("mini", "dev"): ("chess_puzzles-737c04b3c7255357", "chess_puzzles-2b5f461faa9a89f7", "145d57660cee72d5"),
    ("mini", "test"): (
        "chess_puzzles-cd83edef0d76bb8c",
        "chess_puzzles-ea99957b204c08ae",
        "0fb12d626ada0b3d",
    ),
    ("small", "weight"): (
        "chess_puzzles-9f29a76095a765f1",
        "chess_puzzles-7a88e95eed5f8102",
        "33cbed1273eb2447",
    ),
    ("small", "harness"): (
        "chess_puzzles-12cd8adf15fd148f",
        "chess_puzzles-714af6e4e416036d",
        "0830b6d385b52a99",
    ),
    ("small", "dev"): (
        "chess_puzzles-b337cbc92a44943d",
        "chess_puzzles-2b5f461faa9a89f7",
        "addc48fb42f517ea",
    ),
    ("small", "test"): (
        "chess_puzzles-4938ec28cb4744d7",
        "chess_puzzles-ea99957b204c08ae",
        "bea2259aa99fb7e7",
    ),
}
"""First id, last id, and a hash of all ids in order."""


@pytest.mark.parametrize(("tier", "split"), PINNED)
def test_ids_and_order_never_change(tier: str, split: str) -> None:
    ids = load_examples("chess_puzzles", tier, split).ids
    assert (ids[0], ids[-1], hashlib.sha256("\n".join(ids).encode()).hexdigest()[:16]) == PINNED[tier, split]


def test_an_id_follows_the_content_and_not_the_name() -> None:
    assert make_puzzle({**BACK_RANK, "PuzzleId": "x", "Rating": 9}).id == make_puzzle(BACK_RANK).id
    assert make_puzzle({**BACK_RANK, "Moves": "h4h3 a1a8"}).id != make_puzzle(BACK_RANK).id


def test_mini_holds_forty_puzzles_of_each_rating_band() -> None:
    bands = Counter(
        value for puzzle in everything("mini") for name, value in puzzle.groups if name == "rating_band"
    )
    assert bands == {f"{low}-{low + 199}": 40 for low in range(400, 2_800, 200)}


def test_groups_say_how_long_the_line_is_and_what_it_is_about() -> None:
    puzzle = make_puzzle({**BACK_RANK, "Rating": "1399", "Themes": "backRankMate mateIn2"})
    assert puzzle.rating == 1399
    assert puzzle.groups == (
        ("solver_moves", "2"),
        ("rating_band", "1200-1399"),
        ("theme", "backRankMate"),
        ("theme", "mateIn2"),
    )


def test_every_puzzle_has_its_groups() -> None:
    for puzzle in everything("small"):
        groups = dict(puzzle.groups)
        assert groups["solver_moves"] == str((len(puzzle.gold) + 1) // 2)
        assert groups.keys() >= {"rating_band", "theme"}


# --- solving -------------------------------------------------------------------------------------


def test_the_oracle_solves_every_puzzle_under_both_profiles() -> None:
    for split in SPLITS:
        env = make_env("chess_puzzles", tier="small", split=split, max_turns=18)
        for example_id in env.examples.ids:
            env.reset(options={"example_id": example_id})
            while not (step := env.step(env.oracle_action()))[2]:
                assert not step[3]
            verdict = step[4]["verdict"]
            assert (step[1], verdict.standard, verdict.paper) == (1.0, 1.0, 1.0), example_id


def test_one_puzzle_needs_more_than_the_nine_turns_and_it_is_for_training() -> None:
    needs = {
        split: [(len(p.gold) + 1) // 2 for p in load_examples("chess_puzzles", "small", split)]
        for split in SPLITS
    }
    assert {split: sum(n > 9 for n in turns) for split, turns in needs.items()} == {
        "weight": 1,
        "harness": 0,
        "dev": 0,
        "test": 0,
    }


# --- rows ----------------------------------------------------------------------------------------

NAN = float("nan")


@pytest.mark.parametrize(
    "change",
    [
        {"FEN": None},
        {"FEN": NAN},
        {"FEN": ""},
        {"FEN": "nonsense"},
        {"FEN": "8/8/8/8/8/8/8/8 w - - 0 1"},
        {"FEN": BACK_RANK["FEN"].replace(" b ", " w ")},
        {"FEN": 7},
        {"FEN": "6k1/3r1ppp/8/8/7p/8/5PPP/R7 b - - 0 1"},
        {"Moves": None},
        {"Moves": NAN},
        {"Moves": ""},
        {"Moves": "h4h3"},
        {"Moves": 5},
        {"Moves": ["h4h3"]},
        {"Moves": [1, 2, 3]},
        {"Moves": "h4h3 a1a9"},
        {"Moves": "h4h3 a1h8"},
        {"Moves": "a1a8 h4h3"},
        {"Moves": "h4h3 0000"},
        {"Moves": "0000 a1a8"},
        {"Moves": "h4h3 Ra8"},
        {"Moves": "h4h3 a1a8 a8d8"},
        {"Moves": "h4h3 \ud800"},
    ],
    ids=ascii,
)
def test_a_row_that_cannot_be_a_puzzle_is_refused_by_name(change: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="puzzle bad1: "):
        make_puzzle({**BACK_RANK, "PuzzleId": "bad1", **change})


@pytest.mark.parametrize("name", [None, NAN, "", 7])
def test_a_row_without_a_name_is_a_puzzle_without_a_source(name: Any) -> None:
    assert make_puzzle({**BACK_RANK, "PuzzleId": name}).source == ""
    with pytest.raises(DataError, match=r"puzzle \?: "):
        make_puzzle({"PuzzleId": name})


@pytest.mark.parametrize("themes", ["a b", ["a", "b"], ("a", "b"), "  a  b "])
def test_themes_are_read_from_a_string_or_a_list(themes: Any) -> None:
    assert make_puzzle({**BACK_RANK, "Themes": themes}).groups[1:] == (("theme", "a"), ("theme", "b"))


@pytest.mark.parametrize("missing", [None, NAN, "", [], 3])
def test_missing_themes_are_none(missing: Any) -> None:
    assert make_puzzle({**BACK_RANK, "Themes": missing}).groups == (("solver_moves", "2"),)


@pytest.mark.parametrize("missing", [None, NAN, "", "new", float("inf"), 10**400, [], {}])
def test_a_rating_that_is_no_number_is_no_rating(missing: Any) -> None:
    puzzle = make_puzzle({**BACK_RANK, "Rating": missing})
    assert (puzzle.rating, dict(puzzle.groups)) == (None, {"solver_moves": "2"})


@pytest.mark.parametrize(
    "listed", ["h4h3 a1a8 d7d8 a8d8", ["h4h3", "a1a8", "d7d8", "a8d8"], " h4h3  a1a8\td7d8 a8d8\n"]
)
def test_moves_are_read_from_a_string_or_a_list(listed: Any) -> None:
    assert make_puzzle({**BACK_RANK, "Moves": listed}) == make_puzzle(BACK_RANK)


def test_castling_as_king_takes_rook_becomes_the_kings_move() -> None:
    fen = "r3k3/8/8/8/8/8/8/R3K2R b KQq - 0 1"
    for moves in ("e8c8 e1g1", "e8a8 e1h1"):
        puzzle = make_puzzle({"FEN": fen, "Moves": moves})
        assert (puzzle.trigger, puzzle.gold) == ("e8c8", ("e1g1",))


def test_a_position_key_is_placement_and_side_where_the_solver_begins() -> None:
    assert position_key(make_puzzle(BACK_RANK)) == "6k1/3r1ppp/8/8/8/7p/5PPP/R5K1 w"
    assert split_key("x") == hashlib.sha256(b"42:x").hexdigest()


def test_the_puzzles_name_is_never_shown() -> None:
    puzzle = make_puzzle({**BACK_RANK, "PuzzleId": "NAME1"})
    env = make_env("chess_puzzles", examples=[puzzle])
    observation, info = env.reset()
    assert "NAME1" not in f"{observation}{info}{puzzle!r}"
    assert chess.Board(puzzle.fen).is_valid()
