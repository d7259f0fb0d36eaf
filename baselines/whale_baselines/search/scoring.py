"""Scores of an iteration's harnesses: their rollouts in one queue, into the archive as each is complete.

    scores = Scores(jobs, archive, task, key, phase=1, iteration=2)
    await scores.sample(agents, {"h4": 1, "h5": 1})       # one rollout of each example for each of the two

A candidate fails with the first fault of its own code: it gets no score, and what of it is not begun is
not played. The others never notice.

Not covered: which samples are wanted, see `acceptance.py`.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from whale_baselines.play import Job, Jobs, jobs_of
from whale_baselines.search.admit import fault_of, short_paths
from whale_baselines.search.archive import Archive, Samples
from whale_baselines.search.log import Refused, Scored, ScoreKey
from whale_bench.engine import Agent, Task
from whale_bench.records import Rollout


@dataclass(slots=True)
class Scores:
    """Of one iteration."""

    jobs: Jobs
    archive: Archive
    task: Task
    key: ScoreKey
    phase: int
    iteration: int
    smoked: dict[str, int] = field(default_factory=dict)
    """Rollouts that candidates have cost before they were scored."""

    async def sample(
        self, agents: Mapping[str, Agent], counts: Mapping[str, int], *, may_fail: bool, spared: str = ""
    ) -> None:
        """Makes it so that each harness has so many rollouts of each example.

        Args:
            agents: by name in the archive; of all that `counts` names.
            counts: samples by name; those that are there are not played again.
            may_fail: whether a fault of its code fails a harness; otherwise it is no reward, and no more.
            spared: name of one that never fails.

        Raises:
            InfrastructureError: rollouts are missing.
        """
        pending = _Pending(self, may_fail, spared)
        for name, count in counts.items():
            found = self.archive.candidates[name].samples.get(self.key, Samples())
            samples = range(len(found.rewards), count)
            pending.add(
                name, samples, jobs_of("harness", agents[name], self.task, self.task.examples.ids, samples)
            )
        await self.jobs.play(pending.jobs, wanted=pending.is_wanted, heard=pending.hear)
        pending.fail()

    def keep(self, name: str, samples: range, records: Mapping[tuple[int, int], Rollout]) -> None:
        """Logs the score of a harness; `records` by sample and number of the example."""
        numbers = range(len(self.task.examples))
        if samples.start == 0:
            self.archive.keep_rollouts(name, self.key, {n: records[0, n] for n in numbers})
        self.archive.append(
            Scored(
                name=name,
                phase=self.phase,
                iteration=self.iteration,
                key=self.key,
                first=samples.start,
                rewards=tuple(tuple(records[s, n].verdict.reward for n in numbers) for s in samples),
                turns=tuple(tuple(len(records[s, n].segments) for n in numbers) for s in samples),
                metrics=_means(records),
                rollouts=len(records) + self.smoked.pop(name, 0),
            )
        )


@dataclass(slots=True)
class _Pending:
    """Rollouts under way, sorted by harness as they are heard of."""

    scores: Scores
    may_fail: bool
    spared: str
    jobs: dict[str, Job] = field(default_factory=dict)
    owners: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    """Name, sample and number of the example, by key."""
    samples: dict[str, range] = field(default_factory=dict)
    records: dict[str, dict[tuple[int, int], Rollout]] = field(default_factory=lambda: defaultdict(dict))
    faults: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, samples: range, jobs: dict[str, Job]) -> None:
        number = {example_id: n for n, example_id in enumerate(self.scores.task.examples.ids)}
        self.jobs |= jobs
        self.samples[name] = samples
        self.owners |= {key: (name, job.sample, number[job.example_id]) for key, job in jobs.items()}

    def is_wanted(self, key: str) -> bool:
        return self.owners[key][0] not in self.faults

    def hear(self, key: str, record: Rollout) -> None:
        name, sample, number = self.owners[key]
        mine, fault = self.records[name], fault_of(record)
        mine[sample, number] = record
        if fault and self.may_fail and name != self.spared:
            self.faults.setdefault(name, fault)
        elif name not in self.faults and len(mine) == len(self.samples[name]) * len(
            self.scores.task.examples
        ):
            self.scores.keep(name, self.samples[name], mine)
            self.records[name] = {}

    def fail(self) -> None:
        for name, fault in self.faults.items():
            cost = len(self.records[name]) + self.scores.smoked.pop(name, 0)
            self.scores.archive.append(
                Refused(
                    name=name,
                    phase=self.scores.phase,
                    iteration=self.scores.iteration,
                    status="failed",
                    reason=short_paths(fault),
                    rollouts=cost,
                )
            )


def _means(records: Mapping[tuple[int, int], Rollout]) -> dict[str, float]:
    values: dict[str, list[float]] = defaultdict(list)
    for place in sorted(records):
        for name, value in records[place].metrics.items():
            values[name].append(value)
    return {name: math.fsum(found) / len(found) for name, found in sorted(values.items())}
