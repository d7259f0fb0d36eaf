"""A BM25 index as a folder: how it is laid out, opened and read.

    index = open_index("indexes/mini")
    index.passage(17).title, index.find("rembrandt")

    manifest.json               version, counts, and the size and sha256 of every other file
    passages.bin, fields.i8     ids, titles and texts in UTF-8, end to end, and where each of them ends
    ties.i4                     each passage's rank by id, which decides between equal scores
    terms.bin, term_ends.i8     the vocabulary, sorted
    starts.i8                   where each term's postings begin, and the end of the last
    rows.i4, codes.u            postings: the passage, and the number of its (frequency, length byte) pair,
                                in two bytes where there are no more than 65,536 pairs, else in four
    frequencies.i4, lengths.u1  those pairs

Nothing here depends on k1 and b: a posting's weight depends on its pair alone, of which there are some
hundreds, so one index serves every setting. Files are mapped into memory, read only: opening takes
milliseconds at any size, processes share the pages, and texts are read when they are asked for.

Small indexes are checked whole on opening, larger ones by the sizes of their files.

Not covered: writing (`index_build`), ranking (`bm25`), and changing an index that stands.
"""

import hashlib
import mmap
from bisect import bisect_left
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from whale_envs.errors import DataError
from whale_envs.retrieval.base import REBUILD, Passage

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
ARRAYS = {
    "fields.i8": "<i8", "ties.i4": "<i4", "term_ends.i8": "<i8", "starts.i8": "<i8", "rows.i4": "<i4",
    "frequencies.i4": "<i4", "lengths.u1": "<u1",
}  # fmt: skip
BLOBS = ("passages.bin", "terms.bin", "codes.u")
CHECKED_BYTES = 64 * 2**20
"""Indexes up to this size are compared with their hashes on opening."""


class FileEntry(msgspec.Struct, frozen=True):
    """Size and hash of one file of an index."""

    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """What `manifest.json` says."""

    version: int
    passages: int
    with_terms: int
    """Passages with at least one term: Lucene's number of documents."""
    tokens: int
    files: dict[str, FileEntry]

    @property
    def digest(self) -> str:
        """Hash of the whole content, as 64 hexadecimal digits."""
        lines = "".join(f"{name} {self.files[name].sha256}\n" for name in sorted(self.files))
        head = f"{self.version} {self.passages} {self.with_terms} {self.tokens}\n"
        return hashlib.sha256((head + lines).encode()).hexdigest()


class Index:
    """An open index: immutable, safe in threads and across a fork."""

    def __init__(self, folder: Path, manifest: Manifest, files: dict[str, Any]) -> None:
        self.folder = folder
        self.manifest = manifest
        self.digest = manifest.digest
        self.ties: NDArray[np.int32] = files["ties.i4"]
        self.starts: NDArray[np.int64] = files["starts.i8"]
        self.rows: NDArray[np.int32] = files["rows.i4"]
        self.codes: NDArray[np.unsignedinteger[Any]] = files["codes.u"]
        self.frequencies: NDArray[np.int32] = files["frequencies.i4"]
        self.lengths: NDArray[np.uint8] = files["lengths.u1"]
        self._fields: NDArray[np.int64] = files["fields.i8"]
        self._term_ends: NDArray[np.int64] = files["term_ends.i8"]
        self._passages: mmap.mmap | bytes = files["passages.bin"]
        self._terms: mmap.mmap | bytes = files["terms.bin"]

    def __len__(self) -> int:
        return self.manifest.passages

    def find(self, term: str) -> int:
        """The number of a term, -1 where no passage has it."""
        wanted = term.encode()
        count = len(self._term_ends)
        at = bisect_left(range(count), wanted, key=self._term)
        return at if at < count and self._term(at) == wanted else -1

    def passage(self, row: int) -> Passage:
        """The passage of a row.

        Raises:
            DataError: the index is corrupt.
        """
        begin = int(self._fields[3 * row - 1]) if row else 0
        first, second, last = self._fields[3 * row : 3 * row + 3].tolist()
        text = self._passages
        try:
            return Passage(
                text[begin:first].decode(), text[first:second].decode(), text[second:last].decode()
            )
        except UnicodeDecodeError as error:
            raise corrupt(self.folder, f"passage {row}: {error}") from error

    def identifier(self, row: int) -> str:
        """The id of a row's passage, without reading its text."""
        end = self._fields.item
        return self._passages[end(3 * row - 1) if row else 0 : end(3 * row)].decode(errors="replace")

    def _term(self, number: int) -> bytes:
        begin = int(self._term_ends[number - 1]) if number else 0
        return self._terms[begin : int(self._term_ends[number])]


def open_index(folder: Path | str) -> Index:
    """Opens an index.

    Raises:
        DataError: there is none, it is of another version, or it is not as it was written; says which,
            and how to build it again.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    if set(manifest.files) != {*ARRAYS, *BLOBS}:
        raise corrupt(folder, f"its manifest lists {', '.join(sorted(manifest.files)) or 'no files'}")
    check_all = sum(entry.size for entry in manifest.files.values()) <= CHECKED_BYTES
    files: dict[str, Any] = {}
    for name, entry in manifest.files.items():
        content = _mapped(folder, name)
        if len(content) != entry.size:
            raise corrupt(folder, f"{name} has {len(content)} bytes, not {entry.size}")
        if check_all and hashlib.sha256(content).hexdigest() != entry.sha256:
            raise corrupt(folder, f"the content of {name} is not what was written")
        try:
            files[name] = np.frombuffer(content, ARRAYS[name]) if name in ARRAYS else content
        except ValueError as error:
            raise corrupt(folder, f"{name}: {error}") from error
    files["codes.u"] = np.frombuffer(files["codes.u"], code_type(len(files["lengths.u1"])))
    index = Index(folder, manifest, files)
    terms = len(files["term_ends.i8"])
    whole = (
        len(files["fields.i8"]) == 3 * len(index)
        and len(index.ties) == len(index)
        and len(index.starts) == terms + 1
        and len(index.rows) == len(index.codes) == index.starts[-1]
        and len(index.frequencies) == len(index.lengths)
    )
    if not whole:
        raise corrupt(folder, "its files are of different indexes")
    return index


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an index.

    Raises:
        DataError: there is none, or it is of another version, or it cannot be read.
    """
    try:
        data = (folder / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        if any(folder.glob("segments_*")):
            raise DataError(f"{folder} is a Lucene index; search it with --retriever pyserini") from error
        there = folder.is_dir() and any(folder.iterdir())
        way = REBUILD if there else "build it with `whale-bench index build`"
        raise DataError(f"{folder} holds no BM25 index; {way}") from error
    except OSError as error:
        raise DataError(f"{folder / MANIFEST} cannot be read: {error}") from error
    try:
        version = msgspec.json.decode(data, type=dict[str, Any]).get("version")
        if version == FORMAT_VERSION:
            return msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise corrupt(folder, f"{MANIFEST}: {error}") from error
    raise DataError(
        f"the index {folder} is of format {version!r}, and this version of whale-envs reads format "
        f"{FORMAT_VERSION}; {REBUILD}"
    )


def code_type(pairs: int) -> np.dtype[Any]:
    """The type of the numbers of so many pairs."""
    return np.dtype("<u2" if pairs <= 2**16 else "<u4")


def corrupt(folder: Path, found: str) -> DataError:
    """The error of an index that is not as it was written."""
    return DataError(f"the index {folder} is damaged: {found}; {REBUILD}")


def _mapped(folder: Path, name: str) -> mmap.mmap | bytes:
    try:
        with (folder / name).open("rb") as file:
            file.seek(0, 2)
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if file.tell() else b""
    except OSError as error:
        raise corrupt(folder, f"{name} cannot be read: {error}") from error
