"""Every file of real runs is as they say."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from bench_fakes import FILES, record, run
from jsonschema import Draft202012Validator

from whale_bench import EvalPlan, Rollout
from whale_bench.export import export
from whale_bench.models import Message
from whale_bench.records import Segment, Step
from whale_bench.schemas import read_schema
from whale_bench.store import RunStore
from whale_envs import UsageError


def validator(name: str) -> Any:
    return Draft202012Validator(json.loads(read_schema(name)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of all domains, of a file harness, of a profile and limits that are not the default."""
    made = tmp_path_factory.mktemp("runs")
    for domain in ("chess_puzzles", "math_python", "search_qa"):
        run(EvalPlan(domain=domain, model="scripted/random", n=3, k=2), made / domain)
    limits: dict[str, Any] = {"profile": "paper", "token_budget": 9, "max_tokens": 3, "concurrency": 2}
    harness = str(FILES / "good.py")
    run(
        EvalPlan(domain="chess_puzzles", model="scripted/oracle", n=2, k=1, harness=harness, **limits),
        made / "own",
    )
    run(EvalPlan(domain="search_qa", model="scripted/oracle", n=2, k=1, closed_book=True), made / "closed")
    return made


def test_every_file_of_real_runs_validates(folder: Path, tmp_path: Path) -> None:
    seen = 0
    for number, made in enumerate(sorted(folder.iterdir())):
        validator("run").validate(tomllib.loads((made / "run.toml").read_text()))
        validator("summary").validate(json.loads((made / "summary.json").read_text()))
        lines = [line for part in made.glob("rollouts-*.jsonl") for line in part.read_text().splitlines()]
        export(made, "events", tmp_path / f"{number}.jsonl")
        events = (tmp_path / f"{number}.jsonl").read_text().splitlines()
        for name, rows in (("rollout", lines), ("event", events)):
            check = validator(name)
            for row in rows:
                check.validate(json.loads(row))
                seen += 1
        defs = json.loads(read_schema("event"))["$defs"]
        charges = [event["charge"] for event in map(json.loads, events) if event["charge"]]
        for charge in charges:
            Draft202012Validator({"$defs": defs, "$ref": "#/$defs/Charge"}).validate(json.loads(charge))
        assert charges
    assert seen > 60


def test_a_line_with_every_field_validates(tmp_path: Path) -> None:
    segment = Segment(
        (Message("assistant", "x", ({"id": "1"},)), Message("tool", "y", (), "1")),
        "t", "length", ({"type": "function"},), ({"id": "2"},), (1, 2), (3,), (-0.5,), 2, 1, 7,
    )  # fmt: skip
    row = record(segments=(segment,), steps=(Step(None, "o", "nudge", "f"),), error="e", metrics={"m": 1.5})
    with RunStore.create(tmp_path / "r", {"seed": 0}, "") as store:
        store.append(row)
    [line] = (tmp_path / "r" / "rollouts-0000.jsonl").read_text().splitlines()
    validator("rollout").validate(json.loads(line))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("rollout", {"verdict": None}),
        ("rollout", {"sample": "0"}),
        ("rollout", {"prompt_tokens": 1.5}),
        ("summary", {"groups": {"band": {"easy": 0.5}}}),
    ],
)
def test_a_wrong_value_does_not_validate(name: str, change: dict[str, Any], folder: Path) -> None:
    file = {"rollout": "rollouts-0000.jsonl", "summary": "summary.json"}[name]
    text = (folder / "own" / file).read_text()
    row = json.loads(text if name == "summary" else text.splitlines()[0])
    assert validator(name).is_valid(row)
    assert not validator(name).is_valid(row | change)


def test_every_field_of_a_line_is_in_its_schema() -> None:
    fields = json.loads(read_schema("rollout"))["$defs"]["Rollout"]["properties"]
    assert list(fields) == list(Rollout.__struct_fields__)
    assert fields["truncated"]["description"].startswith("Ended by a cap")


def test_an_unknown_schema_is_misuse() -> None:
    with pytest.raises(UsageError, match="run, rollout, summary, event"):
        read_schema("ledger")


def test_the_command_prints_a_schema() -> None:
    command = [sys.executable, "-m", "whale_bench.cli", "schema", "rollout"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == read_schema("rollout")
