"""The files of real submissions and their site are as they say."""

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from board_fakes import ABOUT
from jsonschema import Draft202012Validator
from whale_leaderboard.schemas import KINDS, read_schema
from whale_leaderboard.site.build import build
from whale_leaderboard.verify import verify

from whale_bench.schemas import read_schema as of_a_run
from whale_envs import UsageError


def validator(name: str, read: Any = read_schema) -> Any:
    return Draft202012Validator(json.loads(read(name)))


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def found(chess: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Every file of a bundle with spending and a curve, its report, and a site of it, by schema."""
    folder = tmp_path_factory.mktemp("schemas")
    shelf = folder / "shelf"
    report = msgspec.json.encode(verify(chess, level=1))
    shutil.copytree(chess, shelf / "an-entry")
    (shelf / "an-entry.report.json").write_bytes(report)
    build(shelf, folder / "site")
    build(shelf, folder / "addressed", url="https://example.org/board")
    return {
        "about": [json.loads(msgspec.json.encode(ABOUT))],
        "manifest": [json.loads((chess / "manifest.json").read_text())],
        "charged": lines(chess / "runs/0/charged.jsonl") + lines(chess / "runs/1/charged.jsonl"),
        "crossplay": [json.loads((chess / "crossplay.json").read_text())],
        "report": [json.loads(report)],
        "results": [json.loads((folder / "site" / "results.json").read_text())],
        "feed": [json.loads((folder / site / "feed.json").read_text()) for site in ("site", "addressed")],
    }


def test_every_file_of_a_submission_and_a_site_validates(found: dict[str, list[Any]]) -> None:
    assert found.keys() == KINDS.keys()
    for name, values in found.items():
        check = validator(name)
        for value in values:
            check.validate(value)
    assert len(found["charged"]) > 768
    [entry] = found["results"][0]["entries"].values()
    told = json.loads(read_schema("results"))["$defs"]
    assert entry.keys() == told["Facts"]["properties"].keys()  # what no type reads is described whole
    assert entry["report"].keys() == told["Verified"]["properties"].keys()
    assert found["feed"][1]["items"][0].keys() == told_of("feed", "Item")
    assert found["feed"][1].keys() == told_of("feed", "Feed")


def told_of(name: str, kind: str) -> Any:
    return json.loads(read_schema(name))["$defs"][kind]["properties"].keys()


def test_what_a_bundle_shares_with_a_run_is_as_a_runs_schemas_say(chess: Path) -> None:
    for name, file in (("event", "runs/1/ledger.jsonl"), ("rollout", "runs/1/samples.jsonl")):
        rows = lines(chess / file)
        check = validator(name, of_a_run)
        for row in rows:
            check.validate(row)
        assert rows
    validator("run", of_a_run).validate(tomllib.loads((chess / "runs/0/run.toml").read_text()))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("about", {"licence": ""}),
        ("manifest", {"format": 2}),
        ("charged", {"digest": "0" * 63}),
        ("charged", {"reward": 1.5}),
        ("charged", {"more": 1}),
        ("crossplay", {"weights": []}),
        ("report", {"level": "2"}),
        ("results", {"entries": {"x": {}}}),
        ("feed", {"items": [{}]}),
    ],
)
def test_a_wrong_value_does_not_validate(
    name: str, change: dict[str, Any], found: dict[str, list[Any]]
) -> None:
    assert not validator(name).is_valid(found[name][0] | change)


def test_an_unknown_schema_is_misuse() -> None:
    with pytest.raises(UsageError, match="about, manifest, charged"):
        read_schema("ledger")
