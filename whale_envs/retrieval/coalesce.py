"""Many small searches made into few large ones, without waiting when there is nothing to wait for.

    coalescer = Coalescer(retriever.search)
    await asyncio.gather(*(coalescer.search([query], 3) for query in queries))   # one or two searches

One search runs at a time; what comes meanwhile is the next one, oldest first, at most MAX_QUERIES
queries and only those that ask for the same k. After a search that joined several callers it waits up to
WINDOW_S for as many again, since those who got an answer are about to ask; a lone caller never waits.

A caller with more than MAX_QUERIES queries gets them answered piece by piece, and others in between.
When a joined search fails, its callers are asked for one by one, so that only the guilty one fails.

Not covered: threads; `search` is awaited on the loop of the callers.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from whale_envs.errors import InfrastructureError, WhaleError
from whale_envs.retrieval.base import Hit

MAX_QUERIES = 256
"""Most queries of one search."""

MAX_HITS = 25_600
"""Most hits of one search, k times queries: bounds memory where k is large."""

WINDOW_S = 0.005
"""Longest wait for callers that have just been answered, in seconds."""

_FAILURES_IN_A_ROW = 3

Search = Callable[[list[str], int], Awaitable[list[list[Hit]]]]


class _Ask:
    """A caller's queries and where its answer goes."""

    __slots__ = ("answer", "k", "queries")

    def __init__(self, queries: Sequence[str], k: int, answer: "asyncio.Future[list[list[Hit]]]") -> None:
        self.queries, self.k, self.answer = queries, k, answer


class Coalescer:
    """Joins concurrent searches of one event loop; `queries` and `searches` count what was searched."""

    def __init__(self, search: Search) -> None:
        self.queries = self.searches = 0
        self._search = search
        self._waiting: deque[_Ask] = deque()
        self._runner: asyncio.Task[None] | None = None
        self._enough: asyncio.Future[None] | None = None
        self._expected, self._joined, self._ended = 0, 0, 0.0

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Hits for each query, in the order of the queries; k is from 1 to MAX_HITS.

        Raises:
            WhaleError: what the search for these queries raised.
            InfrastructureError: it raised anything else, or returned another number of lists than there
                were queries.
        """
        hits: list[list[Hit]] = []
        most = _most_queries(k)
        for start in range(0, len(queries), most):
            hits += await self._ask(queries[start : start + most], k)
        return hits

    def submit(self, queries: Sequence[str], k: int) -> "asyncio.Future[list[list[Hit]]]":
        """`search` as a future, to be cancelled where nobody waits any more."""
        if 0 < len(queries) <= _most_queries(k):
            return self._ask(queries, k)
        return asyncio.get_running_loop().create_task(self.search(queries, k))

    def _ask(self, queries: Sequence[str], k: int) -> "asyncio.Future[list[list[Hit]]]":
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        self._waiting.append(_Ask(queries, k, answer))
        if self._runner is None:
            self._runner = loop.create_task(self._run())
        elif self._enough is not None and len(self._waiting) >= self._expected and not self._enough.done():
            self._enough.set_result(None)
        return answer

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            left = self._ended + WINDOW_S - loop.time()
            if self._joined > max(1, len(self._waiting)) and left > 0:
                self._enough, self._expected = loop.create_future(), self._joined
                await asyncio.wait([self._enough], timeout=left)
                self._enough = None
            asks = self._take()
            await self._answer(asks)
            self._joined, self._ended = len(asks), loop.time()
        self._runner = None

    def _take(self) -> list[_Ask]:
        """The oldest request and those it can be joined with; the others keep their places."""
        asks: list[_Ask] = []
        passed: deque[_Ask] = deque()
        room = 0
        while self._waiting:
            ask = self._waiting.popleft()
            if ask.answer.done():  # the caller has gone
                continue
            if not asks:
                room = _most_queries(ask.k)
            if (asks and ask.k != asks[0].k) or len(ask.queries) > room:
                passed.append(ask)
                continue
            asks.append(ask)
            room -= len(ask.queries)
            if not room:
                break
        passed.extend(self._waiting)
        self._waiting = passed
        return asks

    async def _answer(self, asks: list[_Ask]) -> None:
        if not asks:
            return
        error = await self._try(asks)
        if error is None:
            return
        failures = 0
        for ask in asks:
            if len(asks) > 1 and failures < _FAILURES_IN_A_ROW:
                error = await self._try([ask])
                failures = failures + 1 if error is not None else 0
            if not ask.answer.done() and error is not None:
                ask.answer.set_exception(error)

    async def _try(self, asks: list[_Ask]) -> WhaleError | None:
        """Gives each its hits, or returns why not."""
        queries = [query for ask in asks for query in ask.queries]
        self.searches += 1
        self.queries += len(queries)
        (hits,) = await asyncio.gather(self._search(queries, asks[0].k), return_exceptions=True)
        if isinstance(hits, WhaleError):
            return hits
        if isinstance(hits, BaseException):
            return InfrastructureError(f"{type(hits).__name__}: {hits}")
        if len(hits) != len(queries):
            return InfrastructureError(
                f"the retriever returned {len(hits)} lists of hits for {len(queries)} queries"
            )
        start = 0
        for ask in asks:
            end = start + len(ask.queries)
            if not ask.answer.done():
                ask.answer.set_result(hits[start:end])
            start = end
        return None


def _most_queries(k: int) -> int:
    return max(1, min(MAX_QUERIES, MAX_HITS // k))
