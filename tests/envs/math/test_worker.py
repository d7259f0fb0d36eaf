"""The symbolic helper's processes: limits, threads, death, and nothing left behind (O-02, O-03)."""

import asyncio
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from whale_envs.errors import InfrastructureError
from whale_envs.math_python import averify, check, make_problem, verifier, verify, worker
from whale_envs.math_python.values import TooComplexError
from whale_envs.math_python.worker import JOB_SECONDS, SymbolicPool, VerifierError

TOWER = r"\sqrt{7^{7^{7^{7}}}}"  # the root keeps our own arithmetic from refusing it
SURD = (r"2\sqrt{2}", r"\boxed{\sqrt{8}}")


@pytest.fixture
def pool() -> Iterator[SymbolicPool]:
    made = SymbolicPool(2)
    yield made
    made.close()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Towers are given up sooner than usual."""
    monkeypatch.setattr(verifier, "JOB_SECONDS", 0.8)


def is_gone(pid: int, seconds: float) -> bool:
    """Whether the process has ended, at the latest so many seconds from now."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
    finally:
        os.close(watched)


def children() -> set[int]:
    """Helper processes of this process, in /proc."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        parent = int(stat.rpartition(")")[2].split()[1])
        if parent == os.getpid() and b"symbolic_child.py" in command:
            found.add(int(folder.name))
    return found


@pytest.mark.parametrize("answer", ["7^{7^{7^{7}}}", "2^{2^{40}}", TOWER, "x^{7^{7^{7^7}}}"])
def test_a_power_tower_is_wrong_in_time_and_the_next_check_is_right(answer: str) -> None:
    check("2", r"\boxed{\sqrt{4}}")  # so that a process is running
    began = time.monotonic()
    assert not check("3", rf"\boxed{{{answer}}}")
    assert time.monotonic() - began < 5
    assert check("5", r"\boxed{5}")
    assert check(*SURD)


def test_many_parts_share_the_time_of_one_check() -> None:
    gold = ",".join(rf"\sqrt{{{n}}}+\sqrt{{{n + 1}}}" for n in range(2, 90))
    answer = ",".join(rf"\sqrt{{{n + 1}}}+1\sqrt{{{n}}}" for n in range(89, 1, -1))
    began = time.monotonic()
    assert verify(make_problem("?", gold, dataset="test"), rf"\boxed{{{answer}}}").reason == "too_complex"
    assert time.monotonic() - began < 5


def test_a_process_is_limited_to_500_megabytes(pool: SymbolicPool) -> None:
    assert pool.same("2", r"\sqrt{4}")
    (pid,) = pool.pids
    assert resource.prlimit(pid, resource.RLIMIT_AS)[0] == 500 * 1024 * 1024
    with pytest.raises(TooComplexError):
        pool.same("3", r"\sqrt{10^{10^{10}}}", seconds=1)
    assert pool.same("2", r"\sqrt{4}")


def test_a_process_that_takes_too_long_is_killed_and_replaced(pool: SymbolicPool) -> None:
    assert pool.same("2", r"\sqrt{4}")
    (pid,) = pool.pids
    began = time.monotonic()
    with pytest.raises(TooComplexError, match=r"not decided in 0\.3 s"):
        pool.same("3", TOWER, seconds=0.3)
    assert time.monotonic() - began < 3
    assert is_gone(pid, 0)
    assert pool.restarts == 1
    assert pool.same("2", r"\sqrt{4}")


def test_checks_in_eight_threads_while_one_is_at_a_tower(short: None) -> None:
    with ThreadPoolExecutor(9) as threads:
        tower = threads.submit(check, "3", rf"\boxed{{{TOWER}}}")
        began = time.monotonic()
        plain = list(threads.map(check, ["5"] * 16, [r"\boxed{5}"] * 16))
        quick = time.monotonic() - began
        algebra = list(threads.map(check, [SURD[0]] * 16, [SURD[1]] * 16))
        assert plain == [True] * 16
        assert algebra == [True] * 16
        assert tower.result() is False
        assert quick < 2


async def test_checks_through_to_thread_while_one_is_at_a_tower(short: None) -> None:
    tower = asyncio.create_task(asyncio.to_thread(check, "3", rf"\boxed{{{TOWER}}}"))
    assert (
        await asyncio.gather(*(asyncio.to_thread(check, "5", r"\boxed{5}") for _ in range(16))) == [True] * 16
    )
    assert await asyncio.gather(*(asyncio.to_thread(check, *SURD) for _ in range(8))) == [True] * 8
    assert await tower is False


async def test_checks_on_the_event_loop_while_several_are_at_towers(short: None) -> None:
    three, surd = make_problem("?", "3", dataset="test"), make_problem("?", SURD[0], dataset="test")
    towers = [asyncio.create_task(averify(three, rf"\boxed{{{TOWER}}}")) for _ in range(3)]
    verdicts = await asyncio.gather(*(averify(surd, SURD[1]) for _ in range(8)))
    assert [v.reward for v in verdicts] == [1.0] * 8
    assert [(await tower).reason for tower in towers] == ["too_complex"] * 3


async def test_a_cancelled_check_does_not_mix_up_answers() -> None:
    surd = make_problem("?", SURD[0], dataset="test")
    for _ in range(5):
        task = asyncio.create_task(averify(surd, SURD[1]))
        await asyncio.sleep(0)
        task.cancel()
    right = [averify(surd, SURD[1]) for _ in range(4)]
    wrong = [averify(surd, r"\boxed{\sqrt{7}}") for _ in range(4)]
    assert [v.reward for v in await asyncio.gather(*right, *wrong)] == [1.0] * 4 + [0.0] * 4


def test_an_interrupted_check_leaves_no_answer_for_the_next(
    pool: SymbolicPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pool.same("2", r"\sqrt{4}")

    def interrupted(self: object, deadline: float) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(worker._Worker, "_read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.same("2", r"\sqrt{4}")
    assert pool.same("3", r"\sqrt{4}") is False
    assert pool.same("2", r"\sqrt{4}") is True


def test_the_pool_survives_the_death_of_an_idle_process(pool: SymbolicPool) -> None:
    assert pool.same("2", r"\sqrt{4}")
    (pid,) = pool.pids
    os.kill(pid, signal.SIGKILL)
    assert pool.same("2", r"\sqrt{4}")
    assert pool.pids != [pid]
    assert pool.restarts == 1


def test_a_check_survives_the_death_of_its_process(pool: SymbolicPool) -> None:
    assert pool.same("2", r"\sqrt{4}")
    (pid,) = pool.pids
    os.kill(pid, signal.SIGSTOP)  # so that the check is under way when it dies
    timer = threading.Timer(0.2, os.kill, (pid, signal.SIGKILL))
    timer.start()
    assert pool.same("2", r"\sqrt{4}")
    timer.join()


def test_a_text_that_ends_two_processes_in_a_row_is_wrong_and_no_error(
    pool: SymbolicPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "import sys\nprint('{\"ready\": true}', flush=True)\nsys.stdin.readline()\n"
    fake(tmp_path, monkeypatch, program)
    with pytest.raises(TooComplexError, match="two processes in a row"):
        pool.same("2", r"\sqrt{4}")
    assert pool.restarts == 2


def fake(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    path = folder / "symbolic_child.py"
    path.write_text(program)
    monkeypatch.setattr(worker, "_CHILD", path)


async def test_an_exception_inside_is_a_verifier_error_and_never_a_wrong_answer(
    pool: SymbolicPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import sys\nprint('{\"ready\": true}', flush=True)\n"
        'for line in sys.stdin: print(\'{"error": "TypeError: no"}\', flush=True)\n'
    )
    fake(tmp_path, monkeypatch, program)
    monkeypatch.setattr(verifier, "POOL", pool)
    surd = make_problem("?", SURD[0], dataset="test")
    for verdict in (verify(surd, SURD[1]), await averify(surd, SURD[1])):
        assert (verdict.reason, verdict.standard, verdict.paper) == ("verifier_error", None, 0.0)
    assert verify(surd, SURD[0]).reason == "no_answer"
    assert verify(surd, rf"\boxed{{{SURD[0]}}}").reward == 1.0  # nothing to ask
    with pytest.raises(VerifierError, match="TypeError: no"):
        check(*SURD)
    assert issubclass(VerifierError, InfrastructureError)


def test_libraries_that_are_missing_are_named(
    pool: SymbolicPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, monkeypatch, "import nothing_of_that_name\n")
    with pytest.raises(VerifierError, match="are sympy and math-verify installed"):
        pool.same("2", r"\sqrt{4}")
    assert children() <= set(worker.POOL.pids)


def test_no_more_processes_than_allowed(pool: SymbolicPool) -> None:
    before = children()
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(pool.same, "2", r"\sqrt{4}") for _ in range(24)]
        assert all(future.result() for future in asked)
    assert len(children() - before) <= 2
    assert set(pool.pids) == children() - before


def test_closing_ends_the_processes(pool: SymbolicPool) -> None:
    assert pool.same("2", r"\sqrt{4}")
    (pid,) = pool.pids
    pool.close()
    assert is_gone(pid, 0)
    assert pool.same("2", r"\sqrt{4}")


def script(code: str) -> subprocess.Popen[str]:
    head = "from whale_envs.math_python import check, worker\nimport os, sys, threading\n"
    return subprocess.Popen([sys.executable, "-c", head + code], stdout=subprocess.PIPE, text=True)


def test_nothing_is_left_when_the_host_ends() -> None:
    code = r"assert check('2', r'\boxed{\sqrt{4}}'); print(worker.POOL.pids[0], flush=True)"
    with script(code) as host:
        assert host.stdout is not None
        pid = int(host.stdout.readline())
        assert host.wait() == 0
    assert is_gone(pid, 5)


def test_nothing_is_left_when_the_host_is_killed() -> None:
    code = (
        "assert check('2', r'\\boxed{\\sqrt{4}}')\n"
        "print(worker.POOL.pids[0], flush=True)\n"
        "sys.stdin.readline()\n"
        f"check('3', r'\\boxed{{{TOWER}}}')\n"
    )
    for busy in (False, True):
        head = "from whale_envs.math_python import check, worker\nimport sys\n"
        with subprocess.Popen(
            [sys.executable, "-c", head + code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as host:
            assert host.stdin is not None
            assert host.stdout is not None
            pid = int(host.stdout.readline())
            if busy:
                host.stdin.write("go on\n")
                host.stdin.flush()
                while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "R":
                    pass
            host.kill()
        assert is_gone(pid, JOB_SECONDS + 3)


def test_a_forked_child_has_processes_of_its_own() -> None:
    code = (
        "assert check('2', r'\\boxed{\\sqrt{4}}')\n"
        "mine = set(worker.POOL.pids)\n"
        "child = os.fork()\n"
        "right = check('2', r'\\boxed{\\sqrt{4}}') and not check('3', r'\\boxed{\\sqrt{4}}')\n"
        "if not child:\n"
        "    os._exit(0 if right and not mine & set(worker.POOL.pids) else 1)\n"
        "assert right and set(worker.POOL.pids) == mine\n"
        "print(os.waitpid(child, 0)[1])\n"
    )
    with script(code) as host:
        assert host.stdout is not None
        assert host.stdout.read().split() == ["0"]


def test_importing_the_domain_loads_no_algebra() -> None:
    code = (
        "import sys, whale_envs, whale_envs.math_python\n"
        "whale_envs.math_python.check('5', r'\\boxed{5}')\n"
        "print(*({'sympy', 'math_verify', 'latex2sympy2_extended', 'datasets'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
