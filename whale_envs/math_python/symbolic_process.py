"""Handles of the symbolic helper's processes: a warm parent and its forked children.

    parent = Parent()
    child = parent.fork()                    # at once, even while the parent loads its libraries
    child.wait_ready(deadline)
    child.ask(gold, answer, cpu=1.25)
    reply = child.wait_reply(deadline)

The parent (`symbolic_child.py`) is started by exec, never by a bare fork, so that threads or a JVM in
this process do not matter. It forks children, so that one that is killed has a warm successor at once.
A child compares one pair after another, but none after a long one. It is ended by the kernel at its
limits of CPU time and memory, and with the parent, and ends when nobody listens; the parent ends with
its host, even if that is killed. A child's number stays its own until `end`, for the parent waits for it
only then: so it can be killed and its CPU time read without a race. The more a child has computed, the
lower is its priority, so that the short comparisons go past the long ones.

Not covered: how many run at once, and what an end means (`worker.py`). Linux only.
"""

import contextlib
import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TICK_SECONDS = 0.05
"""How often a child's CPU time is looked at."""
STALL_SECONDS = 0.75
"""A process that gets no CPU time for so long is stopped or starved."""

CHILD = Path(__file__).with_name("symbolic_child.py")
_KEEP = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "HOME", "TMPDIR")
_TICKS = os.sysconf("SC_CLK_TCK")
_MOST_TASKS = 100
"""Tasks of one child, whose memory may fill slowly."""
_NICE = ((0.1, 8), (0.2, 12), (0.4, 15))
"""(CPU seconds, niceness from then on); a child begins with less, but more than its parent's."""


class DiedError(Exception):
    """The process ended; `cpu` is the CPU time it had used, in seconds."""

    def __init__(self, cpu: float = 0.0) -> None:
        super().__init__(f"a helper process ended after {cpu:.2f} s of CPU time")
        self.cpu = cpu


class StalledError(Exception):
    """The process got no CPU time."""


class LateError(Exception):
    """The deadline has passed; `cpu` is the CPU time used until then, in seconds."""

    def __init__(self, cpu: float = 0.0) -> None:
        super().__init__("the deadline has passed")
        self.cpu = cpu


def activity(pid: int) -> tuple[float, bool]:
    """(CPU seconds of a process in steps of a clock tick, whether it is stopped); (0, False) for none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return 0.0, False
    return (int(fields[11]) + int(fields[12])) / _TICKS, fields[0] in "Tt"


class Parent:
    """The warm parent; safe to use from any thread."""

    def __init__(self) -> None:
        environment = {name: os.environ[name] for name in _KEEP if name in os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        environment["PYTHONHASHSEED"] = "0"
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)  # a parent that does not read is a stopped one
        self.began = time.monotonic()
        self.loaded = False
        """Whether a child has ever been ready."""
        try:
            with theirs:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-s", str(CHILD), str(theirs.fileno()), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=environment,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,  # a Ctrl-C is the host's to handle
                )
        except BaseException:
            self._control.close()
            raise

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def fork(self) -> "Child":
        """A child to come.

        Raises:
            DiedError: the parent does not take the order.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"fork"], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise DiedError from error
        return Child(self, ours)

    def reap(self, pid: int) -> None:
        """Lets go of a child that has ended or was killed."""
        with contextlib.suppress(OSError):
            self._control.send(b"%d" % pid)

    def close(self, patience: float = 0.0) -> None:
        """Ends the parent, and with it all its children.

        Args:
            patience: seconds that it may take to let go of children that were ended before.
        """
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        # Its group too: a child that was stopped as it was forked is told to end by nobody else.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def abandon(self) -> None:
        """Forgets the parent in a forked copy of its host."""
        self._control.close()
        self.process.returncode = 0  # it is no child of this process


class Child:
    """One child; used by one thread at a time, but for `kill`."""

    def __init__(self, parent: Parent, line: socket.socket) -> None:
        self.parent = parent
        self.pid = 0
        """0 until it is ready."""
        self.cpu = 0.0
        """CPU seconds for its task, as last seen."""
        self.killed = False
        self.asked = 0
        """Tasks set so far."""
        self._began = 0.0
        self._line = line
        self._buffer = b""
        self._nice = 0
        self._parent_cpu = math.inf

    def wait_ready(self, deadline: float) -> None:
        """Waits until it can be asked.

        Raises:
            DiedError: it or its parent ended.
            StalledError: its parent is stopped, or does not get on though it has loaded its libraries.
            LateError: the deadline has passed.
        """
        if not self.pid:
            self.pid = int(self._read(deadline, self._parent_gets_on))
            self.parent.loaded = True

    def ask(self, gold: str, answer: str, cpu: float) -> None:
        """Sets a task.

        Raises:
            StalledError: it had ended before.
        """
        self._began, self.cpu = activity(self.pid)[0], 0.0
        self.asked += 1
        try:
            ended = self._readable(0)
            if not ended:
                self._line.sendall(json.dumps([gold, answer, cpu]).encode() + b"\n")
        except OSError:
            ended = True
        if ended:
            raise StalledError

    def wait_reply(self, deadline: float) -> dict[str, Any]:
        """What it found.

        Raises:
            DiedError: it ended.
            StalledError: it is stopped, or gets no CPU time.
            LateError: the deadline has passed.
        """
        reply: dict[str, Any] = json.loads(self._read(deadline, self._gets_on))
        return reply

    @property
    def fresh(self) -> bool:
        """Whether it may be given another task."""
        return not self.killed and self.asked < _MOST_TASKS and not self._nice

    def kill(self) -> None:
        """Ends what it is at; `end` is still due."""
        self.killed = True
        if self.pid and self.parent.alive:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)

    def end(self) -> None:
        """Ends it, whatever it is at."""
        self.kill()
        if self.pid and self.parent.alive:
            self.parent.reap(self.pid)
        self._line.close()

    def abandon(self) -> None:
        """Forgets it in a forked copy of its host."""
        self._line.close()

    def _parent_gets_on(self, waited: float) -> bool:
        cpu, stopped = activity(self.parent.process.pid)
        idle = self.parent.loaded and cpu <= self._parent_cpu and waited > 2 * STALL_SECONDS
        self._parent_cpu = min(self._parent_cpu, cpu)
        return not stopped and not idle

    def _gets_on(self, waited: float) -> bool:
        """Whether it works, `waited` seconds after CPU time was last seen; sets its priority."""
        cpu, stopped = activity(self.pid)
        cpu -= self._began
        if stopped or (cpu <= self.cpu and waited > STALL_SECONDS and not self._nice):
            return False
        self.cpu = cpu
        nice = max((nice for limit, nice in _NICE if cpu > limit), default=0)
        if nice > self._nice:
            self._nice = nice
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self.pid, nice)
        return True

    def _read(self, deadline: float, gets_on: Callable[[float], bool]) -> bytes:
        """The next line, as long as `gets_on`, given the seconds without CPU time, says so."""
        cpu, since = self.cpu, time.monotonic()
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if self._readable(max(0.0, min(TICK_SECONDS, left))):
                data = self._receive()
                if not data:
                    raise DiedError(activity(self.pid)[0] - self._began if self.pid else 0.0)
                self._buffer += data
                continue
            if left <= 0:
                raise LateError(self.cpu)
            if not gets_on(time.monotonic() - since):
                raise StalledError
            if self.cpu > cpu:
                cpu, since = self.cpu, time.monotonic()
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _readable(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._line, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def _receive(self) -> bytes:
        try:
            return self._line.recv(65536)
        except OSError:  # it died with our question unread
            return b""
