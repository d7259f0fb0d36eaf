"""Builds a BM25 index from passages, in memory that grows with the vocabulary, not with the texts.

    build_index(read_corpus("wiki.jsonl.gz"), "indexes/wiki")

Passages are analysed in blocks, whose postings are set down in a file; when all terms are known, and so
where each of their lists will lie, one pass over that file puts every posting in its place. Lengths are
kept as Lucene keeps them, in one byte, rounded down to four significant bits.

The folder appears whole or not at all: it is written under another name beside its place and renamed. Of
two builders at once the later one stands. A builder that is killed leaves a folder `.NAME.building-…`
beside, which may be deleted.

Not covered: several processes for one index, and corpora whose vocabulary or ids outgrow memory (about
0.5 GB for a million passages): from some hundred thousand passages on Lucene is the better choice.
"""

import secrets
import shutil
from array import array
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from whale_envs.errors import DataError, UsageError
from whale_envs.paths import hash_file
from whale_envs.retrieval.analyser import term, words
from whale_envs.retrieval.base import Passage
from whale_envs.retrieval.index_file import (
    ARRAYS,
    BLOBS,
    FORMAT_VERSION,
    MANIFEST,
    FileEntry,
    Manifest,
    code_type,
)

BLOCK_TOKENS = 1 << 20
"""Tokens counted, and postings placed, at once."""

_CACHED_WORDS = 1 << 19
_POSTING = np.dtype([("term", "<i4"), ("row", "<i4"), ("pair", "<u8")])
_LENGTH_BITS = 8


def _length_of_byte(byte: int) -> int:
    """Lucene's SmallFloat.byte4ToInt: exact below 40, then four significant bits."""
    free = 24
    if byte < free:
        return byte
    shift = (byte - free >> 3) - 1
    low = byte - free & 7
    return free + (low if shift < 0 else (low | 8) << shift)


LENGTHS: NDArray[np.int64] = np.array([_length_of_byte(byte) for byte in range(256)])
"""The length in terms that each length byte stands for, shape (256,), ascending."""


def build_index(passages: Iterable[Passage], folder: Path | str) -> Manifest:
    """Builds an index in `folder`; an index that stands there is replaced.

    Raises:
        DataError: no passages, an id twice, or text that is no Unicode.
        UsageError: the folder is something else, or cannot be written.
    """
    folder = Path(folder)
    building = folder.with_name(f".{folder.name}.building-{secrets.token_hex(4)}")
    try:
        _check_place(folder)
        building.mkdir(parents=True)
        try:
            manifest = _Builder(building).build(passages)
            _put_in_place(building, folder)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    except OSError as error:
        raise UsageError(f"the index {folder} cannot be written: {error}") from error
    return manifest


def _check_place(folder: Path) -> None:
    for _ in range(10):  # another builder may be exchanging the folder while we look
        try:
            names = [path.name for path in folder.iterdir()]
        except FileNotFoundError:
            return
        except NotADirectoryError:
            break
        if not names or MANIFEST in names:
            return
    raise UsageError(f"{folder} is there and is no index; name a folder that is new or empty")


def _put_in_place(building: Path, folder: Path) -> None:
    """Renames, moving an older index away first; another builder may do the same meanwhile."""
    for _ in range(100):
        try:
            building.rename(folder)
            return
        except OSError:
            if not (folder / MANIFEST).is_file():
                continue
        aside = folder.with_name(f".{folder.name}.building-{secrets.token_hex(4)}")
        try:
            folder.rename(aside)
        except FileNotFoundError:
            continue  # the other builder moved it
        shutil.rmtree(aside, ignore_errors=True)
    building.rename(folder)


class _WordNumbers(dict[str, int]):
    """Numbers of the terms of words, -1 for a word without one; `numbers` is the vocabulary so far."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __missing__(self, word: str) -> int:
        if len(self) >= _CACHED_WORDS:
            self.clear()
        found = term(word)
        self[word] = number = self.numbers.setdefault(found, len(self.numbers)) if found else -1
        return number


class _Builder:
    """One build: `build` is called once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ids: list[str] = []
        self._numbers = _WordNumbers()
        self._pairs: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._tokens = 0
        self._with_terms = 0

    def build(self, passages: Iterable[Passage]) -> Manifest:
        spool_path = self._folder / "spool"
        document_frequency = np.zeros(0, np.int64)
        with spool_path.open("wb") as spool:
            for block in self._blocks(passages):
                block.tofile(spool)
                counts = np.bincount(block["term"], minlength=len(self._numbers.numbers))
                counts[: len(document_frequency)] += document_frequency
                document_frequency = counts
        if not self._ids:
            raise DataError("there are no passages to index")
        self._write_ties()
        place = self._write_vocabulary(document_frequency)
        self._write_postings(spool_path, place)
        spool_path.unlink()
        return self._write_manifest()

    def _blocks(self, passages: Iterable[Passage]) -> Iterator[NDArray[np.void]]:
        """The postings of some passages at a time; texts are set down on the way."""
        numbers, lengths = array("i"), array("i")
        end = 0
        with (
            (self._folder / "passages.bin").open("wb") as texts,
            (self._folder / "fields.i8").open("wb") as ends,
        ):
            for passage in passages:
                end = _write_texts(passage, texts, ends, end)
                self._ids.append(passage.id)
                before = len(numbers)
                numbers.extend(map(self._numbers.__getitem__, words(passage.contents)))
                lengths.append(len(numbers) - before)
                if len(numbers) >= BLOCK_TOKENS:
                    yield self._counted(numbers, lengths)
                    del numbers[:], lengths[:]
            yield self._counted(numbers, lengths)

    def _counted(self, numbers: "array[int]", word_counts: "array[int]") -> NDArray[np.void]:
        first = len(self._ids) - len(word_counts)
        terms = np.frombuffer(numbers, np.int32).astype(np.int64)
        local = np.repeat(np.arange(len(word_counts)), np.frombuffer(word_counts, np.int32))
        local, terms = local[terms >= 0], terms[terms >= 0]
        lengths = np.bincount(local, minlength=len(word_counts))
        self._tokens += len(terms)
        self._with_terms += int(np.count_nonzero(lengths))
        keys, frequencies = np.unique(terms * len(word_counts) + local, return_counts=True)
        postings = np.empty(len(keys), _POSTING)
        postings["term"] = keys // len(word_counts) if len(word_counts) else keys
        inside = keys - postings["term"].astype(np.int64) * len(word_counts)
        postings["row"] = inside + first
        length_bytes = np.searchsorted(LENGTHS, lengths, side="right") - 1
        postings["pair"] = frequencies << _LENGTH_BITS | length_bytes[inside]
        self._pairs = np.union1d(self._pairs, postings["pair"])
        return postings

    def _write_ties(self) -> None:
        order = sorted(range(len(self._ids)), key=self._ids.__getitem__)
        for one, other in pairwise(order):
            if self._ids[one] == self._ids[other]:
                raise DataError(f"two passages have the id {self._ids[one]!r}")
        ties = np.empty(len(order), np.int32)
        ties[order] = np.arange(len(order), dtype=np.int32)
        ties.tofile(self._folder / "ties.i4")

    def _write_vocabulary(self, document_frequency: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns where the list of each term, by its number, begins."""
        encoded = [text.encode(errors="surrogatepass") for text in self._numbers.numbers]
        order = sorted(range(len(encoded)), key=encoded.__getitem__)
        (self._folder / "terms.bin").write_bytes(b"".join(encoded[number] for number in order))
        np.cumsum([len(encoded[number]) for number in order], dtype=np.int64).tofile(
            self._folder / "term_ends.i8"
        )
        starts = np.zeros(len(order) + 1, np.int64)
        np.cumsum(document_frequency[order], out=starts[1:])
        starts.tofile(self._folder / "starts.i8")
        place = np.empty(len(order), np.int64)
        place[order] = starts[:-1]
        return place

    def _write_postings(self, spool_path: Path, place: NDArray[np.int64]) -> None:
        (self._pairs >> _LENGTH_BITS).astype("<i4").tofile(self._folder / "frequencies.i4")
        (self._pairs & (2**_LENGTH_BITS - 1)).astype("<u1").tofile(self._folder / "lengths.u1")
        count = spool_path.stat().st_size // _POSTING.itemsize
        if not count:
            (self._folder / "rows.i4").touch()
            (self._folder / "codes.u").touch()
            return
        rows = np.memmap(self._folder / "rows.i4", "<i4", "w+", shape=(count,))
        codes = np.memmap(self._folder / "codes.u", code_type(len(self._pairs)), "w+", shape=(count,))
        with spool_path.open("rb") as spool:
            while len(some := np.fromfile(spool, _POSTING, BLOCK_TOKENS)):
                some = some[np.argsort(some["term"], kind="stable")]
                terms = some["term"]
                begins = np.flatnonzero(np.append(True, terms[1:] != terms[:-1]))
                sizes = np.diff(np.append(begins, len(terms)))
                at = np.repeat(place[terms[begins]] - begins, sizes) + np.arange(len(terms))
                rows[at] = some["row"]
                codes[at] = np.searchsorted(self._pairs, some["pair"])
                place[terms[begins]] += sizes
        rows.flush()
        codes.flush()

    def _write_manifest(self) -> Manifest:
        files = {name: _entry(self._folder / name) for name in sorted([*ARRAYS, *BLOBS])}
        manifest = Manifest(FORMAT_VERSION, len(self._ids), self._with_terms, self._tokens, files)
        (self._folder / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
        return manifest


def _write_texts(passage: Passage, texts: BinaryIO, ends: BinaryIO, end: int) -> int:
    fields = []
    for value in (passage.id, passage.title, passage.text):
        try:
            encoded = value.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"passage {passage.id!r} has text that is no Unicode: {error.reason}") from error
        texts.write(encoded)
        end += len(encoded)
        fields.append(end)
    ends.write(array("q", fields).tobytes())
    return end


def _entry(path: Path) -> FileEntry:
    return FileEntry(path.stat().st_size, hash_file(path))
