"""Held-out scores of a weight run: mean@k on the `dev` split, before, between and after its steps.

    dev = DevEvaluation(DevPlan(every=5), task, agent, store, ledger, seed=0, path=folder / "dev.jsonl")
    line = await dev.score(step=0, total=0)             # {"mean": 0.19, "stderr": 0.03, …}

Rollouts go through the same engine into the same run folder as the training's, under the purpose "dev" and
keys `dev:H12:W12:EXAMPLE:SAMPLE` (12 hexadecimal digits of harness and weights). So weights that did not
change are not evaluated twice, a kill costs what was in flight, and every score's trajectories are there to
be looked at. The seeds of a sample are the same at every step: the rise is a paired difference.

`dev.jsonl` has a line for each evaluated step. Nothing is selected here, and `test` is not touched.

Not covered: which of the steps is best, see the schedule.
"""

import asyncio
import hashlib
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from whale_baselines.jsonl import append_line, read_lines
from whale_bench.engine import Agent, LostRolloutError, Task, rollout
from whale_bench.evaluation import GIVE_UP_AFTER, charge_of, reconcile
from whale_bench.ledger import Charge, Ledger
from whale_bench.statistics import mean_at_k, paired
from whale_bench.store import RunStore, outcome_of
from whale_envs.errors import InfrastructureError, UsageError

PURPOSE = "dev"


@dataclass(frozen=True, slots=True, kw_only=True)
class DevPlan:
    """When to evaluate, and how much."""

    every: int = 7
    """Steps from one evaluation to the next; the paper's trainer evaluates every 7."""
    k: int = 8
    """Rollouts per example."""
    n: int | None = None
    """Examples, the first of the split (and of its families); None for all."""

    def __post_init__(self) -> None:
        for name in ("every", "k", "n"):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not (whole and value >= 1) and not (name == "n" and value is None):
                raise UsageError(f"{name} of [dev] must be a whole number from 1, got {value!r}")

    def due(self, step: int, last: int) -> bool:
        """Whether to evaluate when `step` steps of `last` are finished: before, after, and between."""
        return step in (0, last) or step % self.every == 0


@dataclass(slots=True)
class DevEvaluation:
    """Scores what `agent` is now. `store` is open for writing, as its ledger is."""

    plan: DevPlan
    task: Task
    """With the examples of `dev`."""
    agent: Agent
    store: RunStore
    ledger: Ledger
    seed: int
    path: Path
    concurrency: int | None = None
    _rewards: dict[str, float] | None = field(default=None, init=False)
    """Of every finished rollout of this run's evaluations, by key."""
    _settled: set[str] = field(default_factory=set, init=False)
    _failed_in_a_row: int = field(default=0, init=False)

    @property
    def rollouts(self) -> int:
        """Of one evaluation."""
        return self.plan.k * len(self.task.examples)

    async def score(self, *, step: int, total: int) -> dict[str, Any]:
        """Plays what is missing of one evaluation; its line, which also stands in `dev.jsonl`.

        Args:
            step: steps that are finished.
            total: training rollouts so far.

        Raises:
            InfrastructureError: rollouts are missing, so that there is no score; can be resumed.
        """
        began = time.perf_counter()
        earlier = read_lines(self.path)
        weights_id = self.agent.weights_id
        if found := [line for line in earlier if (line["step"], line["weights_id"]) == (step, weights_id)]:
            return found[0]
        means = await self._means(weights_id)
        score = mean_at_k(means)
        line = {
            "step": step,
            "rollouts": total,
            "examples": len(means),
            "k": self.plan.k,
            **msgspec.structs.asdict(score),
            "rise": None,
            "weights_id": weights_id,
            "harness_id": self.agent.harness_id,
        }
        if earlier and (start := earlier[0])["step"] == 0:
            before = [math.fsum(r) / self.plan.k for r in await self._means(start["weights_id"])]
            now = [math.fsum(r) / self.plan.k for r in means]
            line["rise"] = msgspec.structs.asdict(paired(before, now))
        line["seconds"] = time.perf_counter() - began
        append_line(self.path, line)
        return line

    async def _means(self, weights_id: str) -> list[list[float]]:
        """Rewards by example and sample under these weights, played where they are missing."""
        rewards = self._known()
        keys = self._keys(weights_id)
        missing = [key for key in keys if key not in rewards]
        if missing:
            if weights_id != self.agent.weights_id:
                raise UsageError(
                    f"{self.store.folder}: {len(missing)} rollouts of its first evaluation are lost"
                )
            await self._play(missing, keys)
        k = self.plan.k
        flat = [rewards[key] for key in keys]
        return [flat[at : at + k] for at in range(0, len(flat), k)]

    def _keys(self, weights_id: str) -> dict[str, tuple[str, int]]:
        """(example id, sample) of every rollout of an evaluation, by its key."""
        who = f"{_short(self.agent.harness_id)}:{_short(weights_id)}"
        ids, samples = self.task.examples.ids, range(self.plan.k)
        return {f"{PURPOSE}:{who}:{id_}:{sample}": (id_, sample) for id_ in ids for sample in samples}

    def _known(self) -> dict[str, float]:
        if self._rewards is None:
            rows = {row.key: row for row in self.store.outcomes()}
            self._settled = reconcile(self.store, self.ledger, rows, PURPOSE)
            ours = (row for row in rows.values() if row.key.startswith(f"{PURPOSE}:"))
            self._rewards = {row.key: row.verdict.reward for row in ours}
        return self._rewards

    async def _play(self, missing: Iterable[str], keys: dict[str, tuple[str, int]]) -> None:
        """Plays `missing`, and what an infrastructure failure ended once more."""
        rewards, problems = self._known(), list[str]()
        for _ in range(2):
            missing = [key for key in missing if key not in rewards]
            queue = iter(missing)
            workers = min(self.concurrency or self.agent.default_concurrency, len(missing))
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(workers):
                        group.create_task(self._work(queue, keys, problems))
            except ExceptionGroup as failures:
                for key, attempt in self.ledger.open_reservations():  # cancelled with the rest
                    self.ledger.fail(key, attempt, Charge(rollouts=1, unmetered_tokens=True))
                raise failures.exceptions[0] from None
        if lost := [key for key in keys if key not in rewards]:
            raise InfrastructureError(
                f"{len(lost)} of {len(keys)} rollouts of an evaluation could not be played "
                f"({problems[-1] if problems else 'no reason told'}); resume when it works again"
            )

    async def _work(
        self, queue: Iterator[str], keys: dict[str, tuple[str, int]], problems: list[str]
    ) -> None:
        for key in queue:
            await asyncio.sleep(0)  # a scripted model never waits, and a Ctrl-C has to be heard
            try:
                await self._one(key, *keys[key])
                self._failed_in_a_row = 0
            except LostRolloutError as error:
                problems.append(str(error))
                self._failed_in_a_row += 1
                if self._failed_in_a_row >= GIVE_UP_AFTER:
                    raise InfrastructureError(
                        f"{self._failed_in_a_row} rollouts in a row could not be played: {error}"
                    ) from error

    async def _one(self, key: str, example_id: str, sample: int) -> None:
        again = key in self._settled
        attempt = self.ledger.reserve(key, PURPOSE, again=again)
        example = self.task.examples.by_id(example_id)
        try:
            record = await rollout(self.task, self.agent, example, sample=sample, seed=self.seed, key=key)
        except LostRolloutError as error:
            self.ledger.fail(key, attempt, error.used)
            raise
        self.store.append(record)
        row = outcome_of(record)
        close = self.ledger.repeat if again else self.ledger.settle
        close(key, attempt, charge_of(row))
        self._known()[key] = row.verdict.reward


def _short(content_id: str) -> str:
    """12 hexadecimal digits of a hash, or of what stands for one."""
    kind, _, digits = content_id.partition(":")
    return digits[:12] if kind == "sha256" else hashlib.sha256(content_id.encode()).hexdigest()[:12]
