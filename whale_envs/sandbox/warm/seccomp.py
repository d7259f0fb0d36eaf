"""A seccomp filter: which system calls a child may not make.

    install(program(processes=True, pid=0))             # after no_new_privileges()

Refused with EPERM: other processes' memory (ptrace, process_vm_*), sockets but for unnamed pairs,
mounts and namespaces, keys, bpf, perf, userfaultfd, io_uring, inotify, System V and POSIX IPC, memory
that belongs to no process (shared anonymous maps, memory files, huge pages, larger buffers of pipes
and sockets, descriptors in flight), leases and signals of files, priorities, clocks, modules, and what
else a calculation has no use for. Refused with ENOSYS: calls newer than this list, and clone3 (its
flags cannot be read by a filter; libc falls back to clone). `setsid` succeeds and does nothing, so that
no process leaves its call's scheduling group. `processes=False`, for kernels that grant no pid and
mount namespaces, also refuses new processes (threads stay possible), signals to and limits and CPUs of
any process but the caller, and changes to the modes, owners, times and attributes of files. `threads=False`,
for a worker that needs neither, also refuses threads, other programs, and leaving its process group or
its parent's end (PR_SET_PDEATHSIG).

Not covered: what the allowed calls can do to a buggy kernel. This is a shared kernel, not a virtual
machine.
"""

import ctypes
import struct
from collections.abc import Sequence

from whale_envs.sandbox.warm.linux import ARCH, call, check

NEWEST = 462
"""Highest system call number known here (mseal, Linux 6.10)."""

_BOTH = (  # numbers that all architectures share
    424, 425, 426, 427, 428, 429, 430, 431, 432, 433,  # pidfd_send_signal, io_uring, new mount API
    434, 438, 440, 442, 443, 444, 445, 446, 447, 448,  # pidfd_*, madvise of others, Landlock, memfd_secret, …
    450, 457, 458,
)  # fmt: skip

_DENIED = {  # name: (x86_64, aarch64)
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kcmp": (312, 272), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "unshare": (272, 97), "setns": (308, 268), "bpf": (321, 280),
    "perf_event_open": (298, 241), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "userfaultfd": (323, 282), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "acct": (163, 89), "quotactl": (179, 60), "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264), "fanotify_init": (300, 262), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171),
    "sethostname": (170, 161), "setdomainname": (171, 162), "personality": (135, 92),
    "syslog": (103, 116), "vhangup": (153, 58), "mbind": (237, 235), "set_mempolicy": (238, 237),
    "migrate_pages": (256, 238), "move_pages": (279, 239), "memfd_create": (319, 279),
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190),
    "semctl": (66, 191), "semop": (65, 193), "semtimedop": (220, 192), "msgget": (68, 186),
    "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187), "mq_open": (240, 180),
    "mq_unlink": (241, 181), "socket": (41, 198), "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274), "setpriority": (141, 140), "ioprio_set": (251, 30),
    "remap_file_pages": (216, 234), "seccomp": (317, 277), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "io_setup": (206, 0), "iopl": (172, -1), "ioperm": (173, -1),
    "modify_ldt": (154, -1), "uselib": (134, -1), "sysfs": (139, -1), "ustat": (136, -1),
    "inotify_init": (253, -1), "inotify_init1": (294, 26), "sched_setparam": (142, 118),
    "sync": (162, 81), "syncfs": (306, 267), "setsockopt": (54, 208), "sendmsg": (46, 211),
    "sendmmsg": (307, 269), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
    "accept": (43, 202), "accept4": (288, 242),
}  # fmt: skip

_DENIED_ON_THE_HOSTS_FILES = {
    "fork": (57, -1), "vfork": (58, -1), "tkill": (200, 130),
    "chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, -1), "fchown": (93, 55), "lchown": (94, -1), "fchownat": (260, 54),
    "utime": (132, -1), "utimes": (235, -1), "futimesat": (261, -1), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
}  # fmt: skip
"""Beyond `_DENIED`, where a child shares the host's processes and its view of the files."""

_DENIED_TO_ONE_THREAD = {
    "clone": (56, 220),
    "execve": (59, 221),
    "execveat": (322, 281),
    "setpgid": (109, 154),
}
"""Beyond both, for a process that is to stay alone."""

_AUDIT_ARCH = (0xC000003E, 0xC00000B7)
_CLONE, _SOCKETPAIR, _SENDTO, _MMAP = (56, 220), (53, 199), (44, 206), (9, 222)
_FCNTL, _IOCTL, _PRCTL, _SETSID = (72, 25), (16, 29), (157, 167), (112, 157)
_OWN = {"kill": (62, 129), "tgkill": (234, 131)}
_OWN_OR_ZERO = {"prlimit64": (302, 261), "sched_setaffinity": (203, 122)}
_CLONE3 = 435
_NAMESPACE_FLAGS = 0x7E020000
_CLONE_THREAD = 0x00010000
_AF_UNIX = 1
_MAP_SHARED, _MAP_ANONYMOUS, _MAP_HUGETLB = 0x01, 0x20, 0x40000
_FCNTL_DENIED = (8, 10, 15, 1024, 1026, 1031)
"""F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY, F_SETPIPE_SZ."""
_IOCTL_ALLOWED = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
_PR_SET_PDEATHSIG, _PR_SCHED_CORE = 1, 62
_DONE, _EPERM, _ENOTTY, _ENOSYS = 0x00050000, 0x00050001, 0x00050019, 0x00050026
_ALLOW, _KILL_PROCESS = 0x7FFF0000, 0x80000000
_LOAD, _EQUAL, _GREATER, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_SYS_SECCOMP = (317, 277)


def _op(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("<HBBI", code, yes, no, value)


def program(*, processes: bool, pid: int, threads: bool = True, arch: int = ARCH) -> bytes:
    """The filter as classic BPF instructions."""
    ops = [
        _op(_LOAD, _ARCHITECTURE),
        _op(_EQUAL, _AUDIT_ARCH[arch], 1, 0),
        _op(_RETURN, _KILL_PROCESS),
        _op(_LOAD, _NUMBER),
        _op(_GREATER, NEWEST, 0, 1),
        _op(_RETURN, _ENOSYS),
        _op(_EQUAL, _CLONE3, 0, 1),
        _op(_RETURN, _ENOSYS),
    ]
    denied = {*_BOTH, *(numbers[arch] for numbers in _DENIED.values())}
    if not processes:
        denied |= {numbers[arch] for numbers in _DENIED_ON_THE_HOSTS_FILES.values()}
    if not threads:
        denied |= {numbers[arch] for numbers in _DENIED_TO_ONE_THREAD.values()}
    for number in sorted(denied - {-1}):
        ops += [_op(_EQUAL, number, 0, 1), _op(_RETURN, _EPERM)]
    test = [] if processes else [_op(_ANY_BIT, _CLONE_THREAD, 1, 0)]
    ops += [  # no new namespaces; without a pid namespace only threads
        _op(_EQUAL, _CLONE[arch], 0, 4 + len(test)),
        _op(_LOAD, _ARGUMENTS),
        _op(_ANY_BIT, _NAMESPACE_FLAGS, len(test), 1 - len(test)),
        *test,
        _op(_RETURN, _EPERM),
        _op(_RETURN, _ALLOW),
        _op(_EQUAL, _SETSID[arch], 0, 1),
        _op(_RETURN, _DONE),
        _op(_EQUAL, _MMAP[arch], 0, 6),  # no memory that outlives its last mapping, or counts nowhere
        _op(_LOAD, _ARGUMENTS + 3 * 8),
        _op(_ANY_BIT, _MAP_HUGETLB, 2, 0),
        _op(_ANY_BIT, _MAP_ANONYMOUS, 0, 2),
        _op(_ANY_BIT, _MAP_SHARED, 0, 1),
        _op(_RETURN, _EPERM),
        _op(_RETURN, _ALLOW),
        _op(_EQUAL, _SENDTO[arch], 0, 6),  # to its own pair only: without an address
        _op(_LOAD, _ARGUMENTS + 4 * 8),
        _op(_EQUAL, 0, 0, 2),
        _op(_LOAD, _ARGUMENTS + 4 * 8 + 4),
        _op(_EQUAL, 0, 1, 0),
        _op(_RETURN, _EPERM),
        _op(_RETURN, _ALLOW),
    ]
    ops += _by_argument(_SOCKETPAIR[arch], 0, [_AF_UNIX], _ALLOW, _EPERM)
    ops += _by_argument(_FCNTL[arch], 1, _FCNTL_DENIED, _EPERM, _ALLOW)
    ops += _by_argument(_IOCTL[arch], 1, _IOCTL_ALLOWED, _ALLOW, _ENOTTY)
    prctls = [_PR_SCHED_CORE, *(() if threads else (_PR_SET_PDEATHSIG,))]
    ops += _by_argument(_PRCTL[arch], 0, prctls, _EPERM, _ALLOW)
    if not processes:
        for numbers in _OWN.values():
            ops += _by_argument(numbers[arch], 0, [pid], _ALLOW, _EPERM)
        for numbers in _OWN_OR_ZERO.values():
            ops += _by_argument(numbers[arch], 0, [0, pid], _ALLOW, _EPERM)
    return b"".join([*ops, _op(_RETURN, _ALLOW)])


def _by_argument(number: int, index: int, listed: Sequence[int], then: int, other: int) -> list[bytes]:
    """Decides one call by the low half of an argument: `then` where it is listed, else `other`."""
    count = len(listed)
    tests = [_op(_EQUAL, value, count - place, 0) for place, value in enumerate(listed)]
    return [
        _op(_EQUAL, number, 0, count + 3),
        _op(_LOAD, _ARGUMENTS + 8 * index),
        *tests,
        _op(_RETURN, other),
        _op(_RETURN, then),
    ]


def install(code: bytes) -> None:
    """Puts a filter on this thread and all it will start.

    Raises:
        OSError: the kernel has no seccomp filters.
    """
    buffer = ctypes.create_string_buffer(code, len(code))
    filters = struct.pack("<HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    set_mode_filter = 1
    check(call(_SYS_SECCOMP[ARCH], set_mode_filter, 0, filters), "seccomp")


def probe() -> None:
    """OSError where `install` could not work."""
    if ARCH < 0:
        raise OSError("no table of system calls for this architecture")
    get_action_avail, errno_action = 2, struct.pack("<I", 0x00050000)
    check(call(_SYS_SECCOMP[ARCH], get_action_avail, 0, errno_action), "seccomp")
