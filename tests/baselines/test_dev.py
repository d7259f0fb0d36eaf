"""Held-out scores on the shared engine: their keys, what a kill costs, and the rise since the start."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from test_play import NoisyOracle
from tiny_model import write_folder
from whale_baselines.dev import DevEvaluation, DevPlan
from whale_baselines.jsonl import append_line, read_lines

from whale_bench.engine import Agent, Task
from whale_bench.harness.host import load_harness
from whale_bench.ledger import Ledger
from whale_bench.statistics import mean_at_k, paired
from whale_bench.store import RunStore
from whale_envs import load_examples
from whale_envs.errors import InfrastructureError, UsageError

EXAMPLES = load_examples("chess_puzzles", "mini", "dev")[:5]
PLAN = DevPlan(every=2, k=3)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("dev")
    return [write_folder(root / str(seed), seed=seed) for seed in (0, 1)]


def score(root, backend, *steps, plan=PLAN):
    """Scores each of (step, folder to serve), in one launch."""

    async def run():
        async with AsyncExitStack() as stack:
            harness = await stack.enter_async_context(load_harness("chess_puzzles"))
            settings = {"domain": "chess_puzzles", "seed": 7, "harness_id": harness.harness_id}
            there = (root / "run.toml").exists()
            store = RunStore.open(root) if there else RunStore.create(root, settings, harness.source)
            stack.enter_context(store)
            ledger = stack.enter_context(Ledger(root / "ledger.sqlite"))
            task, agent = Task("chess_puzzles", EXAMPLES), Agent(backend, harness)
            dev = DevEvaluation(plan, task, agent, store, ledger, 7, root / "dev.jsonl", 4)
            lines = []
            for step, folder in steps:
                await backend.reload(folder)
                lines.append(await dev.score(step=step, total=10 * step))
            return lines

    return asyncio.run(run())


def accounts(root):
    with Ledger(root / "ledger.sqlite", readonly=True) as ledger:
        ledger.audit()
        assert ledger.open_reservations() == []
        return ledger.charged(), ledger.executed()


def means_of(root, weights_id):
    rows = [r for r in RunStore.open(root).rollouts() if r.weights_id == weights_id]
    rewards = {e: [r.verdict.reward for r in rows if r.example_id == e] for e in EXAMPLES.ids}
    return [sum(samples) / len(samples) for samples in rewards.values()]


def test_a_score_is_that_of_its_rollouts_under_the_purpose_dev(folders, tmp_path):
    first, second = score(tmp_path, NoisyOracle(folders[0]), (0, folders[0]), (2, folders[1]))
    assert set(accounts(tmp_path)[0]) == {"dev"}
    assert accounts(tmp_path)[0]["dev"].rollouts == 30
    records = list(RunStore.open(tmp_path).rollouts())
    digits = first["weights_id"].partition(":")[2][:12], first["harness_id"].partition(":")[2][:12]
    assert f"dev:{digits[1]}:{digits[0]}:{EXAMPLES.ids[0]}:0" in {record.key for record in records}
    before, after = (means_of(tmp_path, line["weights_id"]) for line in (first, second))
    assert first["mean"] == pytest.approx(sum(before) / 5)
    assert first["stderr"] == pytest.approx(mean_at_k([[m] for m in before]).stderr)
    assert (first["k"], first["examples"], first["rise"]) == (3, 5, None)
    assert second["rise"]["mean"] == pytest.approx(paired(before, after).mean)
    assert second["rise"]["stderr"] == pytest.approx(paired(before, after).stderr)
    assert read_lines(tmp_path / "dev.jsonl") == [first, second]


def test_weights_that_did_not_change_are_not_evaluated_twice(folders, tmp_path):
    backend = NoisyOracle(folders[0])
    first, second = score(tmp_path, backend, (0, folders[0]), (2, folders[0]))
    assert accounts(tmp_path)[0]["dev"].rollouts == 15
    assert (first["mean"], second["rise"]["mean"]) == (second["mean"], 0.0)


def test_a_kill_costs_what_was_in_flight_and_the_score_is_the_same(folders, tmp_path):
    class Killed(BaseException):
        pass

    class Dies(NoisyOracle):
        async def generate(self, request):
            if self.calls == 11:
                raise Killed
            return await super().generate(request)

    (whole,) = score(tmp_path / "whole", NoisyOracle(folders[0]), (0, folders[0]))
    with pytest.raises(BaseExceptionGroup):
        score(tmp_path / "run", Dies(folders[0]), (0, folders[0]))
    (resumed,) = score(tmp_path / "run", NoisyOracle(folders[0]), (0, folders[0]))
    assert {**resumed, "seconds": 0} == {**whole, "seconds": 0}
    charged, executed = accounts(tmp_path / "run")
    assert charged["dev"].rollouts == 15 < executed["dev"].rollouts <= 19
    again = NoisyOracle(folders[0])
    assert score(tmp_path / "run", again, (0, folders[0])) == [resumed]
    assert again.calls == 0


def test_missing_rollouts_are_no_score(folders, tmp_path):
    with pytest.raises(InfrastructureError, match=r"could not be played.*the server went"):
        score(tmp_path, NoisyOracle(folders[0], fails=range(3, 99)), (0, folders[0]))
    assert read_lines(tmp_path / "dev.jsonl") == []
    (line,) = score(tmp_path, NoisyOracle(folders[0]), (0, folders[0]))
    assert line["examples"] == 5


def test_it_is_due_before_after_and_every_so_often():
    assert [step for step in range(8) if PLAN.due(step, 7)] == [0, 2, 4, 6, 7]


@pytest.mark.parametrize("bad", [{"every": 0}, {"k": -1}, {"n": 0}, {"k": True}, {"every": 1.5}, {"n": "3"}])
def test_a_plan_that_cannot_be_is_refused(bad):
    with pytest.raises(UsageError, match=rf"{next(iter(bad))} of \[dev\] must be a whole number from 1"):
        DevPlan(**bad)


def test_a_torn_line_costs_itself_alone(tmp_path):
    path = tmp_path / "lines.jsonl"
    append_line(path, {"step": 1})
    path.write_bytes(path.read_bytes() + b'{"step": 2, "me')
    append_line(path, {"step": 3})
    assert read_lines(path) == [{"step": 1}, {"step": 3}]
