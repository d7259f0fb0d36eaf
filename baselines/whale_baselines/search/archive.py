"""The archive of a search: every harness that was ever proposed and what became of it.

    archive = Archive(Path("runs/search/archive"))
    archive.append(event)                                # all that is known follows from the log
    archive.frontier(key), archive.known(key)

It persists over the phases of a run, and each phase sees the earlier ones. Harnesses have names h0, h1, …
in the order of the log. One that is the same as an earlier one, up to formatting and comments, is found by
its syntax tree. Scores belong to a harness under a `ScoreKey`: weights, examples and conditions.

The folder is for people and proposers to read, see `pages.py`; it is written anew from the log, which
stands beside it, where a kill left it behind. The log alone knows what a flagged harness scored.

Not covered: which harness is accepted (`acceptance.py`); runs with two writers.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from whale_baselines.search import pages
from whale_baselines.search.acceptance import Tried
from whale_baselines.search.log import (
    Begun,
    Ended,
    Event,
    Examined,
    Proposed,
    Refused,
    Scored,
    ScoreKey,
    open_log,
    scrubbed,
    secret_beside,
)
from whale_baselines.search.proposal import Known, Proposal
from whale_baselines.search.sources import source_id, tree_id
from whale_bench.records import Rollout
from whale_bench.statistics import Score, mean_at_k
from whale_envs.errors import InfrastructureError, UsageError


def log_path(folder: Path) -> Path:
    """Of an archive's log, which stands beside the folder: it has the scores of flagged harnesses too, and
    proposers read the folder.
    """
    return folder.with_name(f"{folder.name}.jsonl")


@dataclass(slots=True)
class Samples:
    """All rollouts of a harness under one key."""

    rewards: list[tuple[float, ...]] = field(default_factory=list)
    """`rewards[sample][example]`."""
    turns: list[tuple[int, ...]] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    """Of the newest samples."""

    @property
    def score(self) -> Score:
        return mean_at_k(list(zip(*self.rewards, strict=True)))

    @property
    def mean_turns(self) -> float:
        counts = [count for row in self.turns for count in row]
        return math.fsum(counts) / len(counts)


@dataclass(slots=True)
class Candidate:
    """A harness of the archive."""

    name: str
    proposal: Proposal
    phase: int
    iteration: int
    harness_id: str
    tree_id: str
    status: str = ""
    """See `Known.status`; empty while nothing is known."""
    reason: str = ""
    rollouts: int = 0
    """Spent on it, over all phases."""
    samples: dict[ScoreKey, Samples] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return self.proposal.source

    def tried(self, key: ScoreKey) -> Tried:
        """As an acceptance rule sees it."""
        found = self.samples.get(key, Samples())
        solved = [[reward > 0.5 for reward in row] for row in found.rewards]
        return Tried(self.harness_id, solved, found.mean_turns if found.turns else 0.0)


class Flips(NamedTuple):
    """Numbers of the examples that a harness solves more often than another, and less often."""

    gained: list[int]
    lost: list[int]


class State:
    """What follows from the events."""

    def __init__(self) -> None:
        self.candidates: dict[str, Candidate] = {}
        """By name, oldest first."""
        self.phases: dict[int, Begun] = {}
        self.sessions: dict[tuple[int, int], Proposed] = {}
        """By phase and iteration."""
        self.proposed: dict[tuple[int, int], list[str]] = {}
        """Names of the candidates of a session."""
        self.ended: dict[tuple[int, int], Ended] = {}
        self.refused: dict[tuple[int, int, str], Refused] = {}
        """By phase, iteration and name: a candidate is refused in the iteration that proposed it."""
        self.examined: dict[tuple[int, int, str], Examined] = {}
        """By phase, iteration and name."""
        self.remarks: dict[str, str] = {}
        """What was found of harnesses that a phase began with, by name; they stay what they are."""
        self.spent: Counter[tuple[int, int]] = Counter()
        """Rollouts by phase and iteration."""
        self._trees: dict[str, str] = {}

    def apply(self, event: Event) -> list[str]:
        """Takes an event in; names of the candidates that it changes."""
        match event:
            case Begun():
                self.phases[event.phase] = event
                same = self.same_as(event.incoming)
                if same is not None and same.status == "flagged":
                    self.remarks.setdefault(same.name, same.reason)
                return [same.name if same else self._add(Proposal(source=event.incoming), event.phase, 1)]
            case Proposed():
                place = (event.phase, event.iteration)
                self.sessions[place] = event
                self.proposed[place] = [self._add(one, *place) for one in event.proposals]
                return self.proposed[place]
            case Refused():
                self.refused[event.phase, event.iteration, event.name] = event
                candidate = self.candidates[event.name]
                candidate.status, candidate.reason = event.status, event.reason
                self._spend(candidate, event)
                if event.status == "failed":
                    candidate.samples.pop(self.phases[event.phase].key, None)
            case Scored():
                candidate = self.candidates[event.name]
                candidate.status, candidate.reason = "scored", self.remarks.get(event.name, "")
                self._spend(candidate, event)
                samples = candidate.samples.setdefault(event.key, Samples())
                if event.first == len(samples.rewards):
                    samples.rewards += event.rewards
                    samples.turns += event.turns
                    samples.metrics = event.metrics
            case Examined():
                self.examined[event.phase, event.iteration, event.name] = event
                self._examine(event)
            case Ended():
                self.ended[event.phase, event.iteration] = event
                return []
        return [event.name]

    def same_as(self, source: str) -> Candidate | None:
        """The first harness with this source, up to formatting and comments."""
        name = self._trees.get(tree_id(source))
        return None if name is None else self.candidates[name]

    def by_id(self, harness_id: str) -> Candidate | None:
        """The first harness of that id."""
        return next((one for one in self.candidates.values() if one.harness_id == harness_id), None)

    def incoming(self, phase: int) -> Candidate:
        """The harness that a phase began with."""
        found = self.same_as(self.phases[phase].incoming)
        assert found is not None
        return found

    def frontier(self, key: ScoreKey, accepted: str = "") -> list[Candidate]:
        """Scored under `key`, not flagged, and no other is as good in success and turns and better in one.

        Args:
            key: weights, examples and conditions.
            accepted: name of one that belongs to it in any case.
        """
        points = {
            one.name: (one.samples[key].score.mean, -one.samples[key].mean_turns)
            for one in self.candidates.values()
            if key in one.samples and one.status != "flagged"
        }
        return [
            self.candidates[name]
            for name, (mean, turns) in points.items()
            if name == accepted
            or not any(
                (a, b) != (mean, turns) and a >= mean and b >= turns
                for other, (a, b) in points.items()
                if other != name
            )
        ]

    def known(self, key: ScoreKey) -> tuple[Known, ...]:
        """Everything, oldest first, with scores under `key`."""
        return tuple(_known(one, key) for one in self.candidates.values())

    def flips(self, before: Candidate, after: Candidate, key: ScoreKey) -> Flips:
        """Over the samples that both have."""
        pairs = list(
            zip(
                before.samples.get(key, Samples()).rewards,
                after.samples.get(key, Samples()).rewards,
                strict=False,
            )
        )
        if not pairs:
            return Flips([], [])
        sums = [sum(b[i] - a[i] for a, b in pairs) for i in range(len(pairs[0][0]))]
        return Flips(
            [i for i, change in enumerate(sums) if change > 0],
            [i for i, change in enumerate(sums) if change < 0],
        )

    def accepted(self, phase: int) -> Candidate:
        """The best of a phase so far."""
        ends = [end for (number, _), end in self.ended.items() if number == phase]
        return self.candidates[ends[-1].accepted] if ends else self.incoming(phase)

    def _examine(self, event: Examined) -> None:
        candidate = self.candidates[event.name]
        if event.finding and candidate is self.incoming(event.phase):
            self.remarks[event.name] = candidate.reason = event.finding
        elif event.finding:
            candidate.status, candidate.reason = "flagged", event.finding

    def _spend(self, candidate: Candidate, event: Refused | Scored) -> None:
        candidate.rollouts += event.rollouts
        self.spent[event.phase, event.iteration] += event.rollouts

    def _add(self, proposal: Proposal, phase: int, iteration: int) -> str:
        name, tree = f"h{len(self.candidates)}", tree_id(proposal.source)
        self.candidates[name] = Candidate(name, proposal, phase, iteration, source_id(proposal.source), tree)
        self._trees.setdefault(tree, name)
        return name


class Archive(State):
    """The folder, open for writing."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{folder}: cannot be made into an archive: {error}") from error
        self._log = open_log(log_path(folder))
        self.secret = secret_beside(log_path(folder))
        for event in self._log.records:
            self.apply(event)
        self._write(list(self.candidates))

    def append(self, event: Event) -> None:
        """Logs an event, takes it in, and brings the folder's pages up to date.

        Raises:
            InfrastructureError: something cannot be written.
        """
        event = scrubbed(event)
        self._log.append(event)
        self._write(self.apply(event))

    def keep_rollouts(self, name: str, key: ScoreKey, records: Mapping[int, Rollout]) -> None:
        """Writes what happened in rollouts, by the number of their example; before they are scored."""
        try:
            pages.write_trajectories(self.folder, name, key, records)
        except OSError as error:
            raise InfrastructureError(f"{self.folder}: cannot be written: {error}") from error

    def keep_transcript(self, phase: int, iteration: int, session: "pages.Transcript") -> None:
        """Writes what a proposer said and did; before its session is logged."""
        try:
            pages.write_transcript(self.folder, phase, iteration, session)
        except OSError as error:
            raise InfrastructureError(f"{self.folder}: cannot be written: {error}") from error

    def _write(self, changed: list[str]) -> None:
        try:
            for name in changed:
                pages.write_candidate(self.folder, self.candidates[name])
            pages.write_index(self.folder, self)
        except OSError as error:
            raise InfrastructureError(f"{self.folder}: cannot be written: {error}") from error


def read_archive(folder: Path) -> State:
    """What an archive holds, without writing anything.

    Raises:
        UsageError: there is no archive, or it is damaged.
    """
    if not log_path(folder).is_file():
        raise UsageError(f"{folder} is no archive of a search: there is no {log_path(folder).name} beside it")
    state = State()
    for event in open_log(log_path(folder), readonly=True).records:
        state.apply(event)
    return state


def _known(one: Candidate, key: ScoreKey) -> Known:
    found = one.samples.get(key) if one.status != "flagged" else None
    return Known(
        harness_id=one.harness_id,
        name=one.name,
        source=one.source,
        status=one.status,
        reason=one.reason,
        score=found.score.mean if found else None,
        turns=found.mean_turns if found else None,
        components=one.proposal.components,
        parents=one.proposal.parents,
        iteration=one.iteration,
    )
