"""Landlock: which files a child may touch, decided by the kernel for the process itself.

    rules = Rules(["/usr/lib"])             # once
    rules.install("/tmp/scratch")           # in each child, after no_new_privileges(); or None

Everything else on the file system can be neither opened, listed, made, removed nor run; from ABI 4
no TCP port can be bound or connected, from ABI 6 no signal and no abstract socket reaches a process
outside. Not covered by Landlock: `stat` and `chdir` (names and sizes of known paths show), and UDP
(seccomp refuses sockets).
"""

import ctypes
import os
import struct
from collections.abc import Iterable

from whale_envs.sandbox.warm.linux import check, lib

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_READ_ONE_FILE = _EXECUTE | _READ_FILE
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_NEWEST_RIGHTS = (1 << 16) - 1
_NETWORK, _SCOPES = 3, 3


def abi() -> int:
    """Version of Landlock in this kernel.

    Raises:
        OSError: it has none, or it is switched off.
    """
    return check(lib.syscall(*_words(_CREATE_RULESET, None, 0, 1)), "landlock")


def _words(*values: int | bytes | None) -> list[object]:
    return [ctypes.c_long(value) if isinstance(value, int) else value for value in values]


class Rules:
    """Paths that may be read, opened once; the writable folder comes with `install`.

    Raises:
        OSError: the kernel has no Landlock, or a path does not exist.
    """

    def __init__(self, readable: Iterable[str]) -> None:
        version = abi()
        self._handled = _FILE_RIGHTS.get(version, _NEWEST_RIGHTS)
        attributes = struct.pack("<QQQ", self._handled, _NETWORK, _SCOPES)
        size = 8 if version < 4 else 16 if version < 6 else 24
        self._create = _words(_CREATE_RULESET, attributes[:size], size, 0)
        self._add = _words(_ADD_RULE)[0]
        self._rules = [self._rule(os.open(path, os.O_PATH | os.O_CLOEXEC), _READ) for path in readable]
        null = os.open(os.devnull, os.O_PATH | os.O_CLOEXEC)  # where programs throw away what others print
        self._rules.append(self._rule(null, _READ_ONE_FILE | _WRITE_FILE))

    def install(self, writable: str | None) -> None:
        """Restricts this thread and all it will start; `writable` is the one folder to write to, if any.

        Raises:
            OSError: the kernel refuses.
        """
        ruleset = check(lib.syscall(*self._create), "landlock_create_ruleset")
        rules, opened = list(self._rules), [ruleset]
        if writable is not None:
            opened.append(os.open(writable, os.O_PATH | os.O_CLOEXEC))
            rules.append(self._rule(opened[-1], self._handled & ~_IOCTL_DEV))
        for rule in rules:
            check(lib.syscall(self._add, ruleset, _PATH_BENEATH, rule, 0), "landlock_add_rule")
        check(lib.syscall(*_words(_RESTRICT_SELF, ruleset, 0)), "landlock_restrict_self")
        for descriptor in opened:
            os.close(descriptor)

    def _rule(self, descriptor: int, rights: int) -> bytes:
        if rights == _READ and os.stat(descriptor).st_mode & 0o170000 != 0o040000:
            rights = _READ_ONE_FILE
        return struct.pack("<Qi", rights & self._handled, descriptor)
