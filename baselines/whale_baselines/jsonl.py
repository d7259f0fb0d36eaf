"""Files of JSON lines that a kill may cut: read past a torn line, append a whole one.

    append_line(Path("dev.jsonl"), {"step": 0, "mean": 0.19})
    read_lines(Path("dev.jsonl"))                       # [{"step": 0, "mean": 0.19}]

Not covered: files that two processes write.
"""

from pathlib import Path
from typing import Any

import msgspec

from whale_envs.errors import InfrastructureError


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


def append_line(path: Path, line: dict[str, Any]) -> None:
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
    temporary = path.with_name(f".half-written-{path.name}")
    try:
        temporary.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        temporary.replace(path)
    except OSError as error:
        raise InfrastructureError(f"{path}: cannot be written: {error}") from error
