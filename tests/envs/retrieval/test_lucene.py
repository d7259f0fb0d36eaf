"""Lucene in its process: the same lists whoever asks, deaths, forks, signals, bad indexes."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from whale_envs import DataError, InfrastructureError, UsageError
from whale_envs.retrieval import lucene_process
from whale_envs.retrieval.base import MAX_K, Hit, Passage
from whale_envs.retrieval.lucene import LuceneRetriever
from whale_envs.retrieval.lucene_index import MANIFEST, build_lucene_index

pytest.importorskip("pyserini", reason="the light installation of Pyserini is not there")

WORDS = [
    "amber",
    "basin",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "haven",
    "islet",
    "jetty",
    "knoll",
    "lagoon",
]


def passage(n: int) -> Passage:
    text = f"The {WORDS[n % 7]} near the {WORDS[n % 5]}, number {n}. é 😀"
    return Passage(f"p{n}", f"{WORDS[n % 12].title()} {n}", text)


PASSAGES = [passage(n) for n in range(400)]
QUERIES = [f"{WORDS[n % 12]} {WORDS[n % 5]} number {n}" for n in range(150)]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lucene") / "index"
    manifest = build_lucene_index(PASSAGES, folder)
    assert manifest.passages == len(PASSAGES)
    return folder


@pytest.fixture(scope="module")
def retriever(index: Path) -> Iterator[LuceneRetriever]:
    """One for all tests that leave it as it is; every test has a loop of its own."""
    opened = LuceneRetriever(index)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def own(index: Path) -> Iterator[LuceneRetriever]:
    """One for the tests that do something to it, which leave it able to serve."""
    opened = LuceneRetriever(index)
    yield opened
    opened.close()


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def test_a_passage_comes_back_as_it_went_in(retriever: LuceneRetriever) -> None:
    (hits,) = await retriever.search(["number 17"], 1)
    assert hits == [Hit(PASSAGES[17], hits[0].score)]
    assert hits[0].score > 0


@pytest.mark.parametrize(
    "query",
    [
        "",
        " ",
        "!",
        "the of and",
        "()",
        "\ud800",
        "\x00",
        "日本",
        "🦊🦊",
        "x" * 10**6,
        " ".join(f"x{number}" for number in range(5_000)),
        " ".join(chr(0x4E00 + number) for number in range(1_100)),  # over 512 terms of one character
    ],
)
async def test_a_query_that_finds_nothing_is_an_empty_list(retriever: LuceneRetriever, query: str) -> None:
    assert await retriever.search([query, "number 17"], 5) == [[], *await retriever.search(["number 17"], 5)]


@pytest.mark.parametrize(
    "query",
    [
        "(amber",
        'amber "unterminated',
        "AND amber",
        "amber/cedar",
        "/amber/ (amber)",
        "amb\x00er amber",
        "amber-nothing: amber AND NOT (unknown^ OR",
        "the amber of the",
        "amber*",
        "amber\ud800",
    ],
)
async def test_syntax_is_words(retriever: LuceneRetriever, query: str) -> None:
    (hits,) = await retriever.search([query], 3)
    assert hits
    assert "amber" in hits[0].passage.contents.lower()


@pytest.mark.parametrize("k", [0, -1, MAX_K + 1, 2**31, True])
async def test_k_out_of_bounds_is_refused(retriever: LuceneRetriever, k: int) -> None:
    with pytest.raises(UsageError, match="k must be an integer from 1 to"):
        await retriever.search(["amber"], k)


async def test_no_queries_no_lists(retriever: LuceneRetriever) -> None:
    assert await retriever.search([], 3) == []


async def test_many_at_once_get_the_lists_that_one_at_a_time_gets(retriever: LuceneRetriever) -> None:
    single = [(await retriever.search([query], 10))[0] for query in QUERIES]
    together = await asyncio.gather(*(retriever.search([query], 10) for query in QUERIES))
    assert [hits for (hits,) in together] == single
    assert await retriever.search(QUERIES, 10) == single
    mixed = await asyncio.gather(*(retriever.search([q], n % 7 + 1) for n, q in enumerate(QUERIES)))
    assert [hits for (hits,) in mixed] == [hits[: n % 7 + 1] for n, hits in enumerate(single)]


async def test_settings_change_scores_and_identity(index: Path, retriever: LuceneRetriever) -> None:
    async with LuceneRetriever(index, k1=1.2, b=0.75) as other:
        assert other.retriever_id != retriever.retriever_id
        scores = [(await r.search(["amber basin"], 1))[0][0].score for r in (retriever, other)]
    assert scores[0] != scores[1]


async def test_a_caller_who_gives_up_on_the_start_leaves_it_to_the_others(own: LuceneRetriever) -> None:
    own.close()
    restarts = own.restarts
    tasks = [asyncio.create_task(own.search(["amber"], 1)) for _ in range(2)]
    await asyncio.sleep(0.01)
    tasks[0].cancel()
    assert (await tasks[1])[0]
    assert own.restarts == restarts


def test_loops_one_after_the_other_and_threads_use_one_process(own: LuceneRetriever) -> None:
    retriever, restarts = own, own.restarts
    found: list[tuple[str, int]] = []

    async def ask() -> None:
        (hits,) = await retriever.search(["number 17"], 1)
        found.append((hits[0].passage.id, (await retriever.hello())["pid"]))

    asyncio.run(ask())
    asyncio.run(ask())
    threads = [threading.Thread(target=lambda: asyncio.run(ask())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (one,) = set(found)
    assert one[0] == "p17"
    retriever.close()
    assert not alive(one[1])
    asyncio.run(ask())  # a closed one starts again
    assert found[-1] != one
    assert retriever.restarts == restarts


async def test_a_killed_process_is_started_again_and_nobody_notices(
    own: LuceneRetriever, caplog: pytest.LogCaptureFixture
) -> None:
    expected, restarts = await own.search(QUERIES, 5), own.restarts
    pid = (await own.hello())["pid"]
    os.kill(pid, signal.SIGSTOP)  # so that they are in flight for certain
    tasks = [asyncio.create_task(own.search([query], 5)) for query in QUERIES]
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    assert [hits for (hits,) in await asyncio.gather(*tasks)] == expected
    assert await own.search(QUERIES, 5) == expected
    assert own.restarts == restarts + 1
    assert f"the Lucene process died; starting it again (time {own.restarts})" in caplog.text
    assert not alive(pid)


async def test_a_process_that_hangs_is_killed_and_replaced(
    own: LuceneRetriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, restarts = await own.search(["amber"], 3), own.restarts
    monkeypatch.setattr(lucene_process, "SILENCE_SECONDS", 0.1)
    hung = (await own.hello())["pid"]
    os.kill(hung, signal.SIGSTOP)
    task = asyncio.create_task(own.search(["amber"], 3))
    while alive(hung):  # noqa: ASYNC110 - another process does not tell
        await asyncio.sleep(0.05)
    monkeypatch.undo()
    assert await task == expected
    assert own.restarts == restarts + 1


async def test_a_process_that_always_dies_is_infrastructure(
    own: LuceneRetriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.close()
    monkeypatch.setattr(lucene_process, "_CHILD", Path("/nowhere/child.py"))
    with pytest.raises(InfrastructureError, match=r"failed twice: .*status 2: .*No such file"):
        await own.search(["amber"], 1)
    monkeypatch.undo()


async def test_java_that_does_not_start_is_misuse(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    retriever = LuceneRetriever(index)
    retriever._settings = replace(retriever._settings, heap_mb=10**9)
    with pytest.raises(UsageError, match=r"does not start Lucene .*JVM: Error occurred during init"):
        await retriever.search(["amber"], 1)
    assert retriever.restarts == 0


async def test_one_whose_caller_gave_up_harms_no_other(retriever: LuceneRetriever) -> None:
    tasks = [asyncio.create_task(retriever.search([query], 3)) for query in QUERIES]
    await asyncio.sleep(0)
    for task in tasks[::3]:
        task.cancel()
    kept = [task for n, task in enumerate(tasks) if n % 3]
    assert all(hits for (hits,) in await asyncio.gather(*kept))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_has_a_process_of_its_own_and_leaves_the_parents_alone(retriever: LuceneRetriever) -> None:
    expected = asyncio.run(retriever.search(QUERIES[:50], 3))
    parents = asyncio.run(retriever.hello())["pid"]
    dead = LuceneRetriever(retriever.index_dir)  # one more that the fork finds, in the worst state
    dead._child = retriever._child.__class__(retriever._settings)
    dead._child.kill()
    dead._child.join()
    retriever._lock.acquire()  # as another thread may hold it
    child = os.fork()
    if not child:
        good = False
        try:
            good = asyncio.run(retriever.search(QUERIES[:50], 3)) == expected
            good = good and asyncio.run(retriever.hello())["pid"] != parents
            retriever.close()
        finally:
            os._exit(0 if good else 1)
    retriever._lock.release()
    assert os.waitpid(child, 0)[1] == 0
    assert asyncio.run(retriever.search(QUERIES[:50], 3)) == expected
    assert asyncio.run(retriever.hello())["pid"] == parents


HOST = """
import asyncio, sys
from whale_envs.retrieval.lucene import LuceneRetriever

async def main():
    async with LuceneRetriever(sys.argv[1]) as retriever:
        print((await retriever.hello())["pid"], flush=True)
        while True:
            await asyncio.gather(*(retriever.search([f"amber {n}"], 3) for n in range(50)))

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGINT, 0, "interrupted"),
        (signal.SIGTERM, -signal.SIGTERM, ""),
        (signal.SIGKILL, -signal.SIGKILL, ""),
    ],
)
def test_signals_end_the_host_as_usual_and_the_process_with_it(
    index: Path, number: signal.Signals, code: int, said: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOST, str(index)], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as host:
        assert host.stdout is not None
        pid = int(host.stdout.readline())
        assert alive(pid)
        os.killpg(host.pid, number)  # as a terminal does: to everyone in the foreground
        out, _ = host.communicate(timeout=120)
    assert (host.returncode, out.strip()) == (code, said)
    eventually(lambda: not alive(pid))


async def test_a_left_lock_and_a_lost_manifest_do_not_matter_to_a_reader(
    index: Path, tmp_path: Path, retriever: LuceneRetriever
) -> None:
    folder = shutil.copytree(index, tmp_path / "Büch er 書")
    (folder / "write.lock").touch()
    (folder / MANIFEST).unlink()
    async with LuceneRetriever(folder) as other:
        assert other.retriever_id.startswith("sha256:")
        assert other.retriever_id != retriever.retriever_id
        assert await other.search(QUERIES[:20], 5) == await retriever.search(QUERIES[:20], 5)


@pytest.mark.parametrize("kind", ["truncated", "stored", "future", "codec", "slim"])
async def test_an_index_of_others_that_cannot_be_read_is_one_sentence(
    index: Path, tmp_path: Path, kind: str
) -> None:
    folder = shutil.copytree(index, tmp_path / "index")
    (folder / MANIFEST).unlink()
    [segments] = folder.glob("segments_*")
    said = "is damaged .*build it again"
    if kind == "truncated":
        [postings] = folder.glob("*.tim")
        postings.write_bytes(postings.read_bytes()[:20])
    elif kind == "stored":  # sizes, heads and checksums of the file's frame as they were
        [texts] = folder.glob("*.fdt")
        content = bytearray(texts.read_bytes())
        content[100:-100] = bytes(byte ^ 0xFF for byte in content[100:-100])
        texts.write_bytes(content)
    elif kind == "future":  # the format's version number, beyond what this Lucene reads
        data = bytearray(segments.read_bytes())
        at = data.index(b"segments") + len(b"segments")
        data[at : at + 4] = (99).to_bytes(4, "big")
        segments.write_bytes(data)
        said = "was built by another version of Lucene than anserini-.*build it again"
    elif kind == "codec":
        data = bytearray(segments.read_bytes().replace(b"Lucene99", b"Lucene77"))
        data[-8:] = zlib.crc32(data[:-8]).to_bytes(8, "big")
        segments.write_bytes(data)
        said = "was built by another version of Lucene than anserini-.*Lucene77"
    else:
        shutil.rmtree(folder)
        slim(folder, tmp_path)
        said = "keeps no passages, only their index"
    retriever = LuceneRetriever(folder)
    with pytest.raises(DataError, match=said) as raised:
        await retriever.search(["amber"], 1)
    assert str(raised.value).count("\n") == 0
    assert retriever.restarts == 0


def slim(folder: Path, scratch: Path) -> None:
    """An index that stores no text, by Anserini's own command."""
    from whale_envs.retrieval.java import find_jar, find_java

    (scratch / "corpus").mkdir()
    (scratch / "corpus" / "a.json").write_text('{"id": "1", "contents": "amber"}\n')
    command = [find_java().program, "-cp", find_jar(), "io.anserini.index.IndexCollection"]
    command += ["-collection", "JsonCollection", "-input", scratch / "corpus", "-index", folder]
    command += ["-generator", "DefaultLuceneDocumentGenerator", "-threads", "1"]
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.parametrize(
    "settings", [{"k1": -0.1}, {"k1": float("nan")}, {"k1": True}, {"b": 1.5}, {"b": "x"}]
)
def test_settings_out_of_range_are_refused(index: Path, settings: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=rf"{next(iter(settings))} must be a number"):
        LuceneRetriever(index, **settings)
