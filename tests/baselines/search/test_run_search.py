"""A search alone through the one run path: random SIGKILLs, evaluations, the command line."""

import json
import random
import signal
import subprocess
import sys
from functools import partial
from os import environ
from pathlib import Path

import pytest
from bench_fakes import lines, results, settled, wait_for
from search_fakes import H0, Obedient, Scripted, accounts, recorded, texts, told
from typer.testing import CliRunner
from whale_baselines import real_operators as opening
from whale_baselines.cli import app
from whale_baselines.history import History
from whale_baselines.real_operators import real_operators
from whale_baselines.recipes import load_recipe
from whale_baselines.run_recipe import recipe_in, run_recipe

from whale_bench.ledger import Ledger
from whale_envs.errors import UsageError

RECIPE = """
[agent]
domain = "chess_puzzles"
model = "scripted/noisy-oracle:0.5"
[search]
proposer = "replay"
examples = 32
[schedule]
kind = "harness_only"
iterations = 3
[dev]
samples = 2
test = "end"
[filter]
dev = 24
test = 12
[estimate]
device = "CPU"
"""
KILLS = int(environ.get("WHALE_KILLS", "2"))
"""`make kills` asks for 20, which land closer together than these."""

pytestmark = pytest.mark.filterwarnings("ignore::whale_bench.store.DamagedLineWarning")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "search.toml"
    path.write_text(RECIPE)
    return path


def start(file, folder):
    program = Path(__file__).with_name("running.py")
    return subprocess.Popen(
        [sys.executable, str(program), str(file), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def timeless(folder):
    """The history without its seconds."""
    found = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in found]


def abouts(folder):
    return [json.loads(path.read_text()) for path in sorted(folder.glob("archive/harnesses/h*/about.json"))]


def test_a_run_that_was_killed_ends_as_one_that_was_not(file, tmp_path):
    whole, folder, rng = tmp_path / "whole", tmp_path / "run", random.Random(6)
    file.write_text(RECIPE.replace("examples = 32", "examples = 16"))
    with start(file, whole) as process:
        _, problem = process.communicate(timeout=300)
    assert process.returncode == 0, problem
    total, hits = lines(whole), 0
    for number in range(1, KILLS + 1):
        target = int(total * number * rng.uniform(0.6, 0.95) / KILLS)
        with start(file, folder) as process:
            wait_for(lambda target=target: lines(folder) >= target, process, seconds=300)
            process.kill()
            process.communicate()
        hits += process.returncode == -signal.SIGKILL
    assert hits >= max(1, KILLS * 2 // 3)
    with start(file, folder) as process:
        _, problem = process.communicate(timeout=300)
    assert process.returncode == 0, problem
    assert results(folder) == results(whole)
    assert settled(folder) == settled(whole)
    assert timeless(folder) == timeless(whole)
    assert texts(folder / "archive") == texts(whole / "archive")
    assert [one["status"] for one in abouts(folder)][-2:] == ["flagged", "scored"]
    assert (folder / "summary.json").read_bytes() == (whole / "summary.json").read_bytes()
    with Ledger(folder / "ledger.sqlite", readonly=True) as ledger:
        assert ledger.open_reservations() == []


async def run(recipe, folder, *sessions, **options):
    operators = partial(real_operators, backend=Obedient(), proposer=Scripted(*sessions))
    await run_recipe(recipe, folder, operators=operators, **options)


async def test_agents_are_evaluated_on_dev_and_the_selected_one_on_test(file, tmp_path):
    recipe, folder, seen = load_recipe(str(file)), tmp_path / "run", []
    await run(recipe, folder, [told(0.9, "a")], report=seen.append)
    history = History(folder, readonly=True)
    assert seen == sorted([*history.moves, *history.points], key=seen.index)
    charged, _ = accounts(folder)
    found = {purpose: charge.rollouts for purpose, charge in charged.items()}
    assert found == {"harness": 64, "smoke": 1, "dev": 96, "test": 96}
    before, after = (point for point in history.points if point.split == "dev")
    assert after.harness_id == history.pair.harness_id != before.harness_id
    dev = [record for key, record in recorded(folder).items() if key.startswith("dev:")]
    for point in (before, after):
        mine = [one.verdict.reward for one in dev if one.harness_id == point.harness_id]
        assert point.score.mean == pytest.approx(sum(mine) / 48)
    assert before.rise is None
    assert after.rise.mean == pytest.approx(after.score.mean - before.score.mean)
    assert after.metrics["solved"] == pytest.approx(after.score.mean)
    assert (folder / "selected.py").read_text() == told(0.9, "a")
    assert not (folder / "checkpoints").exists()
    there = lines(folder)
    again = []
    await run(recipe_in(folder), folder, report=again.append)
    assert (lines(folder), again) == (there, [])
    file.write_text(RECIPE.replace("examples = 32", "examples = 31", 1))
    with pytest.raises(UsageError, match="with other settings"):
        await run(load_recipe(str(file)), folder)


async def test_a_run_that_accepts_nothing_evaluates_once(file, tmp_path):
    await run(load_recipe(str(file)), tmp_path / "run")
    assert (tmp_path / "run" / "selected.py").read_text() == H0
    assert accounts(tmp_path / "run")[0]["dev"].rollouts == 48


async def test_a_recipe_finds_its_harness_beside_it_and_a_run_in_its_folder(file, tmp_path):
    (tmp_path / "mine.py").write_text(told(0.6, "mine").replace("\n", "\r\n"))
    file.write_text(RECIPE.replace("[search]", 'harness = "mine.py"\n[search]'))
    recipe, folder = load_recipe(str(file)), tmp_path / "run"
    await run(recipe, folder)
    (tmp_path / "mine.py").unlink()
    found = recipe_in(folder)
    assert Path(found.agent["harness"]) == folder / "harness.py"
    await run(found, folder)
    assert (folder / "selected.py").read_text() == told(0.6, "mine")


def test_the_commands_explain_run_resume_and_show_a_search(file, tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "_proposer", lambda recipe: Scripted([told(0.5, "a")]))
    done = CliRunner().invoke(app, ["run", str(file), "--explain"])
    assert done.exit_code == 0, done.exception
    assert "rollouts: smoke" in done.output
    assert list(tmp_path.iterdir()) == [file]
    folder = tmp_path / "run"
    done = CliRunner().invoke(app, ["run", str(file), "--out", str(folder)])
    assert done.exit_code == 0, done.exception
    assert "iteration 2 (cycle 1): " in done.output
    assert "dev " in done.output
    done = CliRunner().invoke(app, ["resume", str(folder)])
    assert done.exit_code == 0, done.exception
    assert done.stdout.strip().endswith("was finished, nothing was left to do")
    done = CliRunner().invoke(app, ["lineage", str(folder)])
    assert done.exit_code == 0, done.exception
    assert "Lineage: scripted/noisy-oracle:0.5 on chess_puzzles" in (folder / "lineage.html").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({'proposer = "replay"': 'proposer = "claude"'}, "unknown proposer 'claude'"),
        ({"[search]": "[proposer]\nmodel = 'x'\n[search]"}, "has no setting 'model'"),
        ({"scripted/noisy-oracle:0.5": "scripted/nobody"}, "scripted"),
        ({"dev = 24": "dev = 9999"}, "fewer than its 9999"),
    ],
)
def test_what_a_run_cannot_use_is_refused_before_there_is_a_folder(file, tmp_path, change, message):
    text = RECIPE.replace('"replay"', '"mutate"') if '"replay"' not in "".join(change) else RECIPE
    for old, new in change.items():
        text = text.replace(old, new)
    file.write_text(text)
    done = CliRunner().invoke(app, ["run", str(file), "--out", str(tmp_path / "run")])
    assert isinstance(done.exception, UsageError)
    assert message in str(done.exception)
    assert not (tmp_path / "run").exists()
