"""Evaluates the agents of a run on dev and test: mean@k with an interval, and the rise since the start.

    evaluator = RunEvaluator(tasks, jobs, serving, agents, {"dev": 8, "test": 8}, pair, "selected")
    found = await evaluator.evaluate(pair, harness, "dev")      # found.score, found.rise, found.metrics

Rollouts go through the same engine into the same run folder as all others, under the purpose of their split
and keys `dev:H12:W12:EXAMPLE:SAMPLE` (12 hexadecimal digits of harness and weights). So an agent that did
not change is not evaluated twice, a kill costs what was in flight, and every score's trajectories are
there to be looked at. The seeds of a sample are the same for every agent: a rise is a paired difference.

Not covered: which agent is selected (`alternate.py`).
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from whale_baselines.alternate import Evaluation, selected_on_dev
from whale_baselines.history import Harness, History, Pair
from whale_baselines.play import Jobs, jobs_of, twelve
from whale_baselines.serving import Agents, Serving
from whale_bench.engine import Task
from whale_bench.models import Backend
from whale_bench.statistics import mean_at_k, paired
from whale_bench.store import Outcome, outcome_of
from whale_envs.errors import InfrastructureError

SPLITS = ("dev", "test")


class _Row(NamedTuple):
    """What a score needs of a rollout."""

    reward: float
    metrics: Mapping[str, float]


@dataclass(slots=True)
class RunEvaluator:
    """Implements `Evaluator` for real agents."""

    folder: Path
    """Of the run."""
    tasks: Mapping[str, Task]
    """By split; one that is never evaluated need not be there."""
    jobs: Jobs
    serving: Serving
    agents: Agents
    samples: Mapping[str, int]
    """Of each example, by split."""
    start: Pair
    """The agent that the run began with, which a rise is since."""
    keep: str
    """See `DevSettings.keep`."""
    _rows: dict[str, _Row] | None = None
    """Of every finished rollout of an evaluation, by key."""

    async def evaluate(self, pair: Pair, harness: Harness, split: str) -> Evaluation:
        """See `Evaluator.evaluate`.

        Raises:
            InfrastructureError: rollouts are missing, so that there is no score; can be resumed.
        """
        self._keep(pair)
        rows, keys = self._known(), self._keys(split, pair)
        if any(key not in rows for key in keys):
            async with self.serving.served(pair.weights_id) as backend:
                await self._play(pair, harness, split, backend)
        groups = self._groups(keys, split)
        first = self._keys(split, self.start)
        rise = None
        if pair != self.start and all(key in rows for key in first):
            rise = paired(means_of(self._groups(first, split)), means_of(groups))
        return Evaluation(mean_at_k(groups), len(keys), rise, _metrics(rows[key].metrics for key in keys))

    async def _play(self, pair: Pair, harness: Harness, split: str, backend: Backend) -> None:
        agent = await self.agents.of(harness, backend)
        if agent.harness_id != pair.harness_id:
            raise InfrastructureError(f"harness {agent.harness_id} was opened in place of {pair.harness_id}")
        task = self.tasks[split]
        wanted = jobs_of(
            split, agent, task, task.examples.ids, range(self.samples[split]), weights_id=pair.weights_id
        )
        done = await self.jobs.play(wanted)
        self._known().update((key, _row(outcome_of(record))) for key, record in done.items())

    def _keep(self, pair: Pair) -> None:
        """Keeps the weights to evaluate, and of the earlier ones those that dev likes best."""
        self.serving.keep(pair.weights_id)
        if self.keep == "selected":
            best = selected_on_dev(History(self.folder, readonly=True))
            self.serving.prune([pair.weights_id, *([best.weights_id] if best else [])])

    def _known(self) -> dict[str, _Row]:
        if self._rows is None:
            self.jobs.begin()
            ours = (row for row in self.jobs.store.outcomes() if row.key.partition(":")[0] in SPLITS)
            self._rows = {row.key: _row(row) for row in ours}
        return self._rows

    def _keys(self, split: str, pair: Pair) -> list[str]:
        who = f"{split}:{twelve(pair.harness_id)}:{twelve(pair.weights_id)}"
        samples = range(self.samples[split])
        return [f"{who}:{id_}:{sample}" for id_ in self.tasks[split].examples.ids for sample in samples]

    def _groups(self, keys: Sequence[str], split: str) -> list[list[float]]:
        """Rewards by example and sample."""
        return by_example([self._known()[key].reward for key in keys], self.samples[split])


def by_example(rewards: Sequence[float], samples: int) -> list[list[float]]:
    """Rewards of all samples of one example after the other, example by example."""
    return [list(rewards[at : at + samples]) for at in range(0, len(rewards), samples)]


def means_of(groups: Sequence[Sequence[float]]) -> list[float]:
    return [math.fsum(group) / len(group) for group in groups]


def _row(row: Outcome) -> _Row:
    return _Row(row.verdict.reward, row.metrics)


def _metrics(found: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each behaviour metric over the rollouts that have it."""
    values: dict[str, list[float]] = defaultdict(list)
    for metrics in found:
        for name, value in metrics.items():
            values[name].append(value)
    return {name: math.fsum(some) / len(some) for name, some in sorted(values.items())}
