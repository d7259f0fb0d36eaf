"""Opens a bundle, a folder or a .tar.gz, as untrusted as it is; and writes one.

    with open_bundle(Path("entry.tar.gz")) as bundle:
        for number, line in bundle.lines("test.jsonl", MOST_ROLLOUT): ...
    for content in contents_of(Path("entry.tar.gz")):    # each file once, nothing is unpacked
        content.name, list(content.lines(MOST_ROLLOUT)), content.sha256

`open_bundle` unpacks an archive into a temporary folder. Only regular files of the names that a bundle has
are taken, each once; the sum of what is unpacked is bounded, a size that is claimed is looked at before a
byte of it is read, and no single read of the archive is large, whatever its headers say. Of a folder, links
and special files are refused, and files are opened without following links.

What is wrong with a bundle is a `Refusal`; that there is none, or no room for it, is not.

Not covered: a folder that someone changes while it is being read.
"""

import gzip
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from whale_envs.errors import InfrastructureError, UsageError
from whale_leaderboard.layout import MOST_BYTES, MOST_FILES
from whale_leaderboard.members import Content, bad_line, check_name, check_total, members
from whale_leaderboard.report import Refusal

ARCHIVE = ".tar.gz"
"""Ending of an archive's name."""

_READ = 2**20


class Bundle:
    """The files of a bundle.

    Args:
        folder: where they are.
        sizes: their bytes by name.
        digests: their SHA-256 by name, of those that were unpacked here.
    """

    def __init__(self, folder: Path, sizes: dict[str, int], digests: Mapping[str, str] | None = None) -> None:
        self.folder, self.sizes = folder, sizes
        self._digests = digests or {}

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
                    long = len(line) > most
                    raise bad_line(name, number, f"is longer than {most:,} bytes" if long else "is cut off")
                yield number, line[:-1]

    def sha256(self, name: str) -> str:
        """Of a file."""
        if name in self._digests:
            return self._digests[name]
        with self.open(name) as file:
            content = Content(name, file)
            content.skip()
            return content.sha256


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
    _check_there(path)
    if path.is_dir():
        yield Bundle(path, _sizes(path, most_bytes))
        return
    scratch = Path(tempfile.mkdtemp(prefix="whale-bundle-"))
    try:
        yield _unpack(path, scratch, most_bytes)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def contents_of(path: Path) -> Iterator[Content]:
    """Every file of a bundle, to be read before the next one is asked for; what is left of it is passed over.

    Raises:
        UsageError: there is nothing at the path.
        Refusal: what is there is no bundle, or a hostile one.
    """
    _check_there(path)
    if path.is_dir():
        bundle = Bundle(path, _sizes(path, MOST_BYTES))
        for name in sorted(bundle.sizes):
            with bundle.open(name) as file:
                yield Content(name, file)
    else:
        yield from members(path, MOST_BYTES)


def read_first(path: Path, name: str, most: int) -> bytes:
    """One file of a bundle; of an archive no more is read than what stands before it.

    Raises:
        UsageError: there is nothing at the path.
        Refusal: there is no such file, or what is there is no bundle.
    """
    for content in contents_of(path):
        if content.name == name:
            return content.read(most)
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
                check_name(name, stat.S_ISREG(found.st_mode), sizes)
                total += found.st_size
                check_total(name, total, most_bytes)
                sizes[name] = found.st_size
    return sizes


def _unpack(path: Path, folder: Path, most_bytes: int) -> Bundle:
    sizes: dict[str, int] = {}
    digests: dict[str, str] = {}
    try:
        for content in members(path, most_bytes):
            target = folder / content.name
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as file:
                file.writelines(content.pieces())
            sizes[content.name], digests[content.name] = target.stat().st_size, content.sha256
    except OSError as error:
        raise InfrastructureError(f"{path}: cannot be unpacked: {error}") from error
    return Bundle(folder, sizes, digests)


def _check_there(path: Path) -> None:
    if path.is_symlink() or not path.exists():
        raise UsageError(f"{path} is {'a link' if path.is_symlink() else 'not there'}: give a bundle")


def _without_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)
