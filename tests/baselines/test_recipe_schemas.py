"""The files of a real run that trains and searches are as they say."""

import json

import pytest
from jsonschema import Draft202012Validator
from test_run_weights import base, recipe_at, run  # noqa: F401  # a fixture
from whale_baselines.schemas import read_schema

from whale_envs.errors import UsageError

LINES = ("history", "metrics", "archive")

pytestmark = pytest.mark.usefixtures("one_thread")


def validator(name):
    return Draft202012Validator(json.loads(read_schema(name)))


def test_every_file_of_a_real_run_validates_and_none_with_a_wrong_value(base, tmp_path):  # noqa: F811
    run(recipe_at(tmp_path / "whale.toml", base), folder := tmp_path / "run", base)
    found = {name: [] for name in LINES}
    for name in LINES:
        (path,) = folder.rglob(f"{name}.jsonl")
        found[name] = [json.loads(line) for line in path.read_text().splitlines()]
        for row in found[name]:
            validator(name).validate(row)
    summary = json.loads((folder / "summary.json").read_text())
    validator("summary").validate(summary)
    assert {row["record"] for row in found["history"]} == {"start", "move", "point"}
    assert {row["event"] for row in found["archive"]} >= {"phase", "session", "scored", "iteration"}
    told = json.loads(read_schema("metrics"))["$defs"]["StepLine"]["properties"]
    assert all(row.keys() == told.keys() for row in found["metrics"])  # what no type reads is described whole
    wrong = {
        "history": found["history"][0] | {"record": "end"},
        "metrics": found["metrics"][0] | {"loss": "low"},
        "archive": found["archive"][0] | {"phase": 1.5},
        "summary": summary | {"outcome": {}},
    }
    for name, row in wrong.items():
        assert not validator(name).is_valid(row)


def test_an_unknown_schema_is_misuse():
    with pytest.raises(UsageError, match="history, metrics, archive, summary"):
        read_schema("ledger")
