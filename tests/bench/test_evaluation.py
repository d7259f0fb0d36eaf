"""Whole runs: resuming after every kind of damage, what a resume refuses, and equal results."""

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bench_fakes import FILES, HEAD, plain, results, run, settled

from whale_bench import EvalPlan, Request
from whale_bench.harness.host import shipped_harnesses
from whale_bench.ledger import Ledger
from whale_bench.models import TokenBackend
from whale_bench.models.scripted import ScriptedModel, load_scripted
from whale_bench.store import DamagedLineWarning, RunStore
from whale_envs import InfrastructureError, UnknownNameError, UsageError


def plan(**changes: Any) -> EvalPlan:
    return EvalPlan(
        **{"domain": "chess_puzzles", "model": "scripted/noisy-oracle:0.7", "n": 12, "k": 2, **changes}
    )


def parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("rollouts-*.jsonl"))


def files(folder: Path) -> dict[str, bytes]:
    """Contents by name, without summary.json (it holds seconds) and what readers of SQLite leave."""
    names = ("run.toml", "harness.py", "ledger.sqlite", "rollouts-*")
    return {p.name: p.read_bytes() for name in names for p in sorted(folder.glob(name))}


def rollouts_executed(folder: Path) -> int:
    with Ledger(folder / "ledger.sqlite", readonly=True) as ledger:
        return ledger.executed()["test"].rollouts


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(plan(), folder)
    return folder


def summary_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode((folder / "summary.json").read_bytes())
    return {name: value for name, value in found.items() if name not in ("seconds", "problems")}


# --- O-30 -----------------------------------------------------------------------------------------


def damage(folder: Path) -> set[str]:
    """Four keys of the middle gone, one key twice, the last line cut; returns the five lost keys."""
    [part] = parts(folder)
    lines = part.read_bytes().splitlines(keepends=True)
    assert len(lines) == 24
    lost = [*lines[8:12], lines[-1]]
    part.write_bytes(b"".join([*lines[:8], lines[3], *lines[12:-1], lines[-1][: len(lines[-1]) // 2]]))
    return {msgspec.json.decode(line)["key"] for line in lost}


def test_o30_a_damaged_file_is_mended_and_a_second_resume_changes_nothing(
    tmp_path: Path, whole: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    lost = damage(folder)
    with pytest.warns(DamagedLineWarning):
        summary = run(None, folder)
    ran = [msgspec.json.decode(line)["key"] for line in parts(folder)[1].read_bytes().splitlines()]
    assert sorted(ran) == sorted(lost)
    assert plain(summary) == summary_of(whole)
    with pytest.warns(DamagedLineWarning):
        assert results(folder) == results(whole)
    assert settled(folder) == settled(whole)
    assert rollouts_executed(folder) == 24 + 5
    before = files(folder)
    with pytest.warns(DamagedLineWarning):
        assert plain(run(None, folder)) == plain(summary)
    assert files(folder) == before


def test_o30_rollouts_that_failed_are_run_and_their_first_attempt_stays_counted(
    tmp_path: Path, whole: Path
) -> None:
    inner, failing = load_scripted("noisy-oracle:0.7"), set(list(results(whole))[8:12])
    seeds = {row.segments[0].seed for key, row in results(whole).items() if key in failing}

    class Flaky(ScriptedModel):
        name, weights_id = inner.name, inner.weights_id

        async def generate(self, request: Request) -> Any:
            if request.seed in seeds:
                raise InfrastructureError("down")
            return await inner.generate(request)

    folder = tmp_path / "run"
    first = run(plan(), folder, backend=Flaky(()))
    assert (first.complete, set(first.missing), first.problems) == (False, failing, {"down": 4})
    assert rollouts_executed(folder) == 24
    [part] = parts(folder)
    lines = part.read_bytes().splitlines(keepends=True)
    cut = lines[-1]
    part.write_bytes(b"".join([*lines[:-1], lines[0], cut[:50]]))
    with pytest.warns(DamagedLineWarning):
        summary = run(None, folder)
    assert plain(summary) == summary_of(whole)
    assert settled(folder) == settled(whole)
    assert rollouts_executed(folder) == 24 + 4 + 1
    with Ledger(folder / "ledger.sqlite", readonly=True) as ledger:
        assert ledger.totals("missing")["test"].rollouts == 4
        assert ledger.totals("repeated")["test"].rollouts == 1


# --- other damage ---------------------------------------------------------------------------------


def test_a_kill_between_line_and_settlement_is_settled_from_the_line(tmp_path: Path, whole: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    with sqlite3.connect(folder / "ledger.sqlite") as db:
        db.execute("DELETE FROM events WHERE seq = (SELECT max(seq) FROM events)")
    db.close()
    before = parts(folder)[0].read_bytes()
    assert plain(run(None, folder)) == summary_of(whole)
    assert [p.read_bytes() for p in parts(folder)] == [before]
    assert settled(folder) == settled(whole)


def test_a_kill_between_reservation_and_line_is_listed_apart(tmp_path: Path, whole: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    with sqlite3.connect(folder / "ledger.sqlite") as db:
        [(last,)] = db.execute("SELECT key FROM events ORDER BY seq DESC LIMIT 1")
        db.execute("DELETE FROM events WHERE seq = (SELECT max(seq) FROM events)")
    db.close()
    [part] = parts(folder)
    kept = [line for line in part.read_bytes().splitlines(keepends=True) if last.encode() not in line]
    part.write_bytes(b"".join(kept))
    assert plain(run(None, folder)) == summary_of(whole)
    assert settled(folder) == settled(whole)
    with Ledger(folder / "ledger.sqlite", readonly=True) as ledger:
        assert [e.key for e in ledger.events() if e.kind == "interrupted"] == [last]


@pytest.mark.parametrize("name", ["rollouts-0000.jsonl", "summary.json", "run.lock", "harness.py"])
def test_a_deleted_file_costs_no_more_than_it_held(tmp_path: Path, whole: Path, name: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    (folder / name).unlink()
    assert plain(run(None, folder)) == summary_of(whole)
    assert results(folder) == results(whole)
    assert settled(folder) == settled(whole)


def test_a_deleted_ledger_is_written_anew_from_the_lines_with_a_warning(tmp_path: Path, whole: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    (folder / "ledger.sqlite").unlink()
    with pytest.warns(UserWarning, match="24 rollouts of .* stood in no ledger reservation"):
        run(None, folder)
    assert settled(folder) == settled(whole)
    run(None, folder)  # and no warning again


def test_an_edited_ledger_is_refused(tmp_path: Path, whole: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    with sqlite3.connect(folder / "ledger.sqlite") as db:
        db.execute("DELETE FROM events WHERE seq = 5")
    db.close()
    with pytest.raises(UsageError, match=r"ledger event 6 .* does not follow"):
        run(None, folder)


def test_a_folder_that_is_being_written_is_refused(tmp_path: Path, whole: Path) -> None:
    with RunStore.open(whole), pytest.raises(UsageError, match="is being written by another process"):
        run(None, whole)


# --- what a resume refuses ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["weights_id", "harness_id", "examples_id", "env_id"])
def test_a_resume_under_something_else_is_refused_by_name(tmp_path: Path, whole: Path, name: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    path = folder / "run.toml"
    lines = [f'{name} = "another"' if x.startswith(f"{name} =") else x for x in path.read_text().splitlines()]
    path.write_text("\n".join(lines) + "\n")
    before = files(folder)
    with pytest.raises(UsageError, match=f"cannot be resumed: its {name} is 'another', now it is "):
        run(None, folder)
    assert files(folder) == before


def test_an_edited_harness_copy_is_refused(tmp_path: Path) -> None:
    run(plan(harness=str(FILES / "good.py"), n=1), tmp_path / "run")
    with (tmp_path / "run" / "harness.py").open("a") as file:
        file.write("\n# changed\n")
    with pytest.raises(UsageError, match="its harness_id is"):
        run(None, tmp_path / "run")


def test_settings_that_lack_something_are_named(tmp_path: Path, whole: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    (folder / "run.toml").write_text("format = 1\n")
    with pytest.raises(UsageError, match=r"run\.toml lacks a setting: .*'domain'"):
        run(None, folder)


# --- harness files --------------------------------------------------------------------------------


def test_the_harness_is_copied_and_a_resume_uses_the_copy(tmp_path: Path) -> None:
    original = tmp_path / "mine.py"
    shutil.copy(FILES / "good.py", original)
    whole = run(plan(harness=str(original)), tmp_path / "whole")
    folder = tmp_path / "run"
    shutil.copytree(tmp_path / "whole", folder)
    assert (folder / "harness.py").read_text() == original.read_text()
    original.unlink()
    [part] = parts(folder)
    part.write_bytes(b"".join(part.read_bytes().splitlines(keepends=True)[:5]))
    assert plain(run(None, folder)) == plain(whole)
    assert settled(folder) == settled(tmp_path / "whole")


def test_a_run_whose_copy_a_kill_came_before_goes_on_from_the_original(tmp_path: Path) -> None:
    run(plan(harness=str(FILES / "good.py"), n=2), tmp_path / "run")
    (tmp_path / "run" / "harness.py").unlink()
    assert run(None, tmp_path / "run").complete
    assert (tmp_path / "run" / "harness.py").read_text() == (FILES / "good.py").read_text()


def test_a_copy_of_h0_in_a_worker_scores_as_h0_does(tmp_path: Path, whole: Path) -> None:
    (tmp_path / "mine.py").write_text(shipped_harnesses()["chess_puzzles"])
    summary = run(plan(harness=str(tmp_path / "mine.py")), tmp_path / "run")
    assert plain(summary) == summary_of(whole)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (HEAD + "class Harness(BaseHarness)\n", "mine.py:2: syntax error"),
        (
            HEAD + "class Harness(BaseHarness):\n    def read(self, r, v):\n        return 1\n",
            "mine.py:3: read must",
        ),
        (HEAD + "class Harness(BaseHarness):\n    ENV_OPTIONS = {'x': 1}\n", "'x'"),
    ],
)
def test_a_harness_that_breaks_the_contract_starts_no_run(tmp_path: Path, source: str, words: str) -> None:
    (tmp_path / "mine.py").write_text(source)
    with pytest.raises(UsageError, match=words):
        run(plan(harness=str(tmp_path / "mine.py")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_harness_that_plays_by_itself_scores_nothing(tmp_path: Path) -> None:
    summary = run(plan(harness=str(FILES / "plays_itself.py"), model="scripted/oracle"), tmp_path / "run")
    assert summary.score is not None
    assert summary.score.mean == 0.0
    assert summary.stop_conditions == {"provenance": 24}


def test_native_tools_on_a_template_without_tools_are_refused_before_the_run(tmp_path: Path) -> None:
    class Plain(TokenBackend):
        name, weights_id = "local/plain", "w"

        def render(self, messages: Any, tools: Any = ()) -> str:
            return "".join(m.content for m in messages)

        def encode(self, text: str) -> tuple[int, ...]:
            return ()

        def decode(self, ids: tuple[int, ...]) -> str:
            return ""

        async def generate(self, request: Request) -> Any:
            raise AssertionError

    tool = "{'type': 'function', 'function': {'name': 'move'}}"
    source = HEAD + f"class Harness(BaseHarness):\n    TOOL_MODE = 'native'\n    TOOLS = [{tool}]\n"
    (tmp_path / "mine.py").write_text(source)
    with pytest.raises(UsageError, match="the chat template of local/plain shows no tools"):
        run(plan(harness=str(tmp_path / "mine.py")), tmp_path / "run", backend=Plain())
    assert not (tmp_path / "run").exists()


# --- equal runs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 3, 500])
def test_results_are_equal_at_any_concurrency(tmp_path: Path, whole: Path, concurrency: int) -> None:
    assert plain(run(plan(concurrency=concurrency), tmp_path / "run")) == summary_of(whole)
    assert results(tmp_path / "run") == results(whole)


def test_no_more_rollouts_are_in_flight_than_asked_for(tmp_path: Path) -> None:
    import asyncio

    class Counting(ScriptedModel):
        now = most = 0

        async def generate(self, request: Request) -> Any:
            self.now += 1
            self.most = max(self.most, self.now)
            for _ in range(3):
                await asyncio.sleep(0)
            self.now -= 1
            return await super().generate(request)

    for asked, seen in ((1, 1), (5, 5), (100, 24)):
        model = Counting(lambda r: "hm")
        run(plan(concurrency=asked), tmp_path / str(asked), backend=model)
        assert model.most == seen


def test_another_seed_gives_other_rollouts(tmp_path: Path, whole: Path) -> None:
    run(plan(seed=1), tmp_path / "run")
    seeds = [{s.seed for row in results(f).values() for s in row.segments} for f in (tmp_path / "run", whole)]
    assert not seeds[0] & seeds[1]


def test_the_oracle_solves_everything_under_both_profiles_and_is_marked(tmp_path: Path) -> None:
    summary = run(plan(model="scripted/oracle", k=1), tmp_path / "run")
    assert summary.score is not None
    assert summary.other_score is not None
    assert (summary.score.mean, summary.other_score.mean, summary.diverged) == (1.0, 1.0, 0)
    assert summary.fixture
    assert RunStore.open(tmp_path / "run").settings["fixture"] is True


def test_one_example_and_one_sample_are_a_run(tmp_path: Path) -> None:
    summary = run(plan(n=1, k=1), tmp_path / "run")
    assert (summary.rollouts, summary.complete, list(summary.pass_at_k)) == (1, True, ["1"])


def test_progress_is_reported_to_the_end(tmp_path: Path) -> None:
    seen: list[tuple[int, int, bool]] = []
    run(plan(n=2), tmp_path / "run", report=lambda done, total, row: seen.append((done, total, row is None)))
    assert seen == [(0, 4, True), *((i, 4, False) for i in range(1, 5))]


# --- what a plan refuses --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n": 97}, "has 96 examples, fewer than the 97 asked for"),
        ({"n": 0}, "n must be at least 1, got 0"),
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"concurrency": -1}, "concurrency must be at least 1, got -1"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"token_budget": 0}, "token_budget must be at least 1"),
        ({"temperature": float("nan")}, "temperature must be from 0 to 100, got nan"),
        ({"top_p": 0.0}, "top_p must be from"),
        ({"top_k": -1}, "top_k must be from 0"),
        ({"harness": "nowhere.py"}, "'nowhere.py' does not exist"),
        ({"model": "scripted/noisy-oracle:2"}, "from 0 to 1, got '2'"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_with_the_value(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        run(plan(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "valid"),
    [("domain", "chess_puzzles"), ("tier", "mini, small, full"), ("split", "weight, harness, dev, test"),
     ("profile", "standard, paper"), ("model", "scripted/oracle")],
)  # fmt: skip
def test_an_unknown_name_is_refused_with_the_valid_ones(tmp_path: Path, name: str, valid: str) -> None:
    with pytest.raises(UnknownNameError, match=f"'bogus'.*Valid: .*{valid}"):
        run(plan(**{name: "bogus"}), tmp_path / "run")
