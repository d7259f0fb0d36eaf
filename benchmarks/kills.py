"""SIGKILLs of a whole WHALE run of SmolLM2 at random instants: it ends complete, each rollout charged once.

    python benchmarks/kills.py                          # 20 kills
    python benchmarks/kills.py --kills 3 --recipe mine.toml --seed 7

The recipe is the demonstration's on Math, cut down to two cycles, from one worked example on, so that
training has something to learn from. Each launch goes some rollouts further and then is killed, also in the
middle of loading, training and saving. Rollouts are sampled in batches, whose makeup a kill changes, so
scores are not compared with an uninterrupted run's; tests/baselines/test_whole_runs.py does that, one rollout
at a time.

Not covered: a machine that loses its power.
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from whale_baselines.checkpoint import Checkpoints
from whale_baselines.history import History
from whale_baselines.plan import plan_of
from whale_baselines.recipes import load_recipe
from whale_baselines.run_recipe import recipe_in

from whale_bench.ledger import Ledger
from whale_bench.store import RunStore

RECIPE = """
base = "demo/math_python/whale"
[agent]
harness = "{harness}"
[recipe]
prompts = 4
samples = 4
[search]
examples = 8
slots = 1
[schedule]
budget = 10000
steps_per_epoch = 2
total_epochs = 2.0
epochs = 1.0
iterations = 2
[dev]
every_steps = 0
every_iterations = 0
samples = 2
[filter]
harness = 8
dev = 8
test = 8
"""
"""4 steps of 16 rollouts, and a search between them."""


def lines(folder):
    return sum(part.read_bytes().count(b"\n") for part in folder.glob("rollouts-*.jsonl"))


def start(words):
    command = [sys.executable, "-m", "whale_baselines.cli", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def kill_once(words, folder, target, delay):
    """Launches, waits for so many rollouts and a little longer, kills; whether it was still running."""
    with start(words) as process:
        while process.poll() is None and lines(folder) < target:
            time.sleep(0.01)
        if process.poll() is None:
            time.sleep(delay)
        process.kill()
        process.communicate()
        return process.returncode == -signal.SIGKILL


def check(folder):
    """What must hold after the last launch; returns what there is to tell."""
    recipe, history = recipe_in(folder), History(folder, readonly=True)
    assert (folder / "summary.json").exists(), "the run is not finished"
    assert recipe.plan_schedule().next(history.moves) is None, "moves are missing"
    records = [record.key for record in RunStore.open(folder).rollouts()]
    assert not [key for key, count in Counter(records).items() if count > 1], "a rollout is recorded twice"
    with Ledger(folder / "ledger.sqlite", readonly=True) as ledger:
        ledger.audit()
        assert ledger.open_reservations() == [], "reservations are left open"
        settled = [event.key for event in ledger.events() if event.kind == "settle"]
        charged, executed = ledger.charged(), ledger.executed()
    assert len(settled) == len(set(settled)), "something is charged twice"
    rollouts = sum(charge.rollouts for charge in charged.values())
    assert rollouts == len(records), f"{rollouts} rollouts are charged, {len(records)} recorded"
    steps = [move for move in history.moves if move.kind == "train"]
    newest = Checkpoints(folder / "checkpoints", recipe.recipe.keep_last).latest().state
    assert newest.step == len(steps), "the newest checkpoint is of another step"
    return {
        "steps": len(steps),
        "search iterations": len(history.moves) - len(steps),
        "accepted rollouts": sum(step.metrics["accepted"] for step in steps),
        "updates": newest.updates,
        "rollouts charged": rollouts,
        "rollouts executed": sum(charge.rollouts for charge in executed.values()),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--recipe", help="a TOML file; default: SmolLM2 on Math, two cycles")
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as place:
        file = Path(asked.recipe) if asked.recipe else Path(place) / "whale.toml"
        if not asked.recipe:
            harness = Path(__file__).resolve().parents[1] / "examples" / "worked_example.py"
            file.write_text(RECIPE.format(harness=harness))
        folder, hits, began = Path(place) / "run", 0, time.monotonic()
        expected = plan_of(load_recipe(str(file))).most.rollouts
        words = ("run", file, "--out", folder)
        for number in range(1, asked.kills + 1):
            target = int(expected * number * rng.uniform(0.6, 0.95) / asked.kills)
            hits += kill_once(words, folder, target, rng.random() * 3)
            print(f"launch {number}: {lines(folder)} of at most {expected} rollouts", flush=True)
        with start(words) as process:
            _, problem = process.communicate()
        if process.returncode:
            sys.exit(problem)
        told = {"killed while running": hits, **check(folder), "minutes": (time.monotonic() - began) / 60}
    for name, value in told.items():
        print(f"{name}: {value:.1f}" if isinstance(value, float) else f"{name}: {value}")


if __name__ == "__main__":
    main()
