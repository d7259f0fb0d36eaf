"""Exports open in the libraries that they are for, hold what the run holds, and no gold answer."""

import hashlib
import json
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest
from bench_fakes import record, run
from typer.testing import CliRunner

from whale_bench import EvalPlan, RunStore, Summary
from whale_bench.cli import app
from whale_bench.export import WRITERS, export
from whale_bench.export.inspect import sample_of
from whale_bench.export.inspect_header import Totals
from whale_bench.models import Message
from whale_bench.records import Rollout, Segment, Step
from whale_bench.statistics import mean_at_k
from whale_envs import UsageError, Verdict, load_examples

TOTALS = Totals("openai/m", "e", 1, "2026-01-01T00:00:00+00:00", "2026-01-01T00:00:00+00:00")
SETTINGS: dict[str, Any] = {
    "model": "openai/m", "domain": "chess_puzzles", "env_id": "whale/ChessPuzzles-v0", "tier": "mini",
    "split": "test", "profile": "standard", "fixture": False, "seed": 0, "harness_id": "h", "weights_id": "w",
    "temperature": 1.0, "top_p": 1.0, "top_k": 20, "versions": {"whale-envs": "0", "python": "3"},
}  # fmt: skip


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Summary]:
    """A run of some right and some wrong rollouts, several turns each."""
    folder = tmp_path_factory.mktemp("run") / "run"
    plan = EvalPlan(domain="chess_puzzles", model="scripted/noisy-oracle:0.8", n=6, k=3)
    return folder, run(plan, folder)


def written(folder: Path, rows: list[Rollout], n: int, k: int) -> Path:
    with RunStore.create(folder, {**SETTINGS, "n": n, "k": k}, "") as store:
        for row in rows:
            store.append(row)
    return folder


def damaged(folder: Path) -> Path:
    """A run with a line of which only what scores need can be read."""
    rows = [record(f"test:{example}:0", segments=(Segment((), "", logprobs=(-1.0,)),)) for example in "ab"]
    written(folder, rows, n=2, k=1)
    [part] = folder.glob("rollouts-*")
    part.write_bytes(part.read_bytes().replace(b"[-1.0]", b"[null]", 1))
    return folder


def read_inspect(path: Path) -> Any:
    from inspect_ai.log import read_eval_log

    return read_eval_log(str(path))


def test_an_export_says_whether_the_models_calls_are_known_and_a_run_may_have_no_sampling(
    tmp_path: Path,
) -> None:
    import pyarrow.parquet as pq

    rows = [record("test:a:0"), record("test:b:0", metered=False)]
    settings = {n: v for n, v in SETTINGS.items() if n not in ("temperature", "top_p", "top_k")}
    with RunStore.create(tmp_path / "run", {**settings, "n": 2, "k": 1}, None) as store:
        for row in rows:
            store.append(row)
    export(tmp_path / "run", "datasets", tmp_path / "data")
    assert pq.read_table(tmp_path / "data" / "rollouts.parquet")["metered"].to_pylist() == [True, False]
    export(tmp_path / "run", "inspect", tmp_path / "run.json")
    log = read_inspect(tmp_path / "run.json")
    assert [sample.metadata["metered"] for sample in log.samples] == [True, False]
    assert log.eval.model_generate_config.temperature is None


@pytest.mark.filterwarnings("ignore::whale_bench.store.DamagedLineWarning")
@pytest.mark.parametrize("name", ["run.eval", "run.json"])
def test_a_line_that_no_sample_can_be_made_of_is_missing_and_there_is_no_mean(
    name: str, tmp_path: Path
) -> None:
    export(damaged(tmp_path / "run"), "inspect", tmp_path / name)
    log = read_inspect(tmp_path / name)
    assert (log.status, log.results.completed_samples, len(log.samples)) == ("error", 1, 1)
    assert "1 of 2 rollouts" in log.error.message
    assert not any(score.metrics for score in log.results.scores)


# --- inspect_ai -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["run.eval", "run.json"])
def test_inspect_ai_reads_the_log(name: str, played: tuple[Path, Summary], tmp_path: Path) -> None:
    from inspect_ai.log import read_eval_log, read_eval_log_sample, read_eval_log_sample_summaries

    folder, summary = played
    export(folder, "inspect", tmp_path / name)
    log = read_inspect(tmp_path / name)
    assert summary.score is not None
    assert (log.status, log.eval.config.epochs, log.eval.dataset.samples, len(log.samples)) == (
        "success",
        3,
        6,
        18,
    )
    assert log.results.scores[0].name == "standard"
    assert log.results.scores[0].metrics["mean"].value == summary.score.mean
    assert log.results.scores[0].metrics["stderr"].value == summary.score.stderr
    assert log.stats.model_usage[summary.model].output_tokens == summary.sampled_tokens
    rows = {(row.example_id, row.sample + 1): row for row in RunStore.open(folder).rollouts()}
    assert {(s.id, s.epoch) for s in log.samples} == set(rows)
    for sample in log.samples:
        row = rows[sample.id, sample.epoch]
        assert sample.scores["standard"].value == row.verdict.standard
        assert sample.scores["standard"].answer == row.verdict.answer
        assert sample.metadata["stop_condition"] == row.stop_condition
        assert sample.model_usage[summary.model].output_tokens == row.sampled_tokens
        assert [e.output.completion for e in sample.events] == [s.text for s in row.segments]
        assert [m.text for e in sample.events for m in e.input] == [
            m.content for s in row.segments for m in s.messages
        ]
        assert row.segments[-1].text in [m.text for m in sample.messages]
    assert len(read_eval_log_sample_summaries(str(tmp_path / name))) == 18
    header = read_eval_log(str(tmp_path / name), header_only=True)
    assert (header.samples, header.eval.metadata["run"]["profile"]) == (None, "standard")
    one = read_eval_log_sample(str(tmp_path / name), next(iter(rows))[0], 2)
    assert one.epoch == 2


@pytest.mark.parametrize("name", ["run.eval", "run.json"])
def test_an_incomplete_run_is_a_log_with_an_error_and_no_mean(name: str, tmp_path: Path) -> None:
    rows = [record("test:a:0"), record("test:a:1"), record("test:b:0", reward=0.0)]
    export(written(tmp_path / "run", rows, n=3, k=2), "inspect", tmp_path / name)
    log = read_inspect(tmp_path / name)
    assert log.status == "error"
    assert "3 of 6 rollouts are missing" in log.error.message
    assert (log.results.total_samples, log.results.completed_samples) == (6, 3)
    assert [score.metrics for score in log.results.scores] == [{}, {}]
    assert [score.unscored_samples for score in log.results.scores] == [3, 3]


@pytest.mark.parametrize("name", ["run.eval", "run.json"])
def test_a_run_of_which_nothing_finished_is_a_log_too(name: str, tmp_path: Path) -> None:
    export(written(tmp_path / "run", [], n=3, k=2), "inspect", tmp_path / name)
    log = read_inspect(tmp_path / name)
    assert (log.status, list(log.samples or [])) == ("error", [])


def test_tool_calls_and_odd_replies_are_read_too(tmp_path: Path) -> None:
    def call(arguments: Any, name: str = "search") -> dict[str, Any]:
        return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}

    chat = (
        Message("developer", "be brief"),
        Message("user", "Who?"),
        Message("assistant", "", (call('{"query": "Oslo"}'),)),
        Message("tool", "found", (), "c1"),
    )
    calls = (call("{broken"), {"odd": 1}, call("[1]"))
    tools = ({"type": "function", "function": {"name": "search"}},)
    segment = Segment(chat, "<think>x</think>", "context_length", tools, calls)
    step = Step("a", "the end", "ok", "f")
    row = record(segments=(segment,), steps=(step,), prompt_tokens=None, sampled_tokens=None)
    export(written(tmp_path / "run", [row], n=1, k=1), "inspect", tmp_path / "x.json")
    log = read_inspect(tmp_path / "x.json")
    [sample] = log.samples
    assert [m.role for m in sample.messages] == ["user", "user", "assistant", "tool", "assistant", "user"]
    assert sample.messages[2].tool_calls[0].arguments == {"query": "Oslo"}
    assert sample.messages[3].tool_call_id == "c1"
    reply = sample.messages[4]
    assert (reply.text, [c.parse_error for c in reply.tool_calls]) == (
        "<think>x</think>",
        ["{broken", "None", "[1]"],
    )
    assert sample.output.stop_reason == "model_length"
    assert (sample.model_usage, log.stats.model_usage) == ({}, {})  # not reported is not nought
    assert sample.events[0].metadata["tools"][0]["function"]["name"] == "search"


def test_a_verdict_that_an_episode_cannot_tell_is_no_score(tmp_path: Path) -> None:
    verdict = Verdict(1.0, "solved", standard=1.0, paper=None)
    rows = [record("test:a:0", verdict=verdict), record("test:b:0")]
    assert set(sample_of(rows[0], TOTALS)["scores"]) == {"standard"}
    export(written(tmp_path / "run", rows, n=2, k=1), "inspect", tmp_path / "x.eval")
    standard, paper = read_inspect(tmp_path / "x.eval").results.scores
    assert standard.metrics["mean"].value == mean_at_k([[1.0], [1.0]]).mean
    assert (paper.metrics, paper.scored_samples, paper.unscored_samples) == ({}, 1, 1)


@pytest.mark.parametrize("called", [False, True])
def test_an_own_agents_chat_is_what_it_saw_and_did(called: bool, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    calls = (Segment((Message("user", "sum it up"),), "a summary"),) if called else ()
    steps = (
        Step("e2e4", "next", "ok", "f"),
        Step(None, "", "nudge", "say a move"),
        Step("d1h5", "", "ok", "over"),
    )
    row = record(opening="board", segments=calls, steps=steps, metered=called)
    chat = [
        ("user", "board"), ("assistant", "e2e4"), ("user", "next"), ("user", "say a move"),
        ("assistant", "d1h5"), ("user", "over"),
    ]  # fmt: skip
    with RunStore.create(tmp_path / "run", {**SETTINGS, "model": "agent:a:b", "n": 1, "k": 1}, "") as store:
        store.append(row)
    export(tmp_path / "run", "inspect", tmp_path / "x.eval")
    [sample] = read_inspect(tmp_path / "x.eval").samples
    assert [(m.role, m.text) for m in sample.messages] == chat
    assert sample.output.completion == "d1h5"
    assert [event.output.completion for event in sample.events] == ["a summary"][: len(calls)]
    export(tmp_path / "run", "datasets", tmp_path / "rows")
    [found] = pq.read_table(tmp_path / "rows" / "rollouts.parquet")["messages"].to_pylist()
    assert [(m["role"], m["content"]) for m in found] == chat


def test_a_log_of_another_ending_is_refused(played: tuple[Path, Summary], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\*.eval or \*.json, not 'log.txt'"):
        export(played[0], "inspect", tmp_path / "log.txt")


# --- datasets -------------------------------------------------------------------------------------


def test_datasets_loads_the_folder(
    played: tuple[Path, Summary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    folder, summary = played
    export(folder, "datasets", tmp_path / "rows")
    found = datasets.load_dataset(str(tmp_path / "rows"), split="test", cache_dir=str(tmp_path / "cache"))
    assert len(found) == 18
    assert summary.score is not None
    assert sum(found["reward"]) / 18 == pytest.approx(summary.score.mean)
    rows = {row.key: row for row in RunStore.open(folder).rollouts()}
    for line in found:
        row = rows[line["key"]]
        assert line["messages"][-1] == {"role": "assistant", "content": row.segments[-1].text}
        assert len(json.loads(line["segments"])) == len(row.segments) == line["model_calls"]
        assert [step["action"] for step in json.loads(line["steps"])] == [s.action for s in row.steps]
        assert json.loads(line["metrics"]) == row.metrics
        assert (line["correct"], line["sampled_tokens"]) == (row.verdict.correct, row.sampled_tokens)


def test_the_card_says_what_is_missing(tmp_path: Path) -> None:
    rows = [record("test:a:0", prompt_tokens=None), record("test:b:0", reward=0.0)]
    export(written(tmp_path / "run", rows, n=2, k=2), "datasets", tmp_path / "rows")
    card = (tmp_path / "rows" / "README.md").read_text()
    assert "2 of 4 (2 examples, 2 each)" in card
    assert "**2 rollouts are missing**" in card


# --- events ---------------------------------------------------------------------------------------


def test_the_events_hold_a_chain_that_others_can_recompute(
    played: tuple[Path, Summary], tmp_path: Path
) -> None:
    export(played[0], "events", tmp_path / "events.jsonl")
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert len(events) == 36
    prev = "0" * 64
    for event in events:
        said = event.pop("hash")
        body = json.dumps(list(event.values()), separators=(",", ":"), ensure_ascii=False)
        assert event["prev"] == prev
        assert hashlib.sha256(body.encode()).hexdigest() == said
        prev = said


# --- all ------------------------------------------------------------------------------------------


def everything(out: Path) -> str:
    """All text of an export."""
    if out.suffix == ".eval":
        with zipfile.ZipFile(out) as archive:
            return "".join(archive.read(name).decode() for name in archive.namelist())
    if out.is_dir():
        import pyarrow.parquet as pq

        return (out / "README.md").read_text() + str(pq.read_table(out / "rollouts.parquet").to_pylist())
    return out.read_text()


@pytest.mark.parametrize(
    ("form", "name"), [("inspect", "x.eval"), ("inspect", "x.json"), ("datasets", "x"), ("events", "x")]
)
def test_no_gold_answer_and_no_source_is_in_an_export(form: str, name: str, tmp_path: Path) -> None:
    plan = EvalPlan(domain="chess_puzzles", model="scripted/random", n=12, k=1)
    run(plan, tmp_path / "run")
    export(tmp_path / "run", form, tmp_path / name)
    text = everything(tmp_path / name)
    for example in load_examples("chess_puzzles", "mini", "test")[:12]:
        line = tuple(example.gold)
        assert len(line) > 0
        for said in (" ".join(map(str, line)), '","'.join(map(str, line)), "', '".join(map(str, line))):
            assert len(line) == 1 or said not in text
        assert not example.source or example.source not in text


@pytest.mark.parametrize("form", WRITERS)
def test_an_export_takes_the_place_of_nothing(
    form: str, played: tuple[Path, Summary], tmp_path: Path
) -> None:
    out = tmp_path / "there.json"
    out.write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        export(played[0], form, out)
    assert out.read_text() == "mine"


@pytest.mark.parametrize("form", WRITERS)
def test_an_export_that_fails_leaves_nothing(form: str, played: tuple[Path, Summary], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        export(played[0], form, tmp_path / "file" / "x.json")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_damaged_run_leaves_no_half_export(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", [record("test:a:0")], n=2, k=1)
    with (folder / "rollouts-0000.jsonl").open("a") as lines:
        lines.write((folder / "rollouts-0000.jsonl").read_text().replace('"seed":0', '"seed":1', 1))
    with pytest.raises(UsageError, match="of another run"):
        export(folder, "datasets", tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_an_unknown_form_is_misuse(played: tuple[Path, Summary], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown form of export 'csv'.*inspect, datasets, events"):
        export(played[0], "csv", tmp_path / "x")


@pytest.mark.parametrize(("form", "name"), [("inspect", "x.json"), ("datasets", "x")])
def test_memory_does_not_grow_with_the_run(form: str, name: str, tmp_path: Path) -> None:
    text = "word " * 4_000
    rows = [record(f"test:{i}:0", segments=(Segment((Message("user", text),), text),)) for i in range(600)]
    folder = written(tmp_path / "run", rows, n=600, k=1)
    size = (folder / "rollouts-0000.jsonl").stat().st_size
    del rows
    tracemalloc.start()
    export(folder, form, tmp_path / name)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size > 24_000_000
    assert peak < size * (0.1 if form == "inspect" else 0.5)  # of datasets, a row group


def test_the_command_exports(played: tuple[Path, Summary], tmp_path: Path) -> None:
    out = tmp_path / "x.eval"
    done = CliRunner().invoke(app, ["export", str(played[0]), "--to", "inspect", "--out", str(out)])
    assert (done.exit_code, done.output) == (0, f"{out}: inspect of {played[0]}\n")
    assert out.is_file()
