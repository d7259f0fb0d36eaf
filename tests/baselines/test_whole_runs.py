"""Whole WHALE runs of a model that samples and learns: SIGKILLs at random instants, and a cycle as on a GPU.

`WHALE_KILLS=20` makes it twenty kills (`make kills`).
"""

import contextlib
import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from bench_fakes import lines, settled
from taught_model import write_taught
from typer.testing import CliRunner
from whale_baselines.checkpoint import Checkpoints
from whale_baselines.cli import app
from whale_baselines.filters import filtered
from whale_baselines.history import History
from whale_baselines.settings import FilterSettings

from whale_bench.ledger import Ledger
from whale_bench.store import RunStore

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
COMMAND = [sys.executable, "-m", "whale_baselines.cli"]
KILLS = int(os.environ.get("WHALE_KILLS", "1"))
FAMILIES = ("larger_of_two",)
COUNTS = {"weight": 4, "harness": 3, "dev": 2, "test": 2}
RECIPE = """
[agent]
domain = "math_python"
tier = "small"
model = "local/{model}"
max_tokens = 16
concurrency = 1        # each rollout alone: what it samples does not depend on who is in the batch beside it
[recipe]
prompts = 2
samples = 4
minibatch = 2
lr = 3e-4
precision = "float32"
most_empty = 0
[search]
proposer = "mutate"
examples = 3
slots = 1
[schedule]
kind = "fixed"
total_epochs = 2.0
epochs = 1.0
iterations = 2
search_after_last = true
[dev]
every_steps = 1
samples = 2
test = "end"
[filter]
weight = 4
harness = 3
dev = 2
test = 2
groups = {{ family = ["larger_of_two"] }}
[estimate]
device = "CPU"
"""

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::whale_bench.store.DamagedLineWarning"),
]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    place = tmp_path_factory.mktemp("kills")
    filters = FilterSettings(**COUNTS, groups={"family": FAMILIES})
    examples = {split: list(filtered("math_python", "small", split, filters)) for split in COUNTS}
    model = write_taught(place / "model", examples, rounds=25)
    file = place / "whale.toml"
    file.write_text(RECIPE.format(model=model))
    return file


def launch(*words):
    return subprocess.Popen(
        [*COMMAND, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def wait(process, seconds):
    """Until it has ended, at most so long."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=seconds)


def not_whole(folder):
    """Checkpoints whose weights are there, and nothing else yet."""
    return {step for step in folder.glob("checkpoints/step-*") if not (step / "trainer").exists()}


def told(folder):
    """The history without seconds, wherever they stand."""

    def timeless(value):
        if isinstance(value, dict):
            return {
                key: timeless(inner)
                for key, inner in value.items()
                if key not in ("seconds", "verify_seconds")
            }
        return value

    return [timeless(json.loads(line)) for line in (folder / "history.jsonl").read_text().splitlines()]


def test_kills_of_a_run_that_learns_change_nothing_and_charge_each_rollout_once(recipe, tmp_path):
    whole, folder, rng = tmp_path / "whole", tmp_path / "run", random.Random(5)
    done = CliRunner().invoke(app, ["run", str(recipe), "--out", str(whole)])
    assert done.exit_code == 0, done.exception
    steps = [move for move in History(whole, readonly=True).moves if move.kind == "train"]
    accepted = [step.metrics["accepted"] for step in steps]
    assert any(accepted), "a run without accepted rollouts trains nothing"
    assert len({step.weights_id for step in steps}) == 1 + sum(number > 0 for number in accepted[1:])
    hits, words = 0, ("run", recipe, "--out", folder)
    for number in range(1, KILLS + 1):
        target = max(1, int(lines(whole) * number * rng.uniform(0.7, 0.95) / KILLS))
        before, early = not_whole(folder), number % 2  # every second kill before a checkpoint is whole
        with launch(*words) as process:
            while process.poll() is None and lines(folder) < target:
                if early and not_whole(folder) - before:
                    break
                wait(process, 0.002 if early else 0.02)
            else:
                wait(process, rng.random() * 0.3)  # into a step's training and its checkpoint
            process.kill()
            process.communicate()
        hits += process.returncode == -signal.SIGKILL
        words = ("resume", folder) if (folder / "run.toml").exists() else words
    assert hits >= max(1, KILLS // 2)
    with launch(*words) as process:
        _, problem = process.communicate(timeout=900)
    assert process.returncode == 0, problem
    assert told(folder) == told(whole)
    assert settled(folder) == settled(whole)
    newest = [Checkpoints(place / "checkpoints", 2).latest().state for place in (folder, whole)]
    assert newest[0] == newest[1]
    assert (folder / "selected.py").read_bytes() == (whole / "selected.py").read_bytes()
    records = [record.key for record in RunStore.open(folder).rollouts()]
    assert len(records) == len(set(records))
    with Ledger(folder / "ledger.sqlite", readonly=True) as ledger:
        assert ledger.open_reservations() == []
        charged, executed = ledger.charged(), ledger.executed()
    assert sum(charge.rollouts for charge in charged.values()) == len(records)
    assert all(executed[purpose].rollouts >= charged[purpose].rollouts for purpose in charged)


def test_the_cycle_for_a_gpu_runs_on_a_cpu_and_tells_what_it_took(recipe, tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("gpu_whale_cycle", BENCHMARKS / "gpu_whale_cycle.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    small = "--steps 2 --iterations 2 --prompts 2 --samples 2 --examples 2 --slots 1 --dev 2 --dev-samples 1"
    model = recipe.parent / "model"
    words = [*small.split(), "--max-tokens", "16", "--model", str(model), "--out", str(tmp_path / "cycle")]
    script.main(words)
    told = capsys.readouterr().out
    assert re.search(
        r"^train: 2 moves, [\d.]+ s, 8 rollouts, \d\d+ tokens sampled, \d+ tokens/s", told, re.MULTILINE
    )
    assert re.search(r"^search: 2 moves, ", told, re.MULTILINE)
    assert re.search(r"^charged: dev \d+, harness \d+, smoke 1, weight 8$", told, re.MULTILINE)
    assert "2 rollouts, dev" in told
    moves = History(tmp_path / "cycle", readonly=True).moves
    assert [(m.kind, m.number) for m in moves] == [("train", 1), ("train", 2), ("search", 1), ("search", 2)]
    before = lines(tmp_path / "cycle")
    script.main(words)  # goes on, and there is nothing left
    assert lines(tmp_path / "cycle") == before
