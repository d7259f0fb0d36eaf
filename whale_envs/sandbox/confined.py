"""A long-lived worker behind the walls of the interpreter tool, for code that nobody here wrote.

    worker = start(Job(entry="package.module:serve", modules=("package.module",), roots=(folder,)))
    worker.sock                                         # the function's descriptor, at our end
    worker.end()                                        # and nothing of it is left

`serve(descriptor)` runs alone: in namespaces of its own, with Python's standard library to read and
nothing to write, no network, no other process, program or thread, and at most `memory_mb` of memory.
Its first words are a line of JSON with the layers that stand (`refuse` reads them). What it imports
from `roots` is loaded before the walls go up, and those folders are not there behind them.

What remains reachable is what `client` names for the interpreter tool, without its scratch folder.

Not covered: time limits, and what is said on the socket.
"""

import contextlib
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from whale_envs.errors import UnconfinedError
from whale_envs.sandbox.client import Sandbox
from whale_envs.sandbox.plan import hidden_folders, launch

MEMORY_MB = 256
_END_SECONDS = 5.0
_SIGNALLED = 128
_granted = False
"""Whether a worker of this process has had namespaces, so that the next needs no trial."""


@dataclass(frozen=True, slots=True)
class Job:
    """What runs behind the walls."""

    entry: str
    """`module:function`, called with a descriptor; the worker ends when it returns."""
    modules: tuple[str, ...]
    """Imported before the walls go up; afterwards only the standard library can be."""
    roots: tuple[str, ...]
    """Folders that the modules are imported from."""
    memory_mb: int = MEMORY_MB
    """Beyond what the worker maps at its start."""
    without: tuple[str, ...] = ()
    """Layers to leave out, to measure or test them."""


class Confined:
    """A running worker."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", sock: socket.socket, complaints: IO[bytes]
    ) -> None:
        self.sock = sock
        self._process, self._complaints = process, complaints
        self._owner = os.getpid()

    def cpu_seconds(self) -> float:
        """What the worker has used so far, its start included; 0 where it has ended or nobody says."""
        pids, ticks = [self._process.pid], 0
        for pid in pids:  # those that are added too: the worker is a child's child
            with contextlib.suppress(OSError, ValueError, IndexError):
                folder = Path("/proc", str(pid))
                fields = (
                    (folder / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
                )
                ticks += int(fields[11]) + int(fields[12])
                pids += map(int, (folder / "task" / str(pid) / "children").read_text().split())
        return ticks / os.sysconf("SC_CLK_TCK")

    def end(self) -> str:
        """Kills the worker if it runs, and waits for its end; returns how that was. Idempotent; blocks."""
        self.sock.close()
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._owner != os.getpid():  # a fork of the host: not ours to wait for
            return ""
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        said = ""
        if not self._complaints.closed:
            self._complaints.seek(0)
            said = self._complaints.read(20_000).decode("utf-8", "replace").strip()[-500:]
            self._complaints.close()
        how = f"signal {code - _SIGNALLED}" if code > _SIGNALLED else f"status {code}"
        return f"{how}: {said}" if said else how


def start(job: Job) -> Confined:
    """Starts a worker; it says which layers stand before it does anything else.

    Raises:
        InfrastructureError: no process can be started.
        UnconfinedError: this system cannot fork.
    """
    config: dict[str, Any] = {
        "host_pid": os.getpid(),
        "prefix": sys.base_prefix,
        "packages": [],
        "hidden": hidden_folders(job.roots),
        "roots": list(job.roots),
        "modules": list(job.modules),
        "entry": job.entry,
        "memory_mb": job.memory_mb,
        "without": list(job.without),
        "sure": _granted and not job.without,
    }
    return Confined(*launch("enclosure", config, what="a confined worker", stdin=subprocess.PIPE))


def refuse(layers: list[dict[str, Any]], what: str, option: str) -> None:
    """UnconfinedError where those layers leave something open; `option` is what runs `what` all the same."""
    global _granted  # noqa: PLW0603 - what the kernel grants, it grants to the whole process
    _granted = _granted or any(layer["name"] == "namespaces" and layer["active"] for layer in layers)
    missing = missing_walls(layers)
    if missing:
        raise UnconfinedError(f"{what} would not be confined here ({missing}); {option} runs it all the same")


def missing_walls(layers: list[dict[str, Any]]) -> str:
    """What no active layer protects, with the reasons; empty where all is protected."""
    return Sandbox.missing({"layers": layers})
