"""Serves the host: takes calls, gives each a jailed child, bounds it, and answers when all of it is gone.

One thread, one loop, no program text run. Children are forked ahead (`spares`), so that a call finds
its walls standing. At most `concurrent` programs run at once, few of them begun just now (`guard`); the
rest wait, and a call's time limit begins when its program does.

    Supervisor(control, config, walls, layers).run()        # until the host closes `control`

The host opens one connection per event loop and sends its descriptor over `control`.

Not covered: fairness between connections; calls start in the order in which they came.
"""

import contextlib
import json
import math
import os
import selectors
import signal
import socket
import struct
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from whale_envs.sandbox.warm import guard, linux, rootfs, watch, wire
from whale_envs.sandbox.warm.cells import Cell, Request, is_exhaustion, raise_descriptor_limit
from whale_envs.sandbox.warm.jail import Walls, remove_tree, scratch_folder
from whale_envs.sandbox.warm.links import Link
from whale_envs.sandbox.warm.program import DONE, NO_MEMORY
from whale_envs.sandbox.warm.template import (
    ENDED,
    FORKED,
    MESSAGE,
    READY,
    REQUEST,
    Template,
)

_SETTLE = 0.25
"""Seconds for which a session's threads may go on after its program."""
_MIB = 2**20
_TRIES = 3


class Supervisor:
    def __init__(
        self, control: socket.socket, config: dict[str, Any], walls: Walls, layers: list[dict[str, Any]]
    ) -> None:
        self._control = control
        self._config = config
        self._limits: dict[str, int] = config["limits"]
        self._walls = walls
        self._layers = layers
        self._selector = selectors.DefaultSelector()
        self._links: dict[int, Link] = {}
        self._next = 0
        self._cells: dict[int, Cell] = {}
        self._spares: deque[Cell] = deque()
        self._queue: deque[Request] = deque()
        self._running: dict[int, Cell] = {}
        self._sessions: dict[str, Cell] = {}
        self._proc: int | None = None
        self._template_pid = 0
        self._failures = 0
        self._guard: guard.Guard | None = None

    # --- life ------------------------------------------------------------------------------------

    def run(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise_descriptor_limit()
        if self._walls.namespaces:
            self._proc = rootfs.open_own_proc()
        elif os.path.isdir("/proc/self"):  # noqa: PTH112
            self._proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._template_pid = os.fork()
        if self._template_pid == 0:
            self._become_template(theirs)
        theirs.close()
        first = self._channel.recv(MESSAGE.size)
        if not first or MESSAGE.unpack(first)[0] != READY:
            raise SystemExit("the template did not start")
        _, _, _, loaded, huge = MESSAGE.unpack(first)
        if self._proc is not None:
            self._guard = guard.Guard(self._proc, self._template_pid, self._config, self._walls)
        self._say_hello(loaded, huge)
        self._selector.register(self._control, selectors.EVENT_READ, self._on_control)
        self._selector.register(self._channel, selectors.EVENT_READ, self._on_template)
        try:
            self._serve()
        finally:
            for cell in self._cells.values():
                cell.signal(signal.SIGKILL)
            if not self._walls.namespaces:
                remove_tree(self._config["scratch"])

    def _serve(self) -> None:
        while True:
            self._refill()
            watched = self._selector.get_map()
            for key, _ in self._selector.select(self._wait()):
                if watched.get(key.fd) is key:  # an earlier event may have closed it
                    key.data()
            self._look()

    def _become_template(self, channel: socket.socket) -> None:
        status = 1
        try:
            if not self._walls.namespaces:  # else it is in a namespace that ends with the supervisor
                linux.die_with_parent()
            self._control.close()
            self._channel.close()
            self._selector.close()
            if self._proc is not None:
                os.close(self._proc)
            Template(channel, self._config, self._walls).run()
            status = 0
        except Exception:  # noqa: BLE001 - the process ends here; the host reads its standard error
            traceback.print_exc()
        finally:
            os._exit(status)

    def _say_hello(self, loaded: int, huge: float) -> None:
        watched = self._proc is not None
        why = "the resident memory of all of a call's processes is watched" if watched else "no /proc here"
        layers = [
            *self._layers,
            {
                "name": "limits",
                "active": True,
                "why": "time, memory, processes, files and output of each call",
            },
            {"name": "memory watch", "active": watched, "why": why},
        ]
        hello = {
            "layers": layers,
            "scratch": self._config["scratch"],
            "loaded": loaded,
            "huge_mb": huge / _MIB,
            "pid": os.getpid(),
        }
        self._control.sendall(json.dumps(hello).encode() + b"\n")

    def _on_control(self) -> None:
        data, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
        if not data:
            raise SystemExit(0)
        for descriptor in descriptors:
            self._next += 1
            link = Link(
                socket.socket(fileno=descriptor), self._next, self._selector, self._on_frame, self._on_lost
            )
            self._links[self._next] = link

    # --- the host's calls ------------------------------------------------------------------------

    def _on_frame(self, link: Link, kind: int, call: int, payload: bytes) -> None:
        if kind == wire.RUN:
            seconds, name = wire.RUN_HEAD.unpack_from(payload)
            rest = payload[wire.RUN_HEAD.size :]
            session = rest[:name].decode()
            request = Request(link.number, call, seconds, session, rest[name:], time.monotonic())
            self._queue.append(request)
        elif kind == wire.CANCEL:
            self._cancel(lambda request: request.link == link.number and request.call == call)
        elif kind == wire.PING:
            link.send(wire.PONG, call)
        elif kind == wire.FORGET:
            name = payload.decode()
            for request in [request for request in self._queue if request.session == name]:
                self._queue.remove(request)
                nothing = wire.Kept(0).pack()
                waited = time.monotonic() - request.asked
                ended = wire.ENDED.pack(wire.CRASHED, 0, 0.0, 0.0, waited, True)
                self._answer(request, wire.RESULT, ended + nothing + nothing)
            cell = self._sessions.pop(name, None)
            if cell is not None:
                cell.kill(wire.CRASHED)

    def _on_lost(self, link: Link) -> None:
        self._links.pop(link.number, None)
        self._cancel(lambda request: request.link == link.number)

    def _cancel(self, which: Callable[[Request], bool]) -> None:
        self._queue = deque(request for request in self._queue if not which(request))
        for cell in self._running.values():
            if cell.request is not None and which(cell.request):
                cell.kill(wire.CRASHED)

    def _answer(self, request: Request, kind: int, payload: bytes = b"") -> None:
        link = self._links.get(request.link)
        if link is not None:
            link.send(kind, request.call, payload)

    # --- cells -----------------------------------------------------------------------------------

    def _refill(self) -> None:
        """Starts what waits, and keeps spares ready."""
        waiting: deque[Request] = deque()
        recent = time.monotonic() - guard.YOUNG
        young = sum(cell.started > recent and not cell.crowd for cell in self._running.values())
        while self._queue and len(self._running) < self._config["concurrent"]:
            if young >= self._config["young"]:
                break
            request = self._queue.popleft()
            young += 1
            if not self._start(request):
                waiting.append(request)
                if not request.session:
                    break
        self._queue.extendleft(reversed(waiting))
        while len(self._spares) < self._config["spares"] and self._spawn():
            pass

    def _start(self, request: Request) -> bool:
        cell = self._sessions.get(request.session) if request.session else None
        if cell is not None and cell.request is not None:
            self._answer(request, wire.BUSY)
            return True
        if cell is None:
            if not self._spares:
                self._spawn()
            if not self._spares:
                return False
            cell = self._spares.popleft()
        if request.session and request.session not in self._sessions:
            self._make_room()
            self._sessions[request.session] = cell
        self._running[cell.number] = cell
        if not cell.start(request, time.monotonic()):
            cell.signal(signal.SIGKILL)
        for stream, descriptor in enumerate(cell.streams):
            if descriptor not in self._selector.get_map():
                read = self._reader(cell, stream)
                self._selector.register(descriptor, selectors.EVENT_READ, read)
        if request.session and cell.control not in self._selector.get_map():
            self._selector.register(cell.control, selectors.EVENT_READ, lambda: self._on_said(cell))
        return True

    def _make_room(self) -> None:
        """Ends the session that has been idle for longest, where there are too many."""
        idle = [cell for cell in self._sessions.values() if cell.request is None]
        if len(self._sessions) >= self._config["sessions"] and idle:
            self._end_session(min(idle, key=lambda cell: cell.idle_since))

    def _end_session(self, cell: Cell) -> None:
        if self._sessions.get(cell.session) is cell:
            del self._sessions[cell.session]
        cell.kill(wire.CRASHED)

    def _spawn(self) -> bool:
        """Puts a new cell at the end of the spares' line; False where there is no room at present."""
        if self._failures > _TRIES and self._running:
            return False
        try:
            self._next += 1
            cell = Cell(self._next, self._limits["kept_kb"] * 512)
        except OSError as error:
            if self._running and is_exhaustion(error.errno or 0):
                return False
            raise
        if not self._walls.namespaces:
            os.makedirs(scratch_folder(self._config, cell.number), mode=0o700)  # noqa: PTH103
        cell.give_ends(self._channel, REQUEST.pack(cell.number))
        self._cells[cell.number] = cell
        self._spares.append(cell)
        return True

    def _on_template(self) -> None:
        data = self._channel.recv(MESSAGE.size)
        if not data:
            raise SystemExit("the template ended")
        kind, number, value, status, cpu = MESSAGE.unpack(data)
        cell = self._cells.get(number)
        if cell is None:
            return
        if kind == FORKED:
            cell.pid = value
            if cell.verdict != wire.FINISHED:  # it was to end before it was born
                cell.signal(signal.SIGKILL)
            return
        self._gone(cell, status if kind == ENDED else None, cpu)

    def _gone(self, cell: Cell, status: int | None, cpu: float) -> None:
        """The child is reaped, and in a pid namespace so is all that it started."""
        cell.ended = True
        if not self._walls.namespaces and cell.pid:
            cell.end_others()
        said = cell.hear()
        cell.drain(self._limits["output_mb"] * _MIB)
        for descriptor in (*cell.streams, cell.control.fileno()):
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
        del self._cells[cell.number]
        self._running.pop(cell.number, None)
        with contextlib.suppress(ValueError):
            self._spares.remove(cell)
        if self._sessions.get(cell.session) is cell:
            del self._sessions[cell.session]
        request, cell.request = cell.request, None
        born = cell.ready and cell.took and status is not None
        self._failures = 0 if born else self._failures + 1
        if request is not None and not born and cell.verdict == wire.FINISHED:
            self._again(request, cell)
        elif request is not None:
            assert status is not None
            how, code = cell.left or _judge(cell, status, said)
            self._report(cell, request, how, code, cpu)
        elif not born and self._failures > 10 * _TRIES:
            raise SystemExit(f"no child can put up its walls: {_words(cell)}")
        cell.close()
        if not self._walls.namespaces:
            remove_tree(scratch_folder(self._config, cell.number))

    def _again(self, request: Request, cell: Cell) -> None:
        """The child never came to the program: another one, a few times."""
        request.tries += 1
        if request.tries < _TRIES or self._running:
            self._queue.appendleft(request)
        else:
            self._answer(request, wire.FAILED, _words(cell).encode())

    def _report(self, cell: Cell, request: Request, how: int, code: int, cpu: float) -> None:
        wall = time.monotonic() - cell.started
        lost = bool(request.session) and cell.ended
        numbers = wire.ENDED.pack(how, code, wall, cpu, cell.started - request.asked, lost)
        self._answer(request, wire.RESULT, numbers + cell.kept[0].pack() + cell.kept[1].pack())

    def _reader(self, cell: Cell, stream: int) -> Callable[[], None]:
        descriptor = cell.streams[stream]

        def read() -> None:
            if not cell.read(stream):
                self._selector.unregister(descriptor)
            elif cell.output > self._limits["output_mb"] * _MIB:
                cell.kill(wire.OUTPUT_LIMIT)

        return read

    # --- sessions --------------------------------------------------------------------------------

    def _on_said(self, cell: Cell) -> None:
        said = cell.hear()
        request = cell.request
        at = said.find(DONE)
        if request is None or at < 0 or len(said) < at + 2:
            if cell.silent:
                self._selector.unregister(cell.control)
                cell.kill(wire.CRASHED)
            return
        if cell.left is not None:
            return
        if not cell.settles:
            if self._proc is not None:
                for number in watch.below(self._proc, cell.pid):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(number, signal.SIGKILL)
            cell.settles = time.monotonic() + _SETTLE
        if self._proc is not None and watch.tasks(self._proc, cell.pid) > 1:
            if time.monotonic() > cell.settles:  # it would go on in the next call: the session ends here
                cell.left = (wire.MEMORY if NO_MEMORY in said[:at] else wire.FINISHED, said[at + 1])
                cell.signal(signal.SIGKILL)
            return
        cell.signal(signal.SIGSTOP)  # nothing of it runs until the next call
        cell.others, cell.crowd, cell.paused = [], False, False
        cell.drain(self._limits["output_mb"] * _MIB)
        cell.request, cell.idle_since = None, time.monotonic()
        self._running.pop(cell.number, None)
        how = wire.MEMORY if NO_MEMORY in said[:at] else wire.FINISHED
        self._report(cell, request, how, said[at + 1], 0.0)

    # --- the clock -------------------------------------------------------------------------------

    def _wait(self) -> float | None:
        if self._running:
            # Not of those that are killed and not gone yet: a loop without waiting, at this process's
            # priority, would leave them no time to die in.
            alive = (cell.deadline for cell in self._running.values() if cell.verdict == wire.FINISHED)
            soonest = min(alive, default=math.inf)
            settling = any(cell.settles for cell in self._running.values())
            return min(0.005 if settling else guard.EVERY, max(0.0, soonest - time.monotonic()))
        if self._sessions:
            return 1.0
        return 0.02 if self._queue else None

    def _look(self) -> None:
        now = time.monotonic()
        for cell in [cell for cell in self._running.values() if cell.settles]:
            self._on_said(cell)
        for cell in self._running.values():
            if now >= cell.deadline and cell.verdict == wire.FINISHED:
                cell.kill(wire.TIMED_OUT)
        for cell in [c for c in self._sessions.values() if c.request is None]:
            if now - cell.idle_since > self._config["session_seconds"]:
                self._end_session(cell)
        if self._guard is not None and any(now - c.started > guard.EVERY for c in self._running.values()):
            self._guard.look({c.pid: c for c in self._cells.values() if c.pid and not c.ended}, now)


def _judge(cell: Cell, status: int, said: bytes) -> tuple[int, int]:
    """How a call ended, from its wait status; the child's own word counts for memory only."""
    code = os.waitstatus_to_exitcode(status)
    if cell.verdict != wire.FINISHED:
        return cell.verdict, code
    if code == -signal.SIGXCPU:
        return wire.TIMED_OUT, code
    if code < 0:
        return wire.CRASHED, code
    if code and NO_MEMORY in said:
        return wire.MEMORY, code
    return wire.FINISHED, code


def _words(cell: Cell) -> str:
    packed = cell.kept[1].pack()
    return packed[struct.calcsize("<IQQI") :].decode("utf-8", "replace").strip() or "it ended without a word"
