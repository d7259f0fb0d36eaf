"""The passages: the embedded corpora, and the dump of 2018 in every wrapping it is said to have."""

import gzip
import io
import json
import sys
import tarfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from whale_envs import DataError, InfrastructureError, UnknownNameError, UsageError
from whale_envs.retrieval.base import Passage
from whale_envs.search_qa.corpora import (
    CORPORA,
    Stored,
    embedded_corpus,
    load_corpus,
    read_wiki_2018,
    stored_passages,
    wiki_2018_passage,
)

EMBEDDED = ("wiki-mini", "factbook")


@pytest.mark.parametrize("name", EMBEDDED)
def test_an_embedded_corpus_is_whole_and_its_ids_are_distinct(name: str) -> None:
    passages = list(load_corpus(name))
    assert len(passages) == CORPORA[name]
    assert len({p.id for p in passages}) == len(passages)
    assert [p.id for p in passages] == sorted(p.id for p in passages)
    for passage in passages:
        assert passage.id == passage.id.strip()
        assert not any(c.isspace() for c in passage.id), passage.id
        assert passage.title.strip()
        assert passage.text.strip()
        assert passage.contents == f"{passage.title}\n{passage.text}"
    assert len({p.contents for p in passages}) == len(passages)


def test_ids_are_stable() -> None:
    by_id = {p.id: p for name in EMBEDDED for p in embedded_corpus(name)}
    assert by_id["Stanley_Kubrick"].title == "Stanley Kubrick"
    assert by_id["Leviathan_(Hobbes_book)"].title == "Leviathan (Hobbes book)"
    assert by_id["dr:geography"].title == "Dominican Republic — geography"
    assert by_id["cg:state"].title == "Democratic Republic of the Congo — state"
    assert by_id["fr:people"].title == "France — people"


def test_a_description_opens_the_text_for_dates_stand_nowhere_else() -> None:
    passages = {p.id: p for p in embedded_corpus("wiki-mini")}
    kubrick = passages["Stanley_Kubrick"].text
    assert kubrick.startswith("American filmmaker and photographer (1928–1999). Stanley Kubrick was")
    for stored in stored_passages("wikipedia"):
        passage = passages[stored.id]
        assert passage.text.startswith(stored.description)
        assert passage.text.endswith(stored.text)
    assert Stored("a", "A", "Text.", "Done.").passage().text == "Done. Text."
    assert Stored("a", "A", "Text.").passage().text == "Text."


def test_a_corpus_loads_in_well_under_a_second(
    cpu_within: Callable[[float], AbstractContextManager[None]],
) -> None:
    embedded_corpus.cache_clear()
    with cpu_within(1):
        embedded_corpus("wiki-mini")


def test_an_unknown_corpus_is_told() -> None:
    with pytest.raises(UnknownNameError, match="corpus 'wiki'"):
        load_corpus("wiki")


# --- the dump of 2018 ----------------------------------------------------------------------------

ROWS = [
    {"id": "0", "contents": '"Aaron"\nAaron was a prophet.\nHe spoke.'},
    {"id": "1", "contents": '"The "Big" Dig"\nIt was long.'},
    {"id": 2, "contents": "\"'Allo 'Allo!\"\nA sitcom with \u2028 a separator and \x85 another."},
    {"id": "3", "contents": '"\nodd'},
    {"id": "4", "contents": "No title at all"},
]
PASSAGES = [
    Passage("0", "Aaron", "Aaron was a prophet.\nHe spoke."),
    Passage("1", 'The "Big" Dig', "It was long."),
    Passage("2", "'Allo 'Allo!", "A sitcom with \u2028 a separator and \x85 another."),
    Passage("3", '"', "odd"),
    Passage("4", "", "No title at all"),
]


def as_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def plain(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def gzipped(path: Path, data: bytes) -> None:
    path.write_bytes(gzip.compress(data))


def archived(path: Path, data: bytes) -> None:
    with tarfile.open(path, "w:gz") as archive:
        folder = tarfile.TarInfo("data")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        member = tarfile.TarInfo("data/wiki-18.jsonl")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))


@pytest.mark.parametrize("write", [plain, gzipped, archived])
def test_the_dump_is_read_in_every_wrapping(write: Any, tmp_path: Path) -> None:
    path = tmp_path / "wiki-18.jsonl.gz"
    write(path, as_lines(ROWS) + b"\n")
    assert list(read_wiki_2018(path)) == PASSAGES


def test_the_dump_is_streamed(tmp_path: Path) -> None:
    """The first passage comes before the last is looked at, which is broken."""
    path = tmp_path / "wiki.jsonl"
    path.write_bytes(as_lines(ROWS) + b'{"id": "5", "con')
    stream = read_wiki_2018(path)
    assert next(stream) == PASSAGES[0]
    with pytest.raises(DataError, match="line 6"):
        list(stream)


@pytest.mark.parametrize("row", [{"id": "7"}, {"id": "7", "contents": " "}, {"id": "7", "contents": None}])
def test_a_row_that_is_no_passage_is_named(row: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="'7'"):
        wiki_2018_passage(row)
    with pytest.raises(DataError, match="None"):
        wiki_2018_passage({"contents": '"A"\nb'})


def test_the_dump_is_asked_for_at_its_pinned_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    asked: list[Any] = []
    archived(tmp_path / "wiki-18.jsonl.gz", as_lines(ROWS))

    def download(*names: str, **options: Any) -> str:
        asked.append((names, options))
        return str(tmp_path / names[1])

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert list(load_corpus("wiki-2018")) == PASSAGES
    revision = "69c1c00ffe7c5554c68d8548355cb22e46aabc51"
    names = ("PeterJinGo/wiki-18-corpus", "wiki-18.jsonl.gz")
    assert asked == [(names, {"repo_type": "dataset", "revision": revision})]


def test_a_dump_that_cannot_be_downloaded_is_an_infrastructure_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import huggingface_hub

    def download(*names: str, **options: Any) -> str:
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(InfrastructureError, match="wiki-18-corpus cannot be downloaded: no route"):
        load_corpus("wiki-2018")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UsageError, match=r'pip install "whale-envs\[data\]"'):
        load_corpus("wiki-2018")
