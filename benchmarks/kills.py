"""SIGKILLs of a whole WHALE run of SmolLM2 at random instants: it ends complete, each rollout charged once.

    python benchmarks/kills.py                          # 20 kills
    python benchmarks/kills.py --kills 3 --recipe mine.toml --seed 7

The recipe is the demonstration's on Math, cut down to two steps with a search between them, from one worked
example on, so that training has something to learn from. Each launch goes some rollouts further and then is
killed, also in the middle of loading, training and saving; every second one as soon as a step's weights are
there and its optimizer is not. Rollouts are sampled in batches, whose makeup a kill changes, so scores are
not compared with an uninterrupted run's; tests/baselines/test_whole_runs.py does that, one rollout at a time.

Launches are forks of a process that has imported everything and done nothing: a process each, and twenty of
them do not wait for twenty imports of torch.

Not covered: a machine that loses its power; kills while modules are imported.
"""

import argparse
import importlib
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from whale_baselines import cli
from whale_baselines.checkpoint import Checkpoints
from whale_baselines.history import History
from whale_baselines.plan import plan_of
from whale_baselines.recipes import load_recipe
from whale_baselines.run_recipe import recipe_in
from whale_baselines.trainer import STATE

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
examples = 4
slots = 1
[schedule]
budget = 10000
steps_per_epoch = 1
total_epochs = 2.0
epochs = 1.0
iterations = 2
[dev]
every_steps = 0
every_iterations = 0
samples = 1
test = "none"
[filter]
harness = 4
dev = 4
"""
IMPORTED = (
    "torch",
    "transformers",
    "transformers.models.llama.modeling_llama",
    "whale_baselines.run_command",
    "whale_baselines.real_operators",
    "whale_baselines.rsft",
    "whale_bench.models.local",
    "math_verify",
)
"""What every launch needs."""


def lines(folder):
    return sum(part.read_bytes().count(b"\n") for part in folder.glob("rollouts-*.jsonl"))


def launch(words, told):
    """The process that runs `whale-baselines` with these words; `told` takes what it writes."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        file = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for stream in (1, 2):
            os.dup2(file, stream)
        sys.argv = ["whale-baselines", *map(str, words)]
        cli.main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:  # noqa: BLE001 - the fork must not go on as its parent
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def ended(process, *, wait=False):
    """Its exit code, negative for a signal; None while it runs."""
    found, status = os.waitpid(process, 0 if wait else os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def not_whole(folder):
    """Checkpoints whose weights are there, and nothing else yet."""
    return {step for step in folder.glob("checkpoints/step-*") if not (step / STATE).exists()}


def kill_once(words, folder, told, target, delay, *, early):
    """Launches, waits for so many rollouts and a little longer, kills; "" if it had ended, else where it was.

    `early`: it kills as soon as another checkpoint is not whole, too.
    """
    before, process, until, where = not_whole(folder), launch(words, told), None, "running"
    while (code := ended(process)) is None and (until is None or time.monotonic() < until):
        time.sleep(0.001 if early else 0.01)
        if early and not_whole(folder) - before:
            where = "before a checkpoint was whole"
            break
        if until is None and lines(folder) >= target:
            until = time.monotonic() + delay
    if code is None:
        os.kill(process, signal.SIGKILL)
        code = ended(process, wait=True)
    if code not in (0, -signal.SIGKILL):
        sys.exit(told.read_text())
    return where if code == -signal.SIGKILL else ""


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
    parser.add_argument("--recipe", help="a TOML file; default: SmolLM2 on Math, two steps")
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    for name in IMPORTED:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory() as place:
        file = Path(asked.recipe) if asked.recipe else Path(place) / "whale.toml"
        if not asked.recipe:
            harness = Path(__file__).resolve().parents[1] / "examples" / "worked_example.py"
            file.write_text(RECIPE.format(harness=harness))
        folder, told, hits, began = Path(place) / "run", Path(place) / "told", Counter(), time.monotonic()
        expected = plan_of(load_recipe(str(file))).most.rollouts
        words = ("run", file, "--out", folder)
        for number in range(1, asked.kills + 1):
            target = int(expected * number * rng.uniform(0.6, 0.95) / asked.kills)
            where = kill_once(words, folder, told, target, rng.random() * 3, early=number % 2)
            hits[where] += 1
            print(
                f"launch {number}: {lines(folder)} of at most {expected} rollouts; "
                f"{'killed ' + where if where else 'it had ended'}",
                flush=True,
            )
        if ended(launch(words, told), wait=True):
            sys.exit(told.read_text())
        kills = {f"killed {where}": count for where, count in sorted(hits.items()) if where}
        found = {**kills, **check(folder), "minutes": (time.monotonic() - began) / 60}
    for name, value in found.items():
        print(f"{name}: {value:.1f}" if isinstance(value, float) else f"{name}: {value}")


if __name__ == "__main__":
    main()
