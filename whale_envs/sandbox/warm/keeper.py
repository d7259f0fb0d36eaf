"""The sandbox's first process: builds the walls, starts the supervisor inside, dies with the host.

    host ── keeper ── supervisor ── template ── one jailed child per call
            (walls)   (serves)      (forks)

The keeper leaves the host's user, mount, pid, network, IPC and host name spaces where the kernel lets
it. The supervisor is process 1 of the new pid namespace: when it ends, the kernel ends all below it.
The keeper ends the supervisor when the host ends, however that ends; and the kernel ends the
supervisor when the keeper does.

Not covered: a kernel that grants no namespaces. `layers` says so, and Landlock and seccomp remain.
"""

import contextlib
import json
import os
import select
import signal
import socket
from functools import partial
from typing import Any

from whale_envs.sandbox.warm import landlock, linux, rootfs, seccomp
from whale_envs.sandbox.warm.jail import Walls

_NOBODY = 65534
_TRUNCATES = 3
"""First version of Landlock that can forbid truncation."""
_NAMESPACES = (
    linux.CLONE_NEWUSER
    | linux.CLONE_NEWNS
    | linux.CLONE_NEWPID
    | linux.CLONE_NEWNET
    | linux.CLONE_NEWIPC
    | linux.CLONE_NEWUTS
)

Layer = dict[str, str | bool]


def main(descriptor: int) -> None:
    """Runs until the host closes the socket or ends; `descriptor` is that socket."""
    from whale_envs.sandbox.warm.supervisor import Supervisor  # not for who only wants `build`

    control = socket.socket(fileno=descriptor)
    config = json.loads(read_line(control))
    os.setsid()
    if os.getppid() != config["host_pid"]:
        return
    host = watch(config["host_pid"])
    config["nice"] = _go_first()
    layers: list[Layer] = []
    walls = build(config, layers)
    reader, writer = os.pipe()
    inside = os.fork()
    if inside == 0:
        linux.die_with_parent()
        os.close(writer)
        if select.select([reader], [], [], 0)[0]:  # the keeper ended before we could be told
            os._exit(1)
        os.close(reader)
        Supervisor(control, config, walls, layers).run()
        os._exit(0)
    os.close(reader)  # the writing end stays: it closes when this process ends
    control.close()
    _wait(inside, host, config["host_pid"])


def read_line(control: socket.socket) -> bytes:
    line = bytearray()
    while not line.endswith(b"\n"):
        part = control.recv(65536)
        if not part:
            raise SystemExit(0)
        line += part
    return bytes(line)


def _go_first() -> int:
    """Puts this process and what serves before programs; returns the priority that programs get."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, max(-20, own - 10))
    except PermissionError:
        return min(19, own + 5)
    return own


def watch(pid: int) -> int | None:
    """A descriptor that becomes readable when that process ends; None on an old kernel."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None


def _wait(inside: int, host: int | None, host_pid: int) -> None:
    child = watch(inside)
    watched = [fd for fd in (host, child) if fd is not None]
    while True:
        select.select(watched, [], [], None if len(watched) == 2 else 0.5)
        done, _ = os.waitpid(inside, os.WNOHANG)
        if done:
            return
        gone = os.getppid() != host_pid if host is None else bool(select.select([host], [], [], 0)[0])
        if gone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(inside, signal.SIGKILL)
            return


# --- the walls -----------------------------------------------------------------------------------


def build(config: dict[str, Any], layers: list[Layer], *, sure: bool = False) -> Walls:
    """Puts up what the kernel grants around this process; `layers` gets a row for each wall.

    `sure`: the kernel granted namespaces just now, so that they are entered without a trial.
    """
    without = set(config["without"])
    plan = rootfs.Plan(config["prefix"], tuple(config["packages"]), tuple(config["hidden"]))
    enter = partial(_enter_namespaces, plan, sure=sure)
    namespaces = _try(layers, "namespaces", without, enter, _WHAT_NAMESPACES)
    readable = None
    if _try(layers, "landlock", without, lambda: _landlock(namespaces), _WHAT_LANDLOCK):
        readable = ["/"] if namespaces else rootfs.readable(plan)
    filtered = _try(layers, "seccomp", without, seccomp.probe, _WHAT_SECCOMP)
    return Walls(namespaces=namespaces, readable=readable, seccomp=filtered)


def _landlock(namespaces: bool) -> None:
    version = landlock.abi()
    if not namespaces and version < _TRUNCATES:
        raise OSError(f"version {version} lets files be truncated, which only namespaces would prevent")


_WHAT_NAMESPACES = (
    "own users, processes, network (empty), IPC and a read-only file system of Python and libraries"
)
_WHAT_LANDLOCK = "files outside the scratch folder cannot be opened for writing, hidden ones not at all"
_WHAT_SECCOMP = "no sockets, ptrace, mounts, namespaces, keys, bpf, userfaultfd, io_uring"


def _try(layers: list[Layer], name: str, without: set[str], step: Any, what: str) -> bool:
    try:
        if name in without:
            raise OSError("switched off by the caller")
        if linux.ARCH < 0:
            raise OSError("only on Linux on x86_64 and aarch64")
        step()
    except OSError as error:
        layers.append({"name": name, "active": False, "why": error.strerror or str(error)})
        return False
    layers.append({"name": name, "active": True, "why": what})
    return True


def _enter_namespaces(plan: rootfs.Plan, *, sure: bool) -> None:
    """Moves this process; the next fork is process 1.

    Root first builds the file system, which it alone can read, and then becomes nobody; anyone else
    needs the new user namespace to mount at all. A trial in a process of its own comes first, so that
    a refusal half-way leaves this one as it was.
    """
    if sure:
        try:
            _move(plan)
        except OSError as error:
            raise SystemExit(f"namespaces, which were granted before, are refused: {error}") from error
        return
    reader, writer = os.pipe()
    trial = os.fork()
    if trial == 0:
        try:
            _move(plan)
            os.write(writer, b"+")
        except OSError as error:
            os.write(writer, str(error).encode(errors="replace"))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        said = file.read(1000).decode(errors="replace")
    os.waitpid(trial, 0)
    if said != "+":
        raise OSError(f"the kernel refuses them: {said or 'the trial died'}")
    _move(plan)


def _move(plan: rootfs.Plan) -> None:
    root = os.geteuid() == 0
    uid, gid = os.geteuid(), os.getegid()
    if not root:
        linux.check(linux.lib.unshare(_NAMESPACES), "unshare")
        _write_maps(os.getpid(), uid, gid, deny_groups=True)
        rootfs.enter(plan)
        return
    ask, told = os.pipe(), os.pipe()
    mapper = os.fork()
    if mapper == 0:
        try:
            os.close(ask[1])
            if os.read(ask[0], 1):
                _write_maps(os.getppid(), _NOBODY, _NOBODY, deny_groups=False)
                os.write(told[1], b"x")
        finally:
            os._exit(0)
    os.close(told[1])
    try:
        linux.check(linux.lib.unshare(linux.CLONE_NEWNS), "unshare")
        rootfs.enter(plan)
        linux.check(linux.lib.unshare(_NAMESPACES), "unshare")
        os.write(ask[1], b"x")
        if os.read(told[0], 1) != b"x":
            raise PermissionError(1, "uid_map: Operation not permitted")
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    finally:
        for end in (*ask, told[0]):  # at which the mapper ends, if it has not
            os.close(end)
        os.waitpid(mapper, 0)


def _write_maps(pid: int, uid: int, gid: int, *, deny_groups: bool) -> None:
    def write(name: str, text: str) -> None:
        with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as file:  # noqa: PTH123
            file.write(text)

    if deny_groups:
        write("setgroups", "deny")
    write("uid_map", f"0 {uid} 1")
    write("gid_map", f"0 {gid} 1")
