"""One life of the process that owns Java (`lucene_child`), as its host sees it.

    child = LuceneChild(Settings(index="…", k1=0.9, b=0.4))
    await child.ready()                                # {"documents": 10033, …}
    await child.ask(["who painted the night watch"], 3)

Calls come from any event loop and any thread. Two threads belong to the child: one starts it and
reads its answers, the other writes and watches. The first lives as long as the child does, because on
Linux the kernel ends the child with the *thread* that started it; so it cannot outlive this process.

Not covered: starting a new one when this one dies (`lucene`); other systems than Linux, where a child
whose host is killed ends with its pipe, or within five seconds.
"""

import asyncio
import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from whale_envs.errors import DataError, InfrastructureError, UsageError
from whale_envs.retrieval.base import REBUILD
from whale_envs.retrieval.java import INSTALL, find_jar, find_java

START_SECONDS = 120.0
"""Longest wait for Java and the index, on a machine under load."""
SILENCE_SECONDS = 90.0
"""A child with work that says nothing for that long is taken for hung, and killed."""
HEAP_MB = 512

_CHILD = Path(__file__).with_name("lucene_child.py")
_KEEP = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "HOME", "TMPDIR")
_WATCH_SECONDS = 2.0
_abandoned: "list[LuceneChild]" = []
"""In a forked child of the host: the parent's, whose threads may have held locks at the fork."""
_OTHERS = ("IndexFormatTooNew", "IndexFormatTooOld", "Codec with name", "Could not load codec")
_JAVA_TROUBLE = ("JVM", "libjvm", "UnsupportedClassVersionError", "ModuleNotFoundError", "ImportError")

Lists = list[list[tuple[str, float, str | None]]]
"""Per query, per hit: id, score, stored text."""


class ChildLostError(InfrastructureError):
    """The process ended, or never began; a fresh one may do better."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a child opens."""

    index: str
    k1: float
    b: float
    heap_mb: int = HEAP_MB


class _Message(msgspec.Struct):
    n: int = -1
    lists: Lists | None = None
    error: tuple[str, str] | None = None
    ok: dict[str, Any] | None = None


class LuceneChild:
    """A process of Lucene, being started.

    Raises:
        UsageError: there is no Java or no Pyserini.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._java, self._jar = find_java(), find_jar()
        self.dead = False
        """It ended, or was ended; never again False."""
        self._lock = threading.Lock()
        self._hello: Future[dict[str, Any]] = _running()
        self._calls: dict[int, Future[Lists]] = {}
        self._heard = time.monotonic()
        self._out: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        first = {**asdict(settings), "jar": str(self._jar), "threads": min(4, cores())}
        self._out.put(json.dumps(first).encode() + b"\n")
        self._process: subprocess.Popen[bytes] | None = None
        self._number = 0
        self._life = threading.Thread(target=self._live, name="whale-lucene", daemon=True)
        self._life.start()

    async def ready(self) -> dict[str, Any]:
        """What the child says of itself: documents, stored, lucene, pid.

        Raises:
            DataError: the index cannot be read.
            UsageError: Java does not start.
            ChildLostError: it died.
        """
        return await asyncio.wrap_future(self._hello)

    async def ask(self, queries: list[str], k: int) -> Lists:
        """The hits of each query.

        Raises:
            InfrastructureError: Lucene failed at these queries.
            ChildLostError: the child died before it answered.
        """
        future: Future[Lists] = _running()
        with self._lock:
            if self.dead:
                raise ChildLostError("the Lucene process ended")
            if not self._calls:
                self._heard = time.monotonic()
            self._number += 1
            self._calls[self._number] = future
            line = json.dumps({"n": self._number, "q": queries, "k": k}).encode() + b"\n"
        self._out.put(line)
        return await asyncio.wrap_future(future)

    def kill(self) -> None:
        """Ends the process; it holds nothing that could be lost. Idempotent, from any thread."""
        self.dead = True
        process = self._process
        if process is not None and process.returncode is None:
            process.kill()

    def join(self) -> None:
        """Waits until nothing of it is left."""
        self._life.join(30.0)

    def abandon(self) -> None:
        """In a forked child of the host: lets go of pipes that are the host's. The process lives on."""
        self.dead = True
        _abandoned.append(self)  # never freed: freeing a pipe waits for its lock
        process = self._process
        if process is not None:
            process.returncode = 0  # not ours to wait for
            nothing = os.open(os.devnull, os.O_RDWR)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None and not pipe.closed:  # closing would wait for its lock, too
                    os.dup2(nothing, pipe.fileno())
            os.close(nothing)

    # --- the thread that reads -----------------------------------------------------------------------

    def _live(self) -> None:
        with tempfile.TemporaryFile() as complaints:
            try:
                process = self._start(complaints)
            except OSError as error:
                self._end("it cannot be started", str(error))
                return
            threading.Thread(target=self._write, args=(process,), daemon=True).start()
            trouble = self._listen(process)
            process.kill()
            code = process.wait()
            self._end(trouble or f"it ended with status {code}", _last_words(complaints))
            self._out.put(b"")  # wakes the writer, which ends
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]

    def _start(self, complaints: Any) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-B", str(_CHILD), "serve", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            env=child_environment(self._java.home),
            start_new_session=True,
        )
        self._process = process
        if self.dead:  # closed in the meantime
            process.kill()
        return process

    def _listen(self, process: "subprocess.Popen[bytes]") -> str:
        """Reads until the end; returns what was wrong with what it read."""
        assert process.stdout is not None
        decoder = msgspec.json.Decoder(_Message)
        for line in process.stdout:
            self._heard = time.monotonic()
            try:
                message = decoder.decode(line)
            except msgspec.MsgspecError as error:
                return f"it said {line[:80]!r}, {error}"
            if message.n < 0:
                self._take_hello(message)
                continue
            with self._lock:
                future = self._calls.pop(message.n)
            if message.lists is not None:
                future.set_result(message.lists)
            else:
                name, said = message.error or ("", "")
                future.set_exception(InfrastructureError(f"Lucene failed at a query: {name}: {said}"))
        return ""

    def _take_hello(self, message: _Message) -> None:
        if message.ok is not None:
            self._hello.set_result(message.ok)
        elif message.error is not None:
            self._hello.set_exception(self._explain(*message.error))

    def _end(self, why: str, words: str) -> None:
        with self._lock:
            self.dead = True
            calls, self._calls = self._calls, {}
        lost = ChildLostError(f"the Lucene process is gone: {why}" + (f": {words}" if words else ""))
        if not self._hello.done():
            never = "initialization of" in words  # Java's own words for options or a machine it cannot use
            self._hello.set_exception(self._explain("JVM", " ".join(words.split())) if never else lost)
        for future in calls.values():
            future.set_exception(lost)

    # --- the thread that writes ----------------------------------------------------------------------

    def _write(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        while not self.dead:
            try:
                line = self._out.get(timeout=_WATCH_SECONDS)
            except queue.Empty:
                line = b""
            if line:
                with contextlib.suppress(OSError, ValueError):  # gone, or closed: the reader notices
                    process.stdin.write(line)
                    process.stdin.flush()
            self._watch(process)

    def _watch(self, process: "subprocess.Popen[bytes]") -> None:
        waiting = not self._hello.done() or bool(self._calls)
        limit = SILENCE_SECONDS if self._hello.done() else START_SECONDS
        if waiting and time.monotonic() - self._heard > limit:
            process.kill()

    # --- words ---------------------------------------------------------------------------------------

    def _explain(self, name: str, said: str) -> UsageError:
        """What a failure to open means, in one sentence."""
        index, whole = self._settings.index, f"{name}: {said}"
        if any(sign in whole for sign in _JAVA_TROUBLE):
            return UsageError(
                f"Java {self._java.version} in {self._java.home} does not start Lucene ({whole}); "
                f"to get another: {INSTALL}"
            )
        if any(sign in whole for sign in _OTHERS):
            return DataError(
                f"{index} was built by another version of Lucene than {self._jar.name} reads ({said}); "
                "build it again with this version, or install the Pyserini that built it"
            )
        if "Corrupt" in name or "EOF" in name or "NoSuchFile" in name or "FileNotFound" in name:
            return DataError(f"the Lucene index {index} is damaged ({whole}); {REBUILD}")
        if "IndexNotFound" in name:
            return DataError(f"{index} holds no Lucene index; build one there")
        return DataError(f"the Lucene index {index} cannot be opened ({whole})")


def child_environment(java_home: Path) -> dict[str, str]:
    """What a child is told: no Java options of others, and UTF-8, in which Java reads file names."""
    environment = {name: os.environ[name] for name in _KEEP if name in os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    environment["JAVA_HOME"] = str(java_home)
    environment["LC_ALL"] = "C.UTF-8"
    return environment


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _running() -> "Future[Any]":
    """A future that a cancelled waiter cannot cancel for the others, nor under the reader's hands."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


def _last_words(complaints: Any) -> str:
    complaints.seek(0)
    said: str = complaints.read(20_000).decode("utf-8", "replace").strip()
    return said[-1500:]
