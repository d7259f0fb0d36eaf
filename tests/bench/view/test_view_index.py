"""The index: what it finds, when it is stale, what it does with damaged lines."""

import base64
import gzip
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from whale_bench.store import RunStore
from whale_bench.view import build
from whale_bench.view.index import DamagedRolloutError, Query, RunIndex
from whale_bench.view.page import write_report
from whale_envs.errors import UsageError


@pytest.fixture
def run(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a run, and a cache of its own."""
    monkeypatch.setenv("WHALE_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copytree(runs / "math_python", tmp_path / "run"))


def part(run: Path) -> Path:
    return run / "rollouts-0000.jsonl"


def test_each_rollout_is_read_from_its_own_line(run: Path) -> None:
    with RunIndex.open(run) as index:
        for rollout in RunStore.open(run).rollouts():
            assert index.rollout(rollout.key) == rollout
        assert index.rollout("none of these") is None


def test_an_index_is_built_once(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RunIndex.open(run).close()

    def built(*_: object) -> None:
        raise AssertionError("built again")

    monkeypatch.setattr(build, "build", built)
    with RunIndex.open(run) as index:
        assert index.rows(Query()).total == 32


def test_a_run_that_grew_is_indexed_again(run: Path) -> None:
    lines = part(run).read_bytes().splitlines(keepends=True)
    part(run).write_bytes(b"".join(lines[:20]))
    with RunIndex.open(run) as index:
        assert index.rows(Query()).total == 20
        assert index.overview.missing == 12
        assert not index.stale
        (run / "rollouts-0001.jsonl").write_bytes(b"".join(lines[20:]))
        assert index.stale
    with RunIndex.open(run) as index:
        assert index.rows(Query()).total == 32
        rollout = index.rollout(index.rows(Query(limit=1, offset=31)).rows[0].key)
    assert rollout is not None


def test_a_file_of_equal_size_and_another_time_is_read_again(run: Path) -> None:
    RunIndex.open(run).close()
    os.utime(part(run), ns=(1, 1))
    assert RunIndex.reuse(run) is None


def test_a_line_that_moved_is_not_taken_for_another(run: Path) -> None:
    with RunIndex.open(run) as index:
        _, second = (row.key for row in index.rows(Query(limit=2)).rows)
        lines = part(run).read_bytes().splitlines(keepends=True)
        part(run).write_bytes(lines[1] + lines[0] + b"".join(lines[2:]))
        with pytest.raises(UsageError, match="has moved"):
            index.rollout(second)


def test_a_torn_last_line_and_a_repeated_key_are_passed_over(run: Path) -> None:
    lines = part(run).read_bytes().splitlines(keepends=True)
    part(run).write_bytes(b"".join(lines[:10]) + lines[3] + b"\xff\n" + lines[11][:-40])
    with RunIndex.open(run) as index:
        assert index.rows(Query()).total == 10
        assert index.overview.damaged == 2


def test_a_line_that_tables_can_read_and_a_replay_cannot_costs_its_own_replay_alone(
    run: Path, tmp_path: Path
) -> None:
    lines = part(run).read_bytes().splitlines(keepends=True)
    lines[4] = lines[4].replace(b'"steps":[', b'"steps":[null,', 1)
    part(run).write_bytes(b"".join(lines))
    with RunIndex.open(run) as index:
        [bad] = [row.key for row in index.rows(Query()).rows if _damaged(index, row.key)]
    written = write_report(run, tmp_path / "page.html")
    assert (written.shown, written.of) == (31, 32)
    [held] = re.findall(r'id="data"[^>]*>([^<]*)<', (tmp_path / "page.html").read_text())
    data = json.loads(gzip.decompress(base64.b64decode(held)))
    assert data["overview"]["damaged"] == 1
    assert bad not in [row["key"] for row in data["rows"]]
    assert len(data["rows"]) == len(data["replays"]) == 31


def _damaged(index: RunIndex, key: str) -> bool:
    try:
        index.rollout(key)
    except DamagedRolloutError:
        return True
    return False


def test_a_damaged_index_is_built_anew(run: Path) -> None:
    RunIndex.open(run).close()
    for junk in (b"", b"no database at all", b"SQLite format 3\x00" + b"\xff" * 2_000):
        build.place_of(run).write_bytes(junk)
        with RunIndex.open(run) as index:
            assert index.rows(Query()).total == 32


def test_a_line_of_another_run_is_refused(run: Path, runs: Path) -> None:
    shutil.copy(runs / "search_qa" / "rollouts-0000.jsonl", run / "rollouts-0001.jsonl")
    with pytest.raises(UsageError, match="is of another run"):
        RunIndex.open(run)
    assert [path.suffix for path in build.place_of(run).parent.iterdir()] == [".lock"]


def test_queries_narrow_sort_and_page(run: Path) -> None:
    rollouts = list(RunStore.open(run).rollouts())
    with RunIndex.open(run) as index:
        solved = index.rows(Query(outcome="solved"))
        assert solved.total == sum(rollout.verdict.correct for rollout in rollouts)
        failed = index.rows(Query(outcome="failed", stop="wrong_answer"))
        assert failed.total == sum(rollout.stop_condition == "wrong_answer" for rollout in rollouts)
        easy = index.rows(Query(group="band=hard")).total
        assert easy == sum(("band", "hard") in rollout.groups for rollout in rollouts)
        assert index.rows(Query(group="band=har")).total == 0
        assert index.rows(Query(text="PWNED")).total == index.rows(Query(text="pwned")).total > 0
        assert index.rows(Query(text="' OR 1=1 --")).total == 0
        turns = [row.turns for row in index.rows(Query(sort="turns", desc=True, limit=500)).rows]
        assert turns == sorted((len(rollout.segments) for rollout in rollouts), reverse=True)
        pages = [index.rows(Query(limit=10, offset=offset)).rows for offset in range(0, 40, 10)]
        assert [row.key for page in pages for row in page] == [rollout.key for rollout in rollouts]
        examples = index.examples(Query(sort="solved", desc=True))
        assert examples.total == 8
        assert [row.solved for row in examples.rows] == sorted(
            (row.solved for row in examples.rows), reverse=True
        )


def test_progress_ends_at_the_whole(run: Path) -> None:
    seen: list[tuple[int, int]] = []
    RunIndex.open(run, cached=False, progress=lambda done, total: seen.append((done, total))).close()
    size = part(run).stat().st_size
    assert seen[-1] == (size, size)
