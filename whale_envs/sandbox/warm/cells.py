"""One jailed child as the supervisor sees it: its pipes, its program, its end.

    spare (forked, walls up, waiting) → running (a call's) → ended, or idle (a session's) → running …

Not covered: when to start and stop them (`supervisor`), how much they hold (`watch`, `guard`).
"""

import contextlib
import errno
import os
import resource
import signal
import socket
from dataclasses import dataclass

from whale_envs.sandbox.warm import program, wire

_CHUNK = 65536


@dataclass(slots=True)
class Request:
    link: int
    """Which connection of the host asked."""
    call: int
    seconds: float
    session: str
    code: bytes
    asked: float
    """When, on the supervisor's clock."""
    tries: int = 0


class Cell:
    """A child's pipes from before it is forked until after it is reaped."""

    def __init__(self, number: int, half: int) -> None:
        self.number = number
        self._half = half
        self.pid = 0
        self.ready = False
        self.silent = False
        self.took = True
        self.ended = False
        self.session = ""
        self.request: Request | None = None
        self.started = self.deadline = self.idle_since = 0.0
        self.verdict = wire.FINISHED
        self.others: list[int] = []
        """Its processes but the first, when last looked at."""
        self.crowd = self.paused = False
        self.left: tuple[int, int] | None = None
        """How its program ended, where the cell then was ended for what it left running."""
        self.settles = 0.0
        """Until when a session's threads have time to end; 0 while its program runs."""
        self._control = bytearray()
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        self.control, control_end = socket.socketpair()
        self.streams = [out, err]
        for end in self.streams:
            os.set_blocking(end, False)
        self.control.setblocking(False)
        self._ends: list[int] = [out_end, err_end, control_end.detach()]
        self.kept = [wire.Kept(half), wire.Kept(half)]

    def give_ends(self, channel: socket.socket, message: bytes) -> None:
        """Sends the child's ends to the template, and closes them here."""
        try:
            socket.send_fds(channel, [message], self._ends)
        finally:
            for end in self._ends:
                os.close(end)
            self._ends = []

    def start(self, request: Request, now: float) -> bool:
        """Sends the program; False where the child is gone or does not take it."""
        self.request, self.verdict = request, wire.FINISHED
        self.session = request.session
        self.started, self.deadline = now, now + request.seconds
        self.kept = [wire.Kept(self._half), wire.Kept(self._half)]
        self._control.clear()
        self.settles = 0.0
        if self.pid and self.session:
            self.signal(signal.SIGCONT)
        cpu = int(request.seconds) + 2
        data = program.HEADER.pack(bool(request.session), cpu, len(request.code)) + request.code
        try:
            self.took = self.control.send(data) == len(data)
        except OSError:
            self.took = False
        return self.took

    def read(self, stream: int) -> bool:
        """Takes what the stream holds, up to a chunk; False where nobody has it open any more."""
        try:
            data = os.read(self.streams[stream], _CHUNK)
        except BlockingIOError:
            return True
        self.kept[stream].add(data)
        return bool(data)

    def drain(self, most: int) -> None:
        """Takes all that is left in the pipes, at most `most` bytes of each."""
        for stream, descriptor in enumerate(self.streams):
            taken = 0
            while taken < most:
                try:
                    data = os.read(descriptor, _CHUNK)
                except BlockingIOError:
                    break
                if not data:
                    break
                taken += len(data)
                self.kept[stream].add(data)

    def hear(self) -> bytes:
        """What the child said on its control descriptor since the program began."""
        with contextlib.suppress(OSError):
            data = self.control.recv(4096)
            self.silent = not data
            self._control += data
        del self._control[:-4096]
        if program.READY in self._control[:1]:
            self.ready = True
            del self._control[:1]
        return bytes(self._control)

    @property
    def output(self) -> int:
        return self.kept[0].total + self.kept[1].total

    def kill(self, verdict: int) -> None:
        if self.verdict == wire.FINISHED:
            self.verdict = verdict
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """To the child, its group and its other processes, lest one goes on until the kernel ends it."""
        if not self.pid or self.ended:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, number)
            os.killpg(self.pid, number)
        self._signal_others(number)

    def end_others(self) -> None:
        """For what outlives the child where no namespace ends it with the first."""
        self._signal_others(signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _signal_others(self, number: int) -> None:
        for other in self.others:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(other, number)

    def close(self) -> None:
        for descriptor in (*self.streams, *self._ends):
            os.close(descriptor)
        self.streams, self._ends = [], []
        self.control.close()


def raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 1 << 16), hard))


def is_exhaustion(number: int) -> bool:
    """Whether an error means too many at once, so that waiting helps."""
    return number in (errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EMFILE, errno.ENFILE)
