"""The harness operator: propose, check, score, accept; again.

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

Not covered: schedules; what a proposer does with its brief.
"""

import hashlib
import shutil
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from whale_baselines.play import PROPOSER, Job, Jobs, jobs_of
from whale_baselines.search.acceptance import rule_of
from whale_baselines.search.admit import contract_problem, fault_of, open_harness, short_paths
from whale_baselines.search.archive import Archive, Candidate
from whale_baselines.search.log import Begun, Ended, Proposed, Refused, ScoreKey
from whale_baselines.search.pages import Transcript, iteration_folder
from whale_baselines.search.proposal import Brief, Proposal, Proposer, Session
from whale_baselines.search.recipe import SearchRecipe
from whale_baselines.search.scoring import Scores
from whale_baselines.search.sources import MOST_BYTES, clean
from whale_bench.engine import Agent, Task
from whale_bench.harness.prompt_only import prompt_only
from whale_bench.ledger import Charge
from whale_bench.models import Backend
from whale_bench.models.base import names_weights
from whale_bench.plan import EvalPlan
from whale_bench.text import scrub, scrub_all
from whale_envs import load_examples
from whale_envs.errors import InfrastructureError, UsageError
from whale_envs.seeding import derive_seed


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
            if iteration == 1:
                agents = {incumbent.name: await self._open(incumbent, stack)}
            else:
                await self._propose(iteration)
                agents = await self._admitted(iteration, stack)
            scores = self._scores(iteration)
            scores.smoked = await self._smoke(agents, iteration)
            await scores.sample(agents, dict.fromkeys(agents, 1), may_fail=iteration > 1)
            notes = await self._accept(iteration, incumbent, agents, scores, stack)
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
            "problem": session.problem if session else "",
        }

    # --- proposing ---------------------------------------------------------------------------------

    async def _propose(self, iteration: int) -> None:
        """Buys the iteration's session, unless the archive has it."""
        if (self._phase, iteration) in self.archive.sessions:
            return
        brief, ledger = self._brief(iteration), self.jobs.ledger
        key = f"{PROPOSER}{self._phase}:{iteration}"
        attempt = ledger.reserve(key, "harness")
        try:
            session = await self.proposer.propose(brief)
        except BaseException:
            ledger.fail(key, attempt, Charge(unpriced=True))  # nobody knows what it had used
            raise
        event = self._recorded(iteration, session)
        transcript = Transcript(self.proposer.name, event.problem, session.transcript)
        self.archive.keep_transcript(self._phase, iteration, transcript)
        self.archive.append(event)
        ledger.settle(key, attempt, event.charge)

    def _recorded(self, iteration: int, session: Session) -> Proposed:
        kept = session.proposals[: self.recipe.slots]
        problem = session.problem
        if len(session.proposals) > len(kept):
            problem = f"{problem} {len(session.proposals)} proposals, {len(kept)} are kept".strip()
        return Proposed(
            phase=self._phase,
            iteration=iteration,
            proposer=self.proposer.name,
            proposals=tuple(_cleaned(one) for one in kept),
            charge=msgspec.structs.replace(session.charge, rollouts=0),
            problem=scrub(problem),
        )

    def _brief(self, iteration: int) -> Brief:
        archive, key = self.archive, self._key
        workspace = iteration_folder(archive.folder, self._phase, iteration) / "workspace"
        try:
            shutil.rmtree(workspace, ignore_errors=True)  # of a session that a kill cut short
            workspace.mkdir(parents=True)
        except OSError as error:
            raise InfrastructureError(f"{workspace}: cannot be made: {error}") from error
        best = archive.accepted(self._phase)
        return Brief(
            domain=self.task.domain,
            phase=self._phase,
            iteration=iteration,
            slots=self.recipe.slots,
            archive=archive.folder,
            workspace=workspace,
            base=archive.incoming(self._phase).harness_id,
            accepted=best.harness_id,
            frontier=tuple(one.harness_id for one in archive.frontier(key, best.name)),
            known=archive.known(key),
            prompt_only=self.recipe.prompt_only,
            seed=derive_seed("proposer", self.recipe.seed, self._phase, iteration),
        )

    def settle_sessions(self) -> None:
        """Charges sessions that a kill left between log and ledger; before `Jobs.begin` closes them."""
        ledger = self.jobs.ledger
        settled, waiting = ledger.settled_keys(), dict(ledger.open_reservations())
        for (phase, iteration), session in self.archive.sessions.items():
            key = f"{PROPOSER}{phase}:{iteration}"
            if key not in settled:
                attempt = waiting.get(key) or ledger.reserve(key, "harness")
                ledger.settle(key, attempt, session.charge)

    # --- checking ----------------------------------------------------------------------------------

    async def _admitted(self, iteration: int, stack: AsyncExitStack) -> dict[str, Agent]:
        """The candidates of an iteration that may be scored, by name, open; the others are refused."""
        agents: dict[str, Agent] = {}
        for proposed, first, fresh in self._challengers(iteration):
            if first is not proposed:
                known = f", which is {first.status}: {first.reason}" if first.reason else ""
                self._refuse(proposed, iteration, "duplicate", f"the same as {first.name}{known}")
            if fresh and (self._phase, iteration, first.name) not in self.archive.refused:
                status, reason = await self._problem(first)
                if not reason:
                    try:
                        agents[first.name] = await self._open(first, stack)
                        continue
                    except UsageError as error:
                        status, reason = "invalid", str(error)
                self._refuse(first, iteration, status, reason)
        return agents

    def _challengers(self, iteration: int) -> Iterator[tuple[Candidate, Candidate, bool]]:
        """(proposed, the first harness that is the same, whether it is new to the phase) of a session."""
        archive = self.archive
        seen = {archive.incoming(self._phase).name}
        for number in range(2, iteration + 1):
            for name in archive.proposed.get((self._phase, number), []):
                proposed = archive.candidates[name]
                first = archive.same_as(proposed.source) or proposed
                if number == iteration:
                    yield proposed, first, first.name not in seen
                seen.add(first.name)

    async def _problem(self, candidate: Candidate) -> tuple[str, str]:
        """(status, reason) where a candidate is not to be scored, as far as that costs nothing."""
        if self._key in candidate.samples:
            return "", ""
        if candidate.status == "invalid":  # in an earlier phase, and weights do not matter for that
            return "invalid", candidate.reason
        if len(candidate.source.encode()) > MOST_BYTES:
            return "invalid", f"{len(candidate.source.encode())} bytes, more than {MOST_BYTES}"
        if self.recipe.prompt_only:
            base = self.archive.incoming(self._phase).source
            if difference := prompt_only(candidate.source, base):
                return "rejected_prompt_only", f"line {difference.line}: {difference.message}"
        domain, tier = self.task.domain, self.plan.tier
        others = [example for split in ("dev", "test") for example in load_examples(domain, tier, split)]
        scored = [*self.task.examples, *others]
        return "invalid", await contract_problem(self._path(candidate), domain, scored)

    async def _smoke(self, agents: dict[str, Agent], iteration: int) -> dict[str, int]:
        """Plays a little with each new candidate; takes those with a fault out. Rollouts, by name."""
        fresh = {name: agent for name, agent in agents.items() if self._is_unscored(name)}
        if iteration == 1 or not fresh or not self.recipe.smoke:
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
            self._refuse(self.archive.candidates[name], iteration, "invalid", fault, rollouts=len(ids))
        return dict.fromkeys(agents.keys() & fresh.keys(), len(ids))

    def _is_unscored(self, name: str) -> bool:
        return self._key not in self.archive.candidates[name].samples

    def _refuse(
        self, candidate: Candidate, iteration: int, status: str, reason: str, *, rollouts: int = 0
    ) -> None:
        if (self._phase, iteration, candidate.name) not in self.archive.refused:
            self.archive.append(
                Refused(
                    name=candidate.name,
                    phase=self._phase,
                    iteration=iteration,
                    status=status,
                    reason=short_paths(reason),
                    rollouts=rollouts,
                )
            )

    # --- accepting ---------------------------------------------------------------------------------

    async def _accept(
        self,
        iteration: int,
        incumbent: Candidate,
        agents: dict[str, Agent],
        scores: Scores,
        stack: AsyncExitStack,
    ) -> dict[str, str]:
        """Lets the rule decide, samples what it wants, and ends the iteration; what it said, by name."""
        rule, key, names = rule_of(self.recipe), self._key, list(agents)
        before = sum(fresh for number in range(2, iteration) for *_, fresh in self._challengers(number))
        while True:
            there = [self.archive.candidates[name] for name in names if not self._is_unscored(name)]
            challengers = [one.tried(key) for one in there if one is not incumbent]
            ruling = rule.rule(incumbent.tried(key), challengers, before=before)
            by_id = {one.harness_id: one for one in (*there, incumbent)}
            if not ruling.wanted:
                break
            if incumbent.name not in agents:
                agents[incumbent.name] = await self._open(incumbent, stack)
            counts = {by_id[harness_id].name: count for harness_id, count in ruling.wanted.items()}
            await scores.sample(agents, counts, may_fail=True, spared=incumbent.name)
        notes = {by_id[harness_id].name: note for harness_id, note in ruling.notes.items()}
        self.archive.append(
            Ended(phase=self._phase, iteration=iteration, accepted=by_id[ruling.accepted].name, notes=notes)
        )
        return notes

    def _scores(self, iteration: int) -> Scores:
        return Scores(self.jobs, self.archive, self.task, self._key, self._phase, iteration)

    async def _open(self, candidate: Candidate, stack: AsyncExitStack) -> Agent:
        return await open_harness(self.plan, self.backend, self._path(candidate), stack)

    def _path(self, candidate: Candidate) -> Path:
        return self.archive.folder / "harnesses" / candidate.name / "harness.py"

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


def _cleaned(proposal: Proposal) -> Proposal:
    """Its texts as the log can hold them, so that a resume finds the same."""
    plain = msgspec.convert(scrub_all(msgspec.to_builtins(proposal)), Proposal)
    return msgspec.structs.replace(plain, source=clean(proposal.source))


def _examples_id(task: Task) -> str:
    """Not the ids themselves, which are hashes over the answers."""
    return f"sha256:{hashlib.sha256(chr(10).join(task.examples.ids).encode()).hexdigest()}"
