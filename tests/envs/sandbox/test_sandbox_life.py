# ruff: noqa: ASYNC110, ASYNC240, E501 - polls processes, which send no events
"""The sandbox's own processes: start, death, restart, threads and loops, and fewer walls."""

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from whale_envs.errors import InfrastructureError, UsageError
from whale_envs.sandbox import Limits, Sandbox, plan, run, shared
from whale_envs.sandbox.doctor import describe, layers
from whale_envs.sandbox.warm import wire
from whale_envs.sandbox.warm.cells import Cell, Request
from whale_envs.sandbox.warm.supervisor import Supervisor, Walls

from .conftest import LIMITS
from .load import slowness
from .test_sandbox_hostile import below


@pytest.fixture(autouse=True)
def without_algebra(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes come, go and are counted as well without numpy and sympy, which take a second of CPU time to
    load; tests that ask for `algebra` have them."""
    if "algebra" not in request.fixturenames:
        monkeypatch.setattr(plan, "_PRELOAD", tuple(n for n in plan._PRELOAD if n not in plan.PACKAGES))


@pytest.fixture
def algebra() -> None:
    """Asked for by tests that need a sandbox as it is, or share one with other files."""


@pytest.fixture
def own() -> Iterator[Sandbox]:
    sandbox = Sandbox(limits=LIMITS)
    yield sandbox
    sandbox.close()


def processes(sandbox: Sandbox) -> list[int]:
    """The keeper, the supervisor, the template and its children, oldest first."""
    assert sandbox._server is not None
    keeper = sandbox._server._process.pid
    return [keeper, *(number for number, _ in below(keeper))]


def gone(numbers: list[int]) -> bool:
    deadline = time.monotonic() + 10 * slowness()
    while time.monotonic() < deadline:
        if not [n for n in numbers if Path(f"/proc/{n}").exists() and state(n) != "Z"]:
            return True
        threading.Event().wait(0.01)
    return False


def state(number: int) -> str:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


async def test_one_sandbox_serves_many_calls_at_once(own: Sandbox) -> None:
    results = await asyncio.gather(*(own.run(f"print({i})") for i in range(200)))
    assert [r.text for r in results] == [f"{i}\n" for i in range(200)]


def test_one_sandbox_serves_several_loops_and_threads(own: Sandbox) -> None:
    answers: dict[int, str] = {}

    def ask(number: int) -> None:
        async def both() -> None:
            first, second = await asyncio.gather(own.run(f"print({number})"), own.run("print('x')"))
            answers[number] = first.text + second.text

        asyncio.run(both())

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {i: f"{i}\nx\n" for i in range(8)}


@pytest.mark.parametrize("which", [0, 1, 2], ids=["keeper", "supervisor", "template"])
async def test_processes_that_die_are_started_again_and_calls_repeated(
    own: Sandbox, which: int, caplog: pytest.LogCaptureFixture
) -> None:
    await own.run("1")
    before = processes(own)
    call = asyncio.create_task(own.run("import time\ntime.sleep(0.3)\nprint('done')"))
    await asyncio.sleep(0.05)
    with caplog.at_level(logging.WARNING, "whale_envs.sandbox"):
        os.kill(before[which], signal.SIGKILL)
        assert (await call).text == "done\n"
    assert own.restarts == 1
    assert "starting them again" in caplog.text
    assert gone(before)


async def test_processes_that_die_twice_are_an_infrastructure_error(own: Sandbox) -> None:
    await own.run("1")
    call = asyncio.create_task(own.run("import time\ntime.sleep(60)"))
    killed: set[int] = set()
    while not call.done():
        server = own._server
        if server is not None and server._process.pid not in killed and server._connections:
            killed.add(server._process.pid)
            server._process.kill()
        await asyncio.sleep(0.01)
    with pytest.raises(InfrastructureError, match="died during the call"):
        await call
    assert len(killed) == 2
    assert (await own.run("print(1)")).text == "1\n"


async def test_a_session_does_not_survive_a_death_in_silence(own: Sandbox) -> None:
    await own.run("x = 1", session="s")
    os.kill(processes(own)[1], signal.SIGKILL)
    with pytest.raises(InfrastructureError):
        await own.run("print(x)", session="s")
    with pytest.raises(InfrastructureError, match="lost"):
        await own.run("print(x)", session="s")
    assert "NameError" in (await own.run("print(x)", session="s")).text


async def test_a_cancelled_call_is_ended(own: Sandbox) -> None:
    await own.run("1")
    call = asyncio.create_task(own.run("import subprocess\nsubprocess.run(['sleep', '613.1'])", timeout_s=60))
    while not any("613.1" in command(n) for n in processes(own)):
        await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    while any("613.1" in command(n) for n in processes(own)):
        await asyncio.sleep(0.01)


def command(number: int) -> str:
    try:
        return Path(f"/proc/{number}/cmdline").read_text()
    except OSError:
        return ""


HOST = """
import asyncio, sys
from tests.envs.sandbox.test_sandbox_hostile import below
from whale_envs.sandbox import Sandbox, plan
plan._PRELOAD = ()
async def main():
    sandbox = Sandbox()
    calls = [asyncio.create_task(sandbox.run("while True: pass", timeout_s=600)) for _ in range(3)]
    calls.append(asyncio.create_task(sandbox.run("import subprocess\\nsubprocess.run(['sleep', '619.9'])", timeout_s=600)))
    sandbox.hello()
    while not sandbox._server._connections:
        await asyncio.sleep(0.05)
    for _ in range(200):
        if (await sandbox.run("print(1)")).ok and len(below(sandbox._server._process.pid)) >= 11:
            break
        await asyncio.sleep(0.05)
    print(sandbox._server._process.pid, flush=True)
    await asyncio.gather(*calls)
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_the_host(number: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOST],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parents[3],
    ) as host:
        assert host.stdout is not None
        keeper = int(host.stdout.readline())
        all_ = [keeper, *(n for n, _ in below(keeper))]
        assert len(all_) >= 7
        os.kill(host.pid, number)
        host.wait(20)
        assert gone(all_)


async def test_closing_ends_everything_and_is_final(own: Sandbox) -> None:
    await own.run("1")
    all_ = processes(own)
    waiting = asyncio.create_task(own.run("import time\ntime.sleep(60)", timeout_s=90))
    await asyncio.sleep(0.05)
    own.close()
    with pytest.raises((InfrastructureError, UsageError)):
        await waiting
    assert gone(all_)
    own.close()
    with pytest.raises(UsageError, match="closed"):
        await own.run("1")


async def test_the_shared_sandbox(algebra: None) -> None:
    assert (await run("print(1)")).text == "1\n"
    assert shared() is shared()
    shared().close()
    assert (await run("print(2)")).text == "2\n"
    shared().close()


async def test_queued_calls_wait_without_losing_their_time() -> None:
    with_one = Sandbox(limits=LIMITS, concurrent=1)
    async with with_one as sandbox:
        nap = 0.2 * slowness()
        code = f"import time\ntime.sleep({nap})\nprint(1)"
        results = await asyncio.gather(*(sandbox.run(code, timeout_s=3 * nap) for _ in range(5)))
    assert [r.text for r in results] == ["1\n"] * 5
    assert max(r.waited_seconds for r in results) > 3 * nap


async def test_the_oldest_idle_session_makes_room() -> None:
    async with Sandbox(limits=LIMITS, sessions=2) as sandbox:
        for name in "abc":
            assert (await sandbox.run(f"x = '{name}'", session=name)).ok
        texts = [(await sandbox.run("print(x)", session=name)).text for name in "cb"]
    assert texts == ["c\n", "b\n"]


async def test_an_idle_session_expires() -> None:
    async with Sandbox(limits=LIMITS, session_seconds=0.1) as sandbox:
        await sandbox.run("x = 1", session="a")
        await asyncio.sleep(1.3)
        assert "NameError" in (await sandbox.run("print(x)", session="a")).text


ALONE = ["open('/etc/shadow').read()", "open('/x', 'w')", "import os\nos.listdir('/var')"]


async def test_without_namespaces_two_walls_remain(algebra: None) -> None:
    async with Sandbox(limits=LIMITS, without=("namespaces",)) as sandbox:
        for code in (
            *ALONE,
            "import socket\nsocket.socket()",
            "import os\nos.fork()",
            "import os\nos.kill(1, 0)",
        ):
            assert "PermissionError" in (await sandbox.run(code)).text
        secret = Path(__file__)
        assert "PermissionError" in (await sandbox.run(f"open({str(secret)!r}).read()")).text
        assert (await sandbox.run("open('a', 'w').write('x')\nprint(open('a').read())")).text == "x\n"
        assert (await sandbox.run("import os\nprint(os.listdir('.'))")).text == "[]\n"
        assert (await sandbox.run("while True: pass", timeout_s=0.3)).status == "timed_out"
        assert (await sandbox.run("import os\nos.abort()")).signal == signal.SIGABRT
        assert (await sandbox.run("from sympy import *\nprint(pi.n(5))")).text == "3.1416\n"
        results = await asyncio.gather(*(sandbox.run(f"print({i})") for i in range(30)))
        assert [r.text for r in results] == [f"{i}\n" for i in range(30)]
        scratch = Path(json.loads(json.dumps(sandbox.hello()))["scratch"])
        assert scratch.is_dir()
    assert not scratch.exists()


@pytest.mark.parametrize("without", [("landlock",), ("seccomp",), ("landlock", "seccomp")])
async def test_namespaces_alone_hold_files_network_and_processes(without: tuple[str, ...]) -> None:
    async with Sandbox(limits=LIMITS, without=without) as sandbox:
        for code in (*ALONE, "import urllib.request\nurllib.request.urlopen('http://127.0.0.1')"):
            assert not (await sandbox.run(code, timeout_s=5)).ok, code
        assert (await sandbox.run("print(1)")).text == "1\n"


async def test_without_walls_the_tool_refuses_unless_told_otherwise() -> None:
    none = ("namespaces", "landlock", "seccomp")
    with pytest.raises(UsageError, match=r"not be confined.*--unsafe-python"):
        await Sandbox(without=none).run("1")
    async with Sandbox(without=none, unsafe=True, limits=LIMITS) as sandbox:
        assert (await sandbox.run("print(1)")).text == "1\n"
        assert (await sandbox.run("while True: pass", timeout_s=0.3)).status == "timed_out"
        assert (await sandbox.run("x = bytearray(10**9)")).status == "memory"


def test_the_doctor_says_what_is_active(sandbox: Sandbox, algebra: None) -> None:
    rows = layers(sandbox)
    assert [row.name for row in rows] == [
        "namespaces", "landlock", "seccomp", "limits", "memory watch", "python tool",
    ]  # fmt: skip
    assert all(row.why for row in rows)
    assert describe(sandbox).count("\n") == 5
    weaker = Sandbox(without=("namespaces", "landlock"), unsafe=True)
    try:
        rows = layers(weaker)
        assert [row.active for row in rows] == [False, False, True, True, True, False]
        assert "open: files" in rows[-1].why
    finally:
        weaker.close()


@pytest.mark.parametrize("limits", [{"memory_mb": 0}, {"processes": True}, {"files": 1.5}])
def test_limits_are_positive_integers(limits: dict) -> None:
    with pytest.raises(UsageError):
        Limits(**limits)


def test_importing_it_loads_no_library_for_programs() -> None:
    code = "import whale_envs.sandbox, sys; print([m for m in ('sympy', 'mpmath', 'aiohttp') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    code = "import whale_envs, sys; print('whale_envs.sandbox' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# --- the supervisor's loop, without processes -------------------------------------------------------


class Line:
    """The host's end of a connection, which keeps what it is sent."""

    number = 1

    def __init__(self) -> None:
        self.sent: list[tuple[int, int, bytes]] = []

    def send(self, kind: int, call: int, payload: bytes = b"") -> None:
        self.sent.append((kind, call, payload))


@pytest.fixture
def alone() -> Iterator[Supervisor]:
    ours, theirs = socket.socketpair()
    config = {"limits": {}, "session_seconds": 60.0}
    with ours, theirs:
        yield Supervisor(theirs, config, Walls(True, None, True), [])


def test_a_call_that_waits_for_its_turn_is_answered_when_its_session_ends(alone: Supervisor) -> None:
    line = Line()
    alone._links[1] = line  # type: ignore[assignment]
    for call, session in enumerate(("a", "b", "a")):
        alone._queue.append(Request(1, call, 5.0, session, b"print(1)", time.monotonic()))
    alone._on_frame(line, wire.FORGET, 9, b"a")  # type: ignore[arg-type]
    assert [(kind, call) for kind, call, _ in line.sent] == [(wire.RESULT, 0), (wire.RESULT, 2)]
    assert {wire.ENDED.unpack_from(payload)[0] for *_, payload in line.sent} == {wire.CRASHED}
    assert [request.session for request in alone._queue] == ["b"]


def test_a_program_that_is_killed_is_left_time_to_die_in(alone: Supervisor) -> None:
    cell = Cell(1, 1024)
    try:
        cell.request = Request(1, 1, 1.0, "", b"", 0.0)
        cell.deadline = time.monotonic() - 1
        alone._running[1] = cell
        assert alone._wait() == 0.0
        alone._look()
        assert cell.verdict == wire.TIMED_OUT
        assert alone._wait() > 0.0, "it would spin until the kernel has freed the program's memory"
        signals: list[int] = []
        cell.signal = signals.append  # type: ignore[method-assign]
        alone._look()
        assert not signals
    finally:
        cell.close()
