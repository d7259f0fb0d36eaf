"""An append-only file of records, one a line, that survives a kill.

    lines = JsonLines(Path("history.jsonl"), Made | Point)
    lines.append(record)
    lines.records                                       # everything written, oldest first

A line is with the operating system when `append` returns. One that a kill cut in the middle can only be
the last, and is cut off when the file is opened for writing; any other damage is refused.

Not covered: two writers (the lock of the run's folder is for that), and power failures.
"""

import os
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from whale_envs.errors import DataError, InfrastructureError

T = TypeVar("T", bound=msgspec.Struct)


class JsonLines(Generic[T]):
    """The records of one file.

    Args:
        path: the file; it need not be there.
        kind: what a line holds, a Struct or a tagged union of them.
        readonly: leave the file as it is.

    Raises:
        DataError: a line cannot be read; names it.
    """

    def __init__(self, path: Path, kind: Any, *, readonly: bool = False) -> None:
        self.path = path
        self.records: list[T] = []
        self._readonly = readonly
        data = path.read_bytes() if path.exists() else b""
        whole = data.rfind(b"\n") + 1
        decoder = msgspec.json.Decoder(kind)
        for number, line in enumerate(data[:whole].splitlines(), start=1):
            try:
                self.records.append(decoder.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise DataError(f"{path}:{number}: cannot be read: {error}") from error
        if whole < len(data) and not readonly:
            os.truncate(path, whole)

    def append(self, record: T) -> None:
        """Writes one line.

        Raises:
            InfrastructureError: it cannot be written.
        """
        assert not self._readonly, f"{self.path} was opened to be read only"
        try:
            with self.path.open("ab") as file:
                file.write(msgspec.json.encode(record) + b"\n")
        except OSError as error:
            raise InfrastructureError(f"{self.path}: cannot be written: {error}") from error
        self.records.append(record)
