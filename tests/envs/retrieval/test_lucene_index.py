"""Building Lucene indexes: whole or not at all, and what is refused; reading what others stored."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_envs import DataError, UsageError
from whale_envs.retrieval import lucene_index
from whale_envs.retrieval.base import Passage
from whale_envs.retrieval.lucene import LuceneRetriever, read_stored
from whale_envs.retrieval.lucene_index import MANIFEST, build_lucene_index, index_digest, read_manifest
from whale_envs.retrieval.workshop import workshop

pytest.importorskip("pyserini", reason="the light installation of Pyserini is not there")

HARD = [
    Passage("1", "", "no title,\nbut two lines about amber"),
    Passage("2", '"Quoted"', "amber in quotes"),
    Passage("a b/ü", "Two\nlines", "of title with amber\n"),
    Passage("4", "amber alone", ""),
    Passage("5", "JSON", '{"id": "x", "contents": "amber"} \\ \u2028 é 😀'),
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lucene") / "deep" / "index"
    build_lucene_index(iter(HARD), folder)
    return folder


async def test_every_passage_comes_back_as_it_went_in(index: Path) -> None:
    async with LuceneRetriever(index) as retriever:
        (hits,) = await retriever.search(["amber"], 10)
    assert sorted(hit.passage.id for hit in hits) == sorted(passage.id for passage in HARD)
    assert all(hit.passage in HARD for hit in hits)


def test_a_build_leaves_an_index_with_its_manifest_and_nothing_else(index: Path) -> None:
    manifest = read_manifest(index)
    assert manifest is not None
    assert manifest.passages == len(HARD)
    assert {path.name for path in index.iterdir()} == {*manifest.files, MANIFEST}
    assert [path.name for path in index.parent.iterdir()] == ["index"]


@pytest.mark.parametrize(
    ("passages", "said"),
    [
        ([], "no passages"),
        ([Passage("1", "", " \n")], r"passage 1 \(id '1'\) has not contents"),
        ([HARD[0], Passage("", "t", "x")], r"passage 2 \(id ''\) has not an id"),
        ([*HARD, Passage("2", "t", "x")], "passages 2 and 6 have the same id '2'"),
        ([Passage("1", "t", "\ud800")], "passage '1' holds a lone surrogate"),
    ],
)
def test_what_is_no_corpus_is_refused_and_leaves_nothing(
    tmp_path: Path, passages: list[Passage], said: str
) -> None:
    with pytest.raises(DataError, match=said):
        build_lucene_index(passages, tmp_path / "index")
    assert list(tmp_path.iterdir()) == []


def test_two_ids_of_one_hash_are_no_duplicates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lucene_index, "_short_hash", lambda name: 7)
    monkeypatch.setattr(lucene_index, "_PER_FILE", 2)
    assert lucene_index._write_corpus(HARD, tmp_path)[0] == len(HARD)
    assert len(list(tmp_path.iterdir())) == 3
    with pytest.raises(DataError, match="passages 1 and 6 have the same id '1'"):
        lucene_index._write_corpus([*HARD, HARD[0]], tmp_path)


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    for target in (tmp_path, tmp_path / "mine", tmp_path / "mine" / "below"):
        with pytest.raises(UsageError, match=r"is there already|cannot be made"):
            build_lucene_index(HARD, target)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_identity_is_of_content_and_settings(index: Path, tmp_path: Path) -> None:
    def digest(passages: list[Passage], name: str) -> str:
        (tmp_path / name).mkdir()
        return lucene_index._write_corpus(passages, tmp_path / name)[1]

    manifest = read_manifest(index)
    assert manifest is not None
    assert digest(HARD, "same") == manifest.digest != digest(HARD[1:], "other")
    ids = {index_digest(index, settings) for settings in ("k1=0.9", "k1=0.9", "k1=1.2")}
    assert len(ids) == 2


def test_two_who_build_the_same_at_once_both_have_it(index: Path, tmp_path: Path) -> None:
    def passages() -> Iterator[Passage]:
        yield from HARD
        shutil.copytree(index, tmp_path / "index")  # the other one is faster

    assert build_lucene_index(passages(), tmp_path / "index") == read_manifest(index)
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


BUILDER = """
import sys, time
from pathlib import Path
from whale_envs.retrieval.base import Passage
from whale_envs.retrieval.lucene_index import build_lucene_index

def passages():
    for n in range(1_000):
        yield Passage(str(n), "", "amber")
    print("going", flush=True)
    while True:
        yield Passage(str(n := n + 1), "", "amber")

build_lucene_index(passages(), Path(sys.argv[1]))
"""


def test_a_killed_build_leaves_no_index_and_the_next_one_clears_up(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(tmp_path / "index")], stdout=subprocess.PIPE
    ) as builder:
        assert builder.stdout is not None
        builder.stdout.readline()
        with workshop(tmp_path / "index"):  # one at work is not disturbed
            assert len(list(tmp_path.iterdir())) == 2
        builder.kill()
    assert [path.name.startswith(".index.building-") for path in tmp_path.iterdir()] == [True]
    with workshop(tmp_path / "index"):
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


RUNNER = """
import sys
from pathlib import Path
from whale_envs.retrieval import lucene_index
lucene_index._run(["/bin/sh", "-c", f"echo $$ > {sys.argv[1]}; exec sleep 1000"], {})
"""


def test_java_at_work_on_an_index_ends_with_its_host(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with subprocess.Popen([sys.executable, "-c", RUNNER, str(note)]) as host:
        deadline = time.monotonic() + 120
        while not (note.exists() and note.read_text().strip()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        host.send_signal(signal.SIGKILL)
    pid = int(note.read_text())
    while Path(f"/proc/{pid}").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("kind", ["missing", "file", "empty", "lock", "other"])
def test_what_is_no_index_is_said_to_be_none_at_once(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "index"
    if kind == "file":
        folder.write_text("no index")
    elif kind != "missing":
        folder.mkdir()
    if kind == "lock":
        (folder / "write.lock").touch()
    elif kind == "other":
        (folder / "notes.txt").touch()
    said = {
        "missing": "does not exist",
        "file": "is a file",
        "empty": r"holds no Lucene index \(it has no files\)",
        "lock": "what an unfinished build left, with its write.lock",
        "other": "no segments file among its 1",
    }
    with pytest.raises(DataError, match=rf"index {said[kind]}.*whale-bench index build|{said[kind]}"):
        LuceneRetriever(folder)


@pytest.mark.parametrize("kind", ["truncated", "lost", "manifest"])
def test_one_of_ours_that_is_damaged_says_so_before_java_starts(
    index: Path, tmp_path: Path, kind: str
) -> None:
    folder = tmp_path / "index"
    folder.mkdir()
    for path in index.iterdir():
        os.link(path, folder / path.name)
    [stored] = folder.glob("*.fdt")
    content = stored.read_bytes()
    if kind == "manifest":
        (folder / MANIFEST).unlink()
        (folder / MANIFEST).write_text("{")
        said = "whale-index.json cannot be read"
    else:
        stored.unlink()
        said = rf"is damaged: {stored.name} is missing, {len(content):,} were built; .*build it again"
        if kind == "truncated":
            stored.write_bytes(content[:10])
            said = said.replace("is missing", "has 10 bytes")
    with pytest.raises(DataError, match=said):
        LuceneRetriever(folder)


@pytest.mark.parametrize(
    ("stored", "title", "text"),
    [
        ({"id": 7, "contents": '"Ada"\nShe wrote.'}, "Ada", "She wrote."),
        ({"id": "7", "contents": "Ada\nShe\nwrote."}, "Ada", "She\nwrote."),
        ({"id": "7", "contents": "She wrote."}, "", "She wrote."),
        ({"_id": "7", "title": "Ada", "text": "She wrote."}, "Ada", "She wrote."),
        ({"id": "7", "contents": None, "text": 3}, "", ""),
        ([1], "", "[1]"),
        ("", "", '""'),
    ],
)
def test_what_others_stored_is_read(stored: object, title: str, text: str) -> None:
    assert read_stored("7", json.dumps(stored)) == Passage("7", title, text)


@given(st.text())
def test_whatever_is_stored_is_some_passage(stored: str) -> None:
    assert isinstance(read_stored("7", stored), Passage)
