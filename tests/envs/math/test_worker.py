"""The symbolic helper's processes: limits, threads, death, and nothing left behind (O-02, O-03)."""

import asyncio
import contextlib
import gc
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from whale_envs.errors import InfrastructureError
from whale_envs.math_python import averify, check, make_problem, symbolic_process, verifier, verify, worker
from whale_envs.math_python.symbolic_child import OWN_BYTES
from whale_envs.math_python.values import TooComplexError
from whale_envs.math_python.worker import MOST_CHILDREN, Allowance, SymbolicPool, VerifierError

HUGE = r"\sum_{k=1}^{10^9}\sqrt{k}"  # computes for long, and nothing in its text says so
TOWER = r"\sqrt{7^{7^{7^{7}}}}"
SURD = (r"2\sqrt{2}", r"\boxed{\sqrt{8}}")


ALGEBRA = """
def parse(text, **_):
    while "7^" in text or "10^9" in text: pass
    return [text.replace("\\\\sqrt{4}", "2")]
def verify(a, b, **_): return a == b
"""
"""What is compared in tests of the processes: math-verify takes two seconds of CPU time to load."""
SYMPY = "class Basic: pass\nclass Eq(Basic): pass\nclass Expr(Basic): pass\nclass MatrixBase: pass\n"


@pytest.fixture
def algebra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Has new parents load a library of our own: as slow at `HUGE` as the real one, but soon there."""
    folder = tmp_path / "algebra"
    folder.mkdir()
    fake(folder, monkeypatch, ALGEBRA)
    (folder / "sympy.py").write_text(SYMPY)
    return folder


@pytest.fixture
def pool(algebra: Path) -> Iterator[SymbolicPool]:
    made = SymbolicPool(4)
    yield made
    made.close()


@pytest.fixture
def real_pool() -> Iterator[SymbolicPool]:
    made = SymbolicPool(4)
    yield made
    made.close()


@pytest.fixture(autouse=True, scope="module")
def loaded() -> None:
    """Loading the libraries is no part of the times below."""
    wait_loaded(worker.POOL)


def wait_loaded(pool: SymbolicPool) -> None:
    assert pool.same("2", r"\sqrt{4}", Allowance(300))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too complex is given up sooner than usual."""
    monkeypatch.setattr(verifier, "Allowance", lambda: Allowance(300, 0.4))


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


def family(parent: int) -> set[int]:
    """The processes that `parent` has forked and that have not ended, in /proc."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.add(int(folder.name))
    return found


@pytest.mark.parametrize("answer", ["7^{7^{7^{7}}}", "2^{2^{40}}", TOWER, "x^{7^{7^{7^7}}}", HUGE])
def test_a_power_tower_is_wrong_in_time_and_the_next_check_is_right(answer: str, punctual: None) -> None:
    began = time.monotonic()
    verdict = verify(make_problem("?", "3", dataset="test"), rf"\boxed{{{answer}}}")
    assert time.monotonic() - began < limit()
    assert verdict.reward == 0
    assert verdict.reason == "too_complex" or (verdict.reason == "verifier_error" and answer == HUGE)
    assert check("5", r"\boxed{5}")


def limit() -> float:
    """Five seconds, or more where this machine has more to do than it can."""
    return 5 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1) / 2)


def test_many_parts_share_the_allowance_of_one_check(monkeypatch: pytest.MonkeyPatch, punctual: None) -> None:
    gold = ",".join(rf"\sqrt{{{n}}}+\sqrt{{{n + 1}}}" for n in range(2, 90))
    answer = ",".join(rf"\sqrt{{{n + 1}}}+1\sqrt{{{n}}}" for n in range(89, 1, -1))
    problem = make_problem("?", gold, dataset="test")
    began = time.monotonic()
    assert verify(problem, rf"\boxed{{{answer}}}").reason in ("too_complex", "verifier_error")
    assert time.monotonic() - began < limit()
    monkeypatch.setattr(verifier, "Allowance", lambda: Allowance(300))
    assert verify(problem, rf"\boxed{{{answer}}}").reason == "too_complex"


def test_memory_is_limited_and_the_next_comparison_has_it_all(
    pool: SymbolicPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "kept = []\n"
        "def parse(text, **_):\n"
        "    kept.append(bytes(int(text[7:-1]) << 20) if text[7:-1].isdigit() else b'')\n"
        "    return []\n"
        "def verify(*_, **__): return False\n"
    )
    fake(tmp_path, monkeypatch, program)
    wait_begun(pool)
    for _ in range(3):
        assert pool.same("12", "12", Allowance(300)) is False  # together too much, each for itself not
        with pytest.raises(TooComplexError, match="MemoryError"):
            pool.same("1", "40", Allowance(300))
    parent = pool.pids[0]
    limits: list[int] = []
    ready = time.monotonic() + 60
    while not limits and time.monotonic() < ready:  # on a busy machine all may be ending, or not set up yet
        wait_begun(pool)
        for pid in family(parent):
            with contextlib.suppress(ProcessLookupError):  # the one that ran out of memory is just ending
                limits.append(resource.prlimit(pid, resource.RLIMIT_AS)[0])
        limits = [limit for limit in limits if limit != resource.RLIM_INFINITY]
    assert limits
    assert max(limits) <= size(parent) + OWN_BYTES + 2**20


def wait_begun(pool: SymbolicPool) -> None:
    assert pool.same("x", "y", Allowance(300)) is False


def test_the_real_libraries_and_all_children_take_less_than_500_megabytes(
    real_pool: SymbolicPool,
) -> None:
    wait_loaded(real_pool)
    for _ in range(20):
        assert real_pool.same("x^2-1", "(x-1)(x+1)", Allowance(300))
    copied = 20 * 2**20
    assert size(real_pool.pids[0]) + MOST_CHILDREN * (OWN_BYTES + copied) < 500 * 2**20


def size(pid: int) -> int:
    """Bytes of address space of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()


def test_what_computes_too_long_is_ended_and_its_successor_is_there(pool: SymbolicPool) -> None:
    wait_loaded(pool)
    before = set(pool.pids)
    with pytest.raises(TooComplexError, match=r"not decided in 0\.30 s of CPU time"):
        pool.same("3", TOWER, Allowance(300, 0.3))
    assert pool.same("2", r"\sqrt{4}", Allowance(300))
    assert pool.pids[0] in before  # the warm parent goes on


def test_a_deadline_that_others_used_up_is_no_verdict(pool: SymbolicPool) -> None:
    wait_loaded(pool)
    with pytest.raises(VerifierError, match="no time"):
        pool.same("2", r"\sqrt{4}", Allowance(0))
    with pytest.raises(VerifierError, match="no time"):
        pool.same("3", HUGE, Allowance(0.3, 60))
    assert pool.same("2", r"\sqrt{4}", Allowance(300))


def test_a_crowd_of_bombs_costs_nobody_more_than_five_seconds(punctual: None) -> None:
    surd = make_problem("?", SURD[0], dataset="test")
    bombs = [rf"\boxed{{\sum_{{k=1}}^{{10^9}}\sqrt{{k+{i}}}}}" for i in range(14)]
    right = r"\boxed{\frac{8}{2\sqrt{2}}}"

    def timed(response: str) -> tuple[float, str]:
        began = time.monotonic()
        return (verify(surd, response).reason, time.monotonic() - began)[::-1]

    with ThreadPoolExecutor(len(bombs) + 6) as threads:
        crowd = [threads.submit(timed, bomb) for bomb in bombs]
        few = [threads.submit(timed, right) for _ in range(6)]
        slow, quick = [f.result() for f in crowd], [f.result() for f in few]
    assert max(seconds for seconds, _ in slow + quick) < limit()
    assert {reason for _, reason in slow} <= {"too_complex", "verifier_error"}
    assert {reason for _, reason in quick} <= {"correct", "verifier_error"}


async def test_a_crowd_of_bombs_on_the_event_loop_ends_in_time_too(punctual: None) -> None:
    three = make_problem("?", "3", dataset="test")
    began = time.monotonic()
    bombs = [averify(three, rf"\boxed{{\sum_{{k=1}}^{{10^9}}\sqrt{{k+{i}}}}}") for i in range(100)]
    verdicts = await asyncio.gather(*bombs)
    assert time.monotonic() - began < limit() + 1
    assert {v.reason for v in verdicts} <= {"too_complex", "verifier_error"}
    assert sum(v.reward for v in verdicts) == 0


def test_short_comparisons_take_the_place_of_long_ones(pool: SymbolicPool) -> None:
    wait_loaded(pool)
    with ThreadPoolExecutor(8) as threads:
        long = [threads.submit(pool.same, "3", HUGE, Allowance(600, 0.5)) for _ in range(6)]
        for _ in range(10):
            assert pool.same("2", r"\sqrt{4}", Allowance(300))
        assert not all(job.done() for job in long)
        assert all(isinstance(job.exception(), TooComplexError) for job in long)


@pytest.mark.parametrize("which", ["children", "parent", "all"])
def test_a_stopped_process_is_replaced_and_the_answer_stays_right(pool: SymbolicPool, which: str) -> None:
    for _ in range(2):
        wait_loaded(pool)
        parent = pool.pids[0]
        children = sorted(family(parent))
        stopped = {"children": children, "parent": [parent], "all": [parent, *children]}[which]
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):  # one that was about to be replaced
                os.kill(pid, signal.SIGSTOP)
        for _ in range(6):  # more than there are children at hand
            assert said(pool, "2") is True
            assert said(pool, "3") is False
        pool.close()
        assert all(is_gone(pid, 30) for pid in stopped)


def said(pool: SymbolicPool, gold: str) -> bool | str:
    """What the pool says of an answer; a machine that is too busy may need to be asked again."""
    for _ in range(3):
        with contextlib.suppress(VerifierError):
            return pool.same(gold, r"\sqrt{4}", Allowance(300))
    return "nothing"


def test_a_process_that_is_stopped_at_work_is_replaced_once_and_then_it_is_an_error(
    pool: SymbolicPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_loaded(pool)
    ask, stops = symbolic_process.Child.ask, 0

    def stop(child: symbolic_process.Child, gold: str, answer: str, cpu: float) -> None:
        nonlocal stops
        stops += 1
        if stops <= limit:
            os.kill(child.pid, signal.SIGSTOP)
        ask(child, gold, answer, cpu)

    monkeypatch.setattr(symbolic_process.Child, "ask", stop)
    limit = 1
    assert pool.same("2", r"\sqrt{4}", Allowance(300)) is True
    limit, stops = 9, 0
    with pytest.raises(VerifierError, match="get no CPU time"):
        pool.same("2", r"\sqrt{4}", Allowance(300))
    assert stops == 2


def test_checks_in_eight_threads_while_one_is_at_a_tower(short: None) -> None:
    with ThreadPoolExecutor(9) as threads:
        tower = threads.submit(check, "3", rf"\boxed{{{HUGE}}}")
        began = time.monotonic()
        plain = list(threads.map(check, ["5"] * 16, [r"\boxed{5}"] * 16))
        quick = time.monotonic() - began
        algebra = list(threads.map(check, [SURD[0]] * 16, [SURD[1]] * 16))
        assert plain == [True] * 16
        assert algebra == [True] * 16
        assert tower.result() is False
        assert quick < limit()


async def test_checks_through_to_thread_while_one_is_at_a_tower(short: None) -> None:
    tower = asyncio.create_task(asyncio.to_thread(check, "3", rf"\boxed{{{HUGE}}}"))
    assert (
        await asyncio.gather(*(asyncio.to_thread(check, "5", r"\boxed{5}") for _ in range(16))) == [True] * 16
    )
    assert await asyncio.gather(*(asyncio.to_thread(check, *SURD) for _ in range(8))) == [True] * 8
    assert await tower is False


async def test_checks_on_the_event_loop_while_several_are_at_towers(short: None) -> None:
    three, surd = make_problem("?", "3", dataset="test"), make_problem("?", SURD[0], dataset="test")
    towers = [asyncio.create_task(averify(three, rf"\boxed{{{HUGE}}}")) for _ in range(3)]
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
    wait_loaded(pool)

    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(symbolic_process.Child, "wait_reply", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.same("2", r"\sqrt{4}")
    assert pool.same("3", r"\sqrt{4}", Allowance(300)) is False
    assert pool.same("2", r"\sqrt{4}", Allowance(300)) is True


@pytest.mark.parametrize("which", ["children", "parent"])
def test_the_pool_survives_the_death_of_idle_processes(pool: SymbolicPool, which: str) -> None:
    for _ in range(3):
        wait_loaded(pool)
        parent = pool.pids[0]
        killed = family(parent) if which == "children" else {parent}
        for pid in killed:
            with contextlib.suppress(ProcessLookupError):  # a child may just be ending
                os.kill(pid, signal.SIGKILL)
        for _ in range(6):
            assert pool.same("2", r"\sqrt{4}", Allowance(300))
        assert not killed & {*pool.pids, *family(pool.pids[0])}


def test_a_check_survives_the_death_of_its_process(
    pool: SymbolicPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_loaded(pool)
    ask, deaths = symbolic_process.Child.ask, 0

    def die(child: symbolic_process.Child, gold: str, answer: str, cpu: float) -> None:
        nonlocal deaths
        deaths += 1
        if deaths <= limit:
            os.kill(child.pid, signal.SIGSTOP)  # so that it is under way when it dies
        ask(child, gold, answer, cpu)
        if deaths <= limit:
            os.kill(child.pid, signal.SIGKILL)

    monkeypatch.setattr(symbolic_process.Child, "ask", die)
    limit = 1
    assert pool.same("2", r"\sqrt{4}", Allowance(300))
    limit, deaths = 9, 0
    with pytest.raises(TooComplexError, match="ended two processes"):
        pool.same("2", r"\sqrt{4}", Allowance(300))
    assert deaths == 2


def fake(folder: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Puts a library of that program in the place of math-verify."""
    head = (
        "import dataclasses\n"
        "@dataclasses.dataclass\n"
        "class Reading:\n"
        "    units: bool = True\n"
        "@dataclasses.dataclass\n"
        "class LatexExtractionConfig:\n"
        "    normalization_config: Reading = dataclasses.field(default_factory=Reading)\n"
    )
    (folder / "math_verify.py").write_text(head + program)
    monkeypatch.syspath_prepend(folder)


async def test_an_exception_inside_is_a_verifier_error_and_never_a_wrong_answer(
    pool: SymbolicPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "def parse(text, **_):\n"
        "    if '7' in text: raise TypeError('no')\n"
        "    return []\n"
        "def verify(*_, **__): return False\n"
    )
    fake(tmp_path, monkeypatch, program)
    wait_begun(pool)
    monkeypatch.setattr(verifier, "POOL", pool)
    surd, answer = make_problem("?", SURD[0], dataset="test"), r"\boxed{\sqrt{7}}"
    for verdict in (verify(surd, answer), await averify(surd, answer)):
        assert (verdict.reason, verdict.standard, verdict.paper) == ("verifier_error", None, 0.0)
    assert verify(surd, SURD[0]).reason == "no_answer"
    assert verify(surd, rf"\boxed{{{SURD[0]}}}").reward == 1.0  # nothing to ask
    with pytest.raises(VerifierError, match="TypeError: no"):
        check(SURD[0], answer)
    assert issubclass(VerifierError, InfrastructureError)


def test_libraries_that_are_missing_are_named(
    pool: SymbolicPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, monkeypatch, "import nothing_of_that_name\n")
    with pytest.raises(VerifierError, match="are sympy and math-verify installed"):
        pool.same("2", r"\sqrt{4}")
    assert pool.pids == []


def test_no_more_processes_than_allowed(pool: SymbolicPool) -> None:
    wait_loaded(pool)
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(pool.same, "2", r"\sqrt{4}", Allowance(300)) for _ in range(40)]
        assert all(future.result() for future in asked)
    assert len(family(pool.pids[0])) <= 4 + 4 + 1


@pytest.mark.parametrize("jobs", [0, 3])
def test_closing_ends_the_processes_and_leaves_no_pipe(jobs: int, algebra: Path) -> None:
    pool = SymbolicPool(4)
    wait_loaded(pool)
    parent = pool.pids[0]
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(pool.same, "3", HUGE, Allowance(600, 300)) for _ in range(jobs)]
        until(lambda: sum(child.asked > 0 and child.pid > 0 for child in pool._busy) == jobs)
        pids = {parent, *family(parent), *pool.pids}
        pool.close()
        assert all(is_gone(pid, 20) for pid in pids)
        assert all(isinstance(job.exception(), VerifierError) for job in asked)
    gc.collect()  # a pipe or a process that was left would be a warning, and so an error
    assert pool.pids == []
    assert len(list(Path("/proc/self/fd").iterdir())) < open_before
    assert pool.same("2", r"\sqrt{4}", Allowance(300))
    pool.close()


LOAD = r"worker.POOL.same('2', r'\sqrt{4}', worker.Allowance(300))"


def script(code: str, algebra: Path) -> subprocess.Popen[str]:
    """A host of its own that loads the library in that folder."""
    head = "from whale_envs.math_python import check, worker\nimport os, sys, threading\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(algebra)},
    )


def test_nothing_is_left_when_the_host_ends(algebra: Path) -> None:
    code = f"{LOAD}; print(worker.POOL.pids[0], flush=True)"
    with script(code, algebra) as host:
        assert host.stdout is not None
        pid = int(host.stdout.readline())
        assert host.wait() == 0
    assert is_gone(pid, 5)


@pytest.mark.parametrize("busy", [False, True])
def test_nothing_is_left_when_the_host_is_killed(busy: bool, algebra: Path) -> None:
    code = (
        "def ask(text, cpu): worker.POOL.same('3', text, worker.Allowance(300, cpu))\n"
        "ask(r'\\sqrt{4}', 9)\n"
        f"if {busy}: threading.Thread(target=ask, args=({HUGE!r}, 50), daemon=True).start()\n"
        "print(worker.POOL.pids[0], flush=True)\n"
        "sys.stdin.readline()\n"
    )
    with script(code, algebra) as host:
        assert host.stdout is not None
        parent = int(host.stdout.readline())
        until(lambda: any(map(is_running, family(parent))) if busy else bool(family(parent)))
        members = family(parent)
        host.kill()
    assert all(is_gone(pid, 5) for pid in (parent, *members))


def until(condition: Callable[[], bool]) -> None:
    """Waits for another process."""
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    return symbolic_process.activity(pid)[0] > 0.5


def test_nothing_is_left_and_nothing_said_when_the_host_ends_with_work_under_way() -> None:
    code = (
        "import gc\n"
        "def ask(): worker.POOL.same('3', '" + HUGE.replace("\\", "\\\\") + "', worker.Allowance(300, 50))\n"
        "worker.POOL.same('2', '\\\\sqrt{4}', worker.Allowance(300))\n"
        "threading.Thread(target=ask, daemon=True).start()\n"
        "while len(worker.POOL.pids) < 2: pass\n"
        "print(*worker.POOL.pids, flush=True)\n"
    )
    head = "from whale_envs.math_python import worker\nimport threading\n"
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", head + code], capture_output=True, text=True, check=True
    )
    assert "Warning" not in done.stderr
    assert all(is_gone(int(pid), 5) for pid in done.stdout.split())


def test_a_forked_child_has_processes_of_its_own(algebra: Path) -> None:
    code = (
        f"{LOAD}\n"
        "mine = set(worker.POOL.pids)\n"
        "child = os.fork()\n"
        f"right = {LOAD} and not {LOAD.replace('2', '3', 1)}\n"
        "if not child:\n"
        "    os._exit(0 if right and not mine & set(worker.POOL.pids) else 1)\n"
        "assert right and worker.POOL.pids[0] in mine\n"
        "print(os.waitpid(child, 0)[1])\n"
    )
    with script(code, algebra) as host:
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
