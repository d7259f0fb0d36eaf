"""Whole runs: resuming after every kind of damage, what a resume refuses, and equal results."""

import asyncio
import gc
import shutil
import sqlite3
import time
import tomllib
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomli_w
from bench_fakes import BEGUN, FILES, HEAD, begin_ledger, plain, results, run, settled

from whale_bench import EvalPlan, Generation, Request
from whale_bench.evaluation import GIVE_UP_AFTER
from whale_bench.garbage import fewer_collections
from whale_bench.giving_up import Failures
from whale_bench.harness.host import shipped_harnesses
from whale_bench.ledger import Charge, Ledger
from whale_bench.models import TokenBackend, Usage
from whale_bench.models.openai import OpenAIBackend
from whale_bench.models.scripted import ScriptedModel, load_scripted
from whale_bench.plan import plan_of
from whale_bench.store import DamagedLineWarning, RunStore, settings_id
from whale_envs import InfrastructureError, UnknownNameError, UsageError
from whale_envs.errors import DataError


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


def edit(folder: Path, **changes: Any) -> None:
    """Changes settings (None takes one out) as someone would who makes the hash again."""
    settings = tomllib.loads((folder / "run.toml").read_text()) | changes
    settings = {name: value for name, value in settings.items() if value is not None}
    settings["settings_id"] = settings_id(settings)
    (folder / "run.toml").write_text(tomli_w.dumps(settings))


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
    before = files(folder) | {"summary.json": (folder / "summary.json").read_bytes()}
    with pytest.warns(DamagedLineWarning):
        assert run(None, folder) == summary
    assert files(folder) | {"summary.json": (folder / "summary.json").read_bytes()} == before


def test_o30_a_key_that_a_later_file_has_too_counts_once_as_it_was_first(tmp_path: Path, whole: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    [part] = parts(folder)
    again = [msgspec.json.decode(line) for line in part.read_bytes().splitlines()[3:9]]
    for row in again:
        row["verdict"] |= {"reward": 1.0 - row["verdict"]["reward"]}
    (folder / "rollouts-0001.jsonl").write_bytes(b"".join(msgspec.json.encode(r) + b"\n" for r in again))
    (folder / "summary.json").unlink()
    assert plain(run(None, folder)) == summary_of(whole)
    assert len(parts(folder)) == 2
    assert settled(folder) == settled(whole)
    assert rollouts_executed(folder) == 24


def test_o30_a_damaged_line_is_warned_about_once(tmp_path: Path, whole: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    damage(folder)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run(None, folder)
    assert [w.category for w in seen] == [DamagedLineWarning]


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


def without(whole: Path, folder: Path, *patterns: str) -> Path:
    """A copy of the run that lacks these files; the path of its ledger."""
    shutil.copytree(whole, folder)
    for path in (path for pattern in patterns for path in folder.glob(pattern)):
        path.unlink()
    return folder / "ledger.sqlite"


@pytest.mark.parametrize("state", BEGUN)
def test_a_kill_while_the_ledger_is_made_costs_nothing(tmp_path: Path, whole: Path, state: str) -> None:
    folder = tmp_path / "run"
    begin_ledger(without(whole, folder, "rollouts-*", "summary.json", "ledger.sqlite*"), state)
    assert plain(run(None, folder)) == summary_of(whole)
    assert (results(folder), settled(folder)) == (results(whole), settled(whole))
    assert rollouts_executed(folder) == 24


def test_a_ledger_that_lost_its_table_ends_a_resume_and_is_not_made_anew(tmp_path: Path, whole: Path) -> None:
    path = without(whole, folder := tmp_path / "run", "summary.json")
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE events")
    db.close()
    before = files(folder)
    with pytest.raises(DataError, match="is no ledger, or damaged: no such table: events"):
        run(None, folder)
    assert files(folder) == before


# --- O-31 -----------------------------------------------------------------------------------------


def test_o31_tokens_of_a_rollout_that_fails_later_stay_in_the_account(tmp_path: Path) -> None:
    class Failing(ScriptedModel):
        name, weights_id = "scripted/random", "scripted:random"

        async def generate(self, request: Request) -> Any:
            if len(request.messages) > 2:
                raise InfrastructureError("down")
            return Generation("no move", usage=Usage(10, 2))

    asked = plan(model="scripted/random", n=2)
    summary = run(asked, tmp_path / "run", backend=Failing(()))
    assert (summary.rollouts, summary.problems) == (0, {"down": 4})
    run(None, tmp_path / "run", backend=load_scripted("random"))
    with Ledger(tmp_path / "run" / "ledger.sqlite", readonly=True) as ledger:
        lost, charged = ledger.totals("missing")["test"], ledger.charged()["test"]
        executed = ledger.executed()["test"]
    assert (lost.rollouts, lost.prompt_tokens, lost.sampled_tokens) == (4, 40, 8)
    assert (lost.model_calls, lost.unmetered_tokens) == (4, True)
    assert (executed.rollouts, charged.rollouts) == (8, 4)
    assert executed.sampled_tokens == charged.sampled_tokens + 8
    assert (executed.unmetered_tokens, charged.unmetered_tokens) == (True, False)


def test_o31_attempts_cancelled_when_a_run_is_given_up_are_flagged(tmp_path: Path) -> None:
    class Dying(ScriptedModel):
        async def generate(self, request: Request) -> Any:
            if len(self.requests) < GIVE_UP_AFTER:
                self.requests.append(request)
                raise InfrastructureError("down")
            await asyncio.sleep(60)

    summary = run(plan(n=20), tmp_path / "run", backend=Dying(()))
    assert summary.problems == {"down": GIVE_UP_AFTER}
    with Ledger(tmp_path / "run" / "ledger.sqlite", readonly=True) as ledger:
        assert ledger.open_reservations() == []
        charges = [msgspec.json.decode(e.charge, type=Charge) for e in ledger.events() if e.charge]
    assert charges.count(Charge(rollouts=1, unmetered_tokens=True)) == 40 - GIVE_UP_AFTER
    assert all(charge.unmetered_tokens for charge in charges)


@pytest.mark.parametrize(
    ("seconds", "most"),
    [
        (0.0, GIVE_UP_AFTER),
        (95.0, GIVE_UP_AFTER),
        (900.0, 3),  # a server that is gone, one rollout at a time
        (3600.0, 3),
    ],
)
def test_a_run_is_given_up_by_number_or_by_time_but_never_for_two_failures(seconds: float, most: int) -> None:
    failures = Failures()
    for start in (0.0, 1e6):
        assert failing(failures, start, seconds, most) == [False] * (most - 1) + [True]
        played(failures, start)
    for number in range(40):
        assert failing(failures, 9_000.0 * number, 0.0, 1) == [False]
        played(failures, 9_000.0 * number)


@pytest.mark.parametrize(
    ("healthy", "most"),
    [(0, 3), (1, GIVE_UP_AFTER), (7, GIVE_UP_AFTER)],
)
def test_others_that_take_longer_keep_slow_failures_from_ending_a_run(healthy: int, most: int) -> None:
    failures = Failures()
    for number in range(healthy):  # in flight throughout
        failures.began(f"long {number}", 0.0)
    assert failing(failures, 1.0, 900.0, most) == [False] * (most - 1) + [True]


def test_of_many_in_flight_most_have_to_have_failed_where_time_ends_a_run() -> None:
    for dead, ended in ((4, False), (5, True)):  # of eight; each fails after 13 minutes, twice
        failures, said = Failures(), []
        for number in range(8):
            failures.began(str(number), 0.0)
        for now in (800.0, 2400.0):
            for number in range(dead):
                said.append(failures.failed(str(number), now + number))
                failures.began(str(number), now + number)
        assert len(said) < GIVE_UP_AFTER
        assert any(said) == ended


def failing(failures: Failures, start: float, seconds: float, times: int) -> list[bool]:
    """What is said of rollouts that fail one after the other, each after so many seconds."""
    said = []
    for number in range(times):
        failures.began("one", start + number * seconds)
        said.append(failures.failed("one", start + (number + 1) * seconds))
    return said


def played(failures: Failures, now: float) -> None:
    failures.began("one", now)
    failures.finished("one")


def test_a_run_whose_server_is_gone_stops_after_the_third_that_took_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone(ScriptedModel):
        async def generate(self, request: Request) -> Any:
            self.requests.append(request)
            raise InfrastructureError("down")

    monkeypatch.setattr("whale_bench.giving_up.GIVE_UP_SECONDS", 0.0)
    summary = run(plan(concurrency=1), tmp_path / "run", backend=(model := Gone(())))
    assert (len(model.requests), summary.problems, summary.complete) == (3, {"down": 3}, False)
    with Ledger(tmp_path / "run" / "ledger.sqlite", readonly=True) as ledger:
        assert (ledger.charged(), ledger.executed()["test"].rollouts) == ({}, 3)


# --- summaries of several launches ----------------------------------------------------------------


class Says(ScriptedModel):
    """A model that is no fixture, fails the requests with these numbers, and has something to say."""

    fixture = False

    def __init__(self, warning: str, text: Callable[[Request], str], failing: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.warning, self.failing = warning, failing

    async def generate(self, request: Request) -> Any:
        found = await super().generate(request)
        if len(self.requests) - 1 in self.failing:
            raise InfrastructureError("down")
        return found

    def seconds(self) -> dict[str, float]:
        return {"load": 100.0}

    def warnings(self) -> list[str]:
        return [self.warning, "always"]


def test_seconds_add_up_over_launches_and_warnings_are_kept_once(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = run(plan(n=3), folder, backend=Says("first", lambda r: "no", range(5)))
    assert (first.rollouts, first.warnings) == (1, ["first", "always"])
    second = run(None, folder, backend=Says("second", lambda r: "no"))
    assert second.complete
    assert second.warnings[:3] == ["first", "always", "second"]
    assert ["identical" in warning for warning in second.warnings[3:]] == [True]
    assert second.seconds["load"] == 200.0
    assert second.seconds["rollouts"] > first.seconds["rollouts"]
    before = (folder / "summary.json").read_bytes()
    assert run(None, folder, backend=Says("third", lambda r: "no")) == second
    assert (folder / "summary.json").read_bytes() == before


def test_a_warning_about_scores_does_not_outlive_its_cause(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    asked = plan(n=2, concurrency=1)  # two turns a rollout: the first example's samples are done, and equal
    first = run(asked, folder, backend=Says("first", lambda r: "no", (4, 5)))
    assert (first.rollouts, "identical" in first.warnings[-1]) == (2, True)
    second = run(None, folder, backend=Says("second", lambda r: f"no {r.seed}"))
    assert second.complete
    assert second.warnings == ["first", "always", "second"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model": 5}', "\x00\xff", "[" * 100_000])
def test_a_damaged_summary_is_made_anew(tmp_path: Path, whole: Path, text: str) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    (folder / "summary.json").write_bytes(text.encode("latin-1"))
    assert plain(run(None, folder)) == summary_of(folder) == summary_of(whole)


# --- the server's address -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "environment", "recorded"),
    [
        (None, None, "https://api.openai.com/v1"),
        (None, "http://env:8000/v1/", "http://env:8000/v1"),
        ("http://option/v1", "http://env:8000/v1", "http://option/v1"),
        ("http://me:secret@option:1/v1", None, "http://option:1/v1"),
        (None, "https://me:s%40cret@env/v1", "https://env/v1"),
    ],
)
def test_the_address_in_force_stands_in_the_settings_without_credentials(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: str | None,
    environment: str | None,
    recorded: str,
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    if environment:
        monkeypatch.setenv("OPENAI_BASE_URL", environment)
    asked = plan(model="openai/m", base_url=given, n=1)
    run(asked, tmp_path / "run", backend=ScriptedModel(lambda r: "hm"))
    assert RunStore.open(tmp_path / "run").settings["base_url"] == recorded
    assert OpenAIBackend("m", base_url=given).base_url == recorded
    monkeypatch.setenv("OPENAI_BASE_URL", "http://elsewhere/v1")
    assert plan_of(RunStore.open(tmp_path / "run").settings, tmp_path / "run").base_url == recorded
    assert "secret" not in "".join(p.read_text(errors="replace") for p in (tmp_path / "run").iterdir())


def test_a_model_without_a_server_has_no_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://env/v1")
    run(plan(n=1), tmp_path / "run")
    assert "base_url" not in RunStore.open(tmp_path / "run").settings
    with pytest.raises(UsageError, match="--base-url goes with openai/NAME"):
        run(None, tmp_path / "run", base_url="http://env/v1")


def test_a_resume_may_go_to_another_address_which_then_stands_in_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://first/v1")
    folder, model = tmp_path / "run", ScriptedModel(lambda r: "hm")
    run(plan(model="openai/m", n=2), folder, backend=model)
    before = (folder / "run.toml").read_bytes()
    run(None, folder, backend=model, base_url="http://second/v1")
    assert (folder / "run.toml").read_bytes() == before  # nothing ran
    [part] = parts(folder)
    part.write_bytes(part.read_bytes().splitlines(keepends=True)[0])
    assert run(None, folder, backend=model, base_url="http://second/v1").complete
    assert (folder / "run.toml").read_bytes() == before.replace(b"//first/", b"//second/")
    assert run(None, folder, backend=model).complete


def test_a_resume_of_many_rollouts_begins_soon(tmp_path: Path, whole: Path) -> None:
    """Generous: it takes well under a second on a quiet machine."""
    folder, many = tmp_path / "run", 250
    shutil.copytree(whole, folder)
    edit(folder, k=many)
    [part] = parts(folder)
    rows = [msgspec.json.decode(line) for line in part.read_bytes().splitlines()[:12]]
    examples = [row["example_id"] for row in results_by_example(folder)]
    lines = []
    with Ledger(folder / "ledger.sqlite") as ledger:
        settled_already = ledger.settled_keys()
        for example in examples:
            for sample in range(many):
                key = f"test:{example}:{sample}"
                row = rows[sample % 12] | {"key": key, "example_id": example, "sample": sample}
                lines.append(msgspec.json.encode(row))
                if key not in settled_already:
                    ledger.settle(key, ledger.reserve(key, "test"), Charge(rollouts=1))
    part.write_bytes(b"\n".join(lines[:-3]) + b"\n")
    began = time.monotonic()
    assert run(None, folder).rollouts == many * 12
    assert time.monotonic() - began < 20


def results_by_example(folder: Path) -> list[dict[str, Any]]:
    """One line of each example."""
    lines = [msgspec.json.decode(line) for line in parts(folder)[0].read_bytes().splitlines()]
    return list({line["example_id"]: line for line in lines}.values())


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
    for part in parts(folder):
        part.unlink()
    edit(folder, **{name: "another"})
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


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"domain": None, "k": None}, r"run\.toml lacks 'domain', 'k'$"),
        ({"fixture": None}, "its fixture is None, now it is True"),
        ({"examples_id": None}, "its examples_id is None, now"),
        ({"model": 5}, r"run\.toml: model cannot be 5: Expected `str`, got `int`"),
        ({"domain": ["a"]}, r"run\.toml: domain cannot be \['a'\]"),
        ({"k": "2"}, r"run\.toml: k cannot be '2'"),
        ({"profile": ["a"]}, r"run\.toml: unknown profile \['a'\]"),
        ({"unsafe_python": 1}, r"run\.toml: unsafe_python cannot be 1"),
        ({"k": 0}, r"run\.toml: k must be at least 1"),
        ({"base_url": 5}, r"run\.toml: base_url cannot be 5"),
    ],
)
def test_settings_that_cannot_be_are_named(
    tmp_path: Path, whole: Path, changes: dict[str, Any], words: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    edit(folder, **changes)
    before = files(folder)
    with pytest.raises(UsageError, match=words):
        run(None, folder)
    assert files(folder) == before


def test_settings_edited_by_hand_are_refused_before_anything_runs(tmp_path: Path, whole: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    path = folder / "run.toml"
    path.write_text(path.read_text().replace('profile = "standard"', 'profile = "paper"'))
    before = files(folder)
    with pytest.raises(UsageError, match=r"run\.toml: its settings are not those that the run began with"):
        run(None, folder)
    assert files(folder) == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"weights_id": "w"},
            r"rollouts-0000\.jsonl:3: rollout '.*' is of another run: its weights_id is 'w'",
        ),
        ({"harness_id": "h"}, "its harness_id is 'h'"),
        ({"seed": 3}, "its seed is 3, that of run.toml is 0"),
        ({"domain": "math_python"}, "its domain is 'math_python'"),
        ({"key": "dev:x:0"}, "rollout 'dev:x:0' is none of this run's"),
        ({"sample": 9}, "is none of this run's"),
    ],
)
def test_a_rollout_of_another_run_is_refused_and_charged_nothing(
    tmp_path: Path, whole: Path, changes: dict[str, Any], words: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    [part] = parts(folder)
    lines = part.read_bytes().splitlines(keepends=True)
    lines[2] = msgspec.json.encode(msgspec.json.decode(lines[2]) | changes) + b"\n"
    part.write_bytes(b"".join(lines[:3]))
    (folder / "ledger.sqlite").unlink()
    before = files(folder)
    with pytest.raises(UsageError, match=words):
        run(None, folder)
    assert files(folder) == before


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

        def render(self, messages: Any, tools: Any = (), kwargs: Any = ()) -> str:
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


def test_collections_are_fewer_during_a_run_and_as_before_after_it(tmp_path: Path) -> None:
    seen = []

    class Looking(ScriptedModel):
        async def generate(self, request: Request) -> Any:
            seen.append(gc.get_threshold())
            return await super().generate(request)

    before = gc.get_threshold()
    run(plan(n=1, k=1), tmp_path / "run", backend=Looking(lambda r: "hm"))
    assert min(seen)[0] > before[0] > 0
    assert gc.get_threshold() == before
    with pytest.raises(ZeroDivisionError), fewer_collections(), fewer_collections():
        _ = 1 / 0
    assert gc.get_threshold() == before
    gc.set_threshold(0)
    try:
        with fewer_collections():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)


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
    seen: list[tuple[int, int, float | None]] = []
    run(plan(n=2), tmp_path / "run", report=lambda *told: seen.append(told))
    rewards = [row.verdict.reward for row in RunStore.open(tmp_path / "run").rollouts()]
    assert seen == [(0, 4, None), *((i, 4, sum(rewards[:i]) / i) for i in range(1, 5))]


def test_the_running_mean_after_a_resume_is_that_of_all_finished_rollouts(
    tmp_path: Path, whole: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    [part] = parts(folder)
    part.write_bytes(b"".join(part.read_bytes().splitlines(keepends=True)[:-2]))
    seen: list[tuple[int, int, float | None]] = []
    run(None, folder, report=lambda *told: seen.append(told))
    rewards = [row.verdict.reward for row in RunStore.open(folder).rollouts()]
    assert seen == [(i, 24, pytest.approx(sum(rewards[:i]) / i)) for i in (22, 23, 24)]


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
        ({"k": True}, "k cannot be True: Expected `int`, got `bool`"),
        ({"k": None}, "k cannot be None"),
        ({"n": "3"}, "n cannot be '3': Expected `int | null`, got `str`"),
        ({"n": 2.5}, "n cannot be 2.5"),
        ({"seed": 1.5}, "seed cannot be 1.5"),
        ({"temperature": "hot"}, "temperature cannot be 'hot': Expected `float`, got `str`"),
        ({"top_p": None}, "top_p cannot be None"),
        ({"unsafe_python": "no"}, "unsafe_python cannot be 'no'"),
        ({"model": 5}, "model cannot be 5"),
        ({"harness": Path("mine.py")}, "harness cannot be "),
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
