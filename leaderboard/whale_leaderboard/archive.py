"""Opens a bundle, a folder or a .tar.gz, as untrusted as it is; and writes one.

    with open_bundle(Path("entry.tar.gz")) as bundle:
        for number, line in bundle.lines("test.jsonl", MOST_ROLLOUT): ...

An archive is unpacked into a temporary folder. Only regular files of the names that a bundle has are
taken, each once; the sum of what is unpacked is bounded, a size that is claimed is looked at before a byte
of it is read, and no single read of the archive is large, whatever its headers say. Of a folder, links and
special files are refused, and files are opened without following links.

What is wrong with a bundle is a `Refusal`; that there is none, or no room for it, is not.

Not covered: a folder that someone changes while it is being read.
"""

import gzip
import hashlib
import io
import os
import shutil
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from whale_envs.errors import InfrastructureError, UsageError
from whale_leaderboard.layout import MOST_BYTES, MOST_FILES, NAMES
from whale_leaderboard.report import Refusal

ARCHIVE = ".tar.gz"
"""Ending of an archive's name."""

_READ = 2**20
_HEADERS = 2**16
"""Longest read that only a header asks for; file contents are read in pieces of this too."""

_BROKEN = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError, RecursionError)
"""How reading an archive fails that is none."""


class Bundle:
    """The files of a bundle.

    Args:
        folder: where they are.
        sizes: their bytes by name.
    """

    def __init__(self, folder: Path, sizes: dict[str, int]) -> None:
        self.folder, self.sizes = folder, sizes

    def open(self, name: str) -> IO[bytes]:
        """A file, open for reading; a link is not followed."""
        if name not in self.sizes:
            raise Refusal(1, "missing_file", name, "the bundle has no such file")
        try:
            return open(self.folder / name, "rb", _READ, opener=_without_links)
        except OSError as error:
            raise Refusal(1, "unreadable", name, f"cannot be opened: {error.strerror}") from error

    def read(self, name: str, most: int) -> bytes:
        """All of a file that has at most `most` bytes."""
        with self.open(name) as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise Refusal(1, "too_large", name, f"has more than {most:,} bytes")
        return data

    def lines(self, name: str, most: int) -> Iterator[tuple[int, bytes]]:
        """(number from 1, line without its end) of a file of lines of at most `most` bytes."""
        with self.open(name) as file:
            number = 0
            while line := file.readline(most + 1):
                number += 1
                if not line.endswith(b"\n"):
                    why = f"is longer than {most:,} bytes" if len(line) > most else "is cut off"
                    raise Refusal(1, "line", f"{name}:{number}", f"the line {why}")
                yield number, line[:-1]

    def sha256(self, name: str) -> str:
        """Of a file."""
        with self.open(name) as file:
            sums = hashlib.sha256()
            while piece := file.read(_READ):
                sums.update(piece)
            return sums.hexdigest()


@contextmanager
def open_bundle(path: Path, *, most_bytes: int = MOST_BYTES) -> Iterator[Bundle]:
    """The bundle at a path, for as long as the context lasts.

    Args:
        path: a folder, or a .tar.gz.
        most_bytes: of all its files together.

    Raises:
        UsageError: there is nothing at the path.
        Refusal: what is there is no bundle, or a hostile one.
        InfrastructureError: there is no room to unpack it.
    """
    if path.is_symlink() or not path.exists():
        raise UsageError(f"{path} is {'a link' if path.is_symlink() else 'not there'}: give a bundle")
    if path.is_dir():
        yield Bundle(path, _sizes(path, most_bytes))
        return
    scratch = Path(tempfile.mkdtemp(prefix="whale-bundle-"))
    try:
        yield Bundle(scratch, _unpack(path, scratch, most_bytes))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def read_first(path: Path, name: str, most: int) -> bytes:
    """One file of a bundle; of an archive no more is read than what stands before it.

    Raises:
        UsageError: there is nothing at the path.
        Refusal: there is no such file, or what is there is no bundle.
    """
    if path.is_dir() or path.is_symlink() or not path.exists():
        with open_bundle(path) as bundle:
            return bundle.read(name, most)
    try:
        with (
            path.open("rb") as raw,
            gzip.GzipFile(fileobj=raw, mode="rb") as zipped,
            tarfile.open(fileobj=_Bounded(zipped, path.name), mode="r:") as archive,
        ):
            read = 0
            while (member := archive.next()) and read <= MOST_BYTES:
                read += max(0, member.size)
                if member.name == name and member.isreg() and 0 <= member.size <= most:
                    content = archive.extractfile(member)
                    assert content is not None
                    return content.read()
    except _BROKEN as error:
        raise Refusal(1, "archive", path.name, f"is no archive of a bundle: {error}") from error
    raise Refusal(1, "missing_file", name, "the bundle has no such file")


def write_archive(folder: Path, out: Path) -> None:
    """Packs a bundle's folder; equal folders give equal bytes."""
    with (
        out.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0, compresslevel=6) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name in sorted(_sizes(folder, MOST_BYTES)):
            info = tarfile.TarInfo(name)
            info.size = (folder / name).stat().st_size
            with (folder / name).open("rb") as file:
                archive.addfile(info, file)


def _sizes(folder: Path, most_bytes: int) -> dict[str, int]:
    """Bytes of every file of a folder, by name."""
    sizes: dict[str, int] = {}
    pending, total = [""], 0
    while pending:
        inside = pending.pop()
        with os.scandir(folder / inside) as entries:
            for entry in entries:
                name = f"{inside}{entry.name}"
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode) and name.count("/") < 2:
                    pending.append(f"{name}/")
                    if len(pending) > MOST_FILES:
                        raise Refusal(1, "too_many", name, f"more than {MOST_FILES} folders")
                    continue
                _check_name(name, stat.S_ISREG(found.st_mode), sizes)
                total += found.st_size
                _check_total(name, total, most_bytes)
                sizes[name] = found.st_size
    return sizes


def _unpack(path: Path, folder: Path, most_bytes: int) -> dict[str, int]:
    sizes: dict[str, int] = {}
    total = 0
    name = path.name
    try:
        with (
            path.open("rb") as raw,
            gzip.GzipFile(fileobj=raw, mode="rb") as zipped,
            tarfile.open(fileobj=_Bounded(zipped, path.name), mode="r:") as archive,
        ):
            while member := archive.next():
                name = member.name
                _check_name(name, member.isreg() and not member.issparse() and member.size >= 0, sizes)
                total += member.size
                _check_total(name, total, most_bytes)
                content = archive.extractfile(member)
                assert content is not None
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:
                    shutil.copyfileobj(content, file, _HEADERS)
                sizes[name] = target.stat().st_size
                archive.members.clear()  # type: ignore[attr-defined]  # it keeps every header it has read
    except _BROKEN as error:
        raise Refusal(1, "archive", name, f"is no whole .tar.gz: {error}") from error
    except OSError as error:
        raise InfrastructureError(f"{path}: cannot be unpacked: {error}") from error
    return sizes


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


def _without_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


def _check_name(name: str, regular: bool, sizes: dict[str, int]) -> None:
    if not regular:
        raise Refusal(1, "not_a_file", name[:200], "is no regular file; links are not followed")
    if NAMES.fullmatch(name) is None:
        raise Refusal(1, "unknown_file", name[:200], "is no name of a file of a bundle")
    if name in sizes:
        raise Refusal(1, "duplicate_file", name, "stands in the archive twice")
    if len(sizes) >= MOST_FILES:
        raise Refusal(1, "too_many", name, f"more than {MOST_FILES} files")


def _check_total(name: str, total: int, most: int) -> None:
    if total > most:
        raise Refusal(
            1, "too_large", name, f"with it the bundle has {total:,} bytes, more than {most:,}, unpacked"
        )
