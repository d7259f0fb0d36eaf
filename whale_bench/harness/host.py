"""Loads a harness and runs its hooks: shipped files in process, any other in a process of its own.

    async with load_harness("chess_puzzles", file="mine.py") as harness:
        decision, state = await harness.call(view)

Both kinds answer the same calls (`calls.py`). The host keeps each rollout's state, so a worker that
hangs or dies is killed, started anew, and costs only the rollout whose call it was.

Not covered: network and file isolation of the worker, memory limits.
"""

import abc
import asyncio
import copy
import hashlib
import os
import signal
import sys
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

import msgspec

from whale_bench.harness.base import Act, Ask, Nudge, Reply, Settings, Stop, View
from whale_bench.harness.calls import Answer, Call, HarnessFault, Start, answer_call, load
from whale_envs.errors import (
    HarnessError,
    HarnessFileError,
    InfrastructureError,
    UnknownNameError,
    UsageError,
)

CALL_SECONDS = 5.0
"""Longest wait for one call of a harness in a process of its own."""

START_SECONDS = 30.0
"""Longest wait for a harness file to be loaded."""

_GRACE = 1.0
"""Seconds after which a worker that the host has not ended ends itself."""

_MOST_LINE = 2**26
_FAULT = b'{"fault"'

HostDecision = Ask | Act | Nudge | Stop


class HarnessHost(abc.ABC):
    """A loaded harness. Also an async context manager that ends what it started."""

    name: str
    source: str
    settings: Settings

    @property
    def harness_id(self) -> str:
        """Content hash of the file."""
        return "sha256:" + hashlib.sha256(self.source.encode()).hexdigest()

    @abc.abstractmethod
    async def call(self, view: View, reply: Reply | None = None) -> tuple[HostDecision, dict[str, Any]]:
        """(decision, new state): the next messages, or what `reply` means.

        Raises:
            HarnessError: the harness raised, broke the contract, hung or died.
        """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None


class InProcessHarness(HarnessHost):
    """For files that ship with this package."""

    def __init__(self, source: str, name: str) -> None:
        self.name, self.source = name, source
        try:
            self._harness, self.settings = load(source, name)
        except HarnessFault as fault:
            raise HarnessFileError(str(fault)) from fault

    async def call(self, view: View, reply: Reply | None = None) -> tuple[HostDecision, dict[str, Any]]:
        try:
            answer = answer_call(self._harness, Call(copy.copy(view), reply), self.name)
        except HarnessFault as fault:
            raise HarnessError("harness_error", str(fault)) from fault
        return answer.decision, answer.state


class ProcessHarness(HarnessHost):
    """For any other file: one worker process, started in `__aenter__`, one call at a time."""

    def __init__(self, path: Path, *, call_seconds: float = CALL_SECONDS) -> None:
        self.name = str(path)
        try:
            self.source = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise HarnessFileError(f"{path}: cannot be read as a harness file: {error}") from error
        self._call_seconds = call_seconds
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._decoder = msgspec.json.Decoder(Answer)
        self.restarts = 0

    async def __aenter__(self) -> Self:
        async with self._lock:
            await self._start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._kill()

    async def call(self, view: View, reply: Reply | None = None) -> tuple[HostDecision, dict[str, Any]]:
        line = msgspec.json.encode(Call(view, reply)) + b"\n"
        async with self._lock:
            if self._process is None:
                self.restarts += 1
                try:
                    await self._start()
                except HarnessFileError as error:  # it loaded once: what changed is its own doing
                    raise HarnessError("harness_error", str(error)) from error
            raw = await self._exchange(line)
            try:
                if raw.startswith(_FAULT):
                    raise HarnessError(
                        "harness_error", msgspec.json.decode(raw, type=dict[str, str])["fault"]
                    )
                answer = self._decoder.decode(raw)
            except msgspec.DecodeError as error:
                await self._kill()  # what else it wrote must not meet the next call
                raise HarnessError("harness_error", f"{self.name}: broken answer: {error}") from error
        return answer.decision, answer.state

    async def _exchange(self, line: bytes) -> bytes:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(self._call_seconds):
                process.stdin.write(line)
                await process.stdin.drain()
                raw = await process.stdout.readline()
        except TimeoutError:
            await self._kill()
            raise HarnessError(
                "harness_timeout", f"{self.name}: no answer in {self._call_seconds:g} s"
            ) from None
        except (OSError, ValueError) as error:
            await self._kill()
            raise HarnessError("harness_error", f"{self.name}: its process broke off: {error}") from error
        except asyncio.CancelledError:
            await self._kill()  # the answer to a cancelled call must not meet the next one
            raise
        if not raw.endswith(b"\n"):
            await self._kill()
            raise HarnessError("harness_error", f"{self.name}: its process ended during a call")
        return raw

    async def _start(self) -> None:
        keep = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT")
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-I", "-B", "-m", "whale_bench.harness.worker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={name: os.environ[name] for name in keep if name in os.environ},
                start_new_session=True,  # a Ctrl-C is the host's to handle
                limit=_MOST_LINE,
            )
        except OSError as error:
            raise InfrastructureError(f"cannot start a harness process: {error}") from error
        assert process.stdin is not None
        assert process.stdout is not None
        start = Start(self.name, self.source, START_SECONDS + _GRACE, self._call_seconds + _GRACE)
        try:
            async with asyncio.timeout(START_SECONDS):
                process.stdin.write(msgspec.json.encode(start) + b"\n")
                await process.stdin.drain()
                raw = await process.stdout.readline()
        except TimeoutError:
            await self._kill()
            raise HarnessFileError(f"{self.name}: not loaded in {START_SECONDS:g} s") from None
        except (OSError, ValueError):  # it ended before it read anything, or wrote without an end
            raw = b""
        except asyncio.CancelledError:
            await self._kill()
            raise
        if not raw.endswith(b"\n"):
            await self._kill()
            raise HarnessFileError(f"{self.name}: its process ended while the file was loaded")
        try:
            if raw.startswith(_FAULT):
                raise HarnessFileError(msgspec.json.decode(raw, type=dict[str, str])["fault"])
            self.settings = msgspec.json.decode(raw, type=Settings)
        except (HarnessFileError, msgspec.DecodeError) as error:
            await self._kill()
            if isinstance(error, HarnessFileError):
                raise
            raise HarnessFileError(f"{self.name}: broken answer while it was loaded: {error}") from error

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # with what it may have started
            await process.wait()


def shipped_harnesses() -> dict[str, str]:
    """Source of each domain's h0, by domain."""
    folder = files("whale_bench.harness") / "h0"
    return {
        entry.name.removesuffix(".py"): entry.read_text(encoding="utf-8")
        for entry in sorted(folder.iterdir(), key=lambda e: e.name)
        if entry.name.endswith(".py") and not entry.name.startswith("_")
    }


def load_harness(domain: str, file: str | Path | None = None) -> HarnessHost:
    """The domain's h0, or the harness of a file.

    Raises:
        UnknownNameError: the domain has no h0.
        HarnessFileError: the file cannot be read or used; some faults show only in `__aenter__`.
    """
    if file is None:
        shipped = shipped_harnesses()
        if domain not in shipped:
            raise UnknownNameError("environment", domain, shipped)
        return InProcessHarness(shipped[domain], f"h0/{domain}.py")
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"harness file {str(file)!r} does not exist; give a Python file, or none for h0")
    return ProcessHarness(path.resolve())
