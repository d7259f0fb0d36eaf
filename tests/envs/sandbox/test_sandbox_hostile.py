# ruff: noqa: E501 - programs in a line each
"""Hostile programs: each gets a typed result, reaches nothing, leaves nothing, and harms no other."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from whale_envs.sandbox import STATUSES, Sandbox

from .conftest import LIMITS
from .load import slowness

SYSCALL = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    result = libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    print('REACHED ' + name if result >= 0 else 'refused')
"""
X86 = os.uname().machine == "x86_64"

REACHES = {
    "kill-all": "import os\nfor p in range(2, 400):\n    try: os.kill(p, 9); print('REACHED', p)\n    except OSError: pass",
    "kill-group": "import os, signal\nsignal.signal(15, signal.SIG_IGN)\nos.killpg(0, 15)\nos.kill(0, 15)\nprint('alive')",
    "kill-parent": "import os\nprint(os.getppid())\ntry: os.kill(os.getppid() or 99999, 9)\nexcept OSError: pass",
    "inet": "import socket\ntry: socket.socket(); print('REACHED')\nexcept OSError as e: print(e)",
    "udp": "import socket\ntry: socket.socket(2, 2); print('REACHED')\nexcept OSError as e: print(e)",
    "unix": "import socket\ntry: socket.socket(1, 1).connect('\\0x'); print('REACHED')\nexcept PermissionError as e: print(e)",
    "raw": "import socket\ntry: socket.socket(17, 3); print('REACHED')\nexcept OSError as e: print(e)",
    "http": "import urllib.request\ntry: urllib.request.urlopen('http://127.0.0.1'); print('REACHED')\nexcept OSError as e: print(e)",
    "write-outside": (
        "import os\n"
        "for path in ('/', '/usr/lib', '/bin', '/etc', '/dev', '/proc', '/root', os.path.dirname(os.__file__)):\n"
        "    for name in ('reward.txt', 'x/../reward.txt'):\n"
        "        try: open(path + '/' + name, 'w').write('1.0'); print('REACHED', path)\n"
        "        except OSError: pass\n"
        "print('PASSED'); print('{\"reward\": 1}')"
    ),
    "overwrite": (
        "import os, sys, json\n"
        "for path in (sys.executable, json.__file__, '/bin/sh', '/etc/passwd', '/dev/null/x'):\n"
        "    for act in (lambda: open(path, 'ab'), lambda: os.unlink(path), lambda: os.chmod(path, 0o777),\n"
        "                lambda: os.rename(path, '/scratch/x'), lambda: os.truncate(path, 0)):\n"
        "        try: act(); print('REACHED', path)\n"
        "        except OSError: pass\n"
    ),
    "proc": (
        "import os\n"
        "print(os.listdir('/proc'))\n"
        "for n in ('self', '1', '2', 'sys', 'kcore', 'mounts'):\n"
        "    print('REACHED' if os.path.exists('/proc/' + n) else 'none')"
    ),
    "links": (
        "import os\nos.symlink('/', 'root')\nos.symlink('/etc/passwd', 'f')\nos.symlink('/proc/1/root', 'p')\n"
        "for n in ('root/reward', 'f', 'p/x', '../reward', '../../reward'):\n"
        "    try: open(n, 'w'); print('REACHED', n)\n    except OSError: pass\n"
        "try: os.link('/bin/sh', 'sh'); print('REACHED link')\nexcept OSError: pass"
    ),
    "setuid": (
        "import os\nfor u in (0, 1000, 65534):\n"
        "    try: os.setuid(u); print('REACHED' if u != 65534 else '')\n    except OSError: pass\nprint(os.getuid())"
    ),
    "sudo": "import subprocess\nfor c in ('su', 'mount', 'unshare -r'):\n"
    "    r = subprocess.run(c.split() + ['/bin/echo', 'REACHED'], capture_output=True, text=True, stdin=0)\n"
    "    print(r.stdout)",
    "nodes": "import os\nfor k in (0o20666, 0o60666):\n    try: os.mknod('d', k, 0x101); print('REACHED')\n    except OSError: pass",
    "chroot": "import os\ntry: os.chroot('/scratch'); print('REACHED')\nexcept OSError: pass",
    "limits": (
        "import resource as r\n"
        "for k in (r.RLIMIT_NPROC, r.RLIMIT_NOFILE, r.RLIMIT_FSIZE, r.RLIMIT_CORE):\n"
        "    try: r.setrlimit(k, (-1, -1)); print('REACHED', k)\n    except (OSError, ValueError): pass\n"
    ),
    "nice": "import os\ntry: os.nice(-5); print('REACHED')\nexcept OSError: pass",
    "descriptors": (
        "import os\nopen_ = []\n"
        "for fd in range(4, 5000):\n    try: os.fstat(fd); open_.append(fd)\n    except OSError: pass\n"
        "print('REACHED' if open_ else 'none', open_)"
    ),
    "abstract": "import socket\na, b = socket.socketpair()\nb.sendall(b'own pairs work')\nprint(a.recv(99).decode())",
    "execve": "import os\nos.execv('/bin/sh', ['sh', '-c', 'echo $PPID; ls / /proc; kill -9 -1; echo REACHED > /reward'])",
}
if X86:
    NUMBERS = {
        "ptrace": "101, 0, 0, 0, 0", "ptrace-attach": "101, 16, 1, 0, 0", "readv": "310, 1, 0, 0, 0, 0, 0",
        "mount": "165, b'x', b'/scratch', b'tmpfs', 0, 0", "umount": "166, b'/proc', 2",
        "unshare-user": "272, 0x10000000", "unshare-mount": "272, 0x20000", "setns": "308, 0, 0",
        "keyctl": "250, 0, -1, 0", "add_key": "248, b'user', b'a', b'b', 1, -1", "bpf": "321, 0, 0, 0",
        "userfaultfd": "323, 0", "perf": "298, 0, 0, -1, -1, 0", "io_uring": "425, 1, 0",
        "memfd": "319, b'x', 0", "shmget": "29, 0, 4096, 0o1777", "msgget": "68, 0, 0o1777",
        "mqueue": "240, b'x', 0o100, 0o777, 0", "socket": "41, 16, 3, 0", "kexec": "246, 0, 0, 0, 0",
        "pidfd": "434, 1, 0", "handle": "304, 0, 0, 0", "clone-user": "56, 0x10000011, 0, 0, 0, 0",
        "clone-net": "56, 0x40000011, 0, 0, 0, 0", "clone3": "435, 0, 0", "fsopen": "430, b'tmpfs', 0",
        "x32": "0x40000027, 0", "newest": "600, 0", "syslog": "103, 3, 0, 0", "seccomp": "317, 1, 0, 0",
        "chroot": "161, b'/'", "settime": "164, 0, 0", "personality": "135, 0x40000", "socketpair": "53, 2, 1, 0, 0",
    }  # fmt: skip
    REACHES |= {f"call-{name}": f"{SYSCALL}call('{name}', {args})" for name, args in NUMBERS.items()}

ENDS = {
    "fork-bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "fork-bomb-setsid": "import os\nwhile True:\n    try:\n        if os.fork() == 0: os.setsid()\n    except OSError: pass",
    "exit": "import os\nos._exit(0)",
    "exit-199": "import os\nos._exit(199)",
    "segfault": "import ctypes\nctypes.string_at(0)",
    "abort": "import os\nos.abort()",
    "recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f()\nf()",
    "c-recursion": "import sys\nsys.setrecursionlimit(10**9)\nx = []\nfor _ in range(10**6): x = [x]\nrepr(x)",
    "recursion-plain": "def f(): return f()\nf()",
    "nested-source": "print(" + "(" * 400 + "1" + ")" * 400 + ")",
    "deep-source": "x = " + "-" * 90_000 + "1",
    "disk": "with open('big', 'wb') as f:\n    while True: f.write(b'x' * 10**6)",
    "files": "n = 0\nwhile True:\n    open(str(n), 'w').close()\n    n += 1",
    "descriptors": "import os\nwhile True: os.dup(0)",
    "pipes": "import os\nx = []\nwhile True: x.append(os.pipe())",
    "threads": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
    "close-all": "import os\nos.closerange(0, 256)\nprint(1)",
    "protocol": "import os\nos.write(3, b'RMD\\0' * 1000)\nprint('x')",
    "protocol-read": "import os\nprint(os.read(3, 100))",
    "protocol-flood": "import os\nwhile True: os.write(3, b'D' * 65536)",
    "stop-self": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\nprint('on')",
    "stop-children": "import os, signal\nif os.fork() == 0: os.kill(os.getpid(), signal.SIGSTOP)\nprint('on')",
    "double-fork": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(600)\nos._exit(0)",
    "holds-pipes": "import os, time\nif os.fork() == 0:\n    while True: print('x', flush=True)\nprint('main ends')",
    "exit-handlers": "import atexit, time\natexit.register(time.sleep, 600)",
    "del": "class A:\n    def __del__(self):\n        while True: pass\na = A()\ndel a",
    "bad-str": "class E(Exception):\n    def __str__(self): raise ValueError\nraise E",
    "endless-str": "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E",
    "replaced-streams": "import sys\nsys.stdout = sys.stderr = None\n1/0",
    "broken-streams": "import sys\nclass S:\n    def __getattr__(self, n): raise SystemExit(5)\nsys.stdout = S()",
    "builtins": "import builtins\nfor n in list(vars(builtins)): delattr(builtins, n)",
    "modules": "import sys\nsys.modules.clear()\nx.y",
    "huge-int": "print(10**10**8)",
    "long-list": "print([0] * 10**7)",
    "regex": "import re\nre.match('(a+)+$', 'a' * 40 + 'b')",
    "endless-import": "import sys\nsys.meta_path.insert(0, type('F', (), {'find_spec': lambda *a: __import__('a')})())\nimport b",
    "tracing": "import sys\nsys.settrace(lambda *a: 1/0)\ndef f(): pass\nf()",
    "alarm": "import signal, time\nsignal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)\ntime.sleep(600)",
}  # fmt: skip


def below(process: int) -> list[tuple[int, str]]:
    """(id, state) of every descendant, on the host's side."""
    parents: dict[int, list[tuple[int, str]]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            try:
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append((int(name), fields[0]))
    found = list(parents.get(process, []))
    for child in found:
        found += parents.get(child[0], [])
    return found


async def only_spares_are_left(sandbox: Sandbox) -> None:
    """Asserts that what runs below the keeper is the supervisor, the template and idle spares."""
    assert sandbox._server is not None
    spares = 2 + min(8, (os.cpu_count() or 1) + 2)
    deadline = time.monotonic() + 5 * slowness()
    while True:
        left = below(sandbox._server._process.pid)
        if len(left) == spares and not [child for child in left if child[1] == "Z"]:
            return
        assert time.monotonic() < deadline, left
        await sandbox.run("pass")


@pytest.mark.parametrize("name", REACHES)
async def test_a_program_reaches_nothing(sandbox: Sandbox, name: str) -> None:
    result = await sandbox.run(REACHES[name], timeout_s=5 * slowness())
    assert "REACHED" not in result.text, result
    assert result.status in ("finished", "crashed"), result
    assert (await sandbox.run("print(1)")).text == "1\n"


@pytest.mark.parametrize("name", ENDS)
async def test_a_program_ends_as_a_typed_result(sandbox: Sandbox, name: str) -> None:
    result = await sandbox.run(ENDS[name], timeout_s=0.7)
    assert result.status in STATUSES
    assert result.seconds < 2 + 3 * slowness()
    json.loads(json.dumps(result.text))
    assert (await sandbox.run("print(1)")).text == "1\n"


async def test_nothing_is_left_running(sandbox: Sandbox) -> None:
    await asyncio.gather(*(sandbox.run(code, timeout_s=0.7) for code in ENDS.values()))
    await only_spares_are_left(sandbox)


async def test_scratch_folders_are_bounded_private_and_gone(sandbox: Sandbox) -> None:
    big = "try:\n    with open('big', 'wb') as f:\n        while True: f.write(b'x' * 10**6)\nexcept OSError as e: print(e.errno)"
    parts = (
        "n = 0\ntry:\n    while True:\n        open(f'f{n}', 'wb').write(b'x' * 10**6)\n        n += 1\n"
        "except OSError as e: print(n, e.errno)"
    )
    inodes = "n = 0\ntry:\n    while True:\n        open(f'f{n}', 'w').close()\n        n += 1\nexcept OSError as e: print(n < 5000, e.errno)"
    assert (await sandbox.run(big)).text in ("27\n", "28\n")
    count, number = (await sandbox.run(parts)).text.split()
    assert int(count) <= 17
    assert number == "28"
    assert (await sandbox.run(inodes)).text == "True 28\n"
    wrote = sandbox.run("import time\nopen('mine', 'w').write('secret')\ntime.sleep(0.3)")
    looks = [sandbox.run("import os, time\ntime.sleep(0.1)\nprint(os.listdir('.'))") for _ in range(4)]
    _, *seen = await asyncio.gather(wrote, *looks)
    assert {result.text for result in seen} == {"[]\n"}


GRADER = """
import asyncio, json, sys
from whale_envs.sandbox import Sandbox
gold = ["GOLD", sys.argv[1]]
held = ["_".join(gold) for _ in range(1000)]
programs = json.load(sys.stdin)
async def main():
    async with Sandbox() as sandbox:
        await sandbox.run("answer = '" + held[0] + "'")         # another rollout's own text
        results = await asyncio.gather(*(sandbox.run(p, timeout_s=20) for p in programs))
        print(json.dumps([r.text for r in results]))
asyncio.run(main())
"""
SEEK = [
    # every file that can be opened, from the root on
    "import os\nword = 'GOLD_' + '73' + '91'\nn = 0\n"
    "for folder, folders, files in os.walk('/', followlinks=False):\n"
    "    for name in files:\n"
    "        path = os.path.join(folder, name)\n"
    "        if word in path: print('FOUND', path)\n"
    "        if not any(s in path for s in ('/usr/lib', '/usr/bin', '/lib/python3', '/dev/')):\n"
    "            try:\n"
    "                if os.path.getsize(path) < 10**6 and word.encode() in open(path, 'rb').read(): print('FOUND', path)\n"
    "                n += 1\n"
    "            except OSError: pass\n"
    "print(n > 10)",
    # the memory that this process inherited, page by page; a pipe's write tells which pages exist
    "import ctypes, gc, os, re\nlibc = ctypes.CDLL(None)\nout, end = os.pipe()\nos.set_blocking(out, False)\n"
    "word = re.compile(b'GOLD_7[3]91')\npages = set()\n"
    "for o in gc.get_objects() + [libc, word]:\n    pages.add(id(o) >> 20)\n"
    "gc.unfreeze()\nfor o in gc.get_objects(): pages.add(id(o) >> 20)\n"
    "n = 0\nfor base in sorted(pages):\n"
    "    for page in range(base << 20, (base + 1) << 20, 4096):\n"
    "        if libc.write(end, ctypes.c_void_p(page), ctypes.c_size_t(4096)) == 4096:\n"
    "            n += 1\n            if word.search(os.read(out, 4096)): print('FOUND', hex(page))\n"
    "print(n > 5000)",
    "import os, sys\nprint(dict(os.environ), sys.argv, sys.orig_argv)",
    "import glob\nprint(glob.glob('/proc/*/cmdline'), glob.glob('/proc/*/environ'))",
    "import os\nfor d in ('/home', '/root/.cache', '/var', '/run', '/mnt', '/srv', '/opt'):\n"
    "    if os.path.isdir(d): print('FOUND', d)",
    "import glob, sys\nfor p in sys.path + ['/']: print([f for f in glob.glob(p + '/*') if 'whale' in f])",
    "import subprocess\nprint(subprocess.run('grep -rs GOLD_73[9]1 /root /tmp /etc /bin /proc /scratch', shell=True, capture_output=True))",
]


def test_the_graders_gold_is_nowhere(tmp_path: Path) -> None:
    (tmp_path / "gold_GOLD_7391.txt").write_text("GOLD_7391")
    done = subprocess.run(
        [sys.executable, "-c", GRADER, "7391", "GOLD_7391"],
        input=json.dumps(SEEK),
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
        env={**os.environ, "ANSWER": "GOLD_7391"},
        check=True,
    )
    texts = json.loads(done.stdout)
    assert len(texts) == len(SEEK)
    assert "GOLD_7391" not in done.stdout
    assert not [text for text in texts if "FOUND" in text]
    assert texts[0] == texts[1] == "True\n"
    assert "whale" not in texts[5]
    # Searched all and found nothing; 2 where a process went away while its files were read.
    assert re.search(r"returncode=[12], stdout=b'', stderr=b''", texts[6])


async def test_all_programs_together_leave_the_host_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whale_envs.sandbox.plan._available_mb", lambda: 1000)
    hold = f"import time\nx = bytearray(200 * 10**6)\ntime.sleep({min(5, slowness())})\nprint('held')"
    async with Sandbox(limits=LIMITS) as sandbox:
        calls = [asyncio.create_task(sandbox.run(hold, timeout_s=60)) for _ in range(6)]
        assert (await sandbox.run("print(1)")).text == "1\n"
        ends = [result.status for result in await asyncio.gather(*calls)]
    assert ends.count("finished") == 2
    assert ends.count("memory") == 4


def test_floods_never_stay_in_the_supervisor(sandbox: Sandbox) -> None:
    async def flood() -> None:
        code = "import sys\nwhile True: sys.stdout.write('x' * 10**6)"
        await asyncio.gather(*(sandbox.run(code, timeout_s=5) for _ in range(40)))

    asyncio.run(sandbox.run("1"))
    assert sandbox._server is not None
    supervisor = below(sandbox._server._process.pid)[0][0]

    def resident() -> int:
        return int(Path(f"/proc/{supervisor}/statm").read_text().split()[1]) * 4096

    before = resident()
    asyncio.run(flood())
    assert resident() - before < 40 * 2**20
