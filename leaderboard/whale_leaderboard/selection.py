"""How an agent was chosen among those of its runs, read off the dev rollouts in their ledgers.

    dev = DevScores(splits)
    for record in records:
        dev.add(record)
    dev.points(), dev.selection(weights_id, harness_id, charged)

An agent here is a pair of weights and harness. It has a dev score once as many dev rollouts of it are
charged as the dev split has examples, or a multiple. The headline of the board is for agents that dev
chose: those whose dev score no other agent of the same runs beats. "fixed" is an agent on which nothing was
spent, so that there was nothing to choose.

Not covered: a choice made outside the ledgers, which no ledger can show.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from whale_leaderboard.curve import Point
from whale_leaderboard.layout import Charged
from whale_leaderboard.report import Refusal, Selection

MOST_AGENTS = 100_000
"""Pairs of weights and harness with dev rollouts."""


@dataclass(slots=True)
class _Tally:
    rollouts: int = 0
    rewards: float = 0.0
    last: int = 0
    """Charged rollouts when the last one was."""


class DevScores:
    """Adds up dev rollouts by agent.

    Args:
        splits: ids by purpose.
    """

    def __init__(self, splits: Mapping[str, Collection[str]]) -> None:
        self._splits = splits
        self._charged = 0
        self._tallies: dict[tuple[str, str], _Tally] = {}

    def add(self, record: Charged) -> None:
        """Takes in a charged rollout of whatever purpose, in order.

        Raises:
            Refusal: there are too many agents.
        """
        if record.purpose == "test":
            return
        self._charged += 1
        if record.purpose != "dev":
            return
        pair = (record.weights_id, record.harness_id)
        tally = self._tallies.setdefault(pair, _Tally())
        tally.rollouts += 1
        tally.rewards += record.reward
        tally.last = self._charged
        if len(self._tallies) > MOST_AGENTS:
            raise Refusal(1, "too_many", "runs", f"more than {MOST_AGENTS:,} agents have dev rollouts")

    def points(self) -> tuple[Point, ...]:
        """Of every agent with a dev score, in the order in which these were known."""
        if not self._tallies:
            return ()
        size = len(self._splits["dev"])
        found = [
            Point(tally.last, tally.rewards / tally.rollouts, *pair)
            for pair, tally in self._tallies.items()
            if tally.rollouts % size == 0
        ]
        return tuple(sorted(found))

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
        return "dev" if mine and mine[0] >= max(p.score for p in points) else "none"
