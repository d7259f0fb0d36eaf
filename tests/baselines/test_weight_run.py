"""The command, from a file to a folder; and a real SIGKILL."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tiny_model import write_folder
from whale_baselines.checkpoint import Checkpoints
from whale_baselines.weight_run import read_plan

from whale_bench.ledger import Ledger
from whale_envs.errors import UsageError

COMMAND = [sys.executable, "-m", "whale_baselines.cli", "run"]
AGENT = '[agent]\ndomain = "chess_puzzles"\nmodel = "local/{base}"\nmax_tokens = 4\nn = 4\n'
RECIPE = '[recipe]\nprompts = 2\nsamples = 2\nprecision = "float32"\nmost_empty = 5\n'


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("run") / "base")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    return folder


@pytest.fixture
def file(base, tmp_path):
    path = tmp_path / "weight.toml"
    path.write_text(f"steps = 3\n{AGENT.format(base=base)}{RECIPE}")
    return path


def launch(*words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*COMMAND, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def test_a_run_that_was_killed_goes_on_and_is_charged_once(file, tmp_path):
    folder = tmp_path / "run"
    with launch(file, "--out", folder) as process:
        deadline = time.monotonic() + 600
        while not (folder / "checkpoints" / "step-000001").exists():
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert Checkpoints(folder / "checkpoints", 2).latest().state.step < 3
    with launch(file, "--out", folder) as process:
        told, problem = process.communicate(timeout=600)
    assert process.returncode == 0, problem
    assert "trained parameters" in told
    assert "0 of 4 accepted, 0 updates, no update" in told
    assert Checkpoints(folder / "checkpoints", 2).latest().state.rollouts == 12
    assert [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()] == [
        1,
        2,
        3,
    ]
    with Ledger(folder / "ledger.sqlite", readonly=True) as ledger:
        ledger.audit()
        assert ledger.charged()["weight"].rollouts == 12


def test_explain_says_what_it_takes_and_makes_nothing(file, tmp_path):
    with launch(file, "--explain") as process:
        told, problem = process.communicate(timeout=600)
    assert process.returncode == 0, problem
    assert "rollouts per step             4" in told
    assert [path.name for path in tmp_path.iterdir()] == ["weight.toml"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps = 0", "steps must be a whole number from 1, got 0"),
        ("steps = 1\nstep = 2", "unknown step; valid: steps"),
        ("steps = 1\n[agent]\nk = 3", r"has no 'k': samples of the recipe"),
        ("steps = 1\n[agent]\ndomain = 'math_python'", "lacks 'model'"),
        (
            "steps = 1\n[agent]\ndomain = 'x'\nmodel = 'y'\n[recipe]\nlr = -1.0",
            "lr of a recipe must be more than 0",
        ),
        (
            "steps = 1\n[agent]\ndomain = 'x'\nmodel = 'y'\n[recipe]\nlearning_rate = 1",
            "no 'learning_rate'; valid",
        ),
        ("steps =", "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_is_refused_with_its_name(tmp_path, text, message):
    path = tmp_path / "weight.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=f"weight.toml: .*{message}"):
        read_plan(path)
