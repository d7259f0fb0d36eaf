"""The command, from a file to a folder; and a real SIGKILL."""

import asyncio
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import pytest
from tiny_model import write_folder
from whale_baselines.checkpoint import Checkpoints
from whale_baselines.tracking import LOGGERS, Trackers
from whale_baselines.weight_run import find_recipe, read_plan, run

from whale_bench.evaluation import planned_examples
from whale_bench.ledger import Ledger
from whale_envs.errors import UsageError

COMMAND = [sys.executable, "-m", "whale_baselines.cli", "run"]
AGENT = '[agent]\ndomain = "chess_puzzles"\nmodel = "local/{base}"\nmax_tokens = 4\nn = 4\n'
RECIPE = '[recipe]\nprompts = 2\nsamples = 2\nprecision = "float32"\nmost_empty = 5\n[dev]\nn = 2\nk = 2\n'


PAIR = "[agent]\ndomain = 'math_python'\nmodel = 'local/smollm2'\n"


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
        charged = ledger.charged()
        assert (charged["weight"].rollouts, charged["dev"].rollouts) == (12, 4)  # no update, one evaluation
        settled = [event.key for event in ledger.events() if event.kind == "settle"]
    assert sorted(key for key in settled if key.startswith("train:")) == ["train:1", "train:2", "train:3"]
    lines = [json.loads(line) for line in (folder / "dev.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 3]
    assert "mean@2 0.0% ± 0.0% on 2 examples" in told


def test_explain_says_what_it_takes_and_makes_nothing(file, tmp_path):
    with launch(file, "--explain") as process:
        told, problem = process.communicate(timeout=600)
    assert process.returncode == 0, problem
    assert re.search(r"rollouts per step +4\n", told)
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
        ("steps = 1\n[agents]", "unknown agents; valid: steps, .agent."),
        ("steps = 1\nagent = 3", ".agent. is a table, got 3"),
        (f"steps = 1\n{PAIR}families = ['units_digit']", "no 'families': they stand in .filter."),
        (
            f"steps = 1\n{PAIR}[filter]\nfamily = ['units_digit']",
            r".filter. has no 'family'; valid: families",
        ),
        (f"steps = 1\n{PAIR}[filter]\nfamilies = []", "families must name some"),
        (f"steps = 1\n{PAIR}[dev]\nevery = 0", "every of .dev. must be a whole number from 1, got 0"),
        (f"steps = 1\n{PAIR}[dev]\nsplit = 'test'", ".dev. has no 'split'; valid: every, k, n"),
    ],
)
def test_a_file_that_cannot_be_is_refused_with_its_name(tmp_path, text, message):
    path = tmp_path / "weight.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=f"weight.toml: .*{message}"):
        read_plan(path)


def test_the_demonstration_is_shipped_and_means_what_it_says():
    plan = read_plan(find_recipe("demo/weight_only"))
    assert [len(planned_examples(one)) for one in (plan.agent, plan.dev_agent)] == [256, 64]
    assert (plan.dev_agent.split, plan.dev_agent.k, plan.agent.families) == ("dev", 8, ("largest_of_three",))
    harness = Path(plan.agent.harness)
    assert harness.is_file()
    example = Path(__file__).parents[2] / "examples" / "worked_example.py"
    assert harness.read_text().partition("class")[2] == example.read_text().partition("class")[2]
    with pytest.raises(UsageError, match="did you mean 'demo/weight_only'"):
        find_recipe("demo/weights_only")


def test_a_shipped_recipe_is_a_file_like_any_other(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere.toml: cannot be read"):
        read_plan(find_recipe(tmp_path / "nowhere.toml"))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("scripted/oracle", "has no weights here to train; local/PATH and vllm/PATH can be trained"),
        ("openai/policy", "openai/NAME with `tokenizer`, the model's folder"),
        ("local/nowhere", "'nowhere' is not one"),
    ],
)
def test_a_model_without_weights_to_train_is_refused_before_anything_is_loaded(tmp_path, model, message):
    path = tmp_path / "weight.toml"
    path.write_text(f"steps = 1\n[agent]\ndomain = 'chess_puzzles'\nmodel = '{model}'\n")
    with pytest.raises(UsageError, match=message):
        asyncio.run(run(read_plan(path), tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_loggers_that_are_unknown_or_missing_are_refused_at_once(tmp_path):
    with pytest.raises(UsageError, match="unknown logger 'tensorbord'; did you mean 'tensorboard'"):
        Trackers(["tensorbord"], tmp_path)
    for name in LOGGERS:
        if importlib.util.find_spec(name) is None:
            with pytest.raises(UsageError, match=rf"--log {name} needs its package: pip install"):
                Trackers([name], tmp_path)


def test_numbers_of_a_line_reach_every_logger_and_are_flushed(tmp_path, monkeypatch):
    import accelerate.tracking

    class Kept:
        lines: ClassVar[list] = []

        def __init__(self, name, **where):
            self.lines.append((name, where))

        def start(self):
            self.lines.append("start")

        def log(self, values, step):
            self.lines.append((values, step))

        def finish(self):
            self.lines.append("finish")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(accelerate.tracking, "TensorBoardTracker", Kept)
    with Trackers(["tensorboard", "tensorboard"], tmp_path / "run") as trackers:
        trackers.log("explain", {"parameters": 3})
        trackers.log("step", {"step": 1, "loss": None, "empty": True, "seconds": {"train": 2.0}})
        trackers.log("dev", {"step": 1, "mean": 0.5, "weights_id": "sha256:0"})
    assert Kept.lines == [
        ("run", {"logging_dir": str(tmp_path / "run")}),
        "start",
        ({"train/step": 1.0, "train/empty": 1.0, "train/seconds/train": 2.0}, 1),
        ({"dev/step": 1.0, "dev/mean": 0.5}, 1),
        "finish",
    ]
