"""Runs a long-lived worker alone behind the walls: loads its modules, shuts it in, outlives it.

    host ── enclosure ── worker
            (watches)    (process 1 of its namespaces: one thread, no files to write, no other program)

What the worker needs is imported before the walls go up, so that nothing of this project or of any
package folder has to be readable behind them. The enclosure ends the worker when the host ends or
closes the lifeline, this process's standard input; the kernel ends it when the enclosure does.

    main(descriptor)                                    # in a bare interpreter; see `confined` for the host

Then the worker's entry, a function, is called with the descriptor, after a line of JSON went out on it
that says which layers stand. This is the interpreter tool's sandbox (`keeper`, `rootfs`, `landlock`,
`seccomp`) without its scratch folder, processes and threads.

Not covered: what goes over the descriptor; time limits, which are the host's.
"""

import contextlib
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from whale_envs.sandbox.warm import jail, keeper, landlock, linux, rootfs, seccomp
from whale_envs.sandbox.warm.jail import Walls

CONTROL = 3
"""The worker's descriptor to the host."""
_DESCRIPTORS = 32
_MIB = 2**20
_SIGNALLED = 128

_MODULES = ("collections", "dataclasses", "functools", "itertools", "json", "math", "random", "re", "string")
"""Loaded ahead, because a worker's guest is likely to import them; the rest is read from disk."""


def main(descriptor: int) -> None:
    """Runs until the worker ends; exits with its status, or 128 and its signal."""
    gc.disable()  # what is imported stays; the worker has it again
    control = socket.socket(fileno=descriptor)
    config = json.loads(keeper.read_line(control))
    os.setsid()
    if os.getppid() != config["host_pid"]:
        return
    host = keeper.watch(config["host_pid"])
    entry = _load(config)
    layers: list[keeper.Layer] = []
    walls = keeper.build(config, layers, sure=config["sure"])
    gc.collect()
    gc.freeze()  # before the fork, so that the child copies no pages for it
    inside = os.fork()
    if inside == 0:
        _become(control, config, walls, layers, entry)
    control.close()
    sys.exit(_wait(inside, host, config["host_pid"]))


def _load(config: dict[str, Any]) -> Callable[[int], None]:
    """Imports the worker's modules; afterwards only the standard library can be imported from disk."""
    before = list(sys.path)
    sys.path += config["roots"]
    for name in (*_MODULES, *config["modules"]):
        importlib.import_module(name)
    module, _, function = config["entry"].partition(":")
    entry: Callable[[int], None] = getattr(importlib.import_module(module), function)
    sys.path[:] = before
    for name, loaded in list(sys.modules.items()):
        top = name.partition(".")[0]
        if top == "whale_envs":
            del sys.modules[name]
        elif top not in sys.stdlib_module_names and hasattr(loaded, "__path__"):
            for folder in loaded.__path__:
                sys.path_importer_cache.pop(folder, None)
            loaded.__path__ = []
    for folder in config["roots"]:  # but not the rest: its lists of files cannot be read everywhere later
        sys.path_importer_cache.pop(folder, None)
    return entry


def _become(
    control: socket.socket,
    config: dict[str, Any],
    walls: Walls,
    layers: list[keeper.Layer],
    entry: Callable[[int], None],
) -> NoReturn:
    """In the fresh child: the walls, then the worker, then the end."""
    status = jail.SETUP_FAILED
    try:
        linux.die_with_parent()
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.dup2(
            control.detach(), CONTROL, inheritable=False
        ) if control.fileno() != CONTROL else control.detach()
        _wall_in(config["memory_mb"], walls)
        os.dup2(null, 2)
        os.closerange(CONTROL + 1, max(4096, null + 1))
        row = {"name": "limits", "active": True, "why": f"{config['memory_mb']} MB, one thread, no new files"}
        os.write(CONTROL, json.dumps({"layers": [*layers, row]}).encode() + b"\n")
        config.clear()
        _tidy()
        status = 1
        entry(CONTROL)
        status = 0
    except BaseException:  # noqa: BLE001 - the process ends here; the host reads its standard error
        with contextlib.suppress(BaseException):
            traceback.print_exc()
    finally:
        os._exit(status)


def _wall_in(memory_mb: int, walls: Walls) -> None:
    if sys.platform == "linux":
        jail.be_first_to_die()
        mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        jail.limit("AS", mapped + memory_mb * _MIB)
    if walls.namespaces:
        rootfs.hide_proc()
        os.chdir("/")
    rules = None if walls.readable is None else landlock.Rules(walls.readable)
    code = seccomp.program(processes=False, threads=False, pid=os.getpid()) if walls.seccomp else b""
    for name, most in (("FSIZE", 0), ("CORE", 0), ("MEMLOCK", _MIB), ("MSGQUEUE", 0), ("RTPRIO", 0)):
        jail.limit(name, most)
    if sys.platform == "linux":
        linux.no_new_privileges()
        linux.drop_capabilities()
    if rules is not None:
        rules.install(None)
    jail.limit("NOFILE", _DESCRIPTORS)
    if code:
        seccomp.install(code)


def _tidy() -> None:
    """Leaves the worker's guest no trace of how it was started."""
    os.environ.clear()
    sys.argv, sys.orig_argv[:] = [""], ["python"]
    sys.stdin, sys.stdout = open(0, encoding="utf-8", closefd=False), sys.stderr  # noqa: SIM115
    sys.modules["__main__"] = types.ModuleType("__main__")
    gc.collect()
    gc.freeze()
    gc.enable()


def _wait(inside: int, host: int | None, host_pid: int) -> int:
    """Ends the worker with the host, or when the lifeline closes; returns how it ended."""
    child = keeper.watch(inside)
    watched = [fd for fd in (0, host, child) if fd is not None]
    patience = None if host is not None and child is not None else 0.2
    while True:
        ready = select.select(watched, [], [], patience)[0]
        if 0 in ready or host in ready or (host is None and os.getppid() != host_pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(inside, signal.SIGKILL)
            _, status = os.waitpid(inside, 0)
        else:
            done, status = os.waitpid(inside, os.WNOHANG)
            if not done:
                continue
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else _SIGNALLED - code
