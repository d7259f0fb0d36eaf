"""The harness operator: propose, check, score, examine, accept; again.

    search = HarnessSearch(recipe, plan, task, backend, jobs, archive, proposer)
    await search.begin(source, backend.weights_id, phase=1)
    while search.iterations < 6:
        metrics = await search.iterate()             # the first one scores the incoming harness
    search.accepted.source

A schedule decides after every iteration whether there is another. A phase's weights are those that it
began with: it refuses others, and scores under others are not compared.

Whatever is done is logged before the next thing begins: a phase that was killed goes on where it was. A
session that was paid for is not bought again, a rollout that was recorded not played again. A server's
failure stops the run and is no candidate's.

Not covered: schedules; what a proposer is told and charged, see `sessions.py`.
"""

import hashlib
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from whale_baselines.play import Jobs, jobs_of
from whale_baselines.search.acceptance import rule_of
from whale_baselines.search.admit import short_paths
from whale_baselines.search.archive import Archive, Candidate
from whale_baselines.search.challengers import Challengers
from whale_baselines.search.examine import Examiner
from whale_baselines.search.log import Begun, Ended, Examined, ScoreKey
from whale_baselines.search.proposal import Proposer
from whale_baselines.search.recipe import SearchRecipe
from whale_baselines.search.scoring import Scores
from whale_baselines.search.sessions import Sessions
from whale_baselines.search.sources import clean
from whale_bench.engine import Agent, Task
from whale_bench.harness.host import shipped_harnesses
from whale_bench.models import Backend
from whale_bench.models.base import names_weights
from whale_bench.plan import EvalPlan
from whale_envs.errors import UsageError


class Accepted(NamedTuple):
    """The best harness of a phase so far."""

    name: str
    """In the archive."""
    harness_id: str
    source: str


@dataclass(slots=True)
class HarnessSearch:
    """Phases of harness search in one run's folder."""

    recipe: SearchRecipe
    plan: EvalPlan
    """The agent, but for its harness."""
    task: Task
    """What candidates are scored on."""
    backend: Backend
    jobs: Jobs
    archive: Archive
    proposer: Proposer
    _phase: int = 0
    _examiner: Examiner = field(init=False)

    def __post_init__(self) -> None:
        self._examiner = Examiner(self.task, self.archive.secret)

    async def begin(self, incoming_source: str, weights_id: str, *, phase: int = 1) -> None:
        """Begins a phase, or goes on with one that the archive holds.

        Args:
            incoming_source: of the harness that the phase begins with.
            weights_id: of the weights that it searches for.
            phase: its number in the run, from 1.

        Raises:
            UsageError: the backend serves other weights, or the archive's phase of this number began
                with another harness, weights or recipe.
        """
        if not names_weights(self.backend.weights_id, weights_id):
            raise UsageError(
                f"search phase {phase} is to begin under {weights_id}, "
                f"and {self.backend.weights_id} is served"
            )
        begun = Begun(
            phase=phase,
            incoming=clean(incoming_source),
            key=ScoreKey(weights_id, _examples_id(self.task), self._conditions()),
            rule=self.recipe.rule,
            prompt_only=self.recipe.prompt_only,
        )
        self.settle_sessions()
        self.jobs.begin()
        found = self.archive.phases.get(phase)
        if found is None:
            if phase != len(self.archive.phases) + 1:
                raise UsageError(f"search phase {phase} cannot follow on {len(self.archive.phases)} phases")
            self.archive.append(begun)
        elif found != begun:
            changed = [
                name for name in begun.__struct_fields__ if getattr(found, name) != getattr(begun, name)
            ]
            raise UsageError(
                f"{self.archive.folder}: phase {phase} began with another {' and '.join(changed)}; "
                "it cannot be gone on with"
            )
        self._phase = phase

    @property
    def iterations(self) -> int:
        """Finished ones of this phase, those of earlier launches included."""
        return sum(phase == self._phase for phase, _ in self.archive.ended)

    @property
    def history(self) -> list[dict[str, Any]]:
        """The metrics of the finished iterations of this phase, without their seconds."""
        return [self.line(number + 1) for number in range(self.iterations)]

    @property
    def accepted(self) -> Accepted:
        """The best harness so far; before the first iteration the incoming one."""
        best = self.archive.accepted(self._phase)
        return Accepted(best.name, best.harness_id, best.source)

    async def iterate(self) -> dict[str, Any]:
        """One iteration; its line of metrics.

        Raises:
            UsageError: the proposer or the incoming harness can never work.
            InfrastructureError: rollouts are missing, or something cannot be written; the same call
                goes on with the iteration.
        """
        if not self._phase:
            raise UsageError("a search has no iteration before `begin`")
        began, iteration = time.perf_counter(), self.iterations + 1
        incumbent = self.archive.accepted(self._phase)
        async with AsyncExitStack() as stack:
            challengers, scores = self._challengers(iteration), self._scores(iteration)
            if iteration == 1:
                agents = {incumbent.name: await challengers.open(incumbent, stack)}
            else:
                await self._sessions.buy(self._phase, iteration)
                agents = await challengers.admitted(stack)
                scores.smoked = await challengers.smoke(agents)
            await scores.sample(agents, dict.fromkeys(agents, 1), may_fail=iteration > 1)
            notes = await self._accept(incumbent, challengers, agents, scores, stack)
        return self.line(iteration) | {"notes": notes, "seconds": time.perf_counter() - began}

    def line(self, iteration: int) -> dict[str, Any]:
        """The metrics of a finished iteration, but for its seconds; all of them follow from the archive."""
        archive, place = self.archive, (self._phase, iteration)
        best = archive.candidates[archive.ended[place].accepted]
        earlier = archive.ended.get((self._phase, iteration - 1))
        score, session = best.samples[self._key].score, archive.sessions.get(place)
        names = archive.proposed.get(place, [best.name])
        return {
            "phase": self._phase,
            "weights_id": self._key.weights_id,
            "iteration": iteration,
            "accepted": best.name,
            "harness_id": best.harness_id,
            "improved": earlier is not None and earlier.accepted != best.name,
            "success": score.mean,
            "success_low": score.low,
            "success_high": score.high,
            "turns": best.samples[self._key].mean_turns,
            "candidates": {name: archive.candidates[name].status for name in names},
            "rollouts": archive.spent[place],
            "proposer": msgspec.to_builtins(session.charge) if session else {},
            "problem": session.problem if session else archive.remarks.get(best.name, ""),
        }

    async def _accept(
        self,
        incumbent: Candidate,
        challengers: Challengers,
        agents: dict[str, Agent],
        scores: Scores,
        stack: AsyncExitStack,
    ) -> dict[str, str]:
        """Lets the rule decide, samples what it wants, and ends the iteration; what it said, by name."""
        rule, key, iteration = rule_of(self.recipe), self._key, challengers.iteration
        fresh, before = challengers.fresh, challengers.before
        while True:
            there = [
                self.archive.candidates[name]
                for name in fresh
                if challengers.is_scored(name) and (name in agents or self._is_flagged(iteration, name))
            ]
            ruling = rule.rule(incumbent.tried(key), [one.tried(key) for one in there], before=before)
            by_id = {one.harness_id: one for one in (*there, incumbent)}
            if not ruling.wanted:
                break
            if incumbent.name not in agents:
                agents[incumbent.name] = await challengers.open(incumbent, stack)
            counts = {by_id[harness_id].name: count for harness_id, count in ruling.wanted.items()}
            await scores.sample(agents, counts, may_fail=True, spared=incumbent.name)
        notes = {by_id[harness_id].name: note for harness_id, note in ruling.notes.items()}
        ranking = [by_id[harness_id] for harness_id in ruling.ranking]
        accepted = await self._first_clean(ranking, iteration, agents)
        self.archive.append(
            Ended(phase=self._phase, iteration=iteration, accepted=accepted.name, notes=notes)
        )
        return notes

    async def _first_clean(
        self, ranking: Sequence[Candidate], iteration: int, agents: Mapping[str, Agent]
    ) -> Candidate:
        """The best that an examination finds nothing about.

        The last of `ranking` is the incumbent. The one that the run begins with is the user's own: it is
        examined once, and stays whatever is found. What is found is in the archive before the next one is
        looked at.
        """
        *better, incumbent = ranking
        shipped = incumbent.source == shipped_harnesses()[self.task.domain]
        known = shipped or any(name == incumbent.name for _, _, name in self.archive.examined)
        if iteration == 1 and not known:
            await self._examine(incumbent, iteration, agents[incumbent.name])
        for one in better:
            if (self._phase, iteration, one.name) not in self.archive.examined:
                await self._examine(one, iteration, agents[one.name])
            if not self._is_flagged(iteration, one.name):
                return one
        return incumbent

    async def _examine(self, one: Candidate, iteration: int, agent: Agent) -> None:
        """Into the archive."""
        samples = range(len(one.samples[self._key].rewards))
        jobs = jobs_of("harness", agent, self.task, self.task.examples.ids, samples)
        played = await self.jobs.play(jobs)
        finding = await self._examiner.finding(f"{one.name}/harness.py", one.source, [*played.values()])
        self.archive.append(
            Examined(
                phase=self._phase,
                iteration=iteration,
                name=one.name,
                finding=short_paths(finding),
                seed=self._examiner.seed_of(one.source),
            )
        )

    def _is_flagged(self, iteration: int, name: str) -> bool:
        examined = self.archive.examined.get((self._phase, iteration, name))
        return examined is not None and bool(examined.finding)

    def settle_sessions(self) -> None:
        """See `Sessions.settle`."""
        self._sessions.settle()

    @property
    def _sessions(self) -> Sessions:
        return Sessions(self.recipe, self.task.domain, self.jobs, self.archive, self.proposer)

    def _scores(self, iteration: int) -> Scores:
        return Scores(self.jobs, self.archive, self.task, self._key, self._phase, iteration)

    def _challengers(self, iteration: int) -> Challengers:
        return Challengers(
            self.recipe,
            self.plan,
            self.task,
            self.backend,
            self.jobs,
            self.archive,
            phase=self._phase,
            iteration=iteration,
        )

    @property
    def _key(self) -> ScoreKey:
        return self.archive.phases[self._phase].key

    def _conditions(self) -> str:
        plan, task = self.plan, self.task
        told = {
            "temperature": plan.temperature,
            "top_p": plan.top_p,
            "top_k": plan.top_k,
            "chat_template_kwargs": plan.chat_template_kwargs,
            "seed": self.jobs.seed,
            "profile": task.profile,
            "max_tokens": task.max_tokens,
            "token_budget": task.token_budget,
        }
        return ", ".join(f"{name} {value}" for name, value in told.items() if value is not None)


def _examples_id(task: Task) -> str:
    """Not the ids themselves, which are hashes over the answers."""
    return f"sha256:{hashlib.sha256(chr(10).join(task.examples.ids).encode()).hexdigest()}"
