"""Which charged rollouts have to be in a bundle whole: chosen by the digests of its ledger and records.

    sample = Sample(commitment(ledger_sha256, charged_sha256))
    for record in records:
        sample.offer(record.key)
    sample.chosen()                                       # in the order in which they were offered

Whoever packs and whoever verifies choose the same ones, and nobody can before all records are final. Their
author could still write many ledgers and keep the one whose sample suits; what that takes is one whole
forged ledger per draw.

Not covered: what is done with the sample.
"""

import hashlib
import heapq

SAMPLE = 256
"""Whole rollouts of each run; all of them where it has fewer."""


def commitment(ledger: str, charged: str) -> bytes:
    """What the choice hangs on.

    Args:
        ledger: SHA-256 of the events, in hex.
        charged: SHA-256 of the records.
    """
    return hashlib.sha256(f"{ledger}:{charged}".encode()).digest()


class Sample:
    """The `SAMPLE` keys of the smallest hashes, in bounded memory."""

    def __init__(self, salt: bytes, most: int = SAMPLE) -> None:
        self._salt, self._most = salt, most
        self._heap: list[tuple[int, int, str]] = []
        self._offered = 0

    def offer(self, key: str) -> str | None:
        """Takes a key into the draw; returns the one that is no longer chosen for it, if there is one."""
        draw = int.from_bytes(hashlib.sha256(self._salt + key.encode()).digest()[:8], "big")
        self._offered += 1
        if len(self._heap) < self._most:
            heapq.heappush(self._heap, (-draw, self._offered, key))
            return None
        if -draw < self._heap[0][0]:  # not among them; its place in the order would not save it
            return key
        return heapq.heappushpop(self._heap, (-draw, self._offered, key))[2]

    def chosen(self) -> list[str]:
        """The chosen ones, in the order in which they were offered."""
        return [key for _, _, key in sorted(self._heap, key=lambda entry: entry[1])]
