"""The last walls, put up by the child itself before it reads a program.

In order: descriptors, scratch folder (a tmpfs of its own in a mount namespace of its own), a user
namespace (which also counts its processes apart), limits, no new privileges, no capabilities,
Landlock, seccomp. A child that cannot put up a wall that the supervisor counts on ends at once with
`SETUP_FAILED`.

    Jail(walls, config).become_child(descriptors, cell)     # never returns

Memory is limited as address space (RLIMIT_AS: what the template maps, plus the limit), for each
process; the supervisor watches the resident memory of all of a call's processes together, because a
limit per process times many processes is no limit. Control groups would do both, but are seldom
granted to a user.

Not covered: CPU caches and other side channels between children.
"""

import contextlib
import os
import resource
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from whale_envs.sandbox.warm import landlock, linux, program, rootfs, seccomp

SETUP_FAILED = 199
"""Exit status of a child that could not put up its walls."""

_MIB = 2**20
_SPARE = 32 * _MIB


@dataclass(frozen=True, slots=True)
class Walls:
    """Which layers are active."""

    namespaces: bool
    readable: list[str] | None
    """Paths for Landlock, None where it is not active."""
    seccomp: bool

    @property
    def processes(self) -> bool:
        """Whether programs may start processes: only where the kernel ends them all with the first."""
        return self.namespaces or not self.seccomp


def environment(config: dict[str, Any]) -> dict[str, str]:
    """The whole environment of a program."""
    one_thread = ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "VECLIB_MAXIMUM")
    return {
        "PATH": os.pathsep.join([str(Path(config["prefix"], "bin")), "/usr/bin", "/bin"]),
        "HOME": rootfs.SCRATCH,
        "TMPDIR": rootfs.SCRATCH,
        "LANG": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join(config["sites"]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        **{f"{name}_NUM_THREADS": "1" for name in one_thread},
    }


def scratch_folder(config: dict[str, Any], cell: int) -> str:
    """Where a cell may write when it has no file system of its own; made and removed by the supervisor."""
    return str(Path(config["scratch"], str(cell)))


def remove_tree(path: str) -> None:
    """Removes a folder however deep it is: folders within it come to its top before they are emptied.

    What cannot be removed is left.
    """
    count, left = 0, True
    while left:
        left = False
        try:
            tops = sorted(os.scandir(path), key=lambda entry: entry.name)
        except OSError:
            return
        for top in tops:
            with contextlib.suppress(OSError):
                if not top.is_dir(follow_symlinks=False):
                    os.unlink(top.path)  # noqa: PTH108
                    continue
                os.chmod(top.path, 0o700)  # noqa: PTH101
                for entry in list(os.scandir(top.path)):
                    if entry.is_dir(follow_symlinks=False):
                        os.chmod(entry.path, 0o700)  # noqa: PTH101
                        count += 1
                        os.rename(entry.path, f"{path}/.{os.getpid()}-{count}")  # noqa: PTH104
                        left = True
                    else:
                        os.unlink(entry.path)  # noqa: PTH108
                os.rmdir(top.path)  # noqa: PTH106
    with contextlib.suppress(OSError):
        os.rmdir(path)  # noqa: PTH106


def be_first_to_die() -> None:
    """Makes this process and its children the kernel's choice when the whole machine runs out of memory."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    except OSError:
        return


def limit(name: str, soft: int, hard: int | None = None) -> None:
    """Sets one of this process's limits, as far as it may be raised."""
    kind = getattr(resource, f"RLIMIT_{name}", None)
    if kind is None:
        return
    hard = soft if hard is None else hard
    most = resource.getrlimit(kind)[1]
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(kind, (soft, hard))


class Jail:
    """Everything that can be prepared once for all children."""

    def __init__(self, walls: Walls, config: dict[str, Any]) -> None:
        limits: dict[str, int] = config["limits"]
        self._config = config
        self._walls = walls
        self._variables = program.prepare()
        self._filter = seccomp.program(processes=True, pid=0) if walls.seccomp and walls.processes else b""
        options = f"size={limits['scratch_mb']}m,nr_inodes={limits['files']},mode=700"
        self._mount_options = options.encode()
        mapped = 0
        self._landlock: landlock.Rules | None = None
        if sys.platform == "linux":
            mapped = (
                int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
            )
            be_first_to_die()
        self._processes = (limits["processes"], limits["processes"])
        self._all_processes = (config["total_processes"], config["total_processes"])
        self._descriptors = (limits["descriptors"], limits["descriptors"])
        self._set_limits(limits, mapped + limits["memory_mb"] * _MIB)
        self._highest = max(4096, limits["descriptors"])
        if walls.readable is not None:
            self._landlock = landlock.Rules(walls.readable)

    def become_child(self, descriptors: list[int], cell: int) -> NoReturn:
        """In the fresh child: the walls, then the program, then the end."""
        try:
            signal.set_wakeup_fd(-1)
            for target, descriptor in enumerate(descriptors, start=1):
                os.dup2(descriptor, target, inheritable=target < program.CONTROL)
            os.setpgid(0, 0)
            if self._walls.namespaces:
                self._enter_namespaces()
                scratch = rootfs.SCRATCH
            else:
                linux.die_with_parent()
                scratch = scratch_folder(self._config, cell)
                os.environ.update(HOME=scratch, TMPDIR=scratch)
            os.chdir(scratch)
            self._wall_in(scratch)
        except BaseException as error:  # noqa: BLE001 - the process ends here, whatever it was
            os.write(2, f"sandbox: {type(error).__name__}: {error}\n".encode(errors="replace"))
            os._exit(SETUP_FAILED)
        program.serve(self._variables, confined=self._walls.namespaces)

    def _enter_namespaces(self) -> None:
        check, lib = linux.check, linux.lib
        check(lib.unshare(linux.CLONE_NEWNS), "unshare")
        flags = linux.MS_NOSUID | linux.MS_NODEV
        check(lib.mount(b"tmpfs", rootfs.SCRATCH.encode(), b"tmpfs", flags, self._mount_options), "mount")
        # what the limit is here, the kernel keeps for all calls together: a user namespace takes it over
        resource.setrlimit(resource.RLIMIT_NPROC, self._all_processes)
        check(lib.unshare(linux.CLONE_NEWUSER), "unshare")

    def _wall_in(self, scratch: str) -> None:
        if self._walls.namespaces:  # where the processes of this user namespace are counted apart
            resource.setrlimit(resource.RLIMIT_NPROC, self._processes)
        if sys.platform == "linux":
            linux.no_new_privileges()
            linux.drop_capabilities()
        if self._landlock is not None:
            self._landlock.install(scratch)
        os.closerange(program.CONTROL + 1, self._highest)
        resource.setrlimit(resource.RLIMIT_NOFILE, self._descriptors)
        os.setpriority(os.PRIO_PROCESS, 0, self._config["nice"])
        if self._walls.seccomp:
            seccomp.install(self._filter or seccomp.program(processes=False, pid=os.getpid()))

    @staticmethod
    def _set_limits(limits: dict[str, int], address_space: int) -> None:
        """On the template itself: its children inherit them."""
        scratch = limits["scratch_mb"] * _MIB
        for name, soft, hard in (
            ("AS", address_space, address_space + _SPARE),
            ("FSIZE", scratch, scratch),
            ("CORE", 0, 0),
            ("MEMLOCK", _MIB, _MIB),
            ("MSGQUEUE", 0, 0),
            ("RTPRIO", 0, 0),
            ("NICE", 0, 0),
            ("SIGPENDING", 1024, 1024),
        ):
            limit(name, soft, hard)
