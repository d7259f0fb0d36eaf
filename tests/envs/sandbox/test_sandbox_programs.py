# ruff: noqa: E501 - programs in a line each
"""Ordinary programs: area D of the open cases, and what a user of Python expects."""

import asyncio
import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from whale_envs.errors import UsageError
from whale_envs.sandbox import CODE_BYTES, TEXT_CHARS, RunResult, Sandbox

from .conftest import LIMITS
from .load import slowness


def has_marker(marker: str) -> list[int]:
    """Processes, host side, whose command line or environment holds the marker."""
    found = []
    for number in {int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()} - {os.getpid()}:
        for name in ("cmdline", "environ"):
            try:
                if marker.encode() in Path(f"/proc/{number}/{name}").read_bytes():
                    found.append(number)
            except OSError:
                continue
    return found


def readable(result: RunResult) -> bool:
    """Whether the text is valid UTF-8, short enough, and survives JSON."""
    text = result.text
    return text.encode().decode() == text == json.loads(json.dumps(text)) and 0 < len(text) <= TEXT_CHARS


# --- O-17: a time limit that kills ---------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "import signal\nfor s in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):\n"
        "    signal.signal(s, signal.SIG_IGN)\nwhile True: pass",
        "x = []\nwhile True:\n    x.append(len(x))\n    if len(x) > 10**6: x.clear()",
        "import time\ntime.sleep(600)",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()",
        "import os\nos.kill(os.getpid(), 19)\nwhile True: pass",
        "import os, time\nos.read(os.pipe()[0], 1)",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    ],
    ids=["signals", "allocating", "sleep", "thread", "stops-itself", "blocked", "catches-all"],
)
async def test_a_program_without_an_end_is_ended(sandbox: Sandbox, code: str) -> None:
    result = await sandbox.run(code, timeout_s=0.4)
    assert result.status == "timed_out"
    assert result.seconds < 0.4 + 1.6 * slowness()
    assert "time limit of 0.4 s" in result.text


async def test_a_grandchild_neither_delays_the_result_nor_outlives_it(sandbox: Sandbox) -> None:
    code = 'import subprocess\nsubprocess.Popen(["sleep", "617.3"], start_new_session=True)\nprint("ok")'
    result = await sandbox.run(code, timeout_s=600)
    assert (result.status, result.text) == ("finished", "ok\n")
    assert result.seconds < 5 * slowness()
    assert not has_marker("617.3")


async def test_what_was_printed_before_the_limit_is_shown(sandbox: Sandbox) -> None:
    result = await sandbox.run("print('so far', 5*5, flush=True)\nwhile True: pass", timeout_s=2)
    assert result.text == "so far 25\n(stopped at the time limit of 2 s)"


# --- O-18: floods --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "x=[bytearray(10**8) for _ in range(10**4)]",
        "import numpy as np\nx = [np.ones(10**7) for _ in range(1000)]",
        "x = 'a' * 10**10",
        "x = []\nwhile True: x.append(bytearray(10**6))",
    ],
)
async def test_memory_runs_out_as_a_result(sandbox: Sandbox, code: str) -> None:
    result = await sandbox.run(code, timeout_s=20)
    assert result.status == "memory"
    assert "memory limit of 256 MB" in result.text
    assert readable(result)


async def test_a_memory_error_that_is_caught_is_no_failure(sandbox: Sandbox) -> None:
    result = await sandbox.run("try: x = bytearray(10**10)\nexcept MemoryError: print('none left')")
    assert (result.status, result.text) == ("finished", "none left\n")


async def test_many_processes_share_one_memory_limit(sandbox: Sandbox) -> None:
    code = (
        "import os, time\n"
        "for _ in range(8):\n"
        "    if os.fork() == 0:\n"
        "        x = bytearray(150 * 10**6)\n"
        "        time.sleep(600)\n"
        "time.sleep(600)"
    )
    result = await sandbox.run(code, timeout_s=20)
    assert result.status == "memory"
    assert result.seconds < 10 * slowness()


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_a_flood_of_output_is_ended_and_cut_between_characters(sandbox: Sandbox, stream: str) -> None:
    code = f"import sys\nwhile True: sys.{stream}.write('é' * 10**6)"
    result = await sandbox.run(code, timeout_s=20)
    assert result.status == "output_limit"
    assert readable(result)
    assert set(result.text.split("\n", 1)[0]) == {"é"}
    assert "characters left out" in result.text
    assert len(result.stdout) + len(result.stderr) < 70_000


async def test_long_output_says_how_much_is_missing(sandbox: Sandbox) -> None:
    result = await sandbox.run("print('a' * 100_000 + 'ö' * 100_000)")
    assert result.status == "finished"
    text = result.text
    front, note, back = text.split("\n", 2)
    assert len(text) == TEXT_CHARS
    assert set(front) == {"a"}
    assert set(back.split("\n", 1)[0]) == {"ö"}
    missing = int(note.split("[")[1].split()[0].replace(",", ""))
    assert missing + len(front) + len(back) == 200_001


async def test_many_forks_meet_a_limit(sandbox: Sandbox) -> None:
    code = (
        "import os, time\nn = 0\ntry:\n    while True:\n"
        "        if os.fork() == 0: time.sleep(600)\n        n += 1\n"
        "except OSError as error: print(n, type(error).__name__)"
    )
    result = await sandbox.run(code, timeout_s=20)
    assert result.text == f"{LIMITS.processes - 1} BlockingIOError\n"


# --- O-19: odd bytes and stdin -------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        'print("\\ud800")',
        'import sys\nsys.stdout.buffer.write(b"\\xff\\xfe")',
        "import sys\nsys.stderr.buffer.write(bytes(range(256)))",
        'raise ValueError("\\udfff")',
        'print("\ud800")',
        "print('\x00')",
        "print(chr(0))",
        'import sys\nsys.stdout.buffer.write("é".encode()[:1])',
    ],
)
async def test_odd_bytes_come_back_as_valid_text(sandbox: Sandbox, code: str) -> None:
    result = await sandbox.run(code)
    assert result.status == "finished"
    assert readable(result)
    assert (await sandbox.run("print(1)")).text == "1\n"


@pytest.mark.parametrize("code", ['input("n? ")', "input()", "import sys\nsys.stdin.readline() or input()"])
async def test_there_is_no_input(sandbox: Sandbox, code: str) -> None:
    result = await sandbox.run(code, timeout_s=20)
    assert "EOFError" in result.text
    assert result.exit_code == 1
    assert result.seconds < 5 * slowness()


# --- O-21: state and programs --------------------------------------------------------------------


async def test_a_syntax_error_shows_itself_and_nothing_older(sandbox: Sandbox) -> None:
    await sandbox.run('print("alpha")')
    result = await sandbox.run("def f(:")
    assert "SyntaxError" in result.text
    assert "def f(:" in result.text
    assert "alpha" not in result.text


async def test_programs_are_main(sandbox: Sandbox) -> None:
    assert (await sandbox.run('if __name__ == "__main__": print(6*7)')).text == "42\n"


async def test_calls_share_no_variables(sandbox: Sandbox) -> None:
    await sandbox.run("x = 1\nimport builtins, math\nbuiltins.x = math.x = 1")
    result = await sandbox.run("print(x)")
    assert "NameError" in result.text
    assert "AttributeError" in (await sandbox.run("import math\nprint(math.x)")).text


async def test_a_session_keeps_variables_and_others_do_not_see_them(sandbox: Sandbox) -> None:
    assert (await sandbox.run("x = 41", session="a")).ok
    assert (await sandbox.run("x += 1\nprint(x)", session="a")).text == "42\n"
    assert "NameError" in (await sandbox.run("print(x)", session="b")).text
    assert "SyntaxError" in (await sandbox.run("def f(:", session="a")).text
    assert (await sandbox.run("print(x)", session="a")).text == "42\n"
    sandbox.forget_session("a")
    assert "NameError" in (await sandbox.run("print(x)", session="a")).text
    sandbox.forget_session("a")
    sandbox.forget_session("b")


async def test_a_session_that_is_ended_says_that_its_variables_are_lost(sandbox: Sandbox) -> None:
    await sandbox.run("x = 1", session="c")
    result = await sandbox.run("while True: pass", session="c", timeout_s=0.3)
    assert result.session_lost
    assert "variables are lost" in result.text
    assert "NameError" in (await sandbox.run("print(x)", session="c")).text
    sandbox.forget_session("c")


LEFT_RUNNING = {
    "daemon": (
        "import threading, time\n"
        "def chat():\n    while True:\n        print('chat')\n        time.sleep(0.01)\n"
        "threading.Thread(target=chat, daemon=True).start()"
    ),
    "low-level": "import _thread, time\n_thread.start_new_thread(lambda: [time.sleep(0.3), print('chat')], ())",
    "executor": "from concurrent.futures import ThreadPoolExecutor\ne = ThreadPoolExecutor()\nprint(*e.map(abs, [-1]))",
}


@pytest.mark.parametrize("name", LEFT_RUNNING)
async def test_a_thread_left_running_ends_its_session_and_says_so(sandbox: Sandbox, name: str) -> None:
    result = await sandbox.run("x = 1\n" + LEFT_RUNNING[name], session="d", timeout_s=20)
    assert (result.status, result.session_lost) == ("finished", True)
    assert result.text.endswith("left a thread running; the session's variables are lost)")
    after = await sandbox.run("import time\ntime.sleep(0.4)\nprint(x)", session="d", timeout_s=20)
    assert "NameError" in after.text
    assert "chat" not in after.text
    sandbox.forget_session("d")


async def test_a_thread_that_python_would_wait_for_is_waited_for(sandbox: Sandbox) -> None:
    code = "import threading, time\nx = 1\nthreading.Thread(target=lambda: [time.sleep(0.1), print('late')]).start()"
    assert (await sandbox.run(code, session="t", timeout_s=20)).text == "late\n"
    assert (await sandbox.run("print(x)", session="t", timeout_s=20)).text == "1\n"
    timer = "import signal\nsignal.signal(14, lambda *a: print('rings'))\nsignal.setitimer(0, 0.1, 0.1)"
    assert (await sandbox.run(timer, session="t", timeout_s=20)).ok
    wait = "import time\ntime.sleep(0.3)\nprint(x)"
    assert (await sandbox.run(wait, session="t", timeout_s=20)).text == "1\n"
    sandbox.forget_session("t")


async def test_nothing_of_a_session_runs_between_its_calls(sandbox: Sandbox) -> None:
    code = "import subprocess\nx = 1\nchild = subprocess.Popen(['sleep', '611.7'], start_new_session=True)"
    assert (await sandbox.run(code, session="d", timeout_s=20)).ok
    ends = time.monotonic() + 10
    while has_marker("611.7") and time.monotonic() < ends:  # noqa: ASYNC110 - a killed process takes its time
        await asyncio.sleep(0.01)
    assert not has_marker("611.7")
    assert (await sandbox.run("print(x)", session="d")).text == "1\n"
    sandbox.forget_session("d")


async def test_a_forgotten_session_is_gone_with_the_call_it_runs(sandbox: Sandbox) -> None:

    code = "import subprocess\nsubprocess.run(['sleep', '612.9'])"
    call = asyncio.create_task(sandbox.run(code, session="f", timeout_s=60))
    while not has_marker("612.9"):  # noqa: ASYNC110 - processes send no events
        await asyncio.sleep(0.02)
    await asyncio.to_thread(sandbox.forget_session, "f")
    assert (await call).status == "crashed"
    assert not has_marker("612.9")
    assert "NameError" in (await sandbox.run("print(code)", session="f")).text
    sandbox.forget_session("f")
    sandbox.forget_session("f")
    sandbox.forget_session("never was")


async def test_a_session_answers_one_call_at_a_time(sandbox: Sandbox) -> None:

    first = asyncio.create_task(sandbox.run("import time\ntime.sleep(0.3)", session="e"))
    await asyncio.sleep(0)
    with pytest.raises(UsageError, match="running another call"):
        await sandbox.run("pass", session="e")
    assert (await first).ok
    sandbox.forget_session("e")


@pytest.mark.parametrize(
    ("code", "text", "status"),
    [
        ("", "(finished; nothing was printed)", 0),
        ("x = 1", "(finished; nothing was printed)", 0),
        ("import sys\nsys.exit()", "(finished; nothing was printed)", 0),
        ("import sys\nsys.exit(3)", "(finished; nothing was printed)", 3),
        ("import sys\nsys.exit('bad')", "bad\n", 1),
        ("print('no newline', end='')", "no newline", 0),
        ("import os\nprint(1, flush=True)\nos._exit(4)", "1\n", 4),
        ("import atexit\natexit.register(print, 'bye')", "bye\n", 0),
        ("import threading\nthreading.Thread(target=print, args=('t',)).start()", "t\n", 0),
        ("import sys\nprint('out')\nprint('err', file=sys.stderr)\nprint('out2')", "out\nout2\nerr\n", 0),
        ("import os\nprint(os.getcwd(), os.listdir())", "/scratch []\n", 0),
        ("import math, fractions\nprint(math.comb(10, 3), fractions.Fraction(1, 3))", "120 1/3\n", 0),
        ("from sympy import *\nx = symbols('x')\nprint(solve(x**2 - 2))", "[-sqrt(2), sqrt(2)]\n", 0),
        ("import numpy as np\nprint(np.arange(3).sum())", "3\n", 0),
        ("import sys\nsys.excepthook = lambda *a: print('hooked')\n1/0", "hooked\n", 1),
        ("open('a.py', 'w').write('y = 3')\nimport a\nprint(a.y)", "3\n", 0),
        (
            "import subprocess\nprint(subprocess.run(['echo', 'hi'], capture_output=True).stdout)",
            "b'hi\\n'\n",
            0,
        ),
        ("from multiprocessing import Pool\nprint(Pool(2).map(abs, [-1, -2]))", "[1, 2]\n", 0),
        ("open('/dev/zero', 'rb').read(3) == bytes(3) and print('zeros')", "zeros\n", 0),
        (
            "import sqlite3\nc = sqlite3.connect('a.db')\nc.execute('create table t (x)')\nc.commit()\nprint(1)",
            "1\n",
            0,
        ),
        (
            "import subprocess, sys\nr = [sys.executable, '-c', 'import numpy; print(numpy.ones(3).sum())']\n"
            "print(subprocess.run(r, capture_output=True, text=True, start_new_session=True).stdout)",
            "3.0\n\n",
            0,
        ),
        (
            "import os, shutil, tempfile\nwith tempfile.TemporaryDirectory() as d:\n"
            "    open(d + '/a', 'w').write('x')\n    shutil.copy2(d + '/a', d + '/b')\n    print(sorted(os.listdir(d)))",
            "['a', 'b']\n",
            0,
        ),
        (
            "from multiprocessing import Array, Pipe, Process, Queue\n"
            "def f(q, a, p):\n    a[0] = 5\n    q.put(1)\n    p.send(2)\n"
            "q, a, (p, r) = Queue(), Array('i', 3), Pipe()\nc = Process(target=f, args=(q, a, p))\nc.start()\n"
            "print(q.get(), r.recv(), list(a))\nc.join()",
            "1 2 [5, 0, 0]\n",
            0,
        ),
        (
            "from concurrent.futures import *\nimport sympy\n"
            "with ThreadPoolExecutor() as e: print(*e.map(sympy.factorint, range(2, 5)))\n"
            "with ProcessPoolExecutor(2) as e: print(*e.map(abs, [-1, -2]))",
            "{2: 1} {3: 1} {2: 2}\n1 2\n",
            0,
        ),
        (
            "import mmap\nopen('m', 'wb').write(bytes(9))\nf = open('m', 'r+b')\nprint(len(mmap.mmap(f.fileno(), 0)))",
            "9\n",
            0,
        ),
        ("import asyncio\nasync def f(): return 7\nprint(asyncio.run(f()))", "7\n", 0),
    ],
)
async def test_ordinary_programs(sandbox: Sandbox, code: str, text: str, status: int) -> None:
    result = await sandbox.run(code, timeout_s=20)
    assert (result.status, result.text, result.exit_code) == ("finished", text, status)


async def test_a_traceback_shows_the_programs_lines_only(sandbox: Sandbox) -> None:
    code = "import json\ndef f(x):\n    return json.loads(x)\ntry:\n    f('{')\nexcept ValueError:\n    1 / 0"
    text = (await sandbox.run(code)).text
    assert "return json.loads(x)" in text
    assert "1 / 0" in text
    assert "ZeroDivisionError: division by zero" in text
    assert 'File "<code>", line 3' in text
    assert "decoder.py" not in text
    assert "whale" not in text


async def test_a_missing_module_is_a_readable_error(sandbox: Sandbox) -> None:
    for name in ("pandas_of_tomorrow", "whale_envs", "msgspec", "gymnasium"):
        result = await sandbox.run(f"import {name}")
        assert f"ModuleNotFoundError: No module named '{name}'" in result.text


async def test_random_numbers_differ_between_calls_and_hashes_do_not(sandbox: Sandbox) -> None:
    code = "import random, numpy\nprint(random.random(), numpy.random.random(), hash('a'), sep=';')"
    answers = [(await sandbox.run(code)).text.split(";") for _ in range(6)]
    assert len({a[0] for a in answers}) == len({a[1] for a in answers}) == 6
    assert len({a[2] for a in answers}) == 1


async def test_text_that_is_too_long_is_refused_as_a_result(sandbox: Sandbox) -> None:
    result = await sandbox.run("#" * (CODE_BYTES + 1))
    assert result.status == "refused"
    assert not result.ok
    assert "longer than 100,000 bytes" in result.text
    assert (await sandbox.run("#" * (CODE_BYTES - 20) + "\nprint(1)")).text == "1\n"


@pytest.mark.parametrize("arguments", [{"code": 3}, {"timeout_s": 0}, {"timeout_s": 1e9}, {"session": ""}])
async def test_misuse_raises(sandbox: Sandbox, arguments: dict) -> None:
    with pytest.raises(UsageError):
        await sandbox.run(**{"code": "1", **arguments})


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(st.text(), st.text("()[]{}:=+*%'\"\\\n \tabx01#@\ud800\x00é")))
def test_any_text_is_a_program_or_an_error(sandbox: Sandbox, text: str) -> None:

    result = asyncio.run(sandbox.run(text, timeout_s=5))
    assert readable(result)
    assert result.status in ("finished", "timed_out")
