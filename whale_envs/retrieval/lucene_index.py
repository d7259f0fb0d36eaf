"""Builds a Lucene index from passages, and says what is in one.

    build_lucene_index(passages, Path("indexes/mini"))          # a Manifest; LuceneRetriever opens it
    read_manifest(Path("indexes/mini"))                         # None for an index of others

The index is Anserini's own work, in a process of its own, from documents `{"id", "contents", "title"}`
with `contents` as `Passage.contents` has it; the documents are kept in it. It is built in a folder
beside the target and renamed when complete: the target is whole or absent, and what a killed build
leaves behind is removed by the next. `whale-index.json` in the folder is its manifest.

Not covered: adding to an index; Anserini's other options (positions, vectors, other languages).
"""

import contextlib
import hashlib
import os
import subprocess
import sys
from array import array
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np

from whale_envs.errors import DataError, InfrastructureError, UsageError
from whale_envs.retrieval.base import REBUILD, Passage
from whale_envs.retrieval.java import find_jar, find_java
from whale_envs.retrieval.lucene_process import child_environment, cores
from whale_envs.retrieval.workshop import deliver, workshop

MANIFEST = "whale-index.json"
_CHILD = Path(__file__).with_name("lucene_child.py")
_PER_FILE = 200_000
"""Documents per input file; Anserini gives each file a thread."""


class Manifest(msgspec.Struct, frozen=True):
    """What an index holds and who built it."""

    passages: int
    digest: str
    """SHA-256 over ids, titles and texts, in order."""
    jar: str
    """Which Anserini built it."""
    java: int
    files: dict[str, int]
    """Sizes in bytes."""
    format: int = 1


def build_lucene_index(passages: Iterable[Passage], folder: Path | str) -> Manifest:
    """Builds an index of all passages; returns when it is complete.

    Args:
        passages: read once, held in memory at no time; ids are unique, contents not blank.
        folder: must not exist, or be empty.

    Raises:
        UsageError: the folder cannot be used; no Java, no Pyserini.
        DataError: a passage without id or contents, two of the same id, or none at all.
        InfrastructureError: Anserini failed.
    """
    folder = Path(folder).absolute()
    java, jar = find_java(), find_jar()
    with workshop(folder) as work:
        corpus, index = work / "corpus", work / "index"
        corpus.mkdir()
        documents, digest = _write_corpus(passages, corpus)
        command = [str(java.program), "-Xmx1g", "-XX:-UsePerfData", "-cp", str(jar)]
        command += ["io.anserini.index.IndexCollection", "-collection", "JsonCollection"]
        command += ["-generator", "DefaultLuceneDocumentGenerator", "-storeRaw"]
        command += ["-threads", str(min(8, cores())), "-input", str(corpus), "-index", str(index)]
        _run(command, child_environment(java.home))
        (index / "write.lock").unlink(missing_ok=True)
        files = {path.name: path.stat().st_size for path in sorted(index.iterdir())}
        manifest = Manifest(documents, digest, jar.name, java.version, files)
        (index / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
        try:
            deliver(index, folder)
        except UsageError:
            there = read_manifest(folder)
            if there is None or there.digest != manifest.digest:
                raise
            return there  # another process built the same meanwhile
    return manifest


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of an index; None where it has none of ours.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise DataError(f"{folder / MANIFEST} cannot be read ({error}); build the index again") from error


def index_digest(folder: Path, settings: str) -> str:
    """An identity "sha256:…" of an index and how it is searched.

    By content where the index is ours. Another's is known by the names and sizes of its files and by
    its `segments` file, which holds random ids: two builds of the same corpus then differ.

    Raises:
        DataError: the folder holds no index, or a file is not as long as when it was built.
    """
    files = _files(folder)
    manifest = read_manifest(folder)
    if manifest is not None:
        for name, size in manifest.files.items():
            if files.get(name) != size:
                has = f"has {files[name]:,} bytes" if name in files else "is missing"
                raise DataError(
                    f"the Lucene index {folder} is damaged: {name} {has}, {size:,} were built; {REBUILD}"
                )
        content = manifest.digest.encode()
    else:
        segments = sorted(name for name in files if name.startswith("segments"))
        content = repr(sorted(files.items())).encode() + (folder / segments[-1]).read_bytes()
    return f"sha256:{hashlib.sha256(settings.encode() + b'|' + content).hexdigest()}"


def _files(folder: Path) -> dict[str, int]:
    """Names and sizes in an index folder."""
    hint = "build an index there (whale-bench index build), or name the folder of one"
    if not folder.is_dir():
        what = "is a file, not the folder of a Lucene index" if folder.exists() else "does not exist"
        raise DataError(f"{folder} {what}; {hint}")
    files = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    if not any(name.startswith("segments_") for name in files):
        raise DataError(f"{folder} holds no Lucene index ({_describe(files)}); {hint}")
    return files


def _describe(files: dict[str, int]) -> str:
    if not files:
        return "it has no files"
    if "write.lock" in files:
        return "only what an unfinished build left, with its write.lock"
    return f"no segments file among its {len(files)}"


def _write_corpus(passages: Iterable[Passage], folder: Path) -> tuple[int, str]:
    """Writes Anserini's input; returns how many there are and their digest."""
    digest, ids = hashlib.sha256(), array("Q")
    encoder = msgspec.json.Encoder()
    with contextlib.ExitStack() as stack:
        for number, passage in enumerate(passages):
            if number % _PER_FILE == 0:
                stack.close()
                out = stack.enter_context((folder / f"{number // _PER_FILE:05}.json").open("wb"))
            out.write(_line(passage, number, encoder))
            digest.update(f"{passage.id}\x1f{passage.title}\x1f{passage.text}\x1e".encode())
            ids.append(_short_hash(passage.id))
    if not ids:
        raise DataError("there are no passages to index")
    _refuse_duplicates(ids, folder)
    return len(ids), f"sha256:{digest.hexdigest()}"


def _line(passage: Passage, number: int, encoder: msgspec.json.Encoder) -> bytes:
    if not passage.id or not passage.contents.strip():
        lacks = "contents" if passage.id else "an id"
        raise DataError(f"passage {number + 1} (id {passage.id!r}) has not {lacks}")
    row = {"id": passage.id, "contents": passage.contents, "title": passage.title}
    try:
        return encoder.encode(row) + b"\n"
    except UnicodeEncodeError as error:
        raise DataError(f"passage {passage.id!r} holds a lone surrogate: {error}") from error


def _refuse_duplicates(hashes: "array[int]", folder: Path) -> None:
    """Eight bytes an id; what looks equal so is read again."""
    ordered = np.sort(np.frombuffer(hashes, dtype=np.uint64))
    suspects = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
    if not suspects:
        return
    seen: dict[str, int] = {}
    number = 0
    for path in sorted(folder.iterdir()):
        with path.open("rb") as lines:
            for line in lines:
                number += 1
                name = msgspec.json.decode(line)["id"]
                if _short_hash(name) in suspects and seen.setdefault(name, number) != number:
                    raise DataError(f"passages {seen[name]} and {number} have the same id {name!r}")


def _short_hash(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def _run(command: list[str], environment: dict[str, str]) -> None:
    """Runs a Java program, which ends when this process does."""
    done = subprocess.run(
        [sys.executable, "-P", "-s", "-B", str(_CHILD), "exec", str(os.getpid()), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
        check=False,
    )
    if done.returncode:
        said = done.stdout.decode("utf-8", "replace").strip()
        raise InfrastructureError(f"Anserini ended with status {done.returncode}: {said[-1500:]}")
