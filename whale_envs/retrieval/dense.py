"""Dense retrieval: FAISS over the vectors of a Hugging Face encoder, as the paper's server has it.

    build_dense_index(passages, "indexes/e5", "intfloat/e5-base-v2")
    async with DenseRetriever("indexes/e5") as retriever:
        (hits,) = await retriever.search(["who painted the night watch"], k=3)

Scores are cosines. One thread of its own encodes and searches; what waits meanwhile makes up its next
batch. A text's vector depends in its last bits on what is encoded with it, so that passages as near as
1e-6 may change places. Also opens a folder of Pyserini's for FAISS (`index` and `docid`), given the
encoder and the passages, which such a folder lacks.

Not covered: building (`dense_index`); several GPUs; use in a process forked from one that used it.
"""

import asyncio
import hashlib
import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Self

from whale_envs.errors import DataError, UsageError
from whale_envs.retrieval.base import Hit, Passage, check_k, clean_query
from whale_envs.retrieval.dense_encoder import Encoder
from whale_envs.retrieval.dense_index import DenseIndex, build_dense_index, check_dense, open_dense

__all__ = ["DenseRetriever", "build_dense_index"]

_MOST_AT_ONCE = 64
"""Queries encoded together."""


class DenseRetriever:
    """See the module's docstring. Loads when it is entered, or with the first search.

    Args:
        folder: made by `build_dense_index`, or by Pyserini for FAISS.
        encoder: name or folder of the encoder; by default the one the index was built with.
        passages: of a folder of Pyserini's.

    Raises:
        DataError: the folder holds no dense index, or a damaged one.
        UsageError: a folder of Pyserini's without encoder and passages, or passages for one of ours.
    """

    name = "dense"

    def __init__(
        self, folder: Path | str, *, encoder: str | None = None, passages: Iterable[Passage] | None = None
    ) -> None:
        self._folder = Path(folder).absolute()
        self._manifest = check_dense(self._folder)
        if self._manifest is None and (encoder is None or passages is None):
            raise UsageError(f"{folder} was not built here: its encoder and its passages must be given")
        if self._manifest is not None and passages is not None:
            raise UsageError(f"{folder} holds its passages; no others can be given")
        self._encoder_name = encoder or (self._manifest.encoder if self._manifest else "")
        self._passages = passages
        self.retriever_id = self._identify()
        self._loaded: tuple[Encoder, DenseIndex] | None = None
        self._lock = threading.Lock()
        self._waiting: list[_Ask] = []
        self._pool: ThreadPoolExecutor | None = None
        self._owner: int | None = None

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits for each query, best first; `len(result) == len(queries)`.

        Raises:
            UsageError: k is out of range; a package is missing; this is a forked copy.
            DataError: index and encoder do not belong together, or cannot be read.
            InfrastructureError: the encoder cannot be fetched.
        """
        check_k(k)
        results: list[list[Hit]] = [[] for _ in queries]
        cleaned = ((at, clean_query(query)) for at, query in enumerate(queries))
        asked = [(at, query) for at, query in cleaned if query]
        if asked:
            answers = await self._submit(_Ask([query for _, query in asked], k, Future()))
            for (at, _), hits in zip(asked, answers, strict=True):
                results[at] = hits
        return results

    def close(self) -> None:
        """Lets go of thread, model and index; a later search loads them again."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None and self._owner == os.getpid():
            pool.shutdown()
        self._loaded = None

    async def __aenter__(self) -> Self:
        await self._submit(_Ask([], 1, Future()))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self.close)

    # --- private -----------------------------------------------------------------------------------

    async def _submit(self, ask: "_Ask") -> list[list[Hit]]:
        if self._owner not in (None, os.getpid()):  # torch's threads do not survive a fork
            raise UsageError(
                f"this DenseRetriever was used in process {self._owner} and cannot be used in its fork "
                f"{os.getpid()}; start processes by spawn, or fork before the first search"
            )
        ask.answer.set_running_or_notify_cancel()  # a caller who gives up does not disturb the others
        with self._lock:
            self._waiting.append(ask)
            if self._pool is None:
                self._pool, self._owner = ThreadPoolExecutor(1, "whale-dense"), os.getpid()
            self._pool.submit(self._work)
        return await asyncio.wrap_future(ask.answer)

    def _work(self) -> None:
        """Answers what waits, at least one; in the thread."""
        with self._lock:
            batch = self._waiting[:1]
            size = sum(len(ask.queries) for ask in batch)
            for ask in self._waiting[1:]:
                if size + len(ask.queries) > _MOST_AT_ONCE:
                    break
                batch.append(ask)
                size += len(ask.queries)
            del self._waiting[: len(batch)]
        if not batch:
            return
        try:
            answers = self._answer([(query, ask.k) for ask in batch for query in ask.queries])
        except Exception as error:  # noqa: BLE001 - handed to those who wait, whatever it is
            for ask in batch:
                ask.answer.set_exception(error)
            return
        at = 0
        for ask in batch:
            end = at + len(ask.queries)
            ask.answer.set_result(answers[at:end])
            at = end

    def _answer(self, asked: list[tuple[str, int]]) -> list[list[Hit]]:
        """The hits of each (query, k)."""
        encoder, index = self._load()
        if not asked:
            return []
        vectors = encoder.queries([query for query, _ in asked])
        scores, rows = index.faiss.search(vectors, min(max(k for _, k in asked), index.faiss.ntotal))
        return [
            [
                Hit(index.passage(row), score)
                for row, score in zip(near[:k], how_near[:k], strict=True)
                if row >= 0
            ]
            for (_, k), near, how_near in zip(asked, rows.tolist(), scores.tolist(), strict=True)
        ]

    def _load(self) -> tuple[Encoder, DenseIndex]:
        if self._loaded is None:
            index = open_dense(self._folder, self._passages)
            encoder = Encoder(self._encoder_name)
            built_with = self._manifest.weights if self._manifest else encoder.weights_digest
            if encoder.weights_digest != built_with or index.faiss.d != encoder.dimension:
                raise DataError(
                    f"{self._folder} was not built with {self._encoder_name!r} ({index.faiss.d} dimensions, "
                    f"weights {built_with[:19]}…; this has {encoder.dimension}, "
                    f"{encoder.weights_digest[:19]}…)"
                )
            self._loaded = encoder, index
        return self._loaded

    def _identify(self) -> str:
        if self._manifest is not None:
            what = f"{self._manifest.digest} {self._manifest.weights}"
        else:
            vectors, ids = self._folder / "index", (self._folder / "docid").read_bytes()
            what = f"{vectors.stat().st_size} {hashlib.sha256(ids).hexdigest()} {self._encoder_name}"
        return f"sha256:{hashlib.sha256(f'dense {what}'.encode()).hexdigest()}"


class _Ask(NamedTuple):
    """Queries and where their hits go."""

    queries: list[str]
    k: int
    answer: "Future[list[list[Hit]]]"
