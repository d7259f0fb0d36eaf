r"""Lucene's BM25 through Pyserini, the reference retriever.

    async with LuceneRetriever("indexes/mini") as retriever:
        (hits,) = await retriever.search(["who painted the night watch"], k=3)

Java runs in one process of its own (`lucene_process`), started at the first use. Any number of
searches may be under way, from several event loops and threads; what waits is searched together. A
process that dies is replaced, with a warning: searches in flight are repeated once. A process forked
from this one starts its own. Ctrl-C and signals are this process's as ever.

Scores are as Anserini reports them: rounded to four decimals, with 1e-6 taken off for each tie.

Not covered: RM3, query expansion, impact and dense Lucene indexes; building (`lucene_index`).
"""

import asyncio
import atexit
import logging
import math
import os
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from whale_envs.errors import DataError, InfrastructureError, UsageError
from whale_envs.retrieval.base import Hit, Passage, check_k, clean_query, split_contents
from whale_envs.retrieval.lucene_index import index_digest
from whale_envs.retrieval.lucene_prebuilt import fetch_prebuilt
from whale_envs.retrieval.lucene_process import ChildLostError, Lists, LuceneChild, Settings

_CHUNK = 32
"""Queries per message; a long list then neither delays others nor looks like a hung process."""
_log = logging.getLogger("whale_envs.retrieval")
_open: "weakref.WeakSet[LuceneRetriever]" = weakref.WeakSet()


class LuceneRetriever:
    """BM25 over a folder that `lucene_index.build_lucene_index` or any Anserini made.

    Args:
        index_dir: the Lucene index.
        k1: of BM25, at least 0.
        b: of BM25, from 0 to 1.

    Raises:
        UsageError: k1 or b is out of range.
        DataError: the folder holds no index, or not what its manifest says.
    """

    name = "pyserini"

    def __init__(self, index_dir: Path | str, *, k1: float = 0.9, b: float = 0.4) -> None:
        if not (_is_number(k1) and 0 <= k1 < math.inf):
            raise UsageError(f"k1 must be a number of at least 0, got {k1!r}")
        if not (_is_number(b) and 0 <= b <= 1):
            raise UsageError(f"b must be a number from 0 to 1, got {b!r}")
        self.index_dir = Path(index_dir).absolute()
        self.retriever_id = index_digest(self.index_dir, f"pyserini k1={float(k1)!r} b={float(b)!r}")
        self.restarts = 0
        """How often the process died and was started again."""
        self._settings = Settings(str(self.index_dir), float(k1), float(b))
        self._child: LuceneChild | None = None
        self._lock = threading.Lock()
        _open.add(self)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits for each query, best first; `len(result) == len(queries)`.

        Raises:
            UsageError: k is out of range; no Java, no Pyserini, or an index it cannot read.
            InfrastructureError: the process died twice, or Lucene failed.
        """
        check_k(k)
        results: list[list[Hit]] = [[] for _ in queries]
        cleaned = ((at, clean_query(query)) for at, query in enumerate(queries))
        asked = [(at, query) for at, query in cleaned if query]
        chunks = [asked[at : at + _CHUNK] for at in range(0, len(asked), _CHUNK)]
        answers = await asyncio.gather(*(self._ask([query for _, query in chunk], k) for chunk in chunks))
        for chunk, lists in zip(chunks, answers, strict=True):
            for (at, _), hits in zip(chunk, lists, strict=True):
                results[at] = [_hit(*hit) for hit in hits]
        return results

    async def hello(self) -> dict[str, Any]:
        """What the process says of itself: documents, stored, lucene (version), pid. Starts it.

        Raises:
            UsageError: no Java, no Pyserini, or an index it cannot read or that keeps no text.
            InfrastructureError: the process dies.
        """
        for _ in range(2):
            try:
                _, hello = await self._ready()
                return hello
            except ChildLostError as error:
                lost = error
        raise lost

    def close(self) -> None:
        """Ends the process; idempotent, from any thread. A later search starts a new one."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.join()

    async def __aenter__(self) -> Self:
        await self.hello()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self.close)

    # --- private -----------------------------------------------------------------------------------

    async def _ask(self, queries: list[str], k: int) -> Lists:
        for _ in range(2):
            try:
                child, _hello = await self._ready()
                return await child.ask(queries, k)
            except ChildLostError as error:
                lost = error
        raise InfrastructureError(f"Lucene failed twice: {lost}")

    async def _ready(self) -> tuple[LuceneChild, dict[str, Any]]:
        child = self._current()
        try:
            hello = await child.ready()
        except UsageError:
            self._forget(child)
            raise
        if not hello["stored"]:
            self.close()
            raise DataError(
                f"{self.index_dir} keeps no passages, only their index (a slim one); use one that stores "
                "them (Anserini's -storeRaw)"
            )
        return child, hello

    def _current(self) -> LuceneChild:
        """A child that lives or is being started; in a moment, for the waiting is elsewhere."""
        with self._lock:
            if self._child is not None and self._child.dead:
                self.restarts += 1
                _log.warning("the Lucene process died; starting it again (time %d)", self.restarts)
                self._child = None
            if self._child is None:
                self._child = LuceneChild(self._settings)
            return self._child

    def _forget(self, child: LuceneChild) -> None:
        """One that could not open the index is no death to count."""
        with self._lock:
            if self._child is child:
                self._child = None
        child.kill()

    def _after_fork(self) -> None:
        """In a forked child: the process, and perhaps the lock, belong to the parent."""
        self._lock = threading.Lock()
        child, self._child = self._child, None
        if child is not None:
            child.abandon()


def open_prebuilt(name: str, *, k1: float = 0.9, b: float = 0.4) -> LuceneRetriever:
    """A retriever over one of Pyserini's prebuilt indexes; see `lucene_prebuilt.fetch_prebuilt`."""
    return LuceneRetriever(fetch_prebuilt(name), k1=k1, b=b)


def _hit(docid: str, score: float, stored: str | None) -> Hit:
    return Hit(read_stored(docid, stored or ""), score)


def read_stored(docid: str, stored: str) -> Passage:
    r"""A passage from what the index keeps of it: our JSON, Search-R1's, BEIR's, or plain text.

    >>> read_stored("7", '{"id": "7", "contents": "\\"Ada Lovelace\\"\\nShe wrote."}')
    Passage(id='7', title='Ada Lovelace', text='She wrote.')
    """
    try:
        row = msgspec.json.decode(stored)
    except msgspec.MsgspecError:
        row = None
    if not isinstance(row, dict):
        return Passage(docid, *split_contents(stored))
    contents, title, text = row.get("contents"), row.get("title"), row.get("text")
    if not isinstance(contents, str):
        return Passage(docid, _string(title), _string(text))
    if isinstance(title, str) and (not title or contents.startswith(f"{title}\n")):
        return Passage(docid, title, contents[len(title) + 1 :] if title else contents)
    return Passage(docid, *split_contents(contents))


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _forked() -> None:
    for retriever in list(_open):
        retriever._after_fork()


@atexit.register
def _close_all() -> None:
    for retriever in list(_open):
        retriever.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
