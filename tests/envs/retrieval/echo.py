"""A retriever whose answers show which query and which k they belong to."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Self

from whale_envs.errors import InfrastructureError
from whale_envs.retrieval import Hit, Passage


def echo_hits(query: str, k: int) -> list[Hit]:
    """What Echo answers: at most three hits, fewer where k is smaller."""
    return [Hit(Passage(f"{i}", f"{k}", f"{query}|{i}"), 1.0 - i / 8) for i in range(min(k, 3))]


class Echo:
    """Remembers each search; a query with "poison" in it fails the whole search."""

    name = "echo"
    retriever_id = "sha256:e0"

    def __init__(self, answer: Callable[[str, int], list[Hit]] = echo_hits, *, blocks_s: float = 0.0) -> None:
        self.answer, self.blocks_s = answer, blocks_s
        self.searches: list[list[str]] = []
        self.gate: threading.Event | None = None
        self.came = threading.Event()
        self.opened = self.closed = 0

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.searches.append(list(queries))
        self.came.set()
        if self.gate is not None:
            self.gate.wait(30)  # blocks the thread, as a ranker that computes does
        time.sleep(self.blocks_s)  # noqa: ASYNC251
        await asyncio.sleep(0)
        if any("poison" in query for query in queries):
            raise InfrastructureError("a poisoned query")
        if any("bug" in query for query in queries):
            raise KeyError("bug")
        return [self.answer(query, k) for query in queries]

    async def asked(self) -> None:
        """Until a search has come; the other thread cannot set an event of this loop."""
        await asyncio.to_thread(self.came.wait, 30)

    async def __aenter__(self) -> Self:
        self.opened += 1
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.closed += 1
