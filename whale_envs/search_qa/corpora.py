"""The passages that are searched: two embedded corpora, and the Wikipedia dump of 2018.

    passages = load_corpus("wiki-mini")              # 10,033 passages, a tuple
    stream = load_corpus("wiki-2018")                # 21,015,324, one at a time; downloads 5.1 GB once
    read_wiki_2018("wiki-18.jsonl")                  # the same from a file of yours

    name        passages     text
    wiki-mini   10,033       lead summaries of Wikipedia's Level-4 vital articles, 2026
    factbook    1,508        CIA World Factbook, six passages a country, estimates of 2024 and 2025
    wiki-2018   21,015,324   Wikipedia of December 2018 in passages of 100 words

A summary's description ("American filmmaker (1928–1999)") opens its text, for dates of birth and death
stand nowhere else. Ids are the articles' titles as Wikipedia's addresses write them, `COUNTRY:section`
in the Factbook, and the file's own ids in the dump.

Not covered: indexing and searching (`whale_envs.retrieval`).
"""

import gzip
import hashlib
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from whale_envs.errors import DataError, InfrastructureError, UnknownNameError, UsageError
from whale_envs.retrieval.base import Passage, split_contents
from whale_envs.search_qa.examples import data_folder

WIKI_2018_HUB_ID = "PeterJinGo/wiki-18-corpus"
WIKI_2018_FILE = "wiki-18.jsonl.gz"
WIKI_2018_REVISION = "69c1c00ffe7c5554c68d8548355cb22e46aabc51"
"""The commit that two public projects pin, with the size of the corpus below; we could not read the hub."""

CORPORA: Mapping[str, int] = {"wiki-mini": 10_033, "factbook": 1_508, "wiki-2018": 21_015_324}
"""Passages by corpus."""

_TEXT = 1
"""To be raised when `Stored.passage` makes another text of the same line: indexes are kept by it."""

_FOLDERS = {"wiki-mini": "wikipedia", "factbook": "factbook"}


class Stored(msgspec.Struct, frozen=True):
    """A line of an embedded corpus."""

    id: str
    title: str
    text: str
    description: str = ""
    """What the article is, in a few words, with the years of a life; empty for some."""

    def passage(self) -> Passage:
        """The passage that is indexed: the description is the first sentence of its text."""
        if not self.description:
            return Passage(self.id, self.title, self.text)
        stop = "" if self.description.endswith((".", "!", "?")) else "."
        return Passage(self.id, self.title, f"{self.description}{stop} {self.text}")


def load_corpus(name: str) -> Iterable[Passage]:
    """A corpus by name: a tuple for the embedded ones, an iterator for wiki-2018.

    Raises:
        UnknownNameError: no such corpus.
        UsageError: the extra that wiki-2018 needs is not installed.
        InfrastructureError: wiki-2018 cannot be downloaded.
    """
    if name not in CORPORA:
        raise UnknownNameError("corpus", name, CORPORA)
    if name == "wiki-2018":
        return read_wiki_2018(_downloaded_wiki_2018())
    return embedded_corpus(name)


@lru_cache(maxsize=2)
def embedded_corpus(name: str) -> tuple[Passage, ...]:
    """The passages of wiki-mini or factbook, in the order of their ids."""
    return tuple(stored.passage() for stored in stored_passages(_FOLDERS[name]))


def corpus_digest(name: str) -> str:
    """64 hex digits that change when an embedded corpus does, without reading its passages.

    Raises:
        UnknownNameError: no such corpus, or one that is not embedded.
    """
    if name not in _FOLDERS:
        raise UnknownNameError("embedded corpus", name, _FOLDERS)
    data = (data_folder(_FOLDERS[name]) / "passages.jsonl.gz").read_bytes()
    return hashlib.sha256(f"{_TEXT}".encode() + data).hexdigest()


def stored_passages(folder: str) -> list[Stored]:
    """The lines of a folder's passages."""
    data = gzip.decompress((data_folder(folder) / "passages.jsonl.gz").read_bytes())
    return msgspec.json.Decoder(Stored).decode_lines(data)


# --- the dump of 2018 ----------------------------------------------------------------------------


def _downloaded_wiki_2018() -> Path:
    """Where the hub's own cache has the dump; downloads it, or the rest of it, if it is not there."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise UsageError('wiki-2018 needs the extra data: pip install "whale-envs[data]"') from error
    try:
        path = huggingface_hub.hf_hub_download(
            WIKI_2018_HUB_ID, WIKI_2018_FILE, repo_type="dataset", revision=WIKI_2018_REVISION
        )
    except Exception as error:  # whatever client, network or disk is at work down there
        raise InfrastructureError(f"{WIKI_2018_HUB_ID} cannot be downloaded: {error}") from error
    return Path(path)


def wiki_2018_passage(row: Mapping[str, Any]) -> Passage:
    r"""A passage of the dump: `contents` is the title in quotes, a line break, and the text.

    >>> wiki_2018_passage({"id": "7", "contents": '"The "Big" Dig"\nIt was long.'})
    Passage(id='7', title='The "Big" Dig', text='It was long.')

    Raises:
        DataError: no id, or no contents.
    """
    name, contents = row.get("id"), row.get("contents")
    if name is None or not isinstance(contents, str) or not contents.strip():
        raise DataError(f"passage {name!r} has the contents {contents!r:.80}")
    title, text = split_contents(contents.strip())
    return Passage(str(name), title.strip(), text.strip())


def read_wiki_2018(path: Path | str) -> Iterator[Passage]:
    """The dump's passages from a JSONL file, plain, gzipped, or a gzipped tar archive of one.

    The hub's `wiki-18.jsonl.gz` is reported to be an archive, in spite of its name.

    Raises:
        DataError: a line is no passage; says which.
    """
    with Path(path).open("rb") as file:
        for number, line in enumerate(_lines(file), start=1):
            if not line.strip():
                continue
            try:
                row = msgspec.json.decode(line, type=dict[str, Any])
            except msgspec.DecodeError as error:
                raise DataError(f"{path}, line {number}: {error}") from error
            yield wiki_2018_passage(row)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, of what gzip holds, or of the first file in the archive that gzip holds."""
    packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    if not packed:
        yield from file
        return
    with gzip.GzipFile(fileobj=file) as unpacked:
        head = unpacked.read(512)
    file.seek(0)
    if head[257:262] != b"ustar":
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield from unpacked
        return
    with tarfile.open(fileobj=file, mode="r|gz") as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content is not None:
                yield from content
                return
