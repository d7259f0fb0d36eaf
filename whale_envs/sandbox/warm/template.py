"""The warm parent: a process with numpy and sympy loaded that forks one jailed child per request.

It sees neither code nor output: the supervisor hands it the child's ends of pipes, and the child
talks to the supervisor. So a child, which inherits this process's memory, inherits nobody's data.

    supervisor → template: cell number, with three descriptors (stdout, stderr, control)
    template → supervisor: FORKED cell pid, then ENDED cell status cpu_seconds

One thread only, which is checked before the first fork.

Not covered: pages of this process that a child changes are copied for it; all children share one
address layout and one hash seed.
"""

import atexit
import contextlib
import errno
import gc
import importlib
import os
import select
import signal
import socket
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

from whale_envs.sandbox.warm import jail, linux, rootfs
from whale_envs.sandbox.warm.jail import Walls

FORKED, ENDED, REFUSED, READY = 1, 2, 3, 4
MESSAGE = struct.Struct("<Biiid")
"""Kind, cell, pid or number, wait status or errno, CPU seconds."""
REQUEST = struct.Struct("<i")
_LOWEST = 10

_WARM_UP = (
    "from sympy import *\n"
    "x, y = symbols('x y')\n"
    "solve(x**2 - 3*x + 2, x); solve([x + y - 3, x - y - 1], [x, y]); factorint(5040)\n"
    "simplify(sin(x)**2 + cos(x)**2); expand((x + 1)**3); factor(x**2 - 1); sqrt(8); N(pi)\n"
    "integrate(x**2, (x, 0, 1)); diff(x**3, x); isprime(97); binomial(10, 3); Rational(1, 3)\n"
    "str(x**2 + 1); divisors(12); totient(10); nsimplify(0.5); Matrix([[1, 2], [3, 4]]).det()\n"
)


class Template:
    def __init__(self, channel: socket.socket, config: dict[str, Any], walls: Walls) -> None:
        self._channel = channel
        self._config = config
        self._walls = walls
        self._cells: dict[int, int] = {}
        while os.open(os.devnull, os.O_RDWR) < _LOWEST:  # leaves the low numbers to the children
            pass

    def run(self) -> None:
        """Serves until the supervisor's end of the channel closes."""
        os.environ.clear()
        os.environ.update(jail.environment(self._config))
        tempfile.tempdir = None  # looked up before the walls; a program's own is its TMPDIR
        loaded = self._load()
        home = os.open("/proc/self/ns/pid", os.O_RDONLY) if self._walls.namespaces else -1
        setup = jail.Jail(self._walls, self._config)
        gc.collect()
        gc.disable()
        gc.freeze()
        huge = linux.collapse_heap() if sys.platform == "linux" else 0
        if self._walls.namespaces:
            rootfs.hide_proc()
        wake, waker = os.pipe()
        for end in (wake, waker):
            os.set_blocking(end, False)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        self._channel.send(MESSAGE.pack(READY, 0, os.getpid(), loaded, float(huge)))
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(wake, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake, 4096)
                    self._reap()
                elif not self._serve(setup, home):
                    return

    def _serve(self, setup: "jail.Jail", home: int) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._channel, REQUEST.size, 3)
        if not data:
            return False
        (cell,) = REQUEST.unpack(data)
        try:
            if home >= 0:
                linux.check(linux.lib.unshare(linux.CLONE_NEWPID), "unshare")
            try:
                pid = linux.bare_fork()
                if pid == 0:
                    setup.become_child(descriptors, cell)
            finally:
                if home >= 0:
                    linux.check(linux.lib.setns(home, linux.CLONE_NEWPID), "setns")
        except OSError as error:
            self._channel.send(MESSAGE.pack(REFUSED, cell, 0, error.errno or errno.EAGAIN, 0.0))
        else:
            self._cells[pid] = cell
            self._channel.send(MESSAGE.pack(FORKED, cell, pid, 0, 0.0))
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _reap(self) -> None:
        while self._cells:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            cell = self._cells.pop(pid, None)
            if cell is not None:
                cpu = usage.ru_utime + usage.ru_stime
                self._channel.send(MESSAGE.pack(ENDED, cell, pid, status, cpu))

    def _load(self) -> int:
        """Imports the libraries, and returns how many there were."""
        for site in self._config["sites"]:
            sys.path.append(site)
        loaded = 0
        for name in self._config["preload"]:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
                loaded += 1
        if "sympy" in sys.modules:
            exec(compile(_WARM_UP, "warm-up", "exec"), {})  # noqa: S102 - our own text
        threads = len(list(Path("/proc/self/task").iterdir())) if sys.platform == "linux" else 1
        if threads != 1:
            raise SystemExit(f"a library started {threads - 1} threads; a fork would copy their locks")
        for name in [name for name in sys.modules if name.split(".")[0] in ("whale_envs", "_whale_boot")]:
            del sys.modules[name]
        atexit._clear()
        return loaded
