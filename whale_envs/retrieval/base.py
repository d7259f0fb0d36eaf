"""The contract of a retriever: queries in, ranked passages out.

    async with retriever:
        (hits,) = await retriever.search(["who painted the night watch"], k=3)
        hits[0].passage.title, hits[0].score

A retriever is total over text: any query, an empty or a hostile one too, gives a list, perhaps empty
(`clean_query` is applied by every retriever to every query). What it raises is `InfrastructureError`,
where a server or a worker failed, and `UsageError`, where it can never work (no index, no Java).

Every retriever indexes and returns the same text, `Passage.contents`, so that rankings compare.

Not covered: which corpus a domain searches, and how passages are shown to a model (`search_qa`).
"""

import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

import msgspec

from whale_envs.errors import UsageError

MAX_QUERY_CHARS = 1_024
"""Queries are cut here: no backend then sees more than Lucene's limit of 1,024 distinct terms."""

MAX_K = 1_000
"""Most passages per query."""

REBUILD = "delete it, then build it again with `whale-bench index build` (one in the cache builds itself)"
"""What to do with an index that cannot be used."""

_UNSPEAKABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]+")


class Passage(msgspec.Struct, frozen=True):
    """A piece of a corpus, the unit of retrieval."""

    id: str
    title: str
    text: str

    @property
    def contents(self) -> str:
        """What is indexed: title, newline, text, as the published server has it (reference §4.1)."""
        return f"{self.title}\n{self.text}" if self.title else self.text


class Hit(NamedTuple):
    """A ranked passage; higher scores are better, and scores compare only within one retriever."""

    passage: Passage
    score: float


class Retriever(Protocol):
    """Ranks passages of one corpus. Safe to call from many tasks of one event loop at once."""

    @property
    def name(self) -> str:
        """As a user chooses it: bm25, pyserini, dense, http."""

    @property
    def retriever_id(self) -> str:
        """What ranks: "sha256:…" over index content and settings, or "remote:URL" where it is a server's."""

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits for each query, best first; `len(result) == len(queries)`.

        Raises:
            UsageError: k is not from 1 to MAX_K.
            InfrastructureError: a server or worker failed after its retries.
        """

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc: object) -> None: ...


def clean_query(query: str) -> str:
    r"""A query that every backend can take: no control characters or lone surrogates, and cut.

    >>> clean_query("who\x00 is\n he? ")
    'who  is  he?'
    """
    return _UNSPEAKABLE.sub(" ", query[:MAX_QUERY_CHARS]).strip()


def split_contents(contents: str) -> tuple[str, str]:
    r"""Title and text of indexed contents: the first line and the rest, quotes of CSV taken off.

    >>> split_contents('"He said ""no"" twice"\nA film.')
    ('He said "no" twice', 'A film.')
    >>> split_contents("a text without a title")
    ('', 'a text without a title')

    Quotes inside, which some dumps do not double, stay: '"The "Big" Dig"' is The "Big" Dig.
    """
    title, newline, text = contents.partition("\n")
    if not newline:
        return "", contents
    if len(title) >= 2 and title[0] == title[-1] == '"':
        title = title[1:-1].replace('""', '"')
    return title, text


def check_k(k: int) -> int:
    """`k` itself.

    Raises:
        UsageError: it is not an integer from 1 to MAX_K.
    """
    if type(k) is not int or not 1 <= k <= MAX_K:
        raise UsageError(f"k must be an integer from 1 to {MAX_K}, got {k!r}")
    return k
