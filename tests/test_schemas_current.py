"""The committed schemas of all packages are what their types say."""

import json
from typing import Any

import pytest
import whale_baselines.schemas
import whale_leaderboard.schemas
from jsonschema import Draft202012Validator

import whale_bench.schemas
from whale_bench.store import FORMAT

PACKAGES = {
    "whale-bench": whale_bench.schemas,
    "whale-baselines": whale_baselines.schemas,
    "whale-leaderboard": whale_leaderboard.schemas,
}
NAMES = [(package, name) for package, module in PACKAGES.items() for name in module.COMMITTED.makers]


@pytest.mark.parametrize(("package", "name"), NAMES)
def test_the_committed_schema_is_what_the_types_say(package: str, name: str) -> None:
    module: Any = PACKAGES[package]
    text = module.read_schema(name)
    assert text == module.make(name), f"python -m {module.__name__} writes it anew"
    schema = json.loads(text)
    Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"urn:{package}:{name}:{FORMAT}"
    assert r"\\A" not in text  # no anchor that only Python knows


@pytest.mark.parametrize("package", PACKAGES)
def test_there_is_no_schema_that_nothing_makes(package: str) -> None:
    made = PACKAGES[package].COMMITTED
    assert {path.stem for path in made.folder.glob("*.json")} == set(made.makers)
    assert PACKAGES[package].VERSION == FORMAT
