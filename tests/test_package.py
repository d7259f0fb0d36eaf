"""The distribution: names, version, public surface, and what the wheel holds."""

import importlib
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
METADATA = tomllib.loads((ROOT / "pyproject.toml").read_text())

PUBLIC = {
    "whale_envs": {
        "DOMAINS", "PROFILES", "SPLITS", "DataError", "Domain", "EpisodeError", "Example", "ExampleSet",
        "FinalResponse", "InfrastructureError", "RolloutError", "TextEnv", "ToolCall", "UnicodeText",
        "UnknownNameError", "UsageError", "Verdict", "WhaleError", "__version__", "get_domain",
        "load_examples", "make_env", "parse_action",
    },
    "whale_bench": {
        "Agent", "EvalPlan", "Generation", "Ledger", "Request", "Rollout", "RunStore", "Summary", "Task",
        "evaluate", "load_backend", "mean_at_k", "pass_at_k", "rollout", "training_sequences",
    },
    "whale_bench.harness": {
        "Act", "BaseHarness", "ChatMessage", "Decision", "Nudge", "Reply", "Stop", "Turn", "View",
    },
}  # fmt: skip


@pytest.mark.parametrize("package", PUBLIC)
def test_the_public_surface_is_what_we_say_it_is(package: str) -> None:
    module = importlib.import_module(package)
    assert set(module.__all__) == PUBLIC[package]
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_version_and_changelog_agree() -> None:
    assert version("whale-envs") == METADATA["project"]["version"]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == METADATA["project"]["version"]


def test_the_base_install_stays_light() -> None:
    heavy = (
        "torch",
        "transformers",
        "datasets",
        "inspect_ai",
        "pyarrow",
        "pyserini",
        "vllm",
        "anthropic",
        "openai",
        "ray",
    )
    assert not [d for d in METADATA["project"]["dependencies"] if d.startswith(heavy)]


def test_the_wheel_ships_four_packages_their_types_and_their_data(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(ROOT)], check=True, capture_output=True)
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    for package in ("whale_envs", "whale_bench", "whale_baselines", "whale_leaderboard"):
        assert f"{package}/__init__.py" in names
        assert f"{package}/py.typed" in names
    assert "whale_envs/data/chess_puzzles/lichess_puzzles.csv" in names
    assert "whale_bench/harness/h0/chess_puzzles.py" in names
    assert "whale_bench/schemas/rollout.json" in names
    assert {f"whale_bench/view/static/{name}" for name in ("page.html", "style.css", "app.js")} <= set(names)
    assert any(name.endswith("licenses/NOTICE") for name in names)
    strays = ("tests/", "baselines/", "leaderboard/", "benchmarks/")
    assert not [name for name in names if name.startswith(strays)]
