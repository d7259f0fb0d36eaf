"""The harness operator of `search.py` behind the loop's protocol.

    operator = SearchOperator(search)
    await operator.begin(1, incoming, weights_id)
    iterated = await operator.iterate(1)

An iteration that a killed launch finished without the history knowing of it is told from the archive.

Not covered: everything that a search does, which is `search.py`'s.
"""

from dataclasses import dataclass

from whale_baselines.alternate import Iterated
from whale_baselines.history import Harness, harness_of
from whale_baselines.search.search import HarnessSearch
from whale_envs.errors import UsageError

_KEPT = ("success_low", "success_high", "turns", "candidates", "improved", "proposer", "problem")
"""What the history keeps of an iteration's metrics."""


@dataclass(slots=True)
class SearchOperator:
    """Implements `HarnessOperator`."""

    search: HarnessSearch

    async def begin(self, phase: int, incoming: Harness, weights_id: str) -> None:
        await self.search.begin(incoming.source, weights_id, phase=phase)

    async def iterate(self, number: int) -> Iterated:
        """See `HarnessOperator.iterate`.

        Raises:
            UsageError: the archive is of an earlier iteration; and what `HarnessSearch.iterate` raises.
        """
        finished = self.search.iterations
        if number > finished + 1:
            raise UsageError(f"iteration {number} is next, and the archive has {finished}: was it edited?")
        if number == finished + 1:
            await self.search.iterate()
        line = self.search.line(number)
        return Iterated(
            weights_id=line["weights_id"],
            accepted=harness_of(self.search.archive.candidates[line["accepted"]].source),
            score=line["success"],
            rollouts=line["rollouts"],
            metrics={"accepted": line["accepted"]} | {name: line[name] for name in _KEPT},
        )
