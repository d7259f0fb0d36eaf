"""Ranking against a scorer of a few lines, and an index file that is whole, or says what is wrong."""

import asyncio
import json
import math
import multiprocessing
import shutil
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_envs.errors import DataError, UsageError
from whale_envs.retrieval import bm25, index_build, index_file
from whale_envs.retrieval.analyser import analyse
from whale_envs.retrieval.base import Passage
from whale_envs.retrieval.bm25 import BM25Retriever
from whale_envs.retrieval.index_build import LENGTHS, build_index
from whale_envs.retrieval.index_file import MANIFEST, Index, open_index

WORDS = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen", "ibex", "jay", "koi", "lark"]
TEXT = st.lists(st.sampled_from(WORDS), max_size=60).map(" ".join)


def passages(texts: list[str]) -> list[Passage]:
    return [Passage(f"{n * 7919 % 100_003}", "", text) for n, text in enumerate(texts)]


def index_of(folder: Path, texts: list[str]) -> Index:
    build_index(passages(texts), folder)
    return open_index(folder)


def plain_scores(texts: list[str], query: str, k1: float, b: float) -> dict[str, np.float32]:
    """The formula, a passage at a time, in float32 as Lucene has it."""
    f = np.float32
    counted = [Counter(analyse(text)) for text in texts]
    lengths = [sum(c.values()) for c in counted]
    documents = sum(map(bool, lengths))
    mean = f(sum(lengths) / max(documents, 1))
    scores = {}
    for passage, count, length in zip(passages(texts), counted, lengths, strict=True):
        kept = f(max(kept for kept in LENGTHS.tolist() if kept <= length))
        total = 0.0
        for term, times in Counter(analyse(query)).items():
            frequency = sum(term in c for c in counted)
            weight = f(times) * f(math.log(1 + (documents - frequency + 0.5) / (frequency + 0.5)))
            if count[term]:
                share = f(1) / (f(k1) * ((f(1) - f(b)) + f(b) * kept / mean))
                total += float(weight - weight / (f(1) + f(count[term]) * share))
        if total:
            scores[passage.id] = f(total)
    return scores


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    pick = np.random.default_rng(20)
    share = 1 / np.arange(1, 301)
    words = [f"w{n}" for n in range(300)]
    drawn = [pick.choice(words, pick.integers(1, 80), p=share / share.sum()) for _ in range(2_000)]
    return index_of(tmp_path_factory.mktemp("bm25") / "index", [" ".join(few) for few in drawn])


@given(st.lists(TEXT, min_size=1, max_size=30), TEXT, st.sampled_from([(0.9, 0.4), (1.2, 0.75), (2.0, 0.0)]))
def test_ranking_is_that_of_the_formula(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], query: str, setting: tuple[float, float]
) -> None:
    scores = plain_scores(texts, query, *setting)
    expected = sorted(scores, key=lambda name: (-scores[name], name))
    folder = tmp_path_factory.mktemp("plain") / "index"
    ranked = BM25Retriever(index_of(folder, texts), *setting).rank(query, 10)
    shutil.rmtree(folder)
    assert [name for name, _ in ranked] == expected[:10]
    assert [score for _, score in ranked] == pytest.approx([scores[n] for n in expected[:10]], abs=1e-4)


@pytest.mark.parametrize("few", [0, 500, 10**9])
def test_skipping_passages_changes_nothing(index: Index, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    retriever = BM25Retriever(index)
    pick = np.random.default_rng(21)
    asked = [" ".join(f"w{n}" for n in pick.integers(0, 300, pick.integers(1, 9))) for _ in range(300)]
    asked += [" ".join(f"w{n}" for n in pick.integers(0, 9, 5)) for _ in range(50)]
    whole = [retriever.rank(query, 1_000) for query in asked]
    monkeypatch.setattr(bm25, "FEW_POSTINGS", few)
    for k in (1, 10, 137):
        again = BM25Retriever(index)
        for query, ranked in zip(asked, whole, strict=True):
            assert again.rank(query, k) == ranked[:k]


def test_equal_scores_are_ranked_by_id_and_told_apart(tmp_path: Path) -> None:
    build_index([Passage(name, "", "fox") for name in ("b", "10", "9", "é", "a")], tmp_path / "index")
    ranked = BM25Retriever(open_index(tmp_path / "index")).rank("fox", 10)
    assert [name for name, _ in ranked] == ["10", "9", "a", "b", "é"]
    assert [round((ranked[0][1] - score) * 1e6) for _, score in ranked] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "query",
    ["", " ", "!", "the of and", "AND", "title:w1 AND (w2", 'w1 "w2', "w1*", "w1^3 /w2/", "東京", "\ud800 w1",
     "w1\x00w2", "w1 " * 5_000, "x" * 1_000_000, "\u202e w1", "w1/w2", "C++ w1"],
)  # fmt: skip
async def test_any_query_gives_a_list(index: Index, query: str) -> None:
    async with BM25Retriever(index) as retriever:
        (hits,) = await retriever.search([query], 3)
    assert len(hits) == (3 if "w1" in query else 0)
    assert [(hit.passage.id, hit.score) for hit in hits] == retriever.rank(query, 3)


@given(st.text(st.characters(exclude_categories=())))
def test_any_text_can_be_asked(index: Index, query: str) -> None:
    assert len(BM25Retriever(index).rank(f"w1 {query}", 5)) == 5


async def test_many_queries_are_answered_in_order_and_off_the_loop(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = BM25Retriever(index)
    asked = [f"w{n}" for n in range(40)]
    inline = await retriever.search(asked, 2)
    threads = []
    monkeypatch.setattr(bm25, "INLINE_COST", 0)
    monkeypatch.setattr(retriever, "_top", lambda q, k: (threads.append(threading.get_ident()), ([], []))[1])
    assert await retriever.search(asked, 2) == [[]] * 40
    assert threading.get_ident() not in threads
    monkeypatch.undo()
    assert [hits[0].passage.id for hits in inline] == [retriever.rank(q, 1)[0][0] for q in asked]
    assert await asyncio.gather(*(retriever.search([q], 2) for q in asked)) == [[hits] for hits in inline]


def _rank(folder: Path, query: str) -> list[tuple[str, float]]:
    return BM25Retriever(open_index(folder)).rank(query, 5)


def test_threads_and_other_processes_get_the_same(index: Index) -> None:
    retriever = BM25Retriever(index)
    asked = [f"w{n} w{n + 3} w1" for n in range(60)]
    expected = [retriever.rank(query, 5) for query in asked]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda q: retriever.rank(q, 5), asked * 3)) == expected * 3
    with multiprocessing.get_context("spawn").Pool(1) as processes:
        assert processes.starmap(_rank, [(index.folder, q) for q in asked[:5]]) == expected[:5]


def test_one_index_serves_every_setting_and_each_has_its_id(index: Index) -> None:
    retrievers = [BM25Retriever(index, k1, b) for k1, b in ((0.9, 0.4), (1.2, 0.75), (0.0, 0.0))]
    assert len({retriever.retriever_id for retriever in retrievers}) == 3
    assert retrievers[0].retriever_id == BM25Retriever(open_index(index.folder)).retriever_id
    assert len({str(retriever.rank("w1 w20", 5)) for retriever in retrievers}) == 3


@pytest.mark.parametrize(
    ("k1", "b"), [(-1, 0.4), (math.nan, 0.4), (math.inf, 0.4), (0.9, 1.1), (0.9, math.nan)]
)
def test_settings_outside_their_range_are_refused(index: Index, k1: float, b: float) -> None:
    with pytest.raises(UsageError, match="must be a"):
        BM25Retriever(index, k1, b)


@pytest.mark.parametrize("k", [0, -1, 1_001, 2.0, True])
def test_k_outside_its_range_is_refused(index: Index, k: Any) -> None:
    with pytest.raises(UsageError, match="k must be"):
        BM25Retriever(index).rank("w1", k)


# --- the file --------------------------------------------------------------------------------------


def test_passages_come_back_as_they_went_in(tmp_path: Path) -> None:
    given_ = [Passage("é 1", "Ti\ttle", "text\n\x00🦊"), Passage("2", "", ""), Passage("", "x", "y")]
    build_index(given_, tmp_path / "index")
    index = open_index(tmp_path / "index")
    assert [index.passage(row) for row in range(len(index))] == given_


def test_blocks_make_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [" ".join(WORDS[n % 5 : n % 12]) * (n % 3) for n in range(100)]
    whole = build_index(passages(texts), tmp_path / "whole")
    monkeypatch.setattr(index_build, "BLOCK_TOKENS", 16)
    monkeypatch.setattr(index_build, "_CACHED_WORDS", 3)
    assert build_index(iter(passages(texts)), tmp_path / "parts").digest == whole.digest


def test_lengths_are_lucenes() -> None:
    assert LENGTHS[:44].tolist() == [*range(40), 40, 42, 44, 46]
    assert LENGTHS[-1] == 2_013_265_944


def test_a_corpus_without_terms_can_be_searched(tmp_path: Path) -> None:
    assert BM25Retriever(index_of(tmp_path / "index", ["the of", "!"])).rank("fox the", 3) == []


@pytest.mark.parametrize(
    ("given_", "found"),
    [
        ([], "no passages"),
        ([Passage("a", "", "x")] * 2, "have the id 'a'"),
        ([Passage("a", "", "\ud800")], "Unicode"),
    ],
)
def test_what_cannot_be_indexed_leaves_nothing(tmp_path: Path, given_: list[Passage], found: str) -> None:
    with pytest.raises(DataError, match=found):
        build_index(given_, tmp_path / "index")
    assert not list(tmp_path.iterdir())


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UsageError, match="is no index"):
        build_index(passages(["fox"]), tmp_path)
    with pytest.raises(UsageError, match="is no index"):
        build_index(passages(["fox"]), tmp_path / "thesis.tex")
    with pytest.raises(UsageError):
        build_index(passages(["fox"]), tmp_path / "thesis.tex" / "index")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_rebuilt_index_replaces_the_old_one_under_a_reader(tmp_path: Path) -> None:
    old = BM25Retriever(index_of(tmp_path / "index", ["fox hen", "fox"]))
    new = BM25Retriever(index_of(tmp_path / "index", ["hen", "hen fox", "fox"]))
    assert (len(old.rank("fox", 9)), len(new.rank("hen fox", 9))) == (2, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_two_builders_at_once_both_end_well(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        built = [
            pool.submit(build_index, passages(WORDS[: 1 + n % 8]), tmp_path / "index") for n in range(40)
        ]
        digests = {future.result().digest for future in built}
    assert open_index(tmp_path / "index").digest in digests
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_what_is_no_index_says_how_to_build_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "none", tmp_path / "file", tmp_path / "empty"):
        with pytest.raises(DataError, match=r"holds no BM25 index; build it with `whale-bench index build`"):
            open_index(folder)
    with pytest.raises(DataError, match=r"holds no BM25 index; delete it, then build it again"):
        open_index(tmp_path)


def test_an_index_of_another_version_is_refused(tmp_path: Path) -> None:
    manifest = index_of(tmp_path / "index", WORDS).folder / MANIFEST
    manifest.write_text(json.dumps({"version": 99, "anything": {}}))
    with pytest.raises(DataError, match=r"is of format 99, and this version .* reads format 1; delete it"):
        open_index(tmp_path / "index")


def damages() -> dict[str, Any]:
    def cut(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-3])

    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0x55
        path.write_bytes(data)

    return {"cut": cut, "flip": flip, "emptied": lambda path: path.write_bytes(b""), "gone": Path.unlink}


@pytest.mark.parametrize("how", damages())
def test_a_damaged_index_is_one_clear_error(tmp_path: Path, how: str) -> None:
    build_index(passages(WORDS), tmp_path / "index")
    for file in sorted(path.name for path in (tmp_path / "index").iterdir()):
        shutil.copytree(tmp_path / "index", tmp_path / "copy")
        damages()[how](tmp_path / "copy" / file)
        with pytest.raises(DataError, match=r"delete it, then build it again with `whale-bench index build`"):
            open_index(tmp_path / "copy")
        shutil.rmtree(tmp_path / "copy")


@pytest.mark.parametrize(
    "name", ["codes.u", "starts.i8", "rows.i4", "frequencies.i4", "lengths.u1", "ties.i4"]
)
def test_damage_that_opening_did_not_see_is_no_other_error_than_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(index_file, "CHECKED_BYTES", 0)  # as of an index of gigabytes
    build_index(passages(WORDS), tmp_path / "index")
    path = tmp_path / "index" / name
    whole = path.read_bytes()
    told = 0
    for fill in (b"\xff", b"\x7f", b"\x01"):
        path.write_bytes(fill * len(whole))
        try:
            ranker = BM25Retriever(open_index(tmp_path / "index"))
            for query in (" ".join(WORDS), *WORDS):
                ranker.rank(query, 5)
        except DataError as error:
            told += "is damaged" in str(error)
    assert told or name in ("frequencies.i4", "lengths.u1", "ties.i4")  # any number is one there


async def test_a_search_between_others_finds_the_same_and_gives_way(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = BM25Retriever(index)
    queries = [f"w{n} w{n + 1}" for n in range(20)]
    assert await retriever.search_between(queries, 5) == await retriever.search(queries, 5)
    assert await retriever.search_between([], 5) == []
    with pytest.raises(UsageError):
        await retriever.search_between(queries, 0)
    monkeypatch.setattr(bm25, "SLICE_S", 0.0)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    await retriever.search_between(queries, 5)
    task.cancel()
    assert turns >= len(queries) - 1
