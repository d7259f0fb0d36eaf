"""Files of JSON lines that survive a kill.

    lines = JsonLines(Path("history.jsonl"), Made | Point)
    lines.append(record)
    lines.records                                       # everything written, oldest first

    append_line(Path("metrics.jsonl"), {"step": 1, "loss": 0.19})
    read_lines(Path("metrics.jsonl"))                   # [{"step": 1, "loss": 0.19}]

A line is with the operating system when `append` returns. One that a kill cut in the middle can only be
the last: `JsonLines` cuts it off when the file is opened for writing and refuses any other damage, for its
records decide what comes next; `read_lines` passes over it, for lines that only inform.

Not covered: two writers (the lock of the run's folder is for that), and power failures.
"""

import os
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from whale_bench.store import write_whole
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
        append_line(self.path, record)
        self.records.append(record)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Every line that is a whole object with a "step"; none where there is no file."""
    found = []
    for text in path.read_bytes().splitlines() if path.exists() else []:
        try:
            line = msgspec.json.decode(text, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue  # cut by a kill
        if "step" in line:
            found.append(line)
    return found


def append_line(path: Path, line: Any) -> None:
    """Writes one line, in a line of its own even behind a torn one.

    Raises:
        InfrastructureError: it cannot be written.
    """
    try:
        with path.open("ab+") as file:
            if file.tell():
                file.seek(-1, 2)
                torn = file.read(1) != b"\n"
                file.write(b"\n" if torn else b"")
            file.write(msgspec.json.encode(line) + b"\n")
    except OSError as error:
        raise InfrastructureError(f"{path}: cannot be written: {error}") from error


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    """Replaces the file by these lines, whole or not at all.

    Raises:
        InfrastructureError: it cannot be written.
    """
    write_whole(path, b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
