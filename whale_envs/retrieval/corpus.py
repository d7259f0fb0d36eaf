"""Passages from a JSONL file, plain or gzipped.

    for passage in read_corpus("wiki.jsonl.gz"): ...

A line is {"id", "contents"} as Pyserini has it (title, line break, text, or text alone), or {"id",
"title", "text"} and perhaps "description", which becomes the first line of the text and so is indexed
and shown. Other keys are left alone. Files are read as they are asked for, so that a corpus larger than
memory can be indexed.

Not covered: archives, several files, and other formats; `search_qa.corpora` reads the published dumps.
"""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from whale_envs.errors import DataError
from whale_envs.retrieval.base import Passage, split_contents

_GZIP_MAGIC = b"\x1f\x8b"


class _Row(msgspec.Struct):
    id: str | int
    contents: str = ""
    title: str = ""
    text: str = ""
    description: str = ""


def read_corpus(path: Path | str) -> Iterator[Passage]:
    """The passages of a file, in its order; empty lines are passed over.

    Raises:
        DataError: no such file, not gzip inside, a line that is no JSON object of these columns, an id
            that is missing, empty or used before, or nothing to index; says file and line.
    """
    path = Path(path)
    decode = msgspec.json.Decoder(_Row).decode
    seen: set[str] = set()
    number = 0
    try:
        with _open(path) as file:
            for line in file:
                number += 1
                if not line.strip():
                    continue
                passage = _passage(decode(line))
                if passage.id in seen:
                    raise DataError(f"the id {passage.id!r} was used before")
                seen.add(passage.id)
                yield passage
    except (msgspec.DecodeError, UnicodeDecodeError, DataError) as error:
        raise DataError(f"{path}, line {number}: {error}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read after line {number}: {error}") from error
    if not seen:
        raise DataError(f"{path} holds no passages")


def _open(path: Path) -> BinaryIO:
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP_MAGIC
    return cast("BinaryIO", gzip.open(path)) if packed else path.open("rb")


def _passage(row: _Row) -> Passage:
    name = str(row.id)
    if not name:
        raise DataError("the id is empty")
    title, text = split_contents(row.contents) if row.contents else (row.title, row.text)
    if row.contents and (row.text or row.title):
        raise DataError(f"passage {name!r} has contents and also a title or text; give one or the other")
    if not (row.contents or text).strip():
        raise DataError(f"passage {name!r} is empty: contents, or text, says nothing")
    if row.description:
        text = f"{row.description}\n{text}"
    return Passage(name, title, text)
