# ruff: noqa: E501, PTH102, PTH116, PTH123, PTH208, PTH211 - programs in a line each; very deep folders
"""Nobody takes more than a share: processors, processes, and memory in whatever form."""

import asyncio
import time

import pytest

from whale_envs.sandbox import Limits, RunResult, Sandbox
from whale_envs.sandbox.warm.jail import remove_tree

from .conftest import LIMITS
from .load import slowness
from .test_sandbox_hostile import ENDS, REACHES, SYSCALL, X86, only_spares_are_left

BOMBS = {
    "plain": "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass",
    "sessions": "import os\nwhile True:\n  try:\n    os.fork()\n    os.setsid()\n    os.setpgid(0, 0)\n  except OSError: pass",
    "die-and-live": "import os\nfirst = os.getpid()\nwhile True:\n  try:\n    if os.fork() and os.getpid() != first: os._exit(0)\n  except OSError: pass",
    "ignoring": "import os, signal\nfor s in range(1, 32):\n  try: signal.signal(s, signal.SIG_IGN)\n  except OSError: pass\nwhile True:\n  try: os.fork()\n  except OSError: pass",
    "threads": "import threading, hashlib\nx = bytes(10**7)\ndef f():\n  while True: hashlib.sha256(x)\nwhile True:\n  try: threading.Thread(target=f).start()\n  except RuntimeError: pass",
    "continues": "import os, signal\nwhile True:\n  try:\n    os.fork()\n    os.kill(-1, signal.SIGCONT)\n  except OSError: pass",
}


async def ordinary(sandbox: Sandbox, number: int, limit: float) -> RunResult:
    await asyncio.sleep(0.1 * number)
    result = await sandbox.run(f"print(2+{number})", timeout_s=limit)
    assert result.text == f"{2 + number}\n", result
    return result


@pytest.mark.parametrize("name", BOMBS)
async def test_fork_bombs_delay_neither_others_nor_their_own_end(sandbox: Sandbox, name: str) -> None:
    await sandbox.run("1")
    slow = slowness()
    began = time.monotonic()
    count = 15 if name == "plain" else 5
    bad = [asyncio.create_task(sandbox.run(BOMBS[name], timeout_s=1)) for _ in range(count)]
    await asyncio.sleep(0)
    good = await asyncio.gather(*(ordinary(sandbox, i, 2 * slow) for i in range(8)))
    assert max(result.seconds for result in good) < 2 * slow
    ends = await asyncio.gather(*bad)
    assert {result.status for result in ends} == {"timed_out"}
    assert time.monotonic() - began < 1 + 4 * slow
    await only_spares_are_left(sandbox)


async def test_a_hundred_hostile_programs_do_not_delay_ordinary_ones_beyond_their_limit(
    sandbox: Sandbox,
) -> None:
    await sandbox.run("1")
    slow = slowness()
    hostile = [*ENDS.values(), *BOMBS.values(), "while True: pass", *REACHES.values()] * 3
    bad = [asyncio.create_task(sandbox.run(code, timeout_s=1.5)) for code in hostile[:100]]
    await asyncio.sleep(0)
    good = await asyncio.gather(*(ordinary(sandbox, i, 4 * slow) for i in range(40)))
    assert max(result.seconds for result in good) < 4 * slow
    assert not [result for result in await asyncio.gather(*bad) if "REACHED" in result.text]
    assert sandbox.restarts == 0
    await only_spares_are_left(sandbox)


async def test_a_pool_gets_its_turn_among_bombs(sandbox: Sandbox) -> None:
    slow = slowness()
    bad = [asyncio.create_task(sandbox.run(BOMBS["plain"], timeout_s=2 * min(slow, 4))) for _ in range(4)]
    pool = "from multiprocessing import Pool\nwith Pool(3) as p: print(sum(p.map(abs, range(10))))"
    assert (await sandbox.run(pool, timeout_s=10 * slow)).text == "45\n"
    await asyncio.gather(*bad)


async def test_all_calls_together_meet_a_limit_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whale_envs.sandbox.plan._ALL_PROCESSES", 40)
    forks = (
        "import os, time\nn = 0\nend = time.monotonic() + 2\nwhile time.monotonic() < end:\n    try:\n"
        "        if os.fork() == 0: time.sleep(600)\n        n += 1\n    except OSError: time.sleep(0.05)\nprint(n)"
    )
    async with Sandbox(limits=LIMITS) as sandbox:
        results = await asyncio.gather(*(sandbox.run(forks, timeout_s=60) for _ in range(3)))
        assert 10 < sum(int(result.text) for result in results) < 40
        assert (await sandbox.run("print(1)")).text == "1\n"


REFUSED = {
    "anonymous": "import mmap\ntry: mmap.mmap(-1, 4096); print('REACHED')\nexcept PermissionError: print('refused')",
    "zero": "import mmap\ntry: f = open('/dev/zero', 'rb'); mmap.mmap(f.fileno(), 4096, prot=1); print('REACHED')\nexcept OSError: print('refused')",
    "huge": "import mmap\ntry: mmap.mmap(-1, 2**21, flags=0x40022); print('REACHED')\nexcept PermissionError: print('refused')",
    "pipe": "import fcntl, os\nr, w = os.pipe()\ntry: fcntl.fcntl(w, 1031, 2**20); print('REACHED')\nexcept PermissionError: print('refused')",
    "buffer": "import socket\na, b = socket.socketpair()\ntry: a.setsockopt(1, 7, 2**22); print('REACHED')\nexcept PermissionError: print('refused')",
    "in-flight": "import socket\na, b = socket.socketpair()\ntry: socket.send_fds(a, [b'x'], [0]); print('REACHED')\nexcept PermissionError: print('refused')",
    "address": "import socket\na, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\ntry: a.sendto(b'x', '\\0x'); print('REACHED')\nexcept PermissionError: print('refused')",
    "connect": "import socket\na, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\ntry: a.connect('\\0x'); print('REACHED')\nexcept PermissionError: print('refused')",
    "bind": "import socket\na, b = socket.socketpair()\ntry: a.bind('x'); print('REACHED')\nexcept PermissionError: print('refused')",
    "lease": "import fcntl, os\nf = os.open(os.__file__, os.O_RDONLY)\ntry: fcntl.fcntl(f, 1024, 0); print('REACHED')\nexcept PermissionError: print('refused')",
    "owner": "import fcntl, os\ntry: fcntl.fcntl(0, 8, os.getpid()); print('REACHED')\nexcept PermissionError: print('refused')",
    "notify": "import fcntl, os\nf = os.open('.', os.O_RDONLY)\ntry: fcntl.fcntl(f, 1026, 2); print('REACHED')\nexcept PermissionError: print('refused')",
    "flags": "import fcntl, os\nf = os.open(os.__file__, os.O_RDONLY)\ntry: fcntl.ioctl(f, 0x40086602, bytes(8)); print('REACHED')\nexcept OSError: print('refused')",
    "descriptors": "import os\ntry:\n    for _ in range(99): os.dup(0)\n    print('REACHED')\nexcept OSError: print('refused')",
}
NUMBERS = {
    "inotify": "253", "inotify1": "294, 0", "fanotify": "300, 0, 0", "landlock": "444, 0, 0, 1",
    "sched_setparam": "142, 0, 0", "sched_setscheduler": "144, 0, 0, b'0000'", "sched_setattr": "314, 0, 0, 0",
    "setpriority": "141, 0, 0, 5", "ioprio": "251, 1, 0, 0x4000", "listen": "50, 0, 1", "accept": "43, 0, 0, 0",
    "sync": "162", "syncfs": "306, 0", "core-scheduling": "157, 62, 1, 0, 0, 0", "memfd": "319, b'x', 0",
    "shmget": "29, 0, 4096, 0o1777", "semget": "64, 0, 1, 0o1777", "mq_open": "240, b'x', 0o100, 0o777, 0",
    "add_key": "248, b'user', b'a', b'b', 1, -1", "keyctl": "250, 0, -5, 1", "userfaultfd": "323, 1", "ptrace": "101, 0, 0, 0, 0",
    "io_uring": "425, 1, bytes(120)", "perf": "298, bytes(120), 0, -1, -1, 0", "bpf": "321, 0, bytes(72), 72",
}  # fmt: skip
"""x86-64 numbers of system calls that both filters refuse."""

if X86:
    REFUSED |= {f"call-{name}": f"{SYSCALL}call('{name}', {args})" for name, args in NUMBERS.items()}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_disturbs_others_or_counts_nowhere_is_refused(sandbox: Sandbox, name: str) -> None:
    assert (await sandbox.run(REFUSED[name], timeout_s=20)).text == "refused\n"


FILL = (
    "import os, time\nfor _ in range(30):\n    if os.fork() == 0: break\nkept = []\n"
    "try:\n    while True:\n        {make}\n"
    "        for end in ends:\n            end.setblocking(False)\n"
    "            try:\n                while True: end.send(bytes(65536))\n            except OSError: pass\n"
    "except OSError: pass\ntime.sleep(600)"
)


async def test_socket_buffers_count_as_memory(sandbox: Sandbox) -> None:
    code = FILL.format(make="import socket; ends = socket.socketpair(); kept.append(ends)")
    result = await sandbox.run(code, timeout_s=60)
    assert result.status == "memory", result


async def test_shared_memory_counts_where_no_filter_refuses_it() -> None:
    code = (
        "import mmap, os, time\nfor _ in range(6):\n    if os.fork() == 0:\n"
        "        x = mmap.mmap(-1, 6 * 10**7)\n        for _ in range(60): x.write(b'x' * 10**6)\n"
        "        time.sleep(600)\ntime.sleep(600)"
    )
    async with Sandbox(limits=LIMITS, without=("seccomp",)) as sandbox:
        assert (await sandbox.run(code, timeout_s=60)).status == "memory"


HOOKS = {
    "trace": "import sys\nsys.settrace(lambda *a: 1/0)",
    "profile": "import sys\nsys.setprofile(lambda *a: 1/0)",
    "both-again": "import sys\ndef t(*a):\n  sys.settrace(t)\n  sys.setprofile(t)\n  1/0\nsys.settrace(t)\nsys._getframe(1).f_trace = t",
    "timer": "import signal\nsignal.signal(14, lambda *a: 1/0)\nsignal.setitimer(0, 0.0001, 0.0001)\nprint(1)",
    "exit": "import os\nos._exit = os.write = print",
    "frames": "import sys\nf = sys._getframe(1)\nf.f_globals.clear()",
    "exits": "import sys\ndef t(*a): sys.exit(7)\nsys.settrace(t)",
    "excepthook": "import sys\ndef hook(kind, error, trace):\n    while trace: print(trace.tb_frame.f_code.co_filename); trace = trace.tb_next\nsys.excepthook = hook\n1/0",
    "stack": "import traceback\ntraceback.print_stack()",
    "warning": "import warnings\nwarnings.warn('x', stacklevel=2)",
    "names": "import sys\nsys.settrace(lambda f, e, a: print(f.f_code.co_filename))",
    "arguments": "import sys\nprint(sys.orig_argv, sys.argv, sys.flags)",
    "segfault": "import faulthandler, ctypes\nfaulthandler.enable()\nctypes.string_at(0)",
}


@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.parametrize("session", [None, "hooks"])
async def test_hooks_that_throw_into_our_frames_show_nothing_of_ours(
    sandbox: Sandbox, name: str, session: str | None
) -> None:
    result = await sandbox.run(HOOKS[name], timeout_s=20, session=session)
    assert result.status in ("finished", "crashed"), result
    assert "whale" not in result.text
    assert "warm/" not in result.text
    assert "supervisor.py" not in result.text
    assert result.exit_code != 199
    if session is not None:
        sandbox.forget_session(session)
    assert (await sandbox.run("print(1)")).text == "1\n"


# --- where the kernel grants no namespaces ---------------------------------------------------------

OTHERS = {
    "prlimit": "302, {pid}, 7, 0, bytes(16)", "affinity": "203, {pid}, 8, b'\\1' + bytes(7)",
    "kill": "62, {pid}, 0", "tkill": "200, {pid}, 0", "tgkill": "234, {pid}, {pid}, 0",
    "sched_setparam": "142, {pid}, bytes(4)", "setpriority": "141, 0, {pid}, 0", "ioprio": "251, 1, {pid}, 0x4000",
    "chmod": "90, {file}, 0o777", "fchmod": "91, {fd}, 0o777", "fchmodat": "268, -100, {file}, 0o777",
    "fchmodat2": "452, -100, {file}, 0o777, 0", "chown": "92, {file}, 0, 0", "fchown": "93, {fd}, 0, 0",
    "lchown": "94, {file}, 0, 0", "fchownat": "260, -100, {file}, 0, 0, 0", "utime": "132, {file}, 0",
    "utimes": "235, {file}, 0", "futimesat": "261, -100, {file}, 0", "utimensat": "280, -100, {file}, 0, 0",
    "setxattr": "188, {file}, b'user.x', b'1', 1, 0", "lsetxattr": "189, {file}, b'user.x', b'1', 1, 0",
    "fsetxattr": "190, {fd}, b'user.x', b'1', 1, 0", "removexattr": "197, {file}, b'user.x'",
    "lremovexattr": "198, {file}, b'user.x'", "fremovexattr": "199, {fd}, b'user.x'", "truncate": "76, {file}, 10**6",
    "fork": "57", "vfork": "58", "clone": "56, 17, 0, 0, 0, 0", "setxattrat": "463, -100, {file}, 0, 0, 0, 0",
}  # fmt: skip


@pytest.mark.skipif(not X86, reason="numbers of x86-64")
async def test_without_namespaces_neither_processes_nor_files_of_others_change(tmp_path_factory) -> None:
    import os

    given = {"pid": os.getpid(), "file": "__import__('os').__file__.encode()", "fd": "fd"}
    calls = "".join(f"call('{name}', {args.format(**given)})\n" for name, args in OTHERS.items())
    head = f"{SYSCALL}fd = os.open(os.__file__, os.O_RDONLY)\n"
    async with Sandbox(limits=LIMITS, without=("namespaces",)) as sandbox:
        before = os.stat(os.__file__)
        result = await sandbox.run(head + calls, timeout_s=20)
        assert result.text == "refused\n" * len(OTHERS)
        assert os.stat(os.__file__) == before
        for name, code in REFUSED.items():
            if name != "zero":
                assert (await sandbox.run(code, timeout_s=20)).text == "refused\n", name
        assert "PermissionError" in (await sandbox.run("open('/dev/zero', 'rb')")).text
        own = "import os, resource\nos.sched_setaffinity(0, os.sched_getaffinity(os.getpid()))\nresource.prlimit(os.getpid(), 7, (9, 9))\nprint(resource.getrlimit(7))"
        assert (await sandbox.run(own)).text == "(9, 9)\n"
        many = "import threading, time\nthreading.stack_size(32768)\nwhile True: threading.Thread(target=time.sleep, args=(600,)).start()"
        assert (await sandbox.run(many, timeout_s=30)).status == "crashed"
        deep = "import os\nfor _ in range(1300):\n    os.mkdir('d')\n    os.chdir('d')\nos.mkdir('shut', 0)\nprint(1)"
        assert (await sandbox.run(deep, timeout_s=30)).text == "1\n"
        left = os.listdir(sandbox.hello()["scratch"])
        assert len(left) <= 12  # of spares
        assert sandbox.restarts == 0


def test_a_tree_is_removed_however_deep(tmp_path) -> None:
    import os

    top = tmp_path / "top"
    top.mkdir()
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(top)
        for number in range(1300):
            os.mkdir("d")
            with open(f"f{number}", "w"):
                pass
            os.symlink("/", "link")
            os.chdir("d")
    finally:
        os.chdir(here)
        os.close(here)
    remove_tree(str(top))
    assert not top.exists()
    remove_tree(str(top))


def test_an_old_landlock_is_no_wall_without_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    from whale_envs.sandbox.warm import keeper, landlock

    monkeypatch.setattr(landlock, "abi", lambda: 2)
    keeper._landlock(True)
    with pytest.raises(OSError, match="truncated"):
        keeper._landlock(False)


@pytest.mark.parametrize("without", [("namespaces", "seccomp"), ("namespaces", "landlock")])
async def test_without_namespaces_both_other_walls_are_needed(without: tuple[str, ...]) -> None:
    from whale_envs.errors import UsageError

    with pytest.raises(UsageError, match=r"open: files.*--unsafe-python"):
        await Sandbox(without=without, limits=Limits()).run("1")
