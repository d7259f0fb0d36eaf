"""SIGKILL of the real command at random instants of a whole run: the end and the charges are the same."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bench_fakes import BEGUN, begin_ledger, settled, wait_for
from runs import harness_files, recipe_in, run, timeless
from whale_baselines.status import status_of

from whale_bench.ledger import Ledger

COMMAND = [sys.executable, "-m", "whale_baselines.cli", "run"]
RECIPE = """
base = "simulated/whale_e0.2_i6"
[schedule]
total_epochs = 2.0
[dev]
every_steps = 3
every_iterations = 2
"""
"""148 steps in 10 phases, with 9 searches of 6 between them."""
KILLS = int(os.environ.get("WHALE_KILLS", "4"))
"""`make kills` asks for 20."""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("kill") / "whale.toml"
    path.write_text(RECIPE)
    return path


def start(recipe: Path, folder: Path) -> subprocess.Popen[bytes]:
    words = [*COMMAND, str(recipe), "--out", str(folder)]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(recipe, folder):
    with start(recipe, folder) as process:
        _, problem = process.communicate()
    assert process.returncode == 0, problem


def size(folder):
    path = folder / "history.jsonl"
    return path.stat().st_size if path.exists() else 0


@pytest.fixture(scope="module")
def whole(recipe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    finish(recipe, folder)
    return folder


def test_kills_lose_and_double_nothing(recipe, whole, tmp_path):
    folder, rng, hits = tmp_path / "run", random.Random(8), 0
    for number in range(1, KILLS + 1):
        # Each launch gets about as much of the run further; now and then it dies before it has begun.
        target = size(whole) * number * rng.uniform(0.7, 0.95) / KILLS
        with start(recipe, folder) as process:
            wait_for(lambda target=target: size(folder) >= target, process)
            ready = time.monotonic() + rng.random() * 0.004
            wait_for(lambda ready=ready: time.monotonic() >= ready, process)
            process.kill()
            process.communicate()
        hits += process.returncode == -signal.SIGKILL and size(folder) < size(whole)
    finish(recipe, folder)
    assert hits >= KILLS * 3 // 4
    assert timeless(folder) == timeless(whole)
    assert settled(folder) == settled(whole)
    assert harness_files(folder) == harness_files(whole)
    assert (folder / "summary.json").read_bytes() == (whole / "summary.json").read_bytes()
    with Ledger(folder / "ledger.sqlite", readonly=True) as ledger:
        assert ledger.open_reservations() == []
        charged, executed = ledger.charged(), ledger.executed()
    assert all(executed[purpose].rollouts >= charged[purpose].rollouts for purpose in charged)


def test_a_kill_while_the_ledger_is_made_costs_nothing(tmp_path):
    recipe = recipe_in(tmp_path)
    run(recipe, whole := tmp_path / "whole")
    for state in BEGUN:
        folder = tmp_path / state
        folder.mkdir()
        shutil.copy(whole / "run.toml", folder)
        begin_ledger(folder / "ledger.sqlite", state)
        assert status_of(folder).charged == {}
        run(recipe, folder)
        assert (timeless(folder), settled(folder)) == (timeless(whole), settled(whole))
