"""BM25 that ranks as Lucene does under Anserini, in numpy, over an index file.

    retriever = BM25Retriever(open_index("indexes/mini"))          # k1=0.9, b=0.4
    retriever.rank("who painted the night watch", k=10)            # [("Rembrandt", 14.2801), ...]

A term's weight in a passage is w - w / (1 + tf / (k1 * (1 - b + b * length / mean))) in float32, with
w = idf times how often the query has the term, and length as one byte keeps it. A passage's score is the
sum of its weights in float64, cast to float32; equal scores are ranked by id. Scores are reported as
Anserini reports them: rounded to four decimals, and a millionth less for each passage tied before.

Ranking is exact and looks at few passages. The terms that can weigh most are summed first. Once the k-th
best sum exceeds all that the other terms could add, only passages that have a term already, and could
still come in, are looked up in the other terms' lists.

Not covered: phrases, fields and boosts, none of which the published protocol uses.
"""

import asyncio
import hashlib
import math
import threading
import time
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from whale_envs.errors import UsageError
from whale_envs.retrieval.analyser import analyse
from whale_envs.retrieval.base import Hit, check_k, clean_query
from whale_envs.retrieval.index_build import LENGTHS
from whale_envs.retrieval.index_file import Index, corrupt

Rows = NDArray[np.intp]
Sums = NDArray[np.float64]

INLINE_COST = 200_000
"""Queries times passages up to which a search runs on the event loop (some milliseconds)."""

SLICE_S = 0.004
"""How long a search between others' turns keeps the event loop, give or take a query, in seconds."""

FEW_POSTINGS = 4_096
"""Lists as short as this in all are summed at once: looking between them costs more."""

_CACHED_TERMS = 1 << 16
_TRUE = np.array([True])
_ROUNDING = 1 - 1e-6
"""Sums closer than this may be equal in float32, which has 24 bits."""


class _List(NamedTuple):
    """A term's postings, with its weight in one query and the most that it adds to a sum."""

    rows: NDArray[np.int32]
    codes: NDArray[Any]
    largest: np.float32
    """The largest denominator in the list: with it a passage's weight is largest."""
    weight: np.float32
    bound: float

    def times(self, count: int) -> "_List":
        """The list in a query that has the term so often."""
        weight = np.float32(count) * self.weight
        return self._replace(weight=weight, bound=float(weight - weight / self.largest))


class BM25Retriever:
    """Ranks the passages of an index. Safe in threads, after a fork, and for many tasks at once.

    Args:
        index: see `open_index`.
        k1: how slowly repetition saturates, 0 or more.
        b: how far length counts, from 0 to 1.

    Raises:
        UsageError: k1 or b is outside its range.
    """

    name = "bm25"

    def __init__(self, index: Index, k1: float = 0.9, b: float = 0.4) -> None:
        if not 0 <= k1 < math.inf:
            raise UsageError(f"k1 must be a finite number from 0, got {k1!r}")
        if not 0 <= b <= 1:
            raise UsageError(f"b must be a number from 0 to 1, got {b!r}")
        self.index, self.k1, self.b = index, float(k1), float(b)
        self._denominators = _denominators(index, self.k1, self.b)
        self._terms: dict[str, _List] = {}
        self._local = threading.local()

    @property
    def retriever_id(self) -> str:
        """Hash of the index's content and the settings."""
        text = f"bm25 {self.index.digest} k1={self.k1!r} b={self.b!r}"
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits for each query; large jobs run in a thread."""
        check_k(k)
        if len(queries) * len(self.index) <= INLINE_COST:
            return self._search(queries, k)
        return await asyncio.to_thread(self._search, queries, k)

    async def search_between(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """As `search`, on the caller's thread, giving way to its event loop every `SLICE_S`.

        For servers: a ranker in a thread of its own and the loop that serves its answers hold one another
        up at the interpreter's lock, numpy letting go of it a hundred times a query.
        """
        check_k(k)
        found: list[list[Hit]] = []
        until = time.monotonic() + SLICE_S
        for query in queries:
            found += self._search([query], k)
            if time.monotonic() > until:
                await asyncio.sleep(0)
                until = time.monotonic() + SLICE_S
        return found

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Nothing to release: the mapped files go with the index."""

    def rank(self, query: str, k: int) -> list[tuple[str, float]]:
        """Ids and scores of at most `k` passages, best first.

        Raises:
            UsageError: k is not from 1 to MAX_K.
            DataError: the index is damaged.
        """
        rows, scores = self._top(query, check_k(k))
        return list(zip(map(self.index.identifier, rows), scores, strict=True))

    def _search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        ranked = [self._top(query, k) for query in queries]
        return [[Hit(self.index.passage(r), s) for r, s in zip(*top, strict=True)] for top in ranked]

    def _top(self, query: str, k: int) -> tuple[list[int], list[float]]:
        terms = Counter(analyse(clean_query(query)))
        try:
            lists = self._lists(terms)
            if not lists:
                return [], []
            rows, sums = self._best(lists, k)
            scores = sums.astype(np.float32)
            order = np.lexsort((self.index.ties[rows], -scores))[:k]
        except (IndexError, ValueError, OverflowError) as error:  # what arithmetic over damaged files says
            raise corrupt(self.index.folder, str(error)) from error
        return rows[order].tolist(), _reported(scores[order])

    def _lists(self, query: Counter[str]) -> list[_List]:
        """The lists of the query's terms, those that can weigh most first."""
        lists = []
        for text, count in query.items():
            if (found := self._terms.get(text) or self._find(text)) is not None:
                lists.append(found if count == 1 else found.times(count))
        return sorted(lists, key=lambda entry: -entry.bound)

    def _find(self, text: str) -> _List | None:
        index = self.index
        number = index.find(text)
        if number < 0:
            return None
        begin, end = index.starts[number : number + 2].tolist()
        documents = index.manifest.with_terms
        idf = np.float32(math.log(1 + (documents - (end - begin) + 0.5) / (end - begin + 0.5)))
        codes = index.codes[begin:end]
        largest = self._denominators[codes].max()
        if len(self._terms) >= _CACHED_TERMS:
            self._terms.clear()
        self._terms[text] = found = _List(index.rows[begin:end], codes, largest, idf, 0.0).times(1)
        return found

    def _best(self, lists: list[_List], k: int) -> tuple[Rows, Sums]:
        """Rows that hold the k best, with their sums, in no order."""
        ahead = list(accumulate((entry.bound for entry in reversed(lists)), initial=0.0))[::-1]
        rows, sums, done = self._sum(lists, ahead, k)
        for place in range(done, len(lists)):
            rows, sums = _still_in(rows, sums, ahead[place], k)
            entry = lists[place]
            at = entry.rows.searchsorted(rows.astype(np.int32))
            at[at == len(entry.rows)] = 0
            has = np.flatnonzero(entry.rows[at] == rows)
            sums[has] += self._weights([entry], entry.codes[at[has]], len(has))
        return _still_in(rows, sums, 0.0, k)

    def _sum(self, lists: list[_List], ahead: list[float], k: int) -> tuple[Rows, Sums, int]:
        """Sums whole lists until no passage outside them can be among the k best; how many lists, too."""
        sums = self._scratch()
        seen: list[Rows] = []
        done, until = 0, _first_few(lists, ahead)
        try:
            while done < until:
                some = lists[done:until]
                rows = np.concatenate([entry.rows for entry in some], dtype=np.intp)
                codes = np.concatenate([entry.codes for entry in some])
                np.add.at(sums, rows, self._weights(some, codes, [len(entry.rows) for entry in some]))
                seen.append(rows)
                done = until
                floor = _kth(sums, lists[:done], k) * _ROUNDING
                while until < len(lists) and ahead[until] >= floor:
                    until += 1
            rows = np.concatenate(seen) if len(seen) > 1 else seen[0]
            rows = np.sort(rows[sums.take(rows) >= floor - ahead[done]])
            rows = rows[np.concatenate((_TRUE, rows[1:] != rows[:-1]))]
            values = sums.take(rows)
            for every in seen:
                sums[every] = 0
        except BaseException:
            self._local = threading.local()  # a scratch that is not zero is of no use
            raise
        return rows, values, done

    def _weights(self, lists: list[_List], codes: NDArray[Any], sizes: Any) -> Sums:
        weights = np.repeat(np.array([entry.weight for entry in lists]), sizes)
        return (weights - weights / self._denominators.take(codes)).astype(np.float64)

    def _scratch(self) -> Sums:
        """Zeros of this thread, one for each passage."""
        if not hasattr(self._local, "sums"):
            self._local.sums = np.zeros(len(self.index))
        sums: Sums = self._local.sums
        return sums


def _first_few(lists: list[_List], ahead: list[float]) -> int:
    """How many lists to sum before looking: those of half the weight, and more while they are short."""
    until, postings = 0, 0
    for entry in lists:
        postings += len(entry.rows)
        if 2 * ahead[until] < ahead[0] and postings > FEW_POSTINGS:
            break
        until += 1
    return until


def _kth(sums: Sums, lists: list[_List], k: int) -> float:
    """At most the k-th best of the sums: that of the first list with k passages."""
    for entry in lists:
        if len(entry.rows) >= k:
            values = sums.take(entry.rows)
            values.partition(len(values) - k)
            return float(values[-k])
    return 0.0


def _still_in(rows: Rows, sums: Sums, ahead: float, k: int) -> tuple[Rows, Sums]:
    """Without those that `ahead` more could not lift to the k-th best sum."""
    if len(sums) <= k:
        return rows, sums
    keep = np.flatnonzero(sums + ahead >= np.partition(sums, -k)[-k] * _ROUNDING)
    return rows[keep], sums[keep]


def _denominators(index: Index, k1: float, b: float) -> NDArray[np.float32]:
    """1 + tf / (k1 * …) for each (frequency, length) pair of an index, in Lucene's order of operations."""
    one = np.float32(1)
    mean = np.float32(index.manifest.tokens / max(index.manifest.with_terms, 1))
    lengths = LENGTHS[index.lengths].astype(np.float32)
    with np.errstate(divide="ignore", over="ignore"):
        share = one / (np.float32(k1) * ((one - np.float32(b)) + np.float32(b) * lengths / mean))
        return one + index.frequencies.astype(np.float32) * share


def _reported(scores: NDArray[np.float32]) -> list[float]:
    reported: list[float] = []
    tied, last = 0, math.nan
    for score in scores.tolist():
        rounded = round(score, 4)
        tied = tied + 1 if rounded == last else 0
        last = rounded
        reported.append(rounded - tied * 1e-6)
    return reported
