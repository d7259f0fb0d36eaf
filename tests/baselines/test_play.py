"""The weight operator on the shared engine: store, ledger, harness, and a backend that takes new weights."""

import asyncio
import dataclasses
import json
import random
from contextlib import AsyncExitStack

import pytest
from tiny_model import write_folder
from whale_baselines import sequences
from whale_baselines.checkpoint import Checkpoints
from whale_baselines.play import Player, keys_of
from whale_baselines.recipe import Recipe
from whale_baselines.rsft import RsftTrainer
from whale_baselines.rsft_loop import Phase
from whale_baselines.sampler import Drawn

from whale_bench.engine import Agent, Task
from whale_bench.harness.host import load_harness
from whale_bench.ledger import Ledger
from whale_bench.models.base import Generation, Usage
from whale_bench.models.chat_template import load_tokenizer
from whale_bench.models.folder import FolderBackend, hash_folder
from whale_bench.models.local import LocalBackend
from whale_bench.store import RunStore
from whale_envs import load_examples
from whale_envs.errors import InfrastructureError

EXAMPLES = load_examples("chess_puzzles", "mini", "weight")[:4]
RECIPE = Recipe(prompts=2, samples=3, minibatch=4, lr=1e-3, precision="float32", seed=2, most_empty=9)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A tiny model whose context holds a puzzle."""
    folder = write_folder(tmp_path_factory.mktemp("play") / "base")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    return folder


class NoisyOracle(FolderBackend):
    """Token ids of the gold action, or of a random one; a pure function of the request."""

    fixture = True
    chance = 0.8
    """Of the gold action."""

    def __init__(self, folder, fails=()):
        super().__init__("fake/oracle", hash_folder(folder), load_tokenizer(folder), 4096, 400)
        self.fails = set(fails)
        """Numbers of the calls that a server failure ends."""
        self.calls = 0
        self.reloads = 0

    async def generate(self, request):
        self.calls += 1
        number = self.calls
        await asyncio.sleep(0)
        if number in self.fails:
            raise InfrastructureError("the server went away")
        rng = random.Random(request.seed)
        text = request.host.oracle_action() if rng.random() < self.chance else request.host.random_action(rng)
        ids = (*self.encode(text), 2)
        usage = Usage(len(request.prompt_ids), len(ids))
        return Generation(text=text, prompt_ids=request.prompt_ids, sampled_ids=ids, usage=usage)

    async def _sample(self, job):
        raise NotImplementedError

    async def reload(self, folder):
        self.reloads += 1
        self.weights_id = hash_folder(folder)
        return self.weights_id


async def run(base, root, backend, until, *, max_tokens=None, recipe=RECIPE, concurrency=None):
    """Begins or goes on, until so many steps are finished."""
    async with AsyncExitStack() as stack:
        harness = await stack.enter_async_context(load_harness("chess_puzzles"))
        agent = Agent(backend, harness)
        if (root / "run.toml").exists():
            store = RunStore.open(root)
        else:
            settings = {"domain": "chess_puzzles", "seed": RECIPE.seed, "harness_id": harness.harness_id}
            store = RunStore.create(root, settings, harness.source)
        stack.enter_context(store)
        ledger = stack.enter_context(Ledger(root / "ledger.sqlite"))
        task = Task("chess_puzzles", EXAMPLES, max_tokens=max_tokens)
        phase = Phase(
            recipe,
            EXAMPLES.ids,
            Player(task, agent, store, ledger, recipe, concurrency),
            RsftTrainer(base, recipe),
            Checkpoints(root / "checkpoints", RECIPE.keep_last),
            backend,
            root / "metrics.jsonl",
        )
        await phase.begin(base)
        lines = [await phase.step() for _ in range(until - phase.now.state.step)]
        phase.join()
        return lines


def accounts(root):
    with Ledger(root / "ledger.sqlite", readonly=True) as ledger:
        ledger.audit()
        assert ledger.open_reservations() == []
        return ledger.charged(), ledger.executed()


async def test_steps_on_the_engine_are_charged_as_weight_and_recorded(base, tmp_path):
    backend = NoisyOracle(base)
    lines = await run(base, tmp_path / "run", backend, 3)
    charged, executed = accounts(tmp_path / "run")
    assert set(charged) == {"weight"}
    assert charged["weight"].rollouts == executed["weight"].rollouts == 18
    records = list(RunStore.open(tmp_path / "run").rollouts())
    assert len(records) == len({record.key for record in records}) == 18
    assert len({record.weights_id for record in records}) == 1 + sum(
        line["updates"] > 0 for line in lines[:2]
    )
    assert sum(line["accepted"] for line in lines) == sum(
        record.verdict.correct and not record.truncated for record in records
    )
    several = sum(
        len(record.segments) > 1 for record in records
    )  # h0 of chess writes every turn's prompt anew
    assert sum(line["broken_share"] * line["rollouts"] for line in lines) == pytest.approx(several)
    assert lines[0]["loss"] > 0
    assert backend.weights_id == lines[-1]["weights_id"]


async def test_a_resume_uses_what_was_played_and_ends_with_the_same_bits(base, tmp_path, monkeypatch):
    await run(base, tmp_path / "whole", NoisyOracle(base), 2)

    class Killed(BaseException):
        pass

    def dies(*args, **kwargs):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(RsftTrainer, "update", dies)
        with pytest.raises(Killed):
            await run(base, tmp_path / "run", NoisyOracle(base), 2)
    again = NoisyOracle(base)
    await run(base, tmp_path / "run", again, 1)
    assert again.calls == 0  # all six rollouts were there
    await run(base, tmp_path / "run", NoisyOracle(base), 2)
    whole, resumed = (
        Checkpoints(tmp_path / name / "checkpoints", 2).latest().state for name in ("whole", "run")
    )
    assert whole == resumed
    assert accounts(tmp_path / "run")[1]["weight"].rollouts == 12


async def test_a_rollout_whose_record_was_lost_is_played_again_and_charged_once(base, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def dies(*args, **kwargs):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(RsftTrainer, "update", dies)
        with pytest.raises(Killed):
            await run(base, tmp_path / "run", NoisyOracle(base), 1)
    records = tmp_path / "run" / "rollouts-0000.jsonl"
    records.write_bytes(b"".join(records.read_bytes().splitlines(keepends=True)[1:]))
    await run(base, tmp_path / "run", NoisyOracle(base), 1)
    charged, executed = accounts(tmp_path / "run")
    assert (charged["weight"].rollouts, executed["weight"].rollouts) == (6, 7)


async def test_what_a_server_failed_is_played_once_more(base, tmp_path):
    await run(base, tmp_path / "run", NoisyOracle(base, fails={2}), 1)
    charged, executed = accounts(tmp_path / "run")
    assert (charged["weight"].rollouts, executed["weight"].rollouts) == (6, 7)


async def test_a_step_with_missing_rollouts_stops_and_a_resume_finishes_it(base, tmp_path):
    with pytest.raises(
        InfrastructureError, match=r"of 6 rollouts could not be played \(the server went away\)"
    ):
        await run(base, tmp_path / "run", NoisyOracle(base, fails=range(4, 100)), 1)
    assert Checkpoints(tmp_path / "run" / "checkpoints", 2).latest().state.step == 0
    await run(base, tmp_path / "run", NoisyOracle(base), 1)
    await run(base, tmp_path / "whole", NoisyOracle(base), 1)
    states = [Checkpoints(tmp_path / name / "checkpoints", 2).latest().state for name in ("run", "whole")]
    assert states[0] == states[1]


@pytest.mark.parametrize(("seconds", "most"), [(0.0, 3), (1e9, 16)])
async def test_a_server_that_is_gone_ends_a_run_as_early_as_an_evaluation(
    base, tmp_path, monkeypatch, seconds, most
):
    monkeypatch.setattr("whale_bench.giving_up.GIVE_UP_SECONDS", seconds)
    backend = NoisyOracle(base, fails=range(1, 100))
    words = f"{most} rollouts in a row could not be played: the server went away"
    recipe = dataclasses.replace(RECIPE, samples=8)
    for _ in range(2):  # what an earlier launch saw is no reason to stop
        backend.calls = 0
        with pytest.raises(InfrastructureError, match=words):
            await run(base, tmp_path / "run", backend, 1, recipe=recipe, concurrency=1)
        assert backend.calls == most
    charged, executed = accounts(tmp_path / "run")
    assert (charged, executed["weight"].rollouts) == ({}, 2 * most)


async def test_the_local_backend_samples_from_every_new_checkpoint(base, tmp_path, monkeypatch):
    monkeypatch.setattr(sequences, "is_accepted", lambda rollout: True)  # a random model solves nothing
    async with LocalBackend.load(str(base), precision="float32") as backend:
        lines = await run(base, tmp_path / "run", backend, 2, max_tokens=4)
        assert all(line["updates"] for line in lines)
        assert backend.weights_id == lines[-1]["weights_id"]
    newest = Checkpoints(tmp_path / "run" / "checkpoints", 2).latest()
    assert newest.state.weights_id == backend.weights_id
    async with LocalBackend.load(str(newest.folder), precision="float32") as loaded:
        assert loaded.weights_id == backend.weights_id


def test_samples_of_a_later_epoch_have_numbers_of_their_own():
    keys = keys_of([Drawn("a", 0), Drawn("a", 1)], 2)
    assert list(keys) == ["weight:a:0", "weight:a:1", "weight:a:2", "weight:a:3"]
    assert keys["weight:a:3"] == ("a", 3)
