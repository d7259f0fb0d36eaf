"""Rollouts by key, through the shared engine into a run folder and its ledger.

    jobs = Jobs(store, ledger, seed=0)
    done = await jobs.play({"dev:…:0": Job("dev", agent, task, example_id, 0)})      # key -> Rollout

Weight steps, candidates' scores and evaluations on `dev` all ask for named rollouts, of one agent or of
several at once: one queue plays them. Each is reserved in the ledger, played, written as a line and
settled. What an earlier launch recorded is read and not played again.

A caller needs all of the rollouts, or its result would depend on which server failed when: what an
infrastructure failure ended is played once more, and if some are still missing the run stops and can be
resumed.

`Player` plays a training step. Its keys are `weight:EXAMPLE:SAMPLE`, with samples 0 … G-1 in the first
epoch, G … 2G-1 in the second and so on: unique over all steps of a run, and the same after a resume.

Not covered: own agents, which have no token ids; several machines.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from whale_baselines.recipe import Recipe
from whale_baselines.sampler import Drawn
from whale_bench.engine import Agent, LostRolloutError, Task, rollout
from whale_bench.evaluation import charge_of, reconcile
from whale_bench.giving_up import Failures
from whale_bench.ledger import Charge, Ledger
from whale_bench.records import Rollout
from whale_bench.store import RunStore, outcome_of
from whale_envs.errors import InfrastructureError, UsageError

PURPOSE = "weight"
PROPOSER = "proposer:"
"""Begins the ledger's keys that are no rollouts but sessions of a proposer."""


class Job(NamedTuple):
    """A rollout that is wanted."""

    purpose: str
    """The ledger's."""
    agent: Agent
    task: Task
    example_id: str
    sample: int


Progress = Callable[[str, int, int], None]
"""Called with (purpose, finished rollouts, all that are played together)."""


def no_progress(_what: str, _done: int, _of: int) -> None:
    """Nobody looks."""


class Plays(Protocol):
    """What plays a step's rollouts; a test may have them from a list."""

    async def play(self, batch: Sequence[Drawn]) -> list[Rollout]:
        """G rollouts of each example, in the order of `keys_of`."""
        ...

    def recorded(self, batch: Sequence[Drawn]) -> list[Rollout] | None:
        """The same rollouts, of whatever harness, if an earlier launch has played all of them; plays none."""
        ...


def keys_of(batch: Iterable[Drawn], samples: int) -> dict[str, tuple[str, int]]:
    """(example id, sample) of every rollout of a step, by its key."""
    played = ((one.example_id, one.epoch * samples + number) for one in batch for number in range(samples))
    return {f"{PURPOSE}:{example_id}:{sample}": (example_id, sample) for example_id, sample in played}


def jobs_of(
    purpose: str,
    agent: Agent,
    task: Task,
    ids: Iterable[str],
    samples: range,
    *,
    weights_id: str | None = None,
) -> dict[str, Job]:
    """The rollouts of an agent on examples, by `PURPOSE:H12:W12:EXAMPLE:SAMPLE`, example by example.

    Args:
        purpose: the ledger's.
        agent: who plays.
        task: what.
        ids: of the examples.
        samples: numbers of the rollouts of each.
        weights_id: that of the weights themselves, where the backend's is only a server's claim to them.
    """
    who = f"{purpose}:{twelve(agent.harness_id)}:{twelve(weights_id or agent.weights_id)}"
    return {
        f"{who}:{example_id}:{sample}": Job(purpose, agent, task, example_id, sample)
        for example_id in ids
        for sample in samples
    }


def twelve(content_id: str) -> str:
    """The first 12 hex digits of a content hash; of a name that is none, those of its hash."""
    kind, _, digits = content_id.partition(":")
    if kind == "sha256" and len(digits) == 64:
        return digits[:12]
    return hashlib.sha256(content_id.encode()).hexdigest()[:12]


@dataclass(slots=True)
class Jobs:
    """Plays what is asked for. `store` is open for writing, as its ledger is; one for each run."""

    store: RunStore
    ledger: Ledger
    seed: int
    concurrency: int | None = None
    """Rollouts in flight, those of all agents together; None for what suits the backend."""
    progress: Progress = no_progress
    """Told as rollouts finish."""
    failures: Failures = field(default_factory=Failures)
    """Of this launch, over all that it plays."""
    _settled: set[str] = field(default_factory=set)
    """Charged by an earlier launch; those without a record are played again without a second charge."""
    _recorded: set[str] | None = None
    """Rollouts that the run folder holds; None before it was read."""

    async def play(
        self,
        jobs: Mapping[str, Job],
        *,
        wanted: Callable[[str], bool] | None = None,
        heard: Callable[[str, Rollout], None] | None = None,
    ) -> dict[str, Rollout]:
        """The rollouts, by key; in the order of `jobs`.

        Args:
            jobs: what to play, by key.
            wanted: asked before a rollout begins; one that it refuses is left out and costs nothing.
            heard: told of each finished rollout, recorded ones first.

        Raises:
            InfrastructureError: rollouts are missing after a second attempt, or nothing works any more.
            UsageError: the run folder holds what is not this run's.
        """
        wanted, heard = wanted or _always, heard or _nothing
        done = self._read(jobs.keys())
        for key, record in done.items():
            heard(key, record)
        what = next((job.purpose for job in jobs.values()), "")

        def listen(key: str, record: Rollout) -> None:
            heard(key, record)
            self.progress(what, len(done), len(jobs))

        problem = ""
        for _ in range(2):
            missing = [key for key in jobs if key not in done and wanted(key)]
            if missing:
                problem = await _Launch(self, jobs, done, wanted, listen).run(missing) or problem
        if missing := [key for key in jobs if key not in done and wanted(key)]:
            raise InfrastructureError(
                f"{len(missing)} of {len(jobs)} rollouts could not be played ({problem}); "
                "resume when it works again"
            )
        return {key: done[key] for key in jobs if key in done}

    def begin(self) -> None:
        """Makes ledger and lines agree after a kill; `play` does it, too."""
        if self._recorded is not None:
            return
        rows = {row.key: row for row in self.store.outcomes()}
        settled, waiting = self.ledger.settled_keys(), dict(self.ledger.open_reservations())
        for key, attempt in waiting.items():
            if key.startswith(PROPOSER):  # no rollout was begun, and nobody knows what was spent
                self.ledger.fail(key, attempt, Charge(unpriced=True))
        for key in rows:
            if key not in settled and key not in waiting:
                self.ledger.reserve(key, key.partition(":")[0])  # a lost ledger; settled in a moment
        self._settled = reconcile(self.store, self.ledger, rows, PURPOSE)
        self._recorded = set(rows)

    def _read(self, keys: Iterable[str]) -> dict[str, Rollout]:
        """Those of `keys` that the run folder holds; it is read only if there are any."""
        self.begin()
        there = set(keys) & (self._recorded or set())
        if not there:
            return {}
        return {record.key: record for record in self.store.rollouts() if record.key in there}

    async def play_one(self, key: str, job: Job) -> Rollout:
        """Reserves, plays, writes and settles; `play` does that for many."""
        again = key in self._settled
        attempt = self.ledger.reserve(key, job.purpose, again=again)
        self.failures.began(key, time.monotonic())
        try:
            record = await rollout(
                job.task,
                job.agent,
                job.task.examples.by_id(job.example_id),
                sample=job.sample,
                seed=self.seed,
                key=key,
            )
        except LostRolloutError as error:
            self.ledger.fail(key, attempt, error.used)
            if self.failures.failed(key, time.monotonic()):
                raise InfrastructureError(
                    f"{self.failures.count} rollouts in a row could not be played: {error}"
                ) from error
            raise
        self.failures.finished(key)
        self.store.append(record)
        close = self.ledger.repeat if again else self.ledger.settle
        close(key, attempt, charge_of(outcome_of(record)))
        assert self._recorded is not None
        self._recorded.add(key)
        return record


@dataclass(slots=True)
class _Launch:
    """One pass over what is missing: workers take keys from one queue."""

    jobs: Jobs
    wishes: Mapping[str, Job]
    done: dict[str, Rollout]
    wanted: Callable[[str], bool]
    heard: Callable[[str, Rollout], None]
    problems: list[str] = field(default_factory=list)

    async def run(self, missing: Sequence[str]) -> str:
        """Plays into `done`; what the last failure said, if there was one."""
        queue = iter(missing)
        most = self.jobs.concurrency or max(self.wishes[key].agent.default_concurrency for key in missing)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(most, len(missing))):
                    group.create_task(self._work(queue))
        except ExceptionGroup as failures:
            ledger = self.jobs.ledger
            for key, attempt in ledger.open_reservations():  # cancelled with the rest
                ledger.fail(key, attempt, Charge(rollouts=1, unmetered_tokens=True))
            self.jobs.failures = Failures()
            raise failures.exceptions[0] from None
        return self.problems[-1] if self.problems else ""

    async def _work(self, queue: Iterator[str]) -> None:
        for key in queue:
            await asyncio.sleep(0)  # a scripted model never waits, and a Ctrl-C has to be heard
            if not self.wanted(key):
                continue
            try:
                self.done[key] = await self.jobs.play_one(key, self.wishes[key])
            except LostRolloutError as error:
                self.problems.append(str(error))
            else:
                self.heard(key, self.done[key])


@dataclass(slots=True)
class Player:
    """Plays training steps with `agent`. `store` is open for writing, as its ledger is."""

    task: Task
    agent: Agent | None
    """None until a phase says under which harness to play."""
    store: RunStore
    ledger: Ledger
    recipe: Recipe
    concurrency: int | None = None
    """Rollouts in flight; None for what suits the backend."""
    jobs: Jobs | None = None
    """Of a run that plays other things besides; None makes one of store and ledger."""

    async def play(self, batch: Sequence[Drawn]) -> list[Rollout]:
        """See `Plays.play`.

        Raises:
            InfrastructureError, UsageError: see `Jobs.play`.
        """
        if self.jobs is None:
            self.jobs = Jobs(self.store, self.ledger, self.recipe.seed, self.concurrency)
        assert self.agent is not None, "a phase begins before its first step"
        agent, keys = self.agent, keys_of(batch, self.recipe.samples)
        done = await self.jobs.play(
            {key: Job(PURPOSE, agent, self.task, *played) for key, played in keys.items()}
        )
        for key, one in done.items():
            if one.harness_id != self.agent.harness_id:
                raise UsageError(
                    f"rollout {key} was played under harness {one.harness_id}, and the step trains under "
                    f"{self.agent.harness_id}"
                )
        return [done[key] for key in keys]

    def recorded(self, batch: Sequence[Drawn]) -> list[Rollout] | None:
        """See `Plays.recorded`."""
        keys = keys_of(batch, self.recipe.samples)
        there = {one.key: one for one in self.store.rollouts() if one.key in keys}
        return [there[key] for key in keys] if len(there) == len(keys) else None


def _always(_key: str) -> bool:
    return True


def _nothing(_key: str, _record: Rollout) -> None:
    """Nobody listens."""
