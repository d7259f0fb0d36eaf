"""The candidates of one iteration: which are new, which may be scored, and why the others may not.

    challengers = Challengers(recipe, plan, task, backend, jobs, archive, phase=1, iteration=2)
    agents = await challengers.admitted(stack)           # by name, open; the others are refused
    smoked = await challengers.smoke(agents)             # takes out those with a fault; rollouts by name

What an earlier launch refused stays refused; what it admitted is opened again.

Not covered: the checks themselves, see `admit.py`; scores.
"""

from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from whale_baselines.play import Job, Jobs, jobs_of
from whale_baselines.search.admit import contract_problem, fault_of, open_harness, short_paths
from whale_baselines.search.archive import Archive, Candidate
from whale_baselines.search.log import Refused, ScoreKey
from whale_baselines.search.recipe import SearchRecipe
from whale_baselines.search.sources import MOST_BYTES
from whale_bench.engine import Agent, Task
from whale_bench.harness.prompt_only import prompt_only
from whale_bench.models import Backend
from whale_bench.plan import EvalPlan
from whale_envs import load_examples
from whale_envs.errors import UsageError


@dataclass(slots=True)
class Challengers:
    """Of one iteration of a phase."""

    recipe: SearchRecipe
    plan: EvalPlan
    task: Task
    backend: Backend
    jobs: Jobs
    archive: Archive
    phase: int
    iteration: int

    async def admitted(self, stack: AsyncExitStack) -> dict[str, Agent]:
        """Those that may be scored, by name, open until `stack` closes; the others are refused."""
        agents: dict[str, Agent] = {}
        for proposed, first, fresh in self._all(self.iteration):
            if first is not proposed:
                known = f", which is {first.status}: {first.reason}" if first.reason else ""
                self._refuse(proposed, "duplicate", f"the same as {first.name}{known}")
            if fresh and not self._is_decided(first.name):
                status, reason = await self._problem(first)
                if not reason:
                    try:
                        agents[first.name] = await self.open(first, stack)
                        continue
                    except UsageError as error:
                        status, reason = "invalid", str(error)
                self._refuse(first, status, reason)
        return agents

    async def smoke(self, agents: dict[str, Agent]) -> dict[str, int]:
        """Plays a little with each new candidate; takes those with a fault out. Rollouts, by name."""
        fresh = {name: agent for name, agent in agents.items() if not self.is_scored(name)}
        if not fresh or not self.recipe.smoke:
            return {}
        ids = self.task.examples.ids[: self.recipe.smoke]
        jobs: dict[str, Job] = {}
        owner: dict[str, str] = {}
        for name, agent in fresh.items():
            mine = jobs_of("smoke", agent, self.task, ids, range(1))
            jobs |= mine
            owner |= dict.fromkeys(mine, name)
        done = await self.jobs.play(jobs)
        faults = {owner[key]: fault for key, record in done.items() if (fault := fault_of(record))}
        for name, fault in faults.items():
            del agents[name]
            self._refuse(self.archive.candidates[name], "invalid", fault, rollouts=len(ids))
        return dict.fromkeys(agents.keys() & fresh.keys(), len(ids))

    @property
    def before(self) -> int:
        """New candidates of the phase's earlier iterations."""
        return sum(fresh for number in range(2, self.iteration) for *_, fresh in self._all(number))

    @property
    def fresh(self) -> list[str]:
        """Names of those that are new to the phase, whatever became of them."""
        return [first.name for _, first, fresh in self._all(self.iteration) if fresh]

    def is_scored(self, name: str) -> bool:
        """Whether the phase has a score of it."""
        return self._key in self.archive.candidates[name].samples

    async def open(self, candidate: Candidate, stack: AsyncExitStack) -> Agent:
        """The phase's agent with this harness.

        Raises:
            UsageError: the harness cannot be used with this domain or model.
        """
        return await open_harness(self.plan, self.backend, self._path(candidate), stack)

    def _all(self, iteration: int) -> Iterator[tuple[Candidate, Candidate, bool]]:
        """(proposed, the first harness that is the same, whether it is new to the phase) of a session."""
        archive = self.archive
        seen = {archive.incoming(self.phase).name}
        for number in range(2, iteration + 1):
            for name in archive.proposed.get((self.phase, number), []):
                proposed = archive.candidates[name]
                first = archive.same_as(proposed.source) or proposed
                if number == iteration:
                    yield proposed, first, first.name not in seen
                seen.add(first.name)

    def _is_decided(self, name: str) -> bool:
        """Whether an earlier launch refused it, or examined it and found something."""
        place = (self.phase, self.iteration, name)
        examined = self.archive.examined.get(place)
        return place in self.archive.refused or (examined is not None and bool(examined.finding))

    async def _problem(self, candidate: Candidate) -> tuple[str, str]:
        """(status, reason) where a candidate is not to be scored, as far as that costs nothing."""
        if candidate.status == "flagged":  # in an earlier phase, and weights do not matter for that
            return "flagged", candidate.reason
        if self._key in candidate.samples:
            return "", ""
        if candidate.status == "invalid":  # likewise
            return "invalid", candidate.reason
        if len(candidate.source.encode()) > MOST_BYTES:
            return "invalid", f"{len(candidate.source.encode())} bytes, more than {MOST_BYTES}"
        if self.recipe.prompt_only:
            base = self.archive.incoming(self.phase).source
            if difference := prompt_only(candidate.source, base):
                return "rejected_prompt_only", f"line {difference.line}: {difference.message}"
        domain, tier = self.task.domain, self.plan.tier
        others = [example for split in ("dev", "test") for example in load_examples(domain, tier, split)]
        scored = [*self.task.examples, *others]
        return "invalid", await contract_problem(self._path(candidate), domain, scored)

    def _refuse(self, candidate: Candidate, status: str, reason: str, *, rollouts: int = 0) -> None:
        if (self.phase, self.iteration, candidate.name) not in self.archive.refused:
            self.archive.append(
                Refused(
                    name=candidate.name,
                    phase=self.phase,
                    iteration=self.iteration,
                    status=status,
                    reason=short_paths(reason),
                    rollouts=rollouts,
                )
            )

    def _path(self, candidate: Candidate) -> Path:
        return self.archive.folder / "harnesses" / candidate.name / "harness.py"

    @property
    def _key(self) -> ScoreKey:
        return self.archive.phases[self.phase].key
