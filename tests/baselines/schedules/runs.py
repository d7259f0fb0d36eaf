"""Small simulated runs, whole and interrupted."""

import asyncio
import json

from whale_baselines.recipes import load_recipe
from whale_baselines.run_recipe import run_recipe
from whale_baselines.simulated.opening import simulated_operators

SMALL = """
base = "simulated/whale"
[recipe]
prompts = 8
samples = 4
[schedule]
total_epochs = 0.01
steps_per_epoch = 1000
epochs = 0.004
iterations = 3
[dev]
every_steps = 2
samples = 2
"""
"""10 steps: phases of 4, searches of 3."""


def recipe_in(folder, text=SMALL, name="small.toml"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return load_recipe(str(folder / name))


def run(recipe, folder, report=None, operators=simulated_operators):
    asyncio.run(run_recipe(recipe, folder, operators=operators, report=report))


def timeless(folder):
    """The history without the one field in which equal runs differ."""
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def harness_files(folder):
    return {path.name: path.read_text() for path in (folder / "harnesses").iterdir()}
