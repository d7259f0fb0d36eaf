"""System calls that Python does not offer, through ctypes; Linux on x86_64 and aarch64.

    check(lib.unshare(CLONE_NEWNS), "unshare")          # OSError where the kernel refuses

Not covered: Landlock and seccomp, which have modules of their own.
"""

import ctypes
import os
import struct
import sys

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV = 1, 2, 4
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
MNT_DETACH = 2

ARCH = {"x86_64": 0, "aarch64": 1}.get(os.uname().machine, -1) if sys.platform == "linux" else -1
"""Column of the system call tables, -1 where we have none."""

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_CAPABILITY_HEADER = struct.pack("<Ii", 0x20080522, 0)
_SYS_PIVOT_ROOT = (155, 41)
_SYS_MOUNT_SETATTR = 442
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25
_HUGE_PAGE = 2**21

lib = ctypes.CDLL(None, use_errno=True)
_holding = ctypes.PyDLL(None, use_errno=True)
if sys.platform == "linux":
    lib.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
    lib.madvise.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
    _ = lib.capset, lib.prctl, lib.unshare, lib.setns, lib.syscall  # looked up once, not in each child


def check(result: int, what: str) -> int:
    """`result`, or OSError where it is negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def call(number: int, *arguments: int | bytes | None) -> int:
    """A raw system call; integers are passed at full width."""
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return int(lib.syscall(ctypes.c_long(number), *wide))


def bare_fork() -> int:
    """A fork without Python's hooks, which touch many pages; only for a process with one thread.

    The caller reseeds `random` in the child; no lock can be held there, and thread ids stay the same.
    """
    return check(_holding.fork(), "fork")


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    check(lib.mount(*encoded, flags, options.encode() or None), f"mount {target}")


def unmount(target: str) -> None:
    check(lib.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    check(call(_SYS_PIVOT_ROOT[ARCH], os.fsencode(new), os.fsencode(old)), "pivot_root")


def set_read_only(path: str, *, yes: bool) -> None:
    """Sets or clears read-only on every mount below `path`, and sets no-setuid (kernel 5.12)."""
    read_only, no_setuid, at_fdcwd, recursive = 1, 2, -100, 0x8000
    given, taken = (read_only, 0) if yes else (0, read_only)
    attributes = struct.pack("<QQQQ", given | no_setuid, taken, 0, 0)
    arguments = (at_fdcwd, os.fsencode(path), recursive, attributes, len(attributes))
    check(call(_SYS_MOUNT_SETATTR, *arguments), "mount_setattr")


def die_with_parent() -> None:
    """SIGKILL for this process when the thread that forked it ends."""
    if sys.platform == "linux":
        check(lib.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0), "PR_SET_PDEATHSIG")


def no_new_privileges() -> None:
    check(lib.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")


def drop_capabilities() -> None:
    """Empties every capability set of this thread; cannot be undone after `no_new_privileges`."""
    check(lib.capset(_CAPABILITY_HEADER, bytes(24)), "capset")
    lib.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def collapse_heap() -> int:
    """Moves this process's private memory into huge pages, so that a fork copies few page tables.

    Returns the number of bytes for which the kernel agreed (6.1 or newer), 0 where it never does.
    """
    moved = 0
    try:
        with open("/proc/self/maps", encoding="ascii", errors="replace") as file:  # noqa: PTH123
            lines = file.read().splitlines()
    except OSError:
        return 0
    for line in lines:
        span, mode, *rest = line.split(maxsplit=5)
        if mode != "rw-p" or (len(rest) == 4 and rest[3].strip() != "[heap]"):
            continue
        low, high = (int(part, 16) for part in span.split("-"))
        low, high = -(-low // _HUGE_PAGE) * _HUGE_PAGE, high // _HUGE_PAGE * _HUGE_PAGE
        for start in range(low, high, _HUGE_PAGE):
            lib.madvise(start, _HUGE_PAGE, _MADV_HUGEPAGE)
            if lib.madvise(start, _HUGE_PAGE, _MADV_COLLAPSE) == 0:
                moved += _HUGE_PAGE
    return moved
