"""One worker process of a harness, as the host sees it: lines out, lines in, never blocking.

    worker = await Worker.start(Start(name, source), unsafe=False, memory_mb=256, seconds=30)
    worker.settings                                     # what the harness said of itself
    worker.listen(on_line, on_end)                      # from then on
    worker.send(lines)
    await worker.end()                                  # and nothing of it is left

The process is confined (`whale_envs.sandbox.confined`): it holds the harness's source and the few
modules in `MODULES`, and neither environment nor examples nor answers.

Not covered: which call an answer belongs to, and what is done about one that does not come (`host`).
"""

import asyncio
import importlib.util
import socket
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import msgspec

from whale_bench.harness.base import DECISION_BYTES, Settings
from whale_bench.harness.calls import Fault, Start
from whale_envs.errors import HarnessFileError, InfrastructureError
from whale_envs.sandbox.confined import Confined, Job, refuse, start

MODULES = (
    "whale_bench.harness.worker",
    "whale_bench.harness.python_code",
    *(
        f"whale_bench.harness.h0.{path.stem}"
        for path in sorted(Path(__file__).with_name("h0").glob("[a-z]*.py"))
    ),
)
"""Loaded in a worker; with the standard library, msgspec and `whale_bench.harness`, all it can import."""

MEMORY_MB = 256
"""Most memory of a worker, beyond what an empty one takes."""

WALLS_SECONDS = 120.0
"""Longest wait for the walls to stand, on a machine that others keep busy."""

_CHUNK = 262_144
_MOST_LINE = 2 * DECISION_BYTES
"""Room for what a call may be answered with, the state, and the harness's constants."""


class Worker:
    """A running worker; belongs to the event loop that it was started in."""

    settings: Settings
    layers: list[dict[str, Any]]

    def __init__(self, process: Confined) -> None:
        self._process = process
        self._sock: socket.socket = process.sock
        self._loop = asyncio.get_running_loop()
        self._in, self._out = bytearray(), bytearray()
        self._first: asyncio.Future[bytes] | None = None
        self._on_line: Callable[[bytes], None] = self._keep
        self._on_end: Callable[[str], None] = self._give_up
        self._open = True
        self._sock.setblocking(False)
        self._loop.add_reader(self._sock, self.read)

    @classmethod
    async def start(cls, harness: Start, *, unsafe: bool, memory_mb: int = MEMORY_MB, seconds: float) -> Self:
        """Starts a process and loads a harness in it.

        Raises:
            HarnessFileError: the file cannot be used, or took more than `seconds`.
            InfrastructureError: no process came up.
            UsageError: it would not be confined here, and `unsafe` is not given.
        """
        worker = cls(start(_job(memory_mb)))
        try:
            worker.layers = await worker._hello()
            if not unsafe:
                refuse(worker.layers, "a harness file", "unsafe=True (check-harness: --unsafe-harness)")
            worker.settings = await worker._load(harness, seconds)
        except BaseException:
            await worker.end()
            raise
        return worker

    async def _hello(self) -> list[dict[str, Any]]:
        line = await self._next(WALLS_SECONDS)
        if not line:
            raise InfrastructureError(f"a harness's worker did not start ({await self.end()})")
        layers: list[dict[str, Any]] = msgspec.json.decode(line)["layers"]
        return layers

    async def _load(self, harness: Start, seconds: float) -> Settings:
        self.send([msgspec.json.encode(harness)])
        try:
            line = await self._next(seconds)
        except TimeoutError:
            raise HarnessFileError(f"{harness.path}: not loaded in {seconds:g} s") from None
        if not line:
            how = await self.end()
            raise HarnessFileError(f"{harness.path}: its process ended while the file was loaded ({how})")
        try:
            if line.startswith(b'{"type":"fault"'):
                raise HarnessFileError(msgspec.json.decode(line, type=Fault).text)
            return msgspec.json.decode(line, type=Settings)
        except (msgspec.DecodeError, RecursionError) as error:
            raise HarnessFileError(f"{harness.path}: broken answer while it was loaded: {error}") from error

    def listen(self, on_line: Callable[[bytes], None], on_end: Callable[[str], None]) -> None:
        """Who is told of each line, and once of the end, with what is known of it."""
        self._on_line, self._on_end = on_line, on_end

    def send(self, lines: list[bytes]) -> None:
        """All of them at once."""
        waiting = bool(self._out)
        for line in lines:
            self._out += line
            self._out += b"\n"
        if not waiting:
            self._write()

    def cpu_seconds(self) -> float:
        """What the process has used, its start included; 0 where it has ended or nobody says."""
        return self._process.cpu_seconds()

    async def end(self) -> str:
        """Ends the process, if it has not ended, and waits for it; returns how it ended."""
        self._close()
        return await asyncio.shield(asyncio.to_thread(self._process.end))

    def read(self) -> None:
        """Takes what has come."""
        while self._open:
            try:
                data = self._sock.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._close()
                self._on_end("its process ended")
                return
            self._in += data
            if b"\n" in data:
                *lines, rest = self._in.split(b"\n")
                self._in = rest
                for line in lines:
                    self._on_line(bytes(line))
            if len(self._in) > _MOST_LINE:
                self._close()
                self._on_end(f"it wrote a line of more than {_MOST_LINE >> 20} MiB")
                return
            if len(data) < _CHUNK:
                return

    # --- private -----------------------------------------------------------------------------------

    def _write(self) -> None:
        if not self._open:
            return
        try:
            sent = self._sock.send(self._out)
        except BlockingIOError:
            sent = 0
        except OSError:  # the reading side tells
            self._out.clear()
            return
        del self._out[:sent]
        if self._out:
            self._loop.add_writer(self._sock, self._write)
        else:
            self._loop.remove_writer(self._sock)

    def _close(self) -> None:
        if self._open:
            self._open = False
            if not self._loop.is_closed():
                self._loop.remove_reader(self._sock)
                self._loop.remove_writer(self._sock)

    async def _next(self, seconds: float) -> bytes:
        """The next line of the beginning; empty where the process ended instead."""
        self._first = self._loop.create_future()
        self.read()
        async with asyncio.timeout(seconds):
            return await self._first

    def _keep(self, line: bytes) -> None:
        if self._first is not None and not self._first.done():
            self._first.set_result(line)
        else:
            self._give_up("")  # it spoke out of turn

    def _give_up(self, _: str) -> None:
        self._close()
        if self._first is not None and not self._first.done():
            self._first.set_result(b"")


@lru_cache
def _job(memory_mb: int) -> Job:
    roots = {Path(__file__).resolve().parents[2]}
    spec = importlib.util.find_spec("msgspec")
    assert spec is not None
    assert spec.origin is not None
    roots.add(Path(spec.origin).parent.parent)
    return Job("whale_bench.harness.worker:serve", MODULES, tuple(map(str, sorted(roots))), memory_mb)


async def worker_layers() -> list[dict[str, Any]]:
    """The layers that protect from harness files here, as rows of name, active and why."""
    worker = Worker(start(_job(MEMORY_MB)))
    try:
        return await worker._hello()
    finally:
        await worker.end()
