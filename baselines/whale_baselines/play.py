"""The rollouts of one training step, through the shared engine into a run folder and its ledger.

    player = Player(task, agent, store, ledger, Recipe())
    rollouts = await player.play(batch)                 # those of an interrupted launch are not played again

Keys are `weight:EXAMPLE:SAMPLE`, with samples 0 … G-1 in the first epoch, G … 2G-1 in the second and so
on: unique over all steps of a run, and the same after a resume. The ledger's purpose is "weight".

A step needs all of its rollouts, or its result would depend on which server failed when: what an
infrastructure failure ended is played once more, and if some are still missing the run stops and can
be resumed.

Not covered: own agents, which have no token ids; several machines.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from whale_baselines.recipe import Recipe
from whale_baselines.sampler import Drawn
from whale_bench.engine import Agent, LostRolloutError, Task, rollout
from whale_bench.evaluation import GIVE_UP_AFTER, charge_of, reconcile
from whale_bench.ledger import Charge, Ledger
from whale_bench.records import Rollout
from whale_bench.store import RunStore, outcome_of
from whale_envs.errors import InfrastructureError

PURPOSE = "weight"


class Plays(Protocol):
    """What plays a step's rollouts; a test may have them from a list."""

    async def play(self, batch: Sequence[Drawn]) -> list[Rollout]:
        """G rollouts of each example, in the order of `keys_of`."""
        ...


def keys_of(batch: Iterable[Drawn], samples: int) -> dict[str, tuple[str, int]]:
    """(example id, sample) of every rollout of a step, by its key."""
    played = ((one.example_id, one.epoch * samples + number) for one in batch for number in range(samples))
    return {f"{PURPOSE}:{example_id}:{sample}": (example_id, sample) for example_id, sample in played}


@dataclass(slots=True)
class Player:
    """Plays with `agent`. `store` is open for writing, as its ledger is."""

    task: Task
    agent: Agent
    store: RunStore
    ledger: Ledger
    recipe: Recipe
    concurrency: int | None = None
    """Rollouts in flight; None for what suits the backend."""
    _settled: set[str] = field(default_factory=set)
    """Charged by an earlier launch; those without a record are played again without a second charge."""
    _reconciled: bool = False
    _failed_in_a_row: int = 0

    async def play(self, batch: Sequence[Drawn]) -> list[Rollout]:
        """See `Plays.play`.

        Raises:
            InfrastructureError: rollouts are missing after a second attempt, or nothing works any more.
            UsageError: the run folder holds what is not this run's.
        """
        keys = keys_of(batch, self.recipe.samples)
        done = self._recorded(keys)
        problem = ""
        for _ in range(2):
            missing = [key for key in keys if key not in done]
            if missing:
                problem = await self._play_all(missing, keys, done) or problem
        if missing := [key for key in keys if key not in done]:
            raise InfrastructureError(
                f"{len(missing)} of {len(keys)} rollouts could not be played ({problem}); "
                "resume when it works again"
            )
        return [done[key] for key in keys]

    def _recorded(self, keys: dict[str, tuple[str, int]]) -> dict[str, Rollout]:
        """Rollouts of this step that an earlier launch left behind; only the first step has any."""
        if self._reconciled:
            return {}
        rows = {row.key: row for row in self.store.outcomes()}
        self._settled = reconcile(self.store, self.ledger, rows, PURPOSE)
        self._reconciled = True
        if not rows.keys() & keys.keys():
            return {}
        return {record.key: record for record in self.store.rollouts() if record.key in keys}

    async def _play_all(
        self, missing: list[str], keys: dict[str, tuple[str, int]], done: dict[str, Rollout]
    ) -> str:
        """Plays what is missing into `done`; what the last failure said, if there was one."""
        queue, problems = iter(missing), list[str]()
        workers = min(self.concurrency or self.agent.default_concurrency, len(missing))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(self._work(queue, keys, done, problems))
        except ExceptionGroup as failures:
            for key, attempt in self.ledger.open_reservations():  # cancelled with the rest
                self.ledger.fail(key, attempt, Charge(rollouts=1, unmetered_tokens=True))
            raise failures.exceptions[0] from None
        return problems[-1] if problems else ""

    async def _work(
        self,
        queue: Iterator[str],
        keys: dict[str, tuple[str, int]],
        done: dict[str, Rollout],
        problems: list[str],
    ) -> None:
        for key in queue:
            await asyncio.sleep(0)  # a scripted model never waits, and a Ctrl-C has to be heard
            try:
                done[key] = await self._play(key, *keys[key])
                self._failed_in_a_row = 0
            except LostRolloutError as error:
                problems.append(str(error))
                self._failed_in_a_row += 1
                if self._failed_in_a_row >= GIVE_UP_AFTER:
                    raise InfrastructureError(
                        f"{self._failed_in_a_row} rollouts in a row could not be played: {error}"
                    ) from error

    async def _play(self, key: str, example_id: str, sample: int) -> Rollout:
        example = self.task.examples.by_id(example_id)
        again = key in self._settled
        attempt = self.ledger.reserve(key, PURPOSE, again=again)
        try:
            record = await rollout(
                self.task, self.agent, example, sample=sample, seed=self.recipe.seed, key=key
            )
        except LostRolloutError as error:
            self.ledger.fail(key, attempt, error.used)
            raise
        self.store.append(record)
        close = self.ledger.repeat if again else self.ledger.settle
        close(key, attempt, charge_of(outcome_of(record)))
        return record
