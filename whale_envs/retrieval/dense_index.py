"""A folder of vectors and their passages: built here, or by Pyserini for FAISS.

    build_dense_index(passages, Path("indexes/e5"), "intfloat/e5-base-v2")
    index = open_dense(Path("indexes/e5"))
    index.faiss, index.passage(0)

The folder holds `index` (FAISS, flat inner product) and `docid` (one a line), as Pyserini has them, and
`passages.jsonl` with `offsets.npy`, which stay on disk, and the manifest `whale-index.json`. It is built
whole or not at all (`workshop`), in memory: 3 KB a passage at 768 dimensions.

Not covered: compressed or approximate indexes are opened if they rank by inner product, but not built.
"""

import hashlib
import mmap
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from whale_envs.errors import DataError, UsageError
from whale_envs.retrieval.base import REBUILD, Passage
from whale_envs.retrieval.dense_encoder import INSTALL, Encoder
from whale_envs.retrieval.workshop import deliver, workshop

MANIFEST = "whale-index.json"
_AT_ONCE = 1_024
"""Passages read before they are encoded, sorted by length."""


class DenseManifest(msgspec.Struct, frozen=True):
    """What an index holds, and which encoder must be asked."""

    passages: int
    digest: str
    """SHA-256 over ids, titles and texts, in order."""
    encoder: str
    """Name or folder, as it was given."""
    weights: str
    """SHA-256 of the encoder's weights."""
    dimension: int
    files: dict[str, int]
    """Sizes in bytes."""
    format: int = 1


class DenseIndex(NamedTuple):
    """An open index."""

    faiss: Any
    passage: Callable[[int], Passage]
    """By row of the index."""


def build_dense_index(passages: Iterable[Passage], folder: Path | str, encoder: str) -> DenseManifest:
    """Encodes and indexes all passages; returns when the index is complete.

    Args:
        passages: read once; ids are unique, contents not blank.
        folder: must not exist, or be empty.
        encoder: a model of the Hugging Face hub, or the folder of one.

    Raises:
        UsageError: the folder cannot be used, or a package is missing.
        DataError: a passage without id or contents, two of the same id, or none at all; no encoder.
        InfrastructureError: the encoder cannot be fetched.
    """
    folder = Path(folder).absolute()
    faiss = import_faiss()
    with workshop(folder) as work:
        made = work / "made"
        made.mkdir()
        model = Encoder(encoder, rough=True)
        index = faiss.IndexFlatIP(model.dimension)
        digest = hashlib.sha256()
        offsets = [0]
        encode = msgspec.json.Encoder().encode
        with (made / "passages.jsonl").open("wb") as rows, (made / "docid").open("wb") as ids:
            for some in _chunks(_checked(passages)):
                for passage in some:
                    line = _line(passage, encode)
                    digest.update(line)
                    rows.write(line)
                    ids.write(f"{passage.id}\n".encode())
                    offsets.append(offsets[-1] + len(line))
                index.add(model.passages([passage.contents for passage in some]))
        if index.ntotal == 0:
            raise DataError("there are no passages to index")
        np.save(made / "offsets.npy", np.array(offsets, np.int64))
        faiss.write_index(index, str(made / "index"))
        manifest = DenseManifest(
            passages=index.ntotal,
            digest=f"sha256:{digest.hexdigest()}",
            encoder=str(Path(encoder).absolute()) if Path(encoder).exists() else encoder,
            weights=model.weights_digest,
            dimension=model.dimension,
            files={path.name: path.stat().st_size for path in sorted(made.iterdir())},
        )
        (made / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))
        deliver(made, folder)
    return manifest


def check_dense(folder: Path) -> DenseManifest | None:
    """The manifest of a folder, whose files are all there; None for one of Pyserini's.

    Raises:
        DataError: the folder holds no dense index, or a damaged one.
    """
    hint = "`whale-bench index build CORPUS FOLDER --retriever dense --encoder NAME` makes one"
    if not folder.is_dir():
        what = "is a file, not the folder of a dense index" if folder.exists() else "does not exist"
        raise DataError(f"{folder} {what}; {hint}")
    for name in ("index", "docid"):
        if not (folder / name).is_file():
            raise DataError(f"{folder} holds no dense index (no file {name}); {hint}")
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=DenseManifest)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise DataError(f"{folder / MANIFEST} cannot be read ({error}); build the index again") from error
    for name, size in manifest.files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size:
            has = f"has {path.stat().st_size:,} bytes" if path.is_file() else "is missing"
            raise DataError(
                f"the dense index {folder} is damaged: {name} {has}, {size:,} were built; {REBUILD}"
            )
    return manifest


def open_dense(folder: Path, passages: Iterable[Passage] | None = None) -> DenseIndex:
    """Reads the vectors into memory, and leaves the passages on disk.

    Args:
        folder: as `check_dense` has accepted.
        passages: of a folder of Pyserini's, which keeps none; held in memory.

    Raises:
        UsageError: a package is missing, the index does not rank by inner product.
        DataError: it cannot be read, or a passage is lacking.
    """
    faiss = import_faiss()
    try:
        index = faiss.read_index(str(folder / "index"))
    except RuntimeError as error:
        raise DataError(f"{folder / 'index'} cannot be read by FAISS: {error}; {REBUILD}") from error
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise UsageError(f"{folder / 'index'} does not rank by inner product, the only way supported")
    if passages is None:
        return DenseIndex(index, _stored(folder))
    docids = (folder / "docid").read_text(encoding="utf-8").split("\n")[: index.ntotal]
    by_id = {passage.id: passage for passage in passages}
    docids = [docid.rstrip() for docid in docids]
    lacking = next((docid for docid in docids if docid not in by_id), None)
    if lacking is not None or len(docids) != index.ntotal:
        what = f"passage {lacking!r} is not in the corpus given" if lacking else f"{len(docids)} ids"
        raise DataError(f"{folder} has {index.ntotal} vectors, but {what}")
    return DenseIndex(index, lambda row: by_id[docids[row]])


def import_faiss() -> Any:
    """The library.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import faiss
    except ImportError as error:
        raise UsageError(f"dense retrieval needs the package faiss-cpu: {INSTALL}") from error
    return faiss


def _stored(folder: Path) -> Callable[[int], Passage]:
    offsets = np.load(folder / "offsets.npy")
    with (folder / "passages.jsonl").open("rb") as file:
        rows = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    decode = msgspec.json.Decoder(Passage).decode
    return lambda row: decode(rows[offsets[row] : offsets[row + 1]])


def _checked(passages: Iterable[Passage]) -> Iterator[Passage]:
    seen = set()
    for passage in passages:
        if not passage.id or passage.id != passage.id.strip() or not passage.id.isprintable():
            raise DataError(f"a passage's id must be one line without blanks at its ends, got {passage.id!r}")
        if not passage.contents.strip():
            raise DataError(f"passage {passage.id!r} is empty")
        if passage.id in seen:
            raise DataError(f"passage {passage.id!r} stands twice in the corpus")
        seen.add(passage.id)
        yield passage


def _line(passage: Passage, encode: Callable[[Passage], bytes]) -> bytes:
    try:
        return encode(passage) + b"\n"
    except UnicodeEncodeError as error:
        raise DataError(f"passage {passage.id!r} holds a lone surrogate: {error}") from error


def _chunks(passages: Iterator[Passage]) -> Iterator[list[Passage]]:
    while some := list(islice(passages, _AT_ONCE)):
        yield some
