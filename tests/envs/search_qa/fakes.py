"""The smallest real retriever: substring search over a list, for tests of what surrounds a retriever."""

from collections.abc import Sequence
from typing import Self

from whale_envs import InfrastructureError
from whale_envs.retrieval.base import Hit, Passage


class ListRetriever:
    """Passages that share a word with the query, in order."""

    name = "list"
    retriever_id = "sha256:list"

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.passages = passages
        self.asked: list[tuple[str, int]] = []

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.asked += [(query, k) for query in queries]
        return [self._find(query)[:k] for query in queries]

    def _find(self, query: str) -> list[Hit]:
        words = set(query.lower().split())
        return [Hit(p, 1.0) for p in self.passages if words & set(p.contents.lower().split())]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None


class BrokenRetriever(ListRetriever):
    """A server that is down."""

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        raise InfrastructureError("the retrieval server is down")
