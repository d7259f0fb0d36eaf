"""Chooses a retriever by name, over a tier's corpus or an index of the user's own.

    async with open_retriever("bm25", tier="mini") as retriever:
        (hits,) = await retriever.search(["who painted the night watch"], k=3)

    bm25        ranks as Lucene does, without Java; the default (`retrieval.bm25`)
    pyserini    Lucene itself, in a process of its own (`retrieval.lucene`; extra: pyserini)
    dense       FAISS and an encoder such as e5 (`retrieval.dense`; extra: dense)
    http        a Search-R1-compatible server (`retrieval.http`)

The index of an embedded corpus is built once, when it is first needed, and kept in the user's cache.

Not covered: indexes of the 2018 Wikipedia dump, which are the user's to build (`whale-bench index build`)
or to name.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from whale_envs.errors import UnknownNameError, UsageError
from whale_envs.paths import cache_dir
from whale_envs.retrieval.base import Passage, Retriever
from whale_envs.retrieval.bm25 import BM25Retriever
from whale_envs.retrieval.corpus import read_corpus
from whale_envs.retrieval.index_build import build_index
from whale_envs.retrieval.index_file import open_index
from whale_envs.search_qa.corpora import CORPORA, corpus_digest, load_corpus
from whale_envs.search_qa.examples import CORPUS_OF_TIER

RETRIEVERS: Mapping[str, str] = {
    "bm25": "Lucene's ranking without Java; the default",
    "pyserini": "Lucene through Pyserini (extra: pyserini)",
    "dense": "FAISS over embeddings (extra: dense)",
    "http": "a Search-R1-compatible server (--retriever-url)",
}
"""Every retriever by name, with a line for people."""

BUILT = ("bm25", "pyserini", "dense")
"""Retrievers that have an index."""


def open_retriever(
    name: str = "bm25", *, tier: str = "mini", index: str | None = None, url: str | None = None
) -> Retriever:
    """The retriever of that name, not entered yet.

    Args:
        name: one of `RETRIEVERS`.
        tier: whose corpus is searched where no index is given.
        index: a folder, or for pyserini also the name of one of its prebuilt indexes.
        url: the server of http.

    Raises:
        UnknownNameError: no such retriever.
        UsageError: the settings do not go together, or the index cannot be used or built.
    """
    if name not in RETRIEVERS:
        raise UnknownNameError("retriever", name, RETRIEVERS)
    if name == "http":
        if url is None or index is not None:
            raise UsageError(
                "--retriever http takes --retriever-url, the address of a server, and no --index"
            )
        from whale_envs.retrieval.http import HttpRetriever

        return HttpRetriever(url)
    if url is not None:
        raise UsageError(f"--retriever-url goes with --retriever http, not with {name}")
    if name == "pyserini" and index is not None and not Path(index).exists():
        from whale_envs.retrieval.lucene import open_prebuilt

        return open_prebuilt(index)
    folder = Path(index) if index is not None else _index_of_tier(name, tier)
    if name == "pyserini":
        from whale_envs.retrieval.lucene import LuceneRetriever

        return LuceneRetriever(folder)
    if name == "dense":
        from whale_envs.retrieval.dense import DenseRetriever

        return DenseRetriever(folder)
    return BM25Retriever(open_index(folder))


@lru_cache(maxsize=4)
def shared_retriever(tier: str) -> Retriever:
    """The embedded ranker over a tier's corpus, one for all environments of this process."""
    return open_retriever("bm25", tier=tier)


def build(retriever: str, corpus: str, folder: Path, *, encoder: str | None = None) -> None:
    """Builds the index of a corpus for one of `BUILT`, whole or not at all.

    Args:
        retriever: which kind of index.
        corpus: a name of `CORPORA`, or a JSONL file, plain or gzipped.
        folder: where the index goes; must not hold anything.
        encoder: of dense, a Hugging Face name or folder.

    Raises:
        UsageError: the corpus or the folder cannot be used, or an extra is missing.
    """
    if retriever not in BUILT:
        raise UnknownNameError("retriever with an index", retriever, BUILT)
    if (encoder is not None) != (retriever == "dense"):
        raise UsageError("--encoder goes with --retriever dense, which needs it")
    if corpus not in CORPORA and not Path(corpus).is_file():
        raise UnknownNameError("corpus, or JSONL file,", corpus, CORPORA)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there already; give the index a new folder")
    passages = load_corpus(corpus) if corpus in CORPORA else read_corpus(Path(corpus))
    if retriever == "dense":
        from whale_envs.retrieval.dense_index import build_dense_index

        assert encoder is not None
        build_dense_index(passages, folder, encoder)
        return
    _builder(retriever)(passages, folder)


def _builder(retriever: str) -> Callable[[Iterable[Passage], Path], object]:
    if retriever == "bm25":
        return build_index
    from whale_envs.retrieval.lucene_index import build_lucene_index

    return build_lucene_index


def _index_of_tier(retriever: str, tier: str) -> Path:
    """The index of a tier's corpus in the cache, built if it is not there."""
    if tier not in CORPUS_OF_TIER:
        raise UnknownNameError("tier of search_qa", tier, CORPUS_OF_TIER)
    corpus = CORPUS_OF_TIER[tier]
    if retriever == "dense" or corpus == "wiki-2018":
        raise UsageError(
            f"there is no {retriever} index of {corpus} to start from: make one with "
            f"`whale-bench index build {corpus} FOLDER --retriever {retriever}` and give it as --index, "
            "or name a server with --retriever http --retriever-url"
        )
    folder = cache_dir() / "search_qa" / f"{retriever}-{corpus}-{corpus_digest(corpus)[:12]}"
    if not folder.exists() or not any(folder.iterdir()):
        _builder(retriever)(load_corpus(corpus), folder)
    return folder
