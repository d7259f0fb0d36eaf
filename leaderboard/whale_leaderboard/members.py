"""The files of an archive of a bundle as they go by, however hostile it is; and what may be in a bundle.

    for content in members(Path("entry.tar.gz"), MOST_BYTES):
        content.name, list(content.lines(MOST_ROLLOUT)), content.sha256

Names and sizes are looked at before a byte of a file is read, and no single read is large, whatever the
archive's headers say.

Not covered: folders, and what is in the files, see `archive.py`.
"""

import gzip
import hashlib
import io
import os
import tarfile
import zlib
from collections import deque
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO

from whale_leaderboard.layout import MOST_FILES, NAMES
from whale_leaderboard.report import Refusal

_HEADERS = 2**16
"""Longest read that only a header asks for; file contents are read in pieces of this too."""

_BROKEN = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError, RecursionError)
"""How reading an archive fails that is none."""


class Content:
    """A file of a bundle as it goes by, to be read once."""

    def __init__(self, name: str, file: IO[bytes]) -> None:
        self.name = name
        self._file, self._sums = file, hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Of what has been read."""
        return self._sums.hexdigest()

    def pieces(self) -> Iterator[bytes]:
        """All of it."""
        try:
            while piece := self._file.read(_HEADERS):
                self._sums.update(piece)
                yield piece
        except _BROKEN as error:
            raise _no_archive(self.name, error) from error

    def skip(self) -> None:
        """Reads what is left, for the digest."""
        deque(self.pieces(), maxlen=0)

    def read(self, most: int) -> bytes:
        """All of a file that has at most `most` bytes."""
        data = bytearray()
        for piece in self.pieces():
            data += piece
            if len(data) > most:
                raise Refusal(1, "too_large", self.name, f"has more than {most:,} bytes")
        return bytes(data)

    def lines(self, most: int) -> Iterator[bytes]:
        """Its lines without their ends, each of at most `most` bytes."""
        number, rest = 0, b""
        for piece in self.pieces():
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                number += 1
                if len(line) > most:
                    raise bad_line(self.name, number, f"is longer than {most:,} bytes")
                yield line
            if len(rest) > most:
                raise bad_line(self.name, number + 1, f"is longer than {most:,} bytes")
        if rest:
            raise bad_line(self.name, number + 1, "is cut off")


def members(path: Path, most_bytes: int) -> Iterator[Content]:
    """The files of an archive, in its order."""
    known: set[str] = set()
    total = 0
    with path.open("rb") as raw, gzip.GzipFile(fileobj=raw, mode="rb") as zipped:
        name, bounded = path.name, _Bounded(zipped, path.name)
        try:
            archive = tarfile.open(fileobj=bounded, mode="r:")  # noqa: SIM115 - `raw` and `zipped` are closed
            while member := archive.next():
                name = member.name
                check_name(name, member.isreg() and not member.issparse() and member.size >= 0, known)
                known.add(name)
                total += member.size
                check_total(name, total, most_bytes)
                content = archive.extractfile(member)
                assert content is not None
                yield Content(name, content)
                archive.members.clear()  # type: ignore[attr-defined]  # it keeps every header it has read
        except _BROKEN as error:
            raise _no_archive(name, error) from error


class _Bounded(io.RawIOBase):
    """An archive's bytes; a single read that only a lying header would ask for is refused."""

    def __init__(self, file: gzip.GzipFile, name: str) -> None:
        self._file, self._name = file, name

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _HEADERS:
            raise Refusal(1, "archive", self._name, f"a header asks for {size:,} bytes at once")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True


def _no_archive(name: str, error: Exception) -> Refusal:
    return Refusal(1, "archive", name, f"is no whole .tar.gz: {error}")


def bad_line(name: str, number: int, why: str) -> Refusal:
    """What a line that cannot be read is."""
    return Refusal(1, "line", f"{name}:{number}", f"the line {why}")


def check_name(name: str, regular: bool, known: Collection[str]) -> None:
    """Refuses a file that no bundle has, or that is among those known."""
    if not regular:
        raise Refusal(1, "not_a_file", name[:200], "is no regular file; links are not followed")
    if NAMES.fullmatch(name) is None:
        raise Refusal(1, "unknown_file", name[:200], "is no name of a file of a bundle")
    if name in known:
        raise Refusal(1, "duplicate_file", name, "stands in the archive twice")
    if len(known) >= MOST_FILES:
        raise Refusal(1, "too_many", name, f"more than {MOST_FILES} files")


def check_total(name: str, total: int, most: int) -> None:
    """Refuses more bytes together than are allowed."""
    if total > most:
        raise Refusal(
            1, "too_large", name, f"with it the bundle has {total:,} bytes, more than {most:,}, unpacked"
        )
