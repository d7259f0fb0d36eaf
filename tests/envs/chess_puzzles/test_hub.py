"""The full tier: the real loading code of `datasets`, on local files with the hub's columns and defects."""

import csv
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import chess
import pytest

from whale_envs import DataError, InfrastructureError, UsageError, load_examples
from whale_envs.chess_puzzles import SIZES, examples, hub, make_puzzle
from whale_envs.chess_puzzles.examples import embedded_rows, position_key, split_key

POOL = {"weight": 24, "harness": 6, "test": 12}
choose_few = partial(hub.choose, pool=POOL, held_out=4)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*(fork|utcnow).*:DeprecationWarning"),
    pytest.mark.usefixtures("no_network_and_no_home"),
]


@cache
def made_up(count: int, *, plies: int = 4) -> tuple[dict[str, Any], ...]:
    """Legal lines from random games, as rows with all of the hub's columns."""
    rows = []
    for number in range(count):
        rng, board = Random(f"hub/{number}"), chess.Board()
        for _ in range(12 + number % 10):
            board.push(rng.choice(sorted(board.legal_moves, key=chess.Move.uci)))
        fen, line = board.fen(), []
        for _ in range(plies):
            line.append(rng.choice(sorted(board.legal_moves, key=chess.Move.uci)))
            board.push(line[-1])
        rows.append(
            {
                "PuzzleId": f"P{number:04}",
                "GameId": f"G{number:04}",
                "FEN": fen,
                "Moves": " ".join(move.uci() for move in line),
                "Rating": 800 + number,
                "RatingDeviation": 75,
                "Popularity": 90,
                "NbPlays": 1_000,
                "Themes": "middlegame short",
                "GameUrl": f"https://lichess.org/G{number:04}#{number}",
                "OpeningTags": "Sicilian_Defense" if number % 3 else None,
            }
        )
    return tuple(rows)


def without(rows: Iterable[Mapping[str, Any]], *columns: str) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in columns} for row in rows]


def as_parquet(path: Path, rows: Iterable[Mapping[str, Any]], schema: Any = None) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), path, row_group_size=7)
    return path


def as_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def streamed(path: Path) -> list[Mapping[str, Any]]:
    return list(hub.hub_rows(path.suffix[1:], data_files=str(path)))


def puzzles_of(rows: Iterable[Mapping[str, Any]]) -> list[Any]:
    return [make_puzzle(row) for row in rows]


# --- the loading code on files -------------------------------------------------------------------


def test_a_parquet_file_with_the_hubs_columns_is_streamed_in_file_order(tmp_path: Path) -> None:
    rows = made_up(40)
    assert [dict(row) for row in streamed(as_parquet(tmp_path / "a.parquet", rows))] == list(rows)


def test_a_csv_file_gives_the_same_puzzles(tmp_path: Path) -> None:
    rows = list(made_up(40))
    assert puzzles_of(streamed(as_csv(tmp_path / "a.csv", rows))) == puzzles_of(rows)


def test_optional_columns_may_be_absent(tmp_path: Path) -> None:
    rows = [{"FEN": row["FEN"], "Moves": row["Moves"]} for row in made_up(6)]
    for path in (as_parquet(tmp_path / "a.parquet", rows), as_csv(tmp_path / "a.csv", rows)):
        read = puzzles_of(streamed(path))
        assert [p.id for p in read] == [p.id for p in puzzles_of(made_up(6))]
        assert {(p.rating, p.source, p.groups) for p in read} == {(None, "", (("solver_moves", "2"),))}


def test_themes_may_be_a_list_and_numbers_may_be_missing(tmp_path: Path) -> None:
    rows = [
        {
            **row,
            "Themes": row["Themes"].split(),
            "Rating": None,
            "RatingDeviation": float("nan"),
            "OpeningTags": None,
        }
        for row in made_up(6)
    ]
    for row, puzzle in zip(
        made_up(6), puzzles_of(streamed(as_parquet(tmp_path / "a.parquet", rows))), strict=True
    ):
        assert puzzle.groups == (("solver_moves", "2"), ("theme", "middlegame"), ("theme", "short"))
        assert hub.trusted({**row, "RatingDeviation": float("nan")})


def test_empty_cells_of_a_csv_file_are_missing_values(tmp_path: Path) -> None:
    rows = [{**row, "Themes": "", "Rating": "", "PuzzleId": "", "Popularity": ""} for row in made_up(5)]
    read = streamed(as_csv(tmp_path / "a.csv", rows))
    assert {(p.rating, p.source, p.groups) for p in puzzles_of(read)} == {
        (None, "", (("solver_moves", "2"),))
    }
    assert all(hub.trusted(row) for row in read)


@pytest.mark.parametrize("column", ["FEN", "Moves"])
def test_a_missing_column_is_named_beside_those_that_are_there(tmp_path: Path, column: str) -> None:
    path = as_parquet(tmp_path / "a.parquet", without(made_up(3), column))
    with pytest.raises(DataError, match=rf"lacks the columns \['{column}'\]; it has .*'GameUrl'"):
        streamed(path)


def test_a_file_without_rows_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("PuzzleId,FEN,Moves\n")
    with pytest.raises(DataError, match="csv has no rows"):
        streamed(path)


def test_a_parquet_file_without_rows_is_one_of_our_errors(tmp_path: Path) -> None:
    import pyarrow as pa

    columns = pa.schema([("FEN", pa.string()), ("Moves", pa.string())])
    path = as_parquet(tmp_path / "a.parquet", [], columns)
    with pytest.raises((DataError, InfrastructureError), match="parquet"):  # datasets 5.2 cannot read one
        streamed(path)


@pytest.mark.parametrize("content", [b"", b"PAR1 this is no parquet file"])
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_a_broken_or_empty_file_is_one_of_our_errors(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(content)
    with pytest.raises((DataError, InfrastructureError)) as error:
        streamed(path)
    assert str(error.value).startswith(suffix)


def test_a_file_that_is_not_there_is_an_infrastructure_error(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="mini and small are embedded"):
        streamed(tmp_path / "none.parquet")


def test_the_hub_that_cannot_be_reached_is_an_infrastructure_error_with_a_way_out(tmp_path: Path) -> None:
    code = "from whale_envs import load_examples; load_examples('chess_puzzles', 'full', 'test')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "WHALE_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("whale_envs.errors.InfrastructureError: Lichess/chess-puzzles cannot be read: ")
    assert last.endswith("The tiers mini and small are embedded and need no network")
    assert not list(tmp_path.rglob("*.csv"))


def test_without_the_extra_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match=r'pip install "whale-envs\[data\]"'):
        next(hub.hub_rows())


def test_the_hub_is_asked_for_the_pinned_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[Any] = []

    def load_dataset(*args: Any, **options: Any) -> list[Any]:
        asked.append((args, options))
        return list(made_up(2))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert len(list(hub.hub_rows())) == 2
    options = {"split": "train", "streaming": True, "revision": "479ea9bc9f681385f5adb23fa27a96c2dc8ae599"}
    assert asked == [((hub.HUB_ID,), options)]


def test_a_connection_that_breaks_in_the_middle_is_an_infrastructure_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import datasets

    class ClientError(Exception):
        """As HTTP clients define them: no OSError."""

    def broken() -> Iterator[Any]:
        yield from made_up(3)
        raise ClientError("reset by peer")

    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **options: broken())
    with pytest.raises(InfrastructureError, match="reset by peer"):
        list(hub.hub_rows())


# --- choosing ------------------------------------------------------------------------------------


def names(chosen: Mapping[str, Iterable[Any]]) -> dict[str, list[str]]:
    return {split: [puzzle.source for puzzle in puzzles] for split, puzzles in chosen.items()}


def test_a_scaled_down_pool_is_filled_to_its_sizes_without_a_position_twice() -> None:
    chosen = choose_few(made_up(120))
    assert {split: len(held) for split, held in chosen.items()} == {
        "weight": 24,
        "harness": 6,
        "dev": 4,
        "test": 4,
    }
    keys = Counter(position_key(puzzle) for held in chosen.values() for puzzle in held)
    assert set(keys.values()) == {1}


def test_dev_and_test_are_the_lowest_hashes_of_the_test_pool() -> None:
    chosen = choose_few(made_up(120))
    ranks = {split: [split_key(position_key(p)) for p in chosen[split]] for split in ("dev", "test")}
    assert ranks["test"] + ranks["dev"] == sorted(ranks["test"] + ranks["dev"])


def test_choosing_reads_no_further_than_it_must() -> None:
    rows = iter(made_up(120))
    choose_few(rows)
    assert len(list(rows)) == 120 - sum(POOL.values()) - 1


def test_a_position_that_stands_twice_is_taken_once_whatever_it_is_called() -> None:
    rows = [{**row, "PuzzleId": f"{copy}{row['PuzzleId']}"} for row in made_up(60) for copy in "AB"]
    chosen = names(choose_few(rows))
    assert all(name.startswith("A") for held in chosen.values() for name in held)


def test_embedded_positions_are_left_out() -> None:
    embedded = [dict(row) for row in embedded_rows()][:50]
    chosen = choose_few([*embedded, *made_up(120)])
    assert not {row["PuzzleId"] for row in embedded} & {n for held in names(chosen).values() for n in held}
    assert names(chosen) == names(choose_few(made_up(120)))


@pytest.mark.parametrize("plies", [2, 3, 4, 5, 9, 10])
def test_lines_of_either_parity_and_up_to_nine_plies_are_taken(plies: int) -> None:
    chosen = choose_few(made_up(120, plies=plies))
    assert {len(puzzle.gold) for held in chosen.values() for puzzle in held} == {plies - 1}


def test_longer_lines_are_left_out() -> None:
    chosen = choose_few([*made_up(20, plies=12), *made_up(140)[20:]])
    assert all(name >= "P0020" for held in names(chosen).values() for name in held)


@pytest.mark.parametrize(
    "change",
    [
        {"Moves": "a1a1 e2e4"},
        {"Moves": "e2e4"},
        {"Moves": None},
        {"Moves": float("nan")},
        {"FEN": float("nan")},
        {"FEN": "x"},
    ],
    ids=str,
)
def test_a_few_rows_that_are_no_puzzles_are_left_out(change: dict[str, Any]) -> None:
    rows = [{**row, **change} if number % 10 == 0 else row for number, row in enumerate(made_up(150))]
    assert all(not name.endswith("0") for held in names(choose_few(rows)).values() for name in held)


def test_too_many_rows_that_are_no_puzzles_stop_the_scan() -> None:
    rows = [{**row, "Moves": "e2e4 e2e4"} for row in made_up(60)]
    with pytest.raises(DataError, match=r"21 of the first 21 rows are no puzzles; is this the right file\?"):
        choose_few(rows)


@pytest.mark.parametrize(
    ("column", "doubtful"), [("RatingDeviation", 91), ("Popularity", 79), ("NbPlays", 299)]
)
def test_rows_that_lichess_holds_doubtful_are_left_out(column: str, doubtful: int) -> None:
    row = made_up(1)[0]
    assert hub.trusted(row)
    assert not hub.trusted({**row, column: doubtful})
    assert not hub.trusted({**row, column: str(doubtful)})
    assert all(hub.trusted({**row, column: missing}) for missing in (None, float("nan"), "", "?"))


@pytest.mark.parametrize("count", [0, 10])
def test_too_few_rows_say_what_is_short(count: int) -> None:
    with pytest.raises(DataError, match=rf"{count} rows gave too few puzzles: .*'weight'.*, wanted"):
        choose_few(made_up(120)[:count])


def test_the_scan_gives_up_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "SCAN_LIMIT", 10)
    with pytest.raises(DataError, match="gave too few puzzles"):
        choose_few(made_up(120))


def test_castling_as_king_takes_rook_is_stored_as_the_kings_move(tmp_path: Path) -> None:
    row = {"PuzzleId": "castle", "FEN": "r3k3/7p/8/8/8/8/8/4K2R b Kq - 0 1", "Moves": "h7h6 e1h1"}
    path = tmp_path / "cache.csv"
    hub.save({"weight": [make_puzzle(row)]}, path)
    assert ",h7h6 e1g1," in path.read_text()


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    bad = [{**row, "NbPlays": 1} for row in made_up(100)] * 5
    choose_few([*bad[:499], *made_up(120)], progress=lambda done, wanted: told.append((done, wanted)))
    assert told == [(1, 42)]


def test_the_published_pool_gives_the_documented_sizes() -> None:
    assert hub.POOL["weight"] == SIZES["full"]["weight"]
    assert hub.POOL["harness"] == SIZES["full"]["harness"]
    assert hub.POOL["test"] >= SIZES["full"]["dev"] + SIZES["full"]["test"]


# --- the cache -----------------------------------------------------------------------------------


@pytest.fixture
def small_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder, a hub that is a local parquet file, and sizes to match; returns the folder."""
    path = as_parquet(tmp_path / "hub.parquet", made_up(120))
    monkeypatch.setenv("WHALE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "hub_rows", partial(hub.hub_rows, "parquet", data_files=str(path)))
    monkeypatch.setattr(hub, "choose", choose_few)
    monkeypatch.setitem(SIZES, "full", {"weight": 24, "harness": 6, "dev": 4, "test": 4})
    examples.load_examples.cache_clear()
    yield tmp_path / "cache" / "chess_puzzles"
    examples.load_examples.cache_clear()


def test_the_full_tier_is_scanned_once_and_then_read_from_the_cache(
    small_hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = {split: load_examples("chess_puzzles", "full", split) for split in SIZES["full"]}
    assert [path.name for path in small_hub.iterdir()] == ["full-479ea9bc9f68.csv"]
    examples.load_examples.cache_clear()
    monkeypatch.setattr(hub, "hub_rows", None)
    for split, held in first.items():
        again = load_examples("chess_puzzles", "full", split)
        assert list(again) == list(held)
        assert list(again) == choose_few(made_up(120))[split]


def test_a_scan_that_breaks_off_leaves_nothing_in_the_cache(
    small_hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Iterator[Any]:
        yield from made_up(10)
        raise InfrastructureError("reset by peer")

    monkeypatch.setattr(hub, "hub_rows", broken)
    with pytest.raises(InfrastructureError):
        hub.load_full("test")
    assert list(small_hub.iterdir()) == []


def test_a_write_that_breaks_off_leaves_neither_a_cache_nor_a_temporary_file(
    small_hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(data[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UsageError, match="No space left"):
        hub.load_full("test")
    assert list(small_hub.iterdir()) == []


def test_a_cache_of_the_wrong_size_is_refused(small_hub: Path) -> None:
    hub.load_full("test")
    path = next(small_hub.iterdir())
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))
    with pytest.raises(DataError, match="chess_puzzles/full/test holds 2 puzzles, not the documented 4"):
        load_examples("chess_puzzles", "full", "test")
