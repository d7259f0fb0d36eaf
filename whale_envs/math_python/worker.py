r"""A pool of killable processes that compare answers symbolically (`symbolic_child.py`).

    POOL.same(r"\sqrt{8}", r"2\sqrt{2}")        # True; from any thread

One comparison is given `JOB_SECONDS` in a process of its own with 500 MB of address space. A
process that takes longer is killed and replaced; the others go on, so that a power tower delays
nobody else. A process that dies is replaced and the comparison tried once more: a text that ends
two processes in a row is at fault itself. Processes are started by exec, never by a bare fork, so
that threads or a JVM in this process do not matter; they end with this process, even if it is
killed.

Not covered: comparisons of many answers at once; the caller's threads are the queue.
"""

import atexit
import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from whale_envs.errors import InfrastructureError
from whale_envs.math_python.values import TooComplexError

JOB_SECONDS = 2.0
"""Longest computation for one comparison."""
START_SECONDS = 60.0
"""Longest wait for a process to load its libraries, on a machine under load."""
MOST_WORKERS = 4

_CHILD = Path(__file__).with_name("symbolic_child.py")
_KEEP = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "HOME", "TMPDIR")


class VerifierError(InfrastructureError):
    """The symbolic helper failed: this says nothing about the answer and is never a verdict."""


class _DiedError(Exception):
    pass


class _LateError(Exception):
    pass


class _Worker:
    """One process; used by one thread at a time."""

    def __init__(self) -> None:
        environment = {name: os.environ[name] for name in _KEEP if name in os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        environment["PYTHONHASHSEED"] = "0"
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-s", "-B", str(_CHILD), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                bufsize=0,
                start_new_session=True,  # a Ctrl-C is the host's to handle
            )
        except OSError as error:
            raise VerifierError(f"cannot start the symbolic verifier: {error}") from error
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._source, self._sink = self.process.stdout.fileno(), self.process.stdin
        self._buffer = b""
        self._ready = False
        self.busy = False
        """True from a question to its answer."""

    def ask(self, gold: str, answer: str, seconds: float) -> dict[str, object]:
        """The child's answer.

        Raises:
            _LateError: none came in time.
            _DiedError: the process ended.
            VerifierError: it never got ready.
        """
        if not self._ready:
            try:
                self._read(time.monotonic() + START_SECONDS)
            except (_LateError, _DiedError):
                raise VerifierError(
                    "the symbolic verifier did not start; are sympy and math-verify installed?"
                ) from None
            self._ready = True
        line = json.dumps([gold, answer, seconds + 1]).encode() + b"\n"
        self.busy = True
        try:
            self._sink.write(line)
        except OSError as error:
            raise _DiedError from error
        reply: dict[str, object] = json.loads(self._read(time.monotonic() + seconds))
        self.busy = False
        return reply

    def _read(self, deadline: float) -> bytes:
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise _LateError
            data = os.read(self._source, 65536)
            if not data:
                raise _DiedError
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class SymbolicPool:
    """At most `most` processes, started when they are first needed. Safe to use from any thread."""

    def __init__(self, most: int = MOST_WORKERS) -> None:
        self._most = most
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._idle: list[_Worker] = []
        self._count = 0
        self.restarts = 0
        """Processes that had to be replaced."""

    def same(self, gold: str, answer: str, seconds: float = JOB_SECONDS) -> bool:
        """Whether the two are equal symbolically.

        Raises:
            TooComplexError: it takes longer or more than the limits allow.
            VerifierError: the helper failed.
        """
        for _ in range(2):
            with self._worker() as worker:
                try:
                    reply = worker.ask(gold, answer, seconds)
                except _LateError:
                    self._discard(worker)
                    raise TooComplexError(f"not decided in {seconds:g} s") from None
                except _DiedError:
                    self._discard(worker)
                    continue
                except VerifierError:
                    self._discard(worker)
                    raise
                if "limit" in reply:
                    self._discard(worker)  # its memory is in an unknown state
                    raise TooComplexError(f"not decided: {reply['limit']}")
            if "error" in reply:
                raise VerifierError(f"the symbolic verifier failed: {reply['error']}")
            return bool(reply["same"])
        raise TooComplexError("it ended two processes in a row")

    def close(self) -> None:
        """Ends the idle processes; those at work end with their comparison or with this process."""
        with self._changed:
            idle, self._idle = self._idle, []
            self._count -= len(idle)
        if self._pid == os.getpid():
            for worker in idle:
                worker.kill()

    @property
    def pids(self) -> list[int]:
        """Ids of the processes that are idle now."""
        with self._changed:
            return [worker.process.pid for worker in self._idle]

    @contextlib.contextmanager
    def _worker(self) -> Iterator[_Worker]:
        self._after_fork()
        with self._changed:
            while not self._idle and self._count >= self._most:
                self._changed.wait()
            worker = self._idle.pop() if self._idle else None
            self._count += worker is None
        try:
            if worker is None:
                worker = _Worker()
            elif worker.process.poll() is not None:  # it died while nobody used it
                worker.kill()
                self.restarts += 1
                worker = _Worker()
        except BaseException:
            with self._changed:
                self._count -= 1
                self._changed.notify()
            raise
        try:
            yield worker
        finally:
            if worker.busy:  # interrupted: its answer must not meet the next question
                worker.kill()
            with self._changed:
                if worker.process.returncode is None:
                    self._idle.append(worker)
                else:
                    self._count -= 1
                self._changed.notify()

    def _discard(self, worker: _Worker) -> None:
        worker.kill()
        self.restarts += 1

    def _after_fork(self) -> None:
        """Processes belong to who started them: a forked child begins with none."""
        if self._pid != os.getpid():
            self._changed = threading.Condition()
            self._idle, self._count, self._pid = [], 0, os.getpid()


POOL = SymbolicPool()
"""The pool of this process."""

atexit.register(POOL.close)
