r"""The Python tool: model-written code in, a typed result out, whatever the code does.

    async with Sandbox() as sandbox:
        result = await sandbox.run("print(6*7)", timeout_s=5)
        result.text                                     # '42\n'
        await sandbox.run("x = 1", session="rollout-7") # variables stay for that session's next call
        sandbox.forget_session("rollout-7")

A `Sandbox` starts at its first call (a second or so, for numpy and sympy) and then serves any number
of calls at once, from any event loop and any thread. `run` of this module uses one that the whole
process shares. If its processes die they are started again: calls in flight are repeated once, a
session's calls are not (their variables are gone) and raise InfrastructureError.

What keeps a program in is in `doctor.layers`. What remains reachable, with every layer active:

- the kernel itself, through the system calls that a calculation needs; this is no virtual machine;
- the machine's CPU, within the limits, and what its caches tell about other programs;
- Python's and the system's libraries and programs, read-only, and nothing else of the file system; but an
  advisory lock can be put on them, and the page cache filled;
- memory that the kernel keeps for a process and nobody counts: tables of its memory maps, file locks and
  file names, some 30 MB for each of at most `Limits.processes`; and the room for pipes that the kernel
  grants to one user, beyond which new pipes are smaller;
- the time of day, the kernel's version, the number of CPUs.

Without namespaces (see `doctor`) also: names, sizes, links and attributes of files and of /proc's folders;
a scratch folder bounded per file only; threads, which are counted by looking and not by the kernel. And
there are no subprocesses, nor changes to the modes, owners and times of files. Landlock and seccomp must
both be there then, or the tool refuses.

Without seccomp also: inotify, System V and POSIX IPC in namespaces of their own, and whatever else its
filter refuses; their memory counts only where a process maps it. Without Landlock, namespaces alone.

Not covered: Windows; macOS (no walls there, so only `unsafe`, and untested); packages beyond
`plan.PACKAGES`; a time limit that allows for a machine that others keep busy (`cpu_seconds` tells).
"""

import asyncio
import atexit
import contextlib
import itertools
import json
import logging
import os
import socket
import subprocess
import threading
from typing import Any, Self

from whale_envs.errors import InfrastructureError, UnconfinedError, UsageError
from whale_envs.sandbox.connection import Connection, SupervisorLostError
from whale_envs.sandbox.plan import Limits, Settings, start
from whale_envs.sandbox.results import RunResult, Status, stream_text
from whale_envs.sandbox.warm import wire

CODE_BYTES = 100_000
"""Longest program, in bytes of UTF-8."""

TIMEOUT_S = 30.0
"""Published time limit of a call (reference §4.2)."""

_MOST_SECONDS = 3_600.0
_START_SECONDS = 300.0
_STATUS: dict[int, Status] = {
    wire.FINISHED: "finished",
    wire.TIMED_OUT: "timed_out",
    wire.MEMORY: "memory",
    wire.OUTPUT_LIMIT: "output_limit",
    wire.CRASHED: "crashed",
}
_NEEDED: dict[str, tuple[frozenset[str], ...]] = {
    "files": (frozenset({"namespaces"}), frozenset({"landlock", "seccomp"})),
    "network": (frozenset({"namespaces"}), frozenset({"seccomp"})),
    "processes": (frozenset({"namespaces"}), frozenset({"seccomp"})),
}
"""What must be held, and the sets of layers of which one is enough."""
_log = logging.getLogger("whale_envs.sandbox")


class Sandbox:
    """The tool and its processes.

    Args:
        limits: of each call.
        concurrent: programs that run at once; more wait, before their time limit begins.
        sessions: kept at most; beyond, the one idle for longest is ended.
        session_seconds: after which an idle session is ended.
        unsafe: run even where no isolation is possible.
        without: layers to leave out ("namespaces", "landlock", "seccomp"), to measure or test them.

    Raises:
        UnconfinedError: at the first call, where some walls are missing and `unsafe` is not given.
    """

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        concurrent: int = 128,
        sessions: int = 256,
        session_seconds: float = 600.0,
        unsafe: bool = False,
        without: tuple[str, ...] = (),
    ) -> None:
        for name, value in (("concurrent", concurrent), ("sessions", sessions)):
            if type(value) is not int or not 1 <= value <= 4096:
                raise UsageError(f"{name} must be an integer from 1 to 4096, got {value!r}")
        self.limits = limits or Limits()
        self.restarts = 0
        """How often the processes died and were started again."""
        self._settings = Settings(self.limits, concurrent, sessions, session_seconds, unsafe, without)
        self._lock = threading.Lock()
        self._server: _Server | None = None
        self._closed = False
        self._sessions: dict[str, tuple[int, str]] = {}
        """Of each session: the life of the processes it belongs to, and its name there, used once only."""
        self._numbers = itertools.count(1)

    async def run(self, code: str, *, session: str | None = None, timeout_s: float = TIMEOUT_S) -> RunResult:
        """Runs a program, and returns when nothing of it is left.

        Args:
            code: any text.
            session: a name; its variables stay for its next call.
            timeout_s: wall seconds from the program's start, above 0 and at most 3,600.

        Raises:
            UsageError: an argument is of the wrong kind, or the session is running another call.
            InfrastructureError: the sandbox's processes died, twice where there is no session.
        """
        _check(code, session, timeout_s)
        program = code.encode("utf-8", "surrogatepass")
        if len(program) > CODE_BYTES:
            return RunResult(status="refused", limit=f"{CODE_BYTES:,} bytes")
        for _ in range(2):
            server = await self._ready()
            name = self._claim(session, server).encode() if session is not None else b""
            payload = wire.RUN_HEAD.pack(timeout_s, len(name)) + name + program
            try:
                kind, answer = await server.connection().call(wire.RUN, payload)
            except SupervisorLostError:
                self._bury(server)
                if session is not None:
                    break
                continue
            if kind == wire.BUSY:
                raise UsageError(f"session {session!r} is running another call")
            if kind == wire.FAILED:
                raise InfrastructureError(f"the sandbox cannot serve: {answer.decode(errors='replace')}")
            return self._result(answer, timeout_s)
        raise InfrastructureError("the sandbox's processes died during the call")

    def forget_session(self, session: str) -> None:
        """Ends a session, and a call that it is running; from any thread, without waiting.

        Its name may be used again at once, for a new one. One that does not exist is no error.
        """
        found = self._sessions.pop(session, None)
        server = self._server
        if found is not None and server is not None and server.alive and server.generation == found[0]:
            server.tell(wire.FORGET, found[1].encode())

    def hello(self) -> dict[str, Any]:
        """What the processes say of themselves; starts them. Blocks for a second at first."""
        return self._start().hello

    @staticmethod
    def missing(hello: dict[str, Any]) -> str:
        """What no active layer protects, with the reasons; empty where all is protected."""
        return _missing(hello["layers"])

    def close(self) -> None:
        """Ends every process; idempotent, from any thread. The sandbox cannot be used again."""
        with self._lock:
            self._closed = True
            server, self._server = self._server, None
        if server is not None:
            server.close()

    async def __aenter__(self) -> Self:
        await self._ready()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    # --- private -----------------------------------------------------------------------------------

    async def _ready(self) -> "_Server":
        server = self._server
        if server is not None and server.alive:
            return server
        return await asyncio.to_thread(self._start)

    def _start(self) -> "_Server":
        with self._lock:
            if self._closed:
                raise UsageError("this sandbox is closed")
            if self._server is not None and self._server.alive:
                return self._server
            if self._server is not None and self._server.owner == os.getpid():
                words = self._server.words()
                self._server.close()
                self.restarts += 1
                _log.warning(
                    "the sandbox's processes died; starting them again (time %d)%s", self.restarts, words
                )
            self._server = None
            server = _Server(self._settings, self.restarts)
            missing = self.missing(server.hello)
            if missing and not self._settings.unsafe:
                server.close()
                raise UnconfinedError(
                    f"model-written Python would not be confined here ({missing}); "
                    "give --unsafe-python (Sandbox(unsafe=True)) to run it all the same"
                )
            self._server = server
            return server

    def _bury(self, server: "_Server") -> None:
        server.alive = False

    def _claim(self, session: str, server: "_Server") -> str:
        """The session's name in the supervisor."""
        number = f"{next(self._numbers)}"
        generation, name = self._sessions.setdefault(session, (server.generation, number))
        if generation != server.generation:
            self._sessions.pop(session, None)
            raise InfrastructureError(f"session {session!r} was lost when the sandbox's processes died")
        while len(self._sessions) > 65_536:
            self.forget_session(next(iter(self._sessions)))
        return name

    def _result(self, answer: bytes, timeout_s: float) -> RunResult:
        how, code, wall, cpu, waited, lost = wire.ENDED.unpack_from(answer)
        at = wire.ENDED.size
        texts: list[str] = []
        left_out = 0
        for _ in range(2):
            head, characters, dropped, tail = wire.STREAM.unpack_from(answer, at)
            at += wire.STREAM.size
            middle, end = at + head, at + head + tail
            text, missing = stream_text(answer[at:middle], characters, dropped, answer[middle:end])
            texts.append(text)
            left_out += missing
            at = end
        status = _STATUS[how]
        own = status in ("finished", "memory", "crashed")
        limits = {
            "timed_out": f"{timeout_s:g} s",
            "memory": f"{self.limits.memory_mb} MB",
            "output_limit": f"{self.limits.output_mb} MB",
        }
        return RunResult(
            status=status,
            stdout=texts[0],
            stderr=texts[1],
            exit_code=code if own and code >= 0 else None,
            signal=-code if own and code < 0 else None,
            seconds=wall,
            cpu_seconds=cpu,
            waited_seconds=waited,
            left_out=left_out,
            session_lost=bool(lost),
            limit=limits.get(status, ""),
        )


class _Server:
    """One life of the sandbox's processes."""

    def __init__(self, settings: Settings, generation: int) -> None:
        self.generation = generation
        self.owner = os.getpid()
        self.alive = True
        self._connections: dict[asyncio.AbstractEventLoop, Connection] = {}
        self._lock = threading.Lock()
        self._process, self._control, self._complaints = start(settings)
        try:
            self.hello = self._hear_hello()
        except InfrastructureError:
            self.close()
            raise

    def _hear_hello(self) -> dict[str, Any]:
        self._control.settimeout(_START_SECONDS)
        line = bytearray()
        while not line.endswith(b"\n"):
            try:
                part = self._control.recv(65_536)
            except OSError as error:
                raise InfrastructureError(f"the sandbox did not start: {error}{self.words()}") from error
            if not part:
                raise InfrastructureError(f"the sandbox did not start{self.words()}")
            line += part
        self._control.settimeout(5.0)
        hello: dict[str, Any] = json.loads(line)
        return hello

    def words(self) -> str:
        self._complaints.seek(0)
        said = self._complaints.read(20_000).decode("utf-8", "replace").strip()
        return f": {said[-2000:]}" if said else ""

    def connection(self) -> Connection:
        """The running event loop's connection.

        Raises:
            SupervisorLostError: the supervisor is gone.
        """
        loop = asyncio.get_running_loop()
        found = self._connections.get(loop)
        if found is not None:
            if not found.alive:
                raise SupervisorLostError("the supervisor ended")
            return found
        with self._lock:
            for other in [other for other in self._connections if other.is_closed()]:
                self._connections.pop(other).close()
            ours, theirs = socket.socketpair()
            try:
                socket.send_fds(self._control, [b"L"], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise SupervisorLostError("the supervisor ended") from error
            finally:
                theirs.close()
            self._connections[loop] = Connection(ours)
            return self._connections[loop]

    def tell(self, kind: int, payload: bytes) -> None:
        """Sends a message that has no answer, from any thread, on a connection of its own."""
        ours, theirs = socket.socketpair()
        with ours, theirs, self._lock, contextlib.suppress(OSError):  # a dead supervisor has no sessions
            socket.send_fds(self._control, [b"L"], [theirs.fileno()])
            ours.sendall(wire.FRAME.pack(len(payload), kind, 0) + payload)

    def close(self) -> None:
        self.alive = False
        with self._lock:
            for connection in self._connections.values():
                connection.close_from_anywhere()
        self._control.close()
        if self.owner == os.getpid():
            _end(self._process)
        self._complaints.close()


def _check(code: object, session: str | None, timeout_s: float) -> None:
    if not isinstance(code, str):
        raise UsageError(f"code is a string, got {type(code).__name__}: {code!r:.80}")
    if isinstance(timeout_s, bool) or not 0 < timeout_s <= _MOST_SECONDS:
        raise UsageError(f"timeout_s must lie above 0 and up to {_MOST_SECONDS:g}, got {timeout_s!r}")
    if session is not None and not 0 < len(session) <= 250:
        raise UsageError(f"a session's name has 1 to 250 characters, got {session!r:.80}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    """The closed control socket ends the supervisor; a keeper that stays is killed, and all with it."""
    try:
        process.wait(5.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _missing(layers: list[dict[str, Any]]) -> str:
    """What no active layer protects, with the kernel's reasons; empty where all is."""
    active = {layer["name"] for layer in layers if layer["active"]}
    open_ = [what for what, walls in _NEEDED.items() if not any(wall <= active for wall in walls)]
    if not open_:
        return ""
    reasons = "; ".join(f"{layer['name']}: {layer['why']}" for layer in layers if not layer["active"])
    return f"open: {', '.join(open_)}; {reasons}"


_shared_lock = threading.Lock()
_shared: Sandbox | None = None


def shared() -> Sandbox:
    """The sandbox of this whole process, ended when the process ends."""
    global _shared  # noqa: PLW0603 - one per process is the point
    with _shared_lock:
        if _shared is None or _shared._closed:
            _shared = Sandbox()
            atexit.register(_shared.close)
        return _shared


async def run(code: str, *, session: str | None = None, timeout_s: float = TIMEOUT_S) -> RunResult:
    """As `Sandbox.run`, in the sandbox that the whole process shares."""
    return await shared().run(code, session=session, timeout_s=timeout_s)


__all__ = ["CODE_BYTES", "TIMEOUT_S", "Limits", "RunResult", "Sandbox", "run", "shared"]
