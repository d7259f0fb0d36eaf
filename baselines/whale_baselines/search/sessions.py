"""Sessions of a proposer: what it is told, what it is charged, and that none is bought twice.

    sessions = Sessions(recipe, domain, jobs, archive, proposer)
    await sessions.buy(phase=1, iteration=2)             # into the archive, and onto the ledger

A session is logged first and settled then. One that a kill left between the two is settled by the next
launch; one that was not logged is bought anew, and what it had used is marked as unknown.

A proposer that dies of itself has held an empty session: it is recorded, and the search goes on.

Not covered: what a proposer does with its brief; whether what it proposes runs.
"""

import shutil
from dataclasses import dataclass

import msgspec

from whale_baselines.play import PROPOSER, Jobs
from whale_baselines.search.archive import Archive
from whale_baselines.search.log import Proposed
from whale_baselines.search.pages import Transcript, iteration_folder
from whale_baselines.search.proposal import Brief, Proposal, Proposer, Session
from whale_baselines.search.recipe import SearchRecipe
from whale_baselines.search.sources import clean
from whale_bench.ledger import Charge
from whale_bench.text import scrub, scrub_all
from whale_envs.errors import InfrastructureError, UsageError
from whale_envs.seeding import derive_seed


@dataclass(slots=True)
class Sessions:
    """Of one run."""

    recipe: SearchRecipe
    domain: str
    jobs: Jobs
    archive: Archive
    proposer: Proposer

    async def buy(self, phase: int, iteration: int) -> None:
        """Holds the iteration's session, unless the archive has it.

        Raises:
            UsageError: the proposer can never work.
            InfrastructureError: something cannot be written.
        """
        if (phase, iteration) in self.archive.sessions:
            return
        brief, ledger = self._brief(phase, iteration), self.jobs.ledger
        key = f"{PROPOSER}{phase}:{iteration}"
        attempt = ledger.reserve(key, "harness")
        try:
            session = await self.proposer.propose(brief)
        except BaseException as error:  # nobody knows what it had used
            if not isinstance(error, Exception) or isinstance(error, (UsageError, InfrastructureError)):
                ledger.fail(key, attempt, Charge(unpriced=True))
                raise
            problem = f"the proposer died: {type(error).__name__}: {error}"[:500]
            session = Session((), Charge(unpriced=True), problem)
        event = self._recorded(phase, iteration, session)
        transcript = Transcript(self.proposer.name, event.problem, session.transcript)
        self.archive.keep_transcript(phase, iteration, transcript)
        self.archive.append(event)
        ledger.settle(key, attempt, event.charge)

    def settle(self) -> None:
        """Charges sessions that a kill left between log and ledger; before `Jobs.begin` closes them."""
        ledger = self.jobs.ledger
        settled, waiting = ledger.settled_keys(), dict(ledger.open_reservations())
        for (phase, iteration), session in self.archive.sessions.items():
            key = f"{PROPOSER}{phase}:{iteration}"
            if key not in settled:
                attempt = waiting.get(key) or ledger.reserve(key, "harness")
                ledger.settle(key, attempt, session.charge)

    def _recorded(self, phase: int, iteration: int, session: Session) -> Proposed:
        kept = session.proposals[: self.recipe.slots]
        problem = session.problem
        if len(session.proposals) > len(kept):
            problem = f"{problem} {len(session.proposals)} proposals, {len(kept)} are kept".strip()
        return Proposed(
            phase=phase,
            iteration=iteration,
            proposer=self.proposer.name,
            proposals=tuple(_cleaned(one) for one in kept),
            charge=msgspec.structs.replace(session.charge, rollouts=0),
            problem=scrub(problem),
        )

    def _brief(self, phase: int, iteration: int) -> Brief:
        archive = self.archive
        key = archive.phases[phase].key
        workspace = iteration_folder(archive.folder, phase, iteration) / "workspace"
        try:
            shutil.rmtree(workspace, ignore_errors=True)  # of a session that a kill cut short
            workspace.mkdir(parents=True)
        except OSError as error:
            raise InfrastructureError(f"{workspace}: cannot be made: {error}") from error
        best = archive.accepted(phase)
        return Brief(
            domain=self.domain,
            phase=phase,
            iteration=iteration,
            slots=self.recipe.slots,
            archive=archive.folder,
            workspace=workspace,
            base=archive.incoming(phase).harness_id,
            accepted=best.harness_id,
            frontier=tuple(one.harness_id for one in archive.frontier(key, best.name)),
            known=archive.known(key),
            prompt_only=self.recipe.prompt_only,
            seed=derive_seed("proposer", self.recipe.seed, phase, iteration),
        )


def _cleaned(proposal: Proposal) -> Proposal:
    """Its texts as the log can hold them, so that a resume finds the same."""
    plain = msgspec.convert(scrub_all(msgspec.to_builtins(proposal)), Proposal)
    return msgspec.structs.replace(plain, source=clean(proposal.source))
