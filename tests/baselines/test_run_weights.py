"""Recipes that train, through the one run path: the command, hand-offs, what is kept, cross-play."""

import asyncio
import importlib.util
import json
import re
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
from bench_fakes import lines
from jsonschema import Draft202012Validator
from test_play import NoisyOracle
from tiny_model import write_folder
from typer.testing import CliRunner
from whale_baselines.alternate import Iterated
from whale_baselines.cli import app
from whale_baselines.comparison_page import write_comparison
from whale_baselines.crossplay import crossplay, matrix_of
from whale_baselines.crossplay_page import gap_of
from whale_baselines.history import History, harness_of
from whale_baselines.proposers.mutate import Mutate
from whale_baselines.real_operators import real_operators
from whale_baselines.recipes import load_recipe
from whale_baselines.run_recipe import recipe_in, run_recipe
from whale_baselines.schemas import read_schema
from whale_baselines.search.operator import SearchOperator
from whale_baselines.serving import Serving
from whale_baselines.tracking import LOGGERS, Trackers

from whale_bench.ledger import Ledger
from whale_bench.models.folder import hash_folder
from whale_bench.store import RunStore
from whale_envs.errors import InfrastructureError, UsageError

RECIPE = """
[agent]
domain = "chess_puzzles"
model = "local/{base}"
max_tokens = 4
[recipe]
prompts = 2
samples = 2
lr = 1e-3
precision = "float32"
most_empty = 0
[search]
proposer = "mutate"
examples = 3
slots = 1
[schedule]
kind = "fixed"
steps_per_epoch = 2
total_epochs = 2.0
epochs = 1.0
iterations = 2
search_after_last = true
[dev]
every_steps = 0
samples = 2
test = "end"
[filter]
weight = 4
harness = 3
dev = 2
test = 2
[estimate]
device = "CPU"
"""
WEIGHTS_ONLY = {
    'kind = "fixed"': 'kind = "weight_only"',
    "epochs = 1.0\niterations = 2\nsearch_after_last = true\n": "",
}

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::whale_bench.store.DamagedLineWarning"),
]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("run") / "base")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    return folder


def recipe_at(path, base, changes=()):
    text = RECIPE.format(base=base)
    for old, new in dict(changes).items():
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return path


def test_explain_says_what_it_takes_and_makes_nothing(base, tmp_path):
    file = recipe_at(tmp_path / "weight.toml", base, WEIGHTS_ONLY)
    done = CliRunner().invoke(app, ["run", str(file), "--explain"])
    assert done.exit_code == 0, done.exception
    assert re.search(r"rollouts per step +4\n", done.output)
    assert "memory gb" in done.output
    assert [path.name for path in tmp_path.iterdir()] == ["weight.toml"]


def run(file, folder, base, **options):
    """With a model whose rollouts are verified, so that every step changes the weights."""
    operators = partial(real_operators, backend=NoisyOracle(base), proposer=Mutate())
    recipe = load_recipe(str(file)) if file else recipe_in(folder)
    asyncio.run(run_recipe(recipe, folder, operators=operators, **options))
    return History(folder, readonly=True)


def test_weights_and_harness_are_handed_over_and_the_selected_ones_are_tested(base, tmp_path):
    file, folder = recipe_at(tmp_path / "whale.toml", base), tmp_path / "run"
    history = run(file, folder, base)
    weights = [made.weights_id for made in history.moves]
    assert len(set(weights)) == 4  # each step made others, no search did
    assert weights[1] == weights[2] == weights[3] != weights[4]
    records = {record.key: record for record in RunStore.open(folder).rollouts()}
    for made in history.moves:
        if made.kind == "search" and made.number == 1:
            mine = [
                r
                for r in records.values()
                if r.key.startswith("harness:") and r.weights_id == made.weights_id
            ]
            assert made.harness_id in {r.harness_id for r in mine}
    selected = max((p for p in history.points if p.split == "dev"), key=lambda point: point.score.mean)
    (tested,) = (p for p in history.points if p.split == "test")
    assert (tested.weights_id, tested.harness_id) == (selected.weights_id, selected.harness_id)
    test = [r for r in records.values() if r.key.startswith("test:")]
    assert {(r.weights_id, r.harness_id) for r in test} == {(selected.weights_id, selected.harness_id)}


@pytest.mark.parametrize("keep", ["selected", "points"])
def test_the_weights_of_evaluated_agents_outlive_their_checkpoints(base, tmp_path, keep):
    changes = {
        **WEIGHTS_ONLY,
        "every_steps = 0": f'every_steps = 1\nkeep = "{keep}"',
        "samples = 2\nlr": "samples = 2\nkeep_last = 1\nlr",
    }
    file, folder = recipe_at(tmp_path / "weight.toml", base, changes), tmp_path / "run"
    history = run(file, folder, base)
    dev = [point for point in history.points if point.split == "dev"]
    kept = {hash_folder(path) for path in (folder / "weights").iterdir()}
    later = {point.weights_id for point in dev} - {hash_folder(base)}
    if keep == "points":
        assert kept == later
    selected = max(dev, key=lambda point: point.score.mean).weights_id
    assert selected in kept | {hash_folder(base)}
    assert kept <= later
    before = lines(folder)
    run(None, folder, base)
    assert lines(folder) == before


class Helps(Mutate):
    """From its first candidate on the model finds every move, so that this candidate is accepted."""

    def __init__(self, backend):
        super().__init__()
        self.backend = backend

    async def propose(self, brief):
        self.backend.chance = 1.0
        return await super().propose(brief)


def test_every_kept_weights_play_with_every_accepted_harness_once_and_no_budget_has_it(base, tmp_path):
    file = recipe_at(tmp_path / "whale.toml", base, {"every_steps = 0": 'every_steps = 0\nkeep = "points"'})
    folder, backend = tmp_path / "run", NoisyOracle(base)
    backend.chance = 0.0
    operators = partial(real_operators, backend=backend, proposer=Helps(backend))
    asyncio.run(run_recipe(load_recipe(str(file)), folder, operators=operators))
    points = [point for point in History(folder, readonly=True).points if point.split == "dev"]
    with Ledger(folder / "ledger.sqlite", readonly=True) as ledger:
        before = lines(folder), ledger.charged()
    done = CliRunner().invoke(app, ["crossplay", str(folder)])
    assert done.exit_code == 0, done.exception
    assert re.search(r"Co-adaptation gap, .* 95% interval over 2 examples \[", done.output)
    pairs = {(point.weights_id, point.harness_id) for point in points}
    size = len({weights for weights, _ in pairs}) * len({harness for _, harness in pairs})
    assert size > len(pairs)
    apart = folder / "crossplay"
    assert lines(apart) == (size - len(pairs)) * 4  # what the run had evaluated is not played again
    matrix = asyncio.run(crossplay(folder))
    assert lines(apart) == (size - len(pairs)) * 4
    for point in points:
        row, column = matrix.weights.index(point.weights_id), matrix.harnesses.index(point.harness_id)
        assert matrix.scores[row][column] == point.score
    assert f"{matrix.scores[0][0].mean:.1%}" in (apart / "index.html").read_text()
    assert matrix_of(folder) == matrix
    said, schema = json.loads((apart / "matrix.json").read_text()), json.loads(read_schema("matrix"))
    Draft202012Validator(schema).validate(said)
    assert not Draft202012Validator(schema).is_valid(said | {"scores": said["scores"][0]})
    write_comparison([folder], tmp_path / "page.html")
    assert gap_of(matrix) in (tmp_path / "page.html").read_text()
    with Ledger(folder / "ledger.sqlite", readonly=True) as ledger:
        ledger.audit()
        assert (lines(folder), ledger.charged()) == before
    with Ledger(apart / "ledger.sqlite", readonly=True) as ledger:
        ledger.audit()
        assert ledger.open_reservations() == []
        assert ledger.charged()["dev"].rollouts == lines(apart)
    (apart / "matrix.json").write_text("{")
    with pytest.raises(UsageError, match=r"matrix.json: cannot be read: .*; `crossplay` writes it anew"):
        matrix_of(folder)


class Killed(BaseException):
    """Stands for a process that ends here."""


@pytest.mark.parametrize("dies_at", ["test", "dev"])
def test_an_evaluation_that_a_kill_cut_goes_on_with_the_weights_that_it_is_of(base, tmp_path, dies_at):
    """Also the last one, which may be of weights that are not served any more."""
    file, folder = recipe_at(tmp_path / "weight.toml", base, WEIGHTS_ONLY), tmp_path / "run"
    whole = run(file, tmp_path / "whole", base)

    def dies(what, done, of):
        if what == dies_at and done == 3:
            raise Killed

    with pytest.raises(BaseException):  # noqa: B017  # in a group of its own kind
        run(file, folder, base, progress=dies)
    resumed = run(None, folder, base)
    ours, theirs = ([(p.split, p.weights_id, p.score) for p in h.points] for h in (resumed, whole))
    assert ours == theirs


class Shares(NoisyOracle):
    shares = True


async def test_earlier_weights_are_served_beside_a_shared_model_and_gone_ones_are_missing(base, tmp_path):
    other = write_folder(tmp_path / "other", seed=3)
    wanted = hash_folder(other)

    class At:
        now = None

    phase = At()
    phase.now = type(
        "Now", (), {"state": type("S", (), {"base_id": wanted, "weights_id": hash_folder(base)})}
    )
    serving = Serving(Shares(base), tmp_path / "weights", phase, other)
    async with serving.served(hash_folder(base)) as backend:
        assert backend is serving.backend
    async with serving.served(wanted) as backend:
        assert backend is not serving.backend
        assert backend.weights_id == wanted
    with pytest.raises(InfrastructureError, match="are neither served nor in"):
        async with serving.served("sha256:" + "0" * 64):
            pass


def test_an_operator_that_lies_about_its_harness_stops_the_run(base, tmp_path, monkeypatch):
    file = recipe_at(tmp_path / "whale.toml", base)

    async def other(_self, _number):
        return Iterated(weights_id=hash_folder(base), accepted=harness_of("# x"), score=0.5, rollouts=1)

    monkeypatch.setattr(SearchOperator, "iterate", other)
    with pytest.raises(UsageError, match="scored under weights"):
        run(file, tmp_path / "run", base)


def test_the_demonstration_is_shipped_and_means_what_it_says():
    recipe = load_recipe("demo/weight_only")
    assert recipe.plan_schedule().total_steps == 3
    assert (recipe.examples("weight"), recipe.examples("dev"), recipe.dev.samples) == (256, 64, 8)
    harness = Path(recipe.agent["harness"])
    example = Path(__file__).parents[2] / "examples" / "worked_example.py"
    assert harness.read_text().partition("class")[2] == example.read_text().partition("class")[2]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("scripted/oracle", "has no weights here to train; local/PATH and vllm/PATH can be trained"),
        ("openai/policy", "openai/NAME with `tokenizer`, the model's folder"),
        ("local/nowhere", "'nowhere' is not one"),
    ],
)
def test_a_model_without_weights_to_train_is_refused_before_anything_is_loaded(tmp_path, model, message):
    file = recipe_at(tmp_path / "weight.toml", "x", {"local/x": model})

    async def go():
        await run_recipe(load_recipe(str(file)), tmp_path / "run", operators=real_operators)

    with pytest.raises(UsageError, match=message):
        asyncio.run(go())
    assert not (tmp_path / "run").exists()


def test_a_process_that_only_trains_along_makes_no_folder(tmp_path):
    @asynccontextmanager
    async def followed(_recipe):
        yield None

    asyncio.run(run_recipe(load_recipe("demo/weight_only"), tmp_path / "run", operators=followed))
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
