"""The run folder: what is written can be read again, whatever a kill or an editor left of it."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomli_w
from bench_fakes import record

from whale_bench import Rollout
from whale_bench.records import Segment, Step
from whale_bench.store import ADDRESSES, DamagedLineWarning, RunStore, outcome_of, settings_id
from whale_envs import InfrastructureError, UsageError

SETTINGS: dict[str, Any] = {"model": "m — ♞", "k": 8, "temperature": 1.0, "versions": {"python": "3.11"}}


def make(folder: Path, *keys: str) -> RunStore:
    store = RunStore.create(folder, SETTINGS, "# source\n")
    with store:
        for key in keys:
            store.append(record(key))
    return store


def keys(folder: Path) -> list[str]:
    return [row.key for row in RunStore.open(folder).rollouts()]


def test_settings_and_source_come_back_as_they_were(tmp_path: Path) -> None:
    store = make(tmp_path / "run")
    found = RunStore.open(tmp_path / "run").settings
    assert found == store.settings == {"format": 1, **SETTINGS, "settings_id": settings_id(found)}
    assert (tmp_path / "run" / "harness.py").read_text() == "# source\n"


def test_a_rollout_comes_back_equal(tmp_path: Path) -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
    segment = Segment((), "é♞", "length", tool_calls=(call,), sampled_ids=(1, 2), logprobs=(-0.5, -1e-9))
    row = record(segments=(segment,), steps=(Step("e2e4", "o", "ok", "f"), Step(None, "n", "nudge", "n")))
    with RunStore.create(tmp_path / "run", {}, "") as store:
        store.append(row)
    assert list(RunStore.open(tmp_path / "run").rollouts()) == [row]
    assert next(RunStore.open(tmp_path / "run").outcomes()) == outcome_of(row)


def test_outcomes_are_those_of_the_rollouts_and_share_what_is_equal(tmp_path: Path) -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
    segments = (Segment((), "é", tool_calls=(call,), prompt_ids=(1,), sampled_ids=(2,)), Segment((), "b"))
    rows = [
        record(
            f"test:a:{i}", segments=segments[: i % 3], metrics={"turns": float(i % 2)}, groups=(("g", "x"),)
        )
        for i in range(8)
    ]
    with RunStore.create(tmp_path / "run", {}, "") as store:
        for row in rows:
            store.append(row)
    found = list(RunStore.open(tmp_path / "run").outcomes())
    assert found == [outcome_of(row) for row in rows]
    for name in ("verdict", "groups"):
        assert len({id(getattr(outcome, name)) for outcome in found}) == 1
    assert len({id(outcome.metrics) for outcome in found}) == 2


def test_a_last_line_cut_anywhere_loses_only_itself(tmp_path: Path) -> None:
    make(tmp_path / "run", "test:a:0", "test:b:0")
    part = tmp_path / "run" / "rollouts-0000.jsonl"
    whole = part.read_bytes()
    first = whole.index(b"\n") + 1
    for cut in range(first + 1, len(whole) - 1, 37):
        part.write_bytes(whole[:cut])
        with pytest.warns(DamagedLineWarning, match=r"rollouts-0000\.jsonl:2: not a whole rollout"):
            assert keys(tmp_path / "run") == ["test:a:0"]


def test_a_last_line_that_lacks_only_its_newline_is_whole(tmp_path: Path) -> None:
    make(tmp_path / "run", "test:a:0", "test:b:0")
    part = tmp_path / "run" / "rollouts-0000.jsonl"
    part.write_bytes(part.read_bytes()[:-1])
    assert keys(tmp_path / "run") == ["test:a:0", "test:b:0"]


@pytest.mark.parametrize("damage", [b"\x00\xff\xfe", b'{"key": "test:b:0"}', b"[1, 2", b"", b'"\\ud800"'])
def test_a_damaged_line_in_the_middle_is_passed_over_with_a_warning(tmp_path: Path, damage: bytes) -> None:
    make(tmp_path / "run", "test:a:0", "test:b:0", "test:c:0")
    part = tmp_path / "run" / "rollouts-0000.jsonl"
    lines = part.read_bytes().split(b"\n")
    part.write_bytes(b"\n".join([lines[0], damage, *lines[2:]]))
    with pytest.warns(DamagedLineWarning, match=":2: "):
        assert keys(tmp_path / "run") == ["test:a:0", "test:c:0"]


def test_a_key_that_stands_twice_counts_once_the_first_time(tmp_path: Path) -> None:
    with RunStore.create(tmp_path / "run", {}, "") as store:
        for reward in (0.0, 1.0):
            store.append(record("test:a:0", reward=reward))
    assert [row.verdict.reward for row in RunStore.open(tmp_path / "run").rollouts()] == [0.0]


def test_each_launch_writes_a_part_of_its_own(tmp_path: Path) -> None:
    make(tmp_path / "run", "test:a:0")
    for key in ("test:b:0", "test:c:0"):
        with RunStore.open(tmp_path / "run") as store:
            store.append(record(key))
    with RunStore.open(tmp_path / "run"):
        pass  # nothing written, no part
    parts = [path.name for path in sorted((tmp_path / "run").glob("rollouts-*"))]
    assert parts == [f"rollouts-000{i}.jsonl" for i in range(3)]
    assert keys(tmp_path / "run") == ["test:a:0", "test:b:0", "test:c:0"]


def test_a_deleted_part_does_not_stop_the_next_launch(tmp_path: Path) -> None:
    make(tmp_path / "run", "test:a:0")
    with RunStore.open(tmp_path / "run") as store:
        store.append(record("test:b:0"))
    (tmp_path / "run" / "rollouts-0000.jsonl").unlink()
    with RunStore.open(tmp_path / "run") as store:
        store.append(record("test:c:0"))
    assert keys(tmp_path / "run") == ["test:b:0", "test:c:0"]


def test_another_layout_is_refused_by_number(tmp_path: Path) -> None:
    make(tmp_path / "run")
    (tmp_path / "run" / "run.toml").write_text("format = 99\n")
    with pytest.raises(UsageError, match="layout 99 is not 1"):
        RunStore.open(tmp_path / "run")


@pytest.mark.parametrize("text", ["format = ", "\udcff", "format = 1\nformat = 1"])
def test_settings_that_cannot_be_read_are_named(tmp_path: Path, text: str) -> None:
    make(tmp_path / "run")
    (tmp_path / "run" / "run.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError, match=r"run\.toml: cannot be read"):
        RunStore.open(tmp_path / "run")


@pytest.mark.parametrize(
    ("old", "new"),
    [("k = 8", "k = 7"), ("k = 8", 'k = "8"'), ("k = 8", ""), ("k = 8", "k = 8\nn = 3"),
     ("1.0", "1"), ("1.0", "nan"), ('"3.11"', '"3.1"'), ("settings_id", "other_id"),
     ("format = 1", "format = true")],
)  # fmt: skip
def test_edited_settings_are_refused(tmp_path: Path, old: str, new: str) -> None:
    make(tmp_path / "run")
    path = tmp_path / "run" / "run.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(UsageError, match=r"run\.toml: its settings are not those that the run began with"):
        RunStore.open(tmp_path / "run")


@pytest.mark.parametrize("name", ADDRESSES)
def test_where_a_server_is_may_change_and_nothing_else_is_written_with_it(tmp_path: Path, name: str) -> None:
    settings = {**SETTINGS, name: "http://a/v1"}
    with RunStore.create(tmp_path / "run", settings, "") as store:
        path = tmp_path / "run" / "run.toml"
        before = path.stat().st_mtime_ns, path.read_text()
        for same in ({}, {name: "http://a/v1"}, {"model": "another", "k": 3}):
            store.write_addresses(same)
            assert (path.stat().st_mtime_ns, path.read_text()) == before
        store.write_addresses({name: "http://b/v1"})
    assert path.read_text() == before[1].replace("http://a/v1", "http://b/v1")
    assert RunStore.open(tmp_path / "run").settings == store.settings


def test_settings_of_an_older_run_are_those_it_began_with(tmp_path: Path) -> None:
    settings = {**SETTINGS, "format": 1, "base_url": "http://a/v1", "judge_url": "http://b/v1"}
    make(tmp_path / "run")
    older = {**settings, "settings_id": settings_id(settings, ("base_url",))}
    (tmp_path / "run" / "run.toml").write_text(tomli_w.dumps(older))
    assert older["settings_id"] != settings_id(settings)
    with RunStore.open(tmp_path / "run") as store:
        store.write_addresses({"judge_url": "http://c/v1"})
    assert RunStore.open(tmp_path / "run").settings["judge_url"] == "http://c/v1"


@pytest.mark.parametrize("text", ["x = " + "[" * 100_000, "\x00", "x = 1e"])
def test_settings_of_any_damage_are_one_error(tmp_path: Path, text: str) -> None:
    make(tmp_path / "run")
    (tmp_path / "run" / "run.toml").write_text(text)
    with pytest.raises(UsageError, match=r"run\.toml: cannot be read"):
        RunStore.open(tmp_path / "run")


# --- lines of another run -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"), [("domain", "go"), ("seed", 7), ("weights_id", "v"), ("harness_id", "i")]
)
def test_a_line_of_another_run_is_refused_with_file_key_and_field(
    tmp_path: Path, name: str, value: Any
) -> None:
    settings = {"domain": "chess_puzzles", "seed": 0, "weights_id": "w", "harness_id": "h"}
    with RunStore.create(tmp_path / "run", settings, "") as store:
        store.append(record("test:a:0"))
        store.append(record("test:a:0", **{name: value}))  # a second copy of a key is looked at, too
    found = RunStore.open(tmp_path / "run").rollouts()
    assert next(found).key == "test:a:0"
    words = rf"rollouts-0000\.jsonl:2: rollout 'test:a:0' is of another run: its {name} is {value!r}, that "
    with pytest.raises(UsageError, match=words):
        next(found)


# --- what cannot be read or written ---------------------------------------------------------------


def test_a_line_nested_too_deep_is_passed_over(tmp_path: Path) -> None:
    make(tmp_path / "run", "test:a:0")
    with (tmp_path / "run" / "rollouts-0000.jsonl").open("a") as part:
        part.write('{"key": ' + "[" * 100_000 + "\n")
    with pytest.warns(DamagedLineWarning, match=":2: "):
        assert keys(tmp_path / "run") == ["test:a:0"]


def test_a_folder_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    store = make(tmp_path / "run")
    for name in ("rollouts-0000.jsonl", "summary.json"):
        (tmp_path / "run" / name).mkdir()
    with pytest.raises(UsageError, match=r"rollouts-0000\.jsonl: cannot be read: .*directory"):
        keys(tmp_path / "run")
    with pytest.raises(UsageError, match=r"summary\.json: cannot be read: .*directory"):
        store.read_summary()
    with pytest.raises(InfrastructureError, match=r"summary\.json: cannot be written: .*directory"):
        store.write_summary({})


def test_a_full_disk_is_an_infrastructure_failure_and_the_next_line_is_whole(tmp_path: Path) -> None:
    with RunStore.create(tmp_path / "run", {}, "") as store:
        store.append(record("test:a:0"))
        assert store._file is not None
        os.close(store._file)
        store._file = os.open("/dev/full", os.O_WRONLY)
        with pytest.raises(InfrastructureError, match=r"run: a rollout cannot be written: .*No space left"):
            store.append(record("test:b:0"))
        store.append(record("test:c:0"))
    assert keys(tmp_path / "run") == ["test:a:0", "test:c:0"]


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UsageError, match="is no run folder"):
            RunStore.open(folder)


def test_a_folder_with_something_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "harness.py").write_text("precious")
    with pytest.raises(UsageError, match="is not empty"):
        RunStore.create(tmp_path, {}, "new")
    assert (tmp_path / "harness.py").read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["harness.py"]


def test_a_folder_in_which_a_kill_left_a_half_written_file_is_as_good_as_empty(tmp_path: Path) -> None:
    (tmp_path / ".half-written-run.toml").write_text("form")
    make(tmp_path, "test:a:0")
    assert keys(tmp_path) == ["test:a:0"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be made into a run folder"):
        RunStore.create(tmp_path / "file" / "run", {}, "")


def test_lone_surrogates_anywhere_in_a_rollout_can_be_written(tmp_path: Path) -> None:
    odd = "a\ud800b"
    call = {"function": {"name": odd, "arguments": odd}}
    row = record(opening=odd, error=odd, segments=(Segment((), odd, tool_calls=(call,)),), metrics={odd: 1.0})
    with RunStore.create(tmp_path / "run", {}, "") as store:
        store.append(row)
        store.append(record("test:b:0"))
    found: list[Rollout] = list(RunStore.open(tmp_path / "run").rollouts())
    assert [row.key for row in found] == ["test:a:0", "test:b:0"]
    assert found[0].opening == "a?b"
    assert found[0].segments[0].tool_calls[0]["function"] == {"name": "a?b", "arguments": "a?b"}


def test_writing_outside_the_lock_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="inside `with store:` only"):
        make(tmp_path / "run").append(record())


def test_a_line_is_on_disk_when_append_returns(tmp_path: Path) -> None:
    with RunStore.create(tmp_path / "run", {}, "") as store:
        store.append(record())
        assert keys(tmp_path / "run") == ["test:a:0"]


def test_a_summary_is_written_whole_over_the_last_one(tmp_path: Path) -> None:
    store = make(tmp_path / "run")
    for n in (1, 2):
        store.write_summary({"n": n})
    assert msgspec.json.decode((tmp_path / "run" / "summary.json").read_bytes()) == {"n": 2}
    assert store.read_summary() == (tmp_path / "run" / "summary.json").read_bytes()
    assert not list((tmp_path / "run").glob(".*"))
