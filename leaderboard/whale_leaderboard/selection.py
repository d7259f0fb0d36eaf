"""How an agent was chosen among those of its runs, read off the dev rollouts in their ledgers.

    dev = DevScores(splits)
    for run in runs:
        dev.begin(head_of_its_ledger)
        for record, at in run:
            dev.add(record, at)
    dev.points(), dev.selection(weights_id, harness_id, charged)

An agent here is a pair of weights and harness. Its dev score is counted by example: the first rollouts of all
dev examples are its first pass, the second ones its second, and so on. A pass counts once every dev example
has its rollout in it, so that single rollouts more change nothing; in an agent's first pass, what is missing
counts as wrong, as an infrastructure's failure may have left it. The score is the mean of all passes that
count, and an agent's points rise with them: none stands above what was known at its place, nor above what
later passes left of it.

Rollouts of several ledgers are in the order of their settlements, each ledger's own order kept, whatever
order the runs are in. The headline of the board is for agents that dev chose: those whose dev score no other
agent of the same runs beats. "fixed" is an agent on which nothing was spent, so that there was nothing to
choose.

Memory holds five numbers for each charged rollout.

Not covered: a choice made outside the ledgers, which no ledger can show.
"""

from array import array
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from whale_leaderboard.curve import Point
from whale_leaderboard.layout import Charged
from whale_leaderboard.report import Refusal, Selection

MOST_AGENTS = 100_000
"""Pairs of weights and harness with dev rollouts."""

_NO_AGENT = -1
"""Of a rollout that is not of dev."""


@dataclass(slots=True)
class _Pass:
    """The n-th rollouts of the dev examples, of one agent."""

    rollouts: int = 0
    rewards: float = 0.0
    last: int = 0
    """Charged rollouts when the last one was."""


@dataclass(slots=True)
class _Tally:
    """Of one agent."""

    counts: "array[int]"
    """Rollouts of each dev example so far."""
    passes: list[_Pass] = field(default_factory=list)

    def add(self, example: int, reward: float, place: int) -> None:
        number = self.counts[example]
        self.counts[example] += 1
        if number == len(self.passes):
            self.passes.append(_Pass())
        found = self.passes[number]
        found.rollouts += 1
        found.rewards += reward
        found.last = place

    def points(self) -> Iterator[tuple[int, float]]:
        """(place, score) of its rises, the last one with its score."""
        size = len(self.counts)
        whole = [one for number, one in enumerate(self.passes) if number == 0 or one.rollouts == size]
        total, known = 0.0, []
        for number, one in enumerate(whole, start=1):
            total += one.rewards
            known.append((one.last, total / (size * number)))
        best = -1.0
        for number, (place, _) in enumerate(known):
            score = min(score for _, score in known[number:])
            if score > best:
                best = score
                yield place, score


class DevScores:
    """Adds up dev rollouts by agent.

    Args:
        splits: ids by purpose.
    """

    def __init__(self, splits: Mapping[str, Collection[str]]) -> None:
        self._splits = splits
        self._examples: dict[str, int] = {}
        self._agents: dict[tuple[str, str], int] = {}
        self._runs: list[str] = []
        self._clock = 0.0
        self._times, self._rewards = array("d"), array("d")
        self._run, self._agent, self._example = array("i"), array("i"), array("i")
        self._found: tuple[Point, ...] | None = None

    def begin(self, run: str) -> None:
        """What is added from now on is of another ledger, which this names."""
        self._runs.append(run)
        self._clock = 0.0

    def add(self, record: Charged, at: float) -> None:
        """Takes in a charged rollout of whatever purpose, in its ledger's order.

        Args:
            record: of the rollout.
            at: when it was settled, in Unix time; never believed to be before the one before.

        Raises:
            Refusal: there are too many agents.
        """
        if record.purpose == "test":
            return
        self._clock = max(self._clock, at)
        agent = example = _NO_AGENT
        if record.purpose == "dev":
            self._examples = self._examples or {id_: n for n, id_ in enumerate(sorted(self._splits["dev"]))}
            agent = self._agents.setdefault((record.weights_id, record.harness_id), len(self._agents))
            example = self._examples[record.example_id]
            if len(self._agents) > MOST_AGENTS:
                raise Refusal(1, "too_many", "runs", f"more than {MOST_AGENTS:,} agents have dev rollouts")
        self._times.append(self._clock)
        self._run.append(len(self._runs))
        self._agent.append(agent)
        self._example.append(example)
        self._rewards.append(record.reward)
        self._found = None

    def points(self) -> tuple[Point, ...]:
        """Of every agent with a dev rollout, in the order in which these were known."""
        if self._found is None:
            tallies = self._tallied()
            self._found = tuple(
                sorted(
                    Point(place, score, *pair)
                    for pair, number in self._agents.items()
                    for place, score in tallies[number].points()
                )
            )
        return self._found

    def selection(self, weights_id: str, harness_id: str, charged: int) -> Selection:
        """How the agent of these weights and harness was chosen.

        Args:
            weights_id: of the submitted agent.
            harness_id: likewise.
            charged: rollouts that the budget counts.
        """
        if not charged:
            return "fixed"
        points = self.points()
        mine = [p.score for p in points if (p.weights_id, p.harness_id) == (weights_id, harness_id)]
        return "dev" if mine and mine[-1] >= max(p.score for p in points) else "none"

    def _tallied(self) -> list[_Tally]:
        """By agent, of all dev rollouts in the order of their settlements."""
        tallies = [_Tally(array("I", bytes(4 * len(self._examples)))) for _ in self._agents]
        # Which ledger is first where two settle at once is decided by what they hold, not by their numbers.
        ranks = np.argsort(np.argsort(["", *self._runs], kind="stable"), kind="stable")
        order = np.lexsort((ranks[np.frombuffer(self._run, np.int32)], np.frombuffer(self._times)))
        agents = np.frombuffer(self._agent, np.int32)[order]
        for place in np.flatnonzero(agents != _NO_AGENT).tolist():
            at = int(order[place])
            tallies[agents[place]].add(self._example[at], self._rewards[at], place + 1)
        return tallies
