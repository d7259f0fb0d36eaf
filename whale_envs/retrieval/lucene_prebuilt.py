"""Pyserini's prebuilt BM25 indexes by name, fetched over the network into the cache.

    folder = fetch_prebuilt("wikipedia-dpr-100w")       # 9 GB, once; a folder for LuceneRetriever
    prebuilt()["wikipedia-dpr-100w"].size

The table of names is the installed Pyserini's: the literals of its Python module and the JSON lists in
its jar. Both are read as data, since importing them starts Java and, in newer versions, asks the network.
A broken download is taken up again where it stopped; what arrives must have the table's MD5.

Not covered: prebuilt indexes of other kinds (impact, dense).
"""

import ast
import hashlib
import http.client
import os
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from whale_envs.errors import DataError, InfrastructureError, UnknownNameError, UsageError
from whale_envs.hub import show_progress
from whale_envs.paths import cache_dir, make_cached_folder
from whale_envs.retrieval.java import find_jar
from whale_envs.retrieval.workshop import deliver, workshop

_PIECE = 1 << 20
_PATIENCE_S = 60.0


class Prebuilt(msgspec.Struct, frozen=True):
    """Where an index is and how it is recognised."""

    urls: list[str]
    md5: str
    """Of the archive."""
    size: int = msgspec.field(name="size compressed (bytes)", default=0)
    """Of the archive, in bytes."""


class _Entry(msgspec.Struct):
    """As the jar has it."""

    name: str
    urls: list[str] = []
    md5: str = ""
    type: str = ""
    compressed_size: int = 0


def prebuilt() -> dict[str, Prebuilt]:
    """Every prebuilt BM25 index of the installed Pyserini.

    Raises:
        UsageError: Pyserini is not installed.
    """
    jar = find_jar()
    table = dict(_of_jar(jar))
    module = jar.parents[2] / "prebuilt_index_info.py"
    if module.is_file():
        table |= _of_module(module.read_text(encoding="utf-8"))
    return table


def fetch_prebuilt(name: str) -> Path:
    """The folder of a prebuilt index, fetched if it is not in the cache yet.

    Raises:
        UnknownNameError: Pyserini has no BM25 index of that name.
        UsageError: Pyserini is not installed, or the cache cannot be written to.
        InfrastructureError: it cannot be fetched.
    """
    table = prebuilt()
    if name not in table:
        close = sorted(known for known in table if known.startswith(name[:6])) or sorted(table)
        raise UnknownNameError("folder of a Lucene index or prebuilt index of Pyserini", name, close)
    return fetch(name, table[name], cache_dir() / "lucene")


def fetch(name: str, entry: Prebuilt, cache: Path) -> Path:
    """As `fetch_prebuilt`, into a folder of that cache."""
    folder = cache / f"{name}.{entry.md5}"
    if folder.is_dir():
        return folder
    make_cached_folder(cache)
    archive = cache / f"{name}.{entry.md5}.tar.gz"
    troubles = []
    for url in entry.urls:
        try:
            _download(url, archive)
        except (OSError, http.client.HTTPException) as error:
            troubles.append(f"{url}: {error}")
            continue
        if _md5(archive) == entry.md5:
            _unpack(archive, folder)
            archive.unlink()
            return folder
        archive.unlink()
        troubles.append(f"{url}: what came has not the MD5 {entry.md5}")
    raise InfrastructureError(
        f"the prebuilt index {name!r} cannot be fetched ({'; '.join(troubles)}); "
        "an index of your own needs no network: whale-bench index build"
    )


def _of_jar(jar: Path) -> Iterator[tuple[str, Prebuilt]]:
    decode = msgspec.json.Decoder(list[_Entry]).decode
    with zipfile.ZipFile(jar) as packed:
        for path in packed.namelist():
            if path.startswith("prebuilt-indexes/") and path.endswith(".json") and "inverted" in path:
                for entry in decode(packed.read(path)):
                    if entry.type == "inverted" and entry.urls:
                        yield entry.name, Prebuilt(entry.urls, entry.md5, entry.compressed_size)


def _of_module(source: str) -> dict[str, Prebuilt]:
    """The entries written out in `TF_INDEX_INFO…` and their second names."""
    found: dict[str, Prebuilt] = {}
    second: dict[str, str] = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Dict):
            continue
        if not ast.unparse(node.targets[0]).startswith("TF_INDEX_INFO"):
            continue
        for key, value in zip(node.value.keys, node.value.values, strict=True):
            if not isinstance(key, ast.Constant):
                continue
            if isinstance(value, ast.Dict):
                found[str(key.value)] = msgspec.convert(ast.literal_eval(value), Prebuilt)
            elif isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant):
                second[str(key.value)] = str(value.slice.value)
    return found | {name: found[meant] for name, meant in second.items() if meant in found}


def _download(url: str, archive: Path) -> None:
    """Goes on where an earlier download stopped; a complete one is not asked for again."""
    part = archive.with_name(archive.name + ".part")
    if archive.exists():
        return
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})  # noqa: S310
    try:
        answer = urllib.request.urlopen(request, timeout=_PATIENCE_S)  # noqa: S310
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        error.close()
        os.replace(part, archive)  # noqa: PTH105 - nothing was missing; the MD5 decides
        return
    with answer:
        again = answer.status == 206
        length = int(answer.headers.get("Content-Length") or 0)
        with part.open("ab" if again else "wb") as out:
            done, whole = out.tell(), out.tell() + length
            while piece := answer.read(_PIECE):
                out.write(piece)
                done += len(piece)
                show_progress(done, whole or None)
    if length and done != whole:
        raise OSError(f"the connection ended after {done:,} of {whole:,} bytes")
    os.replace(part, archive)  # noqa: PTH105


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _extract(packed: tarfile.TarFile, root: Path) -> None:
    """Files and folders, and nothing else; by hand, for Python before 3.11.4 has no filters."""
    for member in packed:
        place = (root / member.name).resolve()
        if not place.is_relative_to(root) or not (member.isdir() or member.isreg()):
            raise tarfile.TarError(f"{member.name!r} is no file or folder in the archive's own")
        if member.isdir():
            place.mkdir(parents=True, exist_ok=True)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        content = packed.extractfile(member)
        assert content is not None, "of a regular file"
        with content, place.open("wb") as out:
            shutil.copyfileobj(content, out)


def _unpack(archive: Path, folder: Path) -> None:
    try:
        with workshop(folder) as work, tarfile.open(archive) as packed:
            _extract(packed, work.resolve())
            segments = next(work.rglob("segments_*"), None)
            if segments is None:
                raise DataError(f"{archive} holds no Lucene index")
            deliver(segments.parent, folder)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise UsageError(f"{archive} cannot be unpacked: {error}") from error
