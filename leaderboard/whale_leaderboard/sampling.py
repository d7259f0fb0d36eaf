"""Which charged rollouts have to be in a bundle whole: chosen by the digests of its ledger and records.

    sample = Sample((weights_id, harness_id), lambda: commitment(ledger_sha256, charged_sha256))
    for record in records:
        sample.offer(record)
    sample.chosen()                                       # in the order in which they were offered

Of each run: the dev rollouts of the submitted agent, by which it was selected, up to `MOST_OWN`, and
`SAMPLE` of all others; where there are more, those of the smallest hashes. Whoever packs and whoever
verifies choose the same ones, and nobody can before all records are final.

Their author can still vary a ledger, a time in it, say, and keep the one whose sample suits. A draw then
takes one slow hash, half a second of a core, and with a share f of the rollouts made up, 1 / (1 - f)^256
draws are needed: a minute and a half where these are 2%, three days where they are 5%, 8,000 years where
they are 10%. So a sample finds a ledger that is made up in good part, and a few rollouts in it may be
untrue. That is why no draw decides about the rollouts that an agent was selected by.

Not covered: what is done with the sample.
"""

import hashlib
import heapq
from collections.abc import Callable
from functools import cache

from whale_leaderboard.layout import Charged

SAMPLE = 256
"""Whole rollouts of each run beside `MOST_OWN`; all of them where it has fewer."""
MOST_OWN = 2_048
"""Whole dev rollouts of the submitted agent, of each run."""

_COST, _BLOCK, _TIMES = 2**14, 8, 8
"""Of scrypt: 16 MiB of memory, and that eight times one after the other."""


@cache
def commitment(ledger: str, charged: str) -> bytes:
    """What the choice hangs on; slow, so that choosing among many takes long.

    Args:
        ledger: SHA-256 of the events, in hex.
        charged: SHA-256 of the records.
    """
    return hashlib.scrypt(
        f"{ledger}:{charged}".encode(),
        salt=b"whale-leaderboard sample",
        n=_COST, r=_BLOCK, p=_TIMES, maxmem=2**26, dklen=32,
    )  # fmt: skip


class Sample:
    """The chosen keys of a run, in bounded memory.

    Args:
        agent: ids of the submitted agent's weights and harness.
        salt: gives what the choice hangs on; called where there is one to make.
        most: of other rollouts than the submitted agent's on dev.
        most_own: of these.
    """

    def __init__(
        self,
        agent: tuple[str, str],
        salt: Callable[[], bytes],
        *,
        most: int = SAMPLE,
        most_own: int = MOST_OWN,
    ) -> None:
        self._agent = agent
        self._others, self._own = _Draw(salt, most), _Draw(salt, most_own)
        self._offered = 0

    def offer(self, record: Charged) -> str | None:
        """Takes a rollout into its draw; returns the key that is no longer chosen for it, if there is one."""
        self._offered += 1
        own = record.purpose == "dev" and (record.weights_id, record.harness_id) == self._agent
        return (self._own if own else self._others).offer(record.key, self._offered)

    def chosen(self) -> list[str]:
        """The chosen ones, in the order in which they were offered."""
        return [key for _, key in sorted(self._own.chosen() + self._others.chosen())]


class _Draw:
    """The keys of the smallest hashes; all of them, and no hash, until there are too many."""

    def __init__(self, salt: Callable[[], bytes], most: int) -> None:
        self._salt, self._most = salt, most
        self._all: list[tuple[int, str]] = []
        self._heap: list[tuple[int, int, str]] = []

    def offer(self, key: str, place: int) -> str | None:
        if not self._heap:
            self._all.append((place, key))
            if len(self._all) <= self._most:
                return None
            self._heap = [(-self._draw(one), at, one) for at, one in self._all]
            self._all.clear()
            heapq.heapify(self._heap)
            return heapq.heappop(self._heap)[2]
        draw = -self._draw(key)
        if draw < self._heap[0][0]:  # not among them; its place in the order would not save it
            return key
        return heapq.heappushpop(self._heap, (draw, place, key))[2]

    def chosen(self) -> list[tuple[int, str]]:
        return self._all + [(place, key) for _, place, key in self._heap]

    def _draw(self, key: str) -> int:
        return int.from_bytes(hashlib.sha256(self._salt() + key.encode()).digest()[:8], "big")
