"""Own agents that fail, each in its way: what the record says, and what becomes of the others."""

import asyncio
import gc
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_fakes import EXAMPLES, ask, play_own
from bench_fakes import alive, children, results, run, wait_for
from msgspec.structs import replace

from whale_bench import EvalPlan, Rollout
from whale_bench.agents.host import OwnAgent, ProcessLostError
from whale_bench.agents.process import AgentProcess
from whale_bench.ledger import Charge, Ledger
from whale_envs.errors import AgentError, UsageError

Write = Callable[..., str]

FAILURES = {
    "raises": ("1 / 0", "mine.py\", line 5, in act\n"),
    "raises asynchronously": ("async def f(): raise KeyError('k')\n    return f()", "KeyError: 'k'"),
    "exits": ("sys.exit(3)", "SystemExit: 3"),
    "nothing": ("pass", "`act` must return a string, got None"),
    "bytes": ("return b'e2e4'", "got b'e2e4'"),
    "number": ("return 5", "got 5"),
    "endless text": ("return 'x' * 10**6", "returned 1,000,000 characters, more than"),
    "really exits": ("print('so long', file=sys.stderr, flush=True); os._exit(3)",
                     "it ended with exit status 3; the end of its standard error:\nso long"),
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", "it was ended by SIGKILL"),
    "closes the pipes": ("os.closerange(3, 100)\n    return ''", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", FAILURES)
async def test_a_failure_is_a_zero_reward_record_with_what_it_said(python_agent: Write, case: str) -> None:
    body, words = FAILURES[case]
    source = f"import os, signal, sys\ndef act(o):\n    if len(o) == 1: return o\n    pass\n    {body}\n"
    async with OwnAgent(python_agent(source)) as agent:
        row = await play_own(agent)
        assert await ask(agent, "a", key="other") == ["a"]  # and the agent goes on
    assert (row.stop_condition, row.verdict.reward, row.truncated) == ("agent_error", 0.0, False)
    assert words in row.error
    assert "whale_bench" not in row.error.split("standard error")[0]


@pytest.mark.parametrize("fails", ["reset", "__init__", "act"])
async def test_any_hook_may_fail_in_a_later_rollout(python_agent: Write, fails: str) -> None:
    hooks = {"__init__": "def __init__(self)", "reset": "def reset(self, i)", "act": "def act(self, o)"}
    body = "".join(f"    {head}: return check() {'' if name == fails else 'if 0 else None'}\n"
                   for name, head in hooks.items())  # fmt: skip
    source = (
        f"made = []\ndef check():\n    made.append(1)\n    assert len(made) < 2, 'enough'\nclass A:\n{body}"
    )
    async with OwnAgent(python_agent(source, "A")) as agent:
        rows = [await play_own(agent) for _ in range(2)]
    assert rows[1].stop_condition == "agent_error"
    assert "must return" in rows[1].error or "AssertionError: enough" in rows[1].error


async def test_a_close_that_raises_changes_nothing(python_agent: Write) -> None:
    source = """
n = []
class A:
    def act(self, o): return "hm"
    def close(self):
        n.append(1)
        assert len(n) < 2
"""
    async with OwnAgent(python_agent(source, "A")) as agent:
        assert [await ask(agent, "a") for _ in range(3)] == [["hm"]] * 3


LINES = {
    "garbage": ("print('thinking…', flush=True)", "it wrote what is no answer: 'thinking…' is no answer"),
    "no action": ('say(rollout=m["rollout"])', 'holds neither "action" nor "error"'),
    "no text": ('say(rollout=m["rollout"], action=None)', 'holds neither "action"'),
    "a number": ('say(rollout=m["rollout"], action=5)', "is no answer"),
    "another rollout": ('say(rollout="r99", action="e4")', "it answered for rollout 'r99', which had asked"),
    "two answers": (
        'sys.stdout.write(2 * (json.dumps({"rollout": m["rollout"], "action": "x"}) + "\\n")); '
        "sys.stdout.flush()",
        "which had asked nothing",
    ),
    "a flood of lines": ('while True: print("y")', "is no answer"),
    "a flood of bytes": ('while True: sys.stdout.write("y" * 9999)', "a line of more than 1,048,576 bytes"),
    "its end": ("sys.exit('gone')", "it ended with exit status 1; the end of its standard error:\ngone"),
    "closed output": ("os.close(1); signal.pause()", "it"),
    "its own words": ('say(rollout=m["rollout"], error="I give up")', "I give up"),
}


@pytest.mark.parametrize("case", LINES)
async def test_a_process_that_breaks_the_protocol_fails_the_rollout(lines_agent: Write, case: str) -> None:
    body, words = LINES[case]
    body = f'if m["type"] == "end": continue\nif len(m.get("observation", "")) > 1: {body}\n' + (
        'else: say(rollout=m["rollout"], action="ok")'
    )
    body = body.replace(": while True: ", ":\n    while True: ")
    async with OwnAgent(lines_agent(body)) as agent:
        row = await play_own(agent)
        assert await ask(agent, "a", key="other") == ["ok"]
    assert (row.stop_condition, row.verdict.reward) == ("agent_error", 0.0)
    assert words in row.error


async def test_floods_of_standard_error_hold_nothing_up_and_only_the_end_is_kept(lines_agent: Write) -> None:
    body = 'sys.stderr.write("y" * 10**7 + "last words"); sys.stderr.flush(); sys.exit(1)'
    async with OwnAgent(lines_agent(body)) as agent:
        row = await play_own(agent)
    assert row.error.endswith("last words")
    assert len(row.error) < 5_000


# --- time -----------------------------------------------------------------------------------------

HANGS = """
import os, threading
def act(o):
    if o == "hang":
        threading.Event().wait()
    return str(os.getpid())
"""


async def test_a_hang_ends_the_rollout_and_the_process(lines_agent: Write) -> None:
    body = 'm["type"] == "start" and say(rollout=m["rollout"], action=str(os.getpid()))'
    async with OwnAgent(lines_agent(body), seconds=0.3) as agent:
        row = await play_own(agent)
        assert (row.stop_condition, row.verdict.reward) == ("agent_timeout", 0.0)
        assert "no answer within 0.3 s" in row.error
        assert not alive(int(row.steps[0].action or ""))
        [second] = await ask(agent, "a")
    assert second != row.steps[0].action


async def test_a_hang_in_a_thread_costs_no_other_rollout(python_agent: Write) -> None:
    async with OwnAgent(python_agent(HANGS), seconds=1.0) as agent:

        async def steady() -> tuple[str, str]:
            async with agent.play("steady", _opening("a"), []) as session:
                first = await session.begin()
                begun.set()
                last = first
                while not hung or not hung[0].done():
                    last = await session.observe("b", "ok", "")
            return first, last

        begun, hung = asyncio.Event(), list[asyncio.Task[list[str]]]()
        other = asyncio.create_task(steady())
        await begun.wait()
        hung.append(asyncio.create_task(ask(agent, "hang", key="hung")))
        with pytest.raises(AgentError, match="agent_timeout: no answer within 1 s"):
            await hung[0]
        first, last = await other
        assert first == last  # it finished where it was
        assert not alive(int(first))  # and with it the process
        assert await ask(agent, "a", key="next") != [first]


async def test_a_process_that_hangs_as_a_whole_is_lost_and_its_rollouts_play_alone(
    python_agent: Write, tmp_path: Path
) -> None:
    source = f"""
import asyncio, os, pathlib, threading
first, others = not pathlib.Path({str(tmp_path / "hung")!r}).exists(), 0
async def act(o):
    global others
    others += 1
    if first and o != "hang":
        await asyncio.Event().wait()
    while first and others < 3:
        await asyncio.sleep(0)
    if o == "hang":
        pathlib.Path({str(tmp_path / "hung")!r}).touch()
        threading.Event().wait()
    return str(os.getpid())
"""
    async with OwnAgent(python_agent(source), seconds=1.0) as agent:
        tasks = [ask(agent, text, key=text) for text in ("hang", "a", "b")]
        lost = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error) for error in lost] == [ProcessLostError] * 3
        again = await asyncio.gather(
            *(ask(agent, text, key=text) for text in ("hang", "a", "b")), return_exceptions=True
        )
        assert isinstance(again[0], AgentError)
        assert again[0].reason == "agent_timeout"
        assert isinstance(again[1], list)
        assert isinstance(again[2], list)
        assert again[1] != again[2]


async def test_a_hang_in_a_process_that_has_played_before_is_not_waited_for_again(lines_agent: Write) -> None:
    body = 'm["type"] == "start" and m["observation"] != "hang" and say(rollout=m["rollout"], action="x")'
    async with OwnAgent(lines_agent(body), seconds=0.3) as agent:
        assert await ask(agent, "a") == ["x"]
        starts = 0

        async def counted(**how: bool):  # type: ignore[no-untyped-def]
            nonlocal starts
            starts += 1
            return await take(**how)

        take, agent.take = agent.take, counted  # type: ignore[method-assign]
        with pytest.raises(AgentError, match="agent_timeout: no answer within"):
            await ask(agent, "hang")
        assert starts == 1


async def test_an_answer_that_comes_after_its_time_breaks_nothing(python_agent: Write) -> None:
    source = """
import asyncio
events = {}
async def act(o, info):
    if o == "late":
        await events.setdefault("go", asyncio.Event()).wait()
    if o == "let go":
        events.setdefault("go", asyncio.Event()).set()
    return o
"""
    async with OwnAgent(python_agent(source), seconds=0.5) as agent:
        async with (
            agent.play("steady", _opening("a"), []) as steady,
            agent.play("b", _opening("b"), []) as late,
        ):
            assert [await steady.begin(), await late.begin()] == ["a", "b"]
            waiting = asyncio.create_task(late.observe("late", "ok", ""))
            while not waiting.done():
                await steady.observe("b", "ok", "")  # the process is at work, so it is not ended
            with pytest.raises(AgentError, match="agent_timeout"):
                await waiting
            # the rollout has not left yet, as while its open calls are waited for
            assert await steady.observe("let go", "ok", "") == "let go"
            assert await steady.observe("still there", "ok", "") == "still there"
        assert await ask(agent, "next") == ["next"]


async def test_a_cancelled_question_is_answered_before_the_rollout_leaves(lines_agent: Write) -> None:
    body = 'm["type"] == "start" and say(rollout=m["rollout"], action=m["observation"])'
    process = await AgentProcess.start(shlex.split(lines_agent(body)[8:]), os.environ, key="", seconds=20)
    for rollout in ("r1", "r2"):
        process.join(rollout)
    waiting = asyncio.create_task(process.ask(replace(_opening("x"), rollout="r1"), 20))
    await asyncio.sleep(0)
    waiting.cancel()
    assert (await process.ask(replace(_opening("y"), rollout="r2"), 20)).action == "y"
    assert (process.broken, process.owes) == ("", False)
    await process.close()


def _opening(text: str):  # type: ignore[no-untyped-def]
    from whale_bench.agents.protocol import Opening

    return Opening("chess_puzzles", text, 9, 1, [])


# --- a process that several rollouts share --------------------------------------------------------


def test_a_process_that_dies_once_costs_nobody_a_rollout(python_agent: Write, tmp_path: Path) -> None:
    source = f"""
import os, pathlib, signal, threading
first, barrier = not pathlib.Path({str(tmp_path / "died")!r}).exists(), threading.Barrier(4)
def act(o):
    if first:
        barrier.wait()
        pathlib.Path({str(tmp_path / "died")!r}).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "hm"
"""
    plan = EvalPlan(domain="chess_puzzles", model=python_agent(source), n=8, k=1, concurrency=4)
    summary = run(plan, tmp_path / "run")
    assert (summary.complete, summary.stop_conditions, summary.problems) == (True, {"malformed": 8}, {})
    with Ledger(tmp_path / "run" / "ledger.sqlite", readonly=True) as ledger:
        ledger.audit()
        assert ledger.charged()["test"].rollouts == 8
        assert ledger.totals("missing")["test"].rollouts == 4
        assert ledger.open_reservations() == []


def test_the_rollout_that_kills_its_process_is_found_out(python_agent: Write, tmp_path: Path) -> None:
    poison = EXAMPLES.ids[1]
    source = f"""
import os, pathlib, threading
first, barrier = not pathlib.Path({str(tmp_path / "died")!r}).exists(), threading.Barrier(4)
def act(o):
    if first:
        barrier.wait()
        pathlib.Path({str(tmp_path / "died")!r}).touch()
    if {_fen(1)!r} in o:
        os._exit(9)
    if first:
        threading.Event().wait()
    return "hm"
"""
    name = python_agent(source)
    plan = EvalPlan(domain="chess_puzzles", model=name, split="dev", n=4, k=1, concurrency=4)
    summary = run(plan, tmp_path / "run")
    assert summary.complete
    ended = {row.example_id: row.stop_condition for row in results(tmp_path / "run").values()}
    assert ended.pop(poison) == "agent_error"
    assert set(ended.values()) == {"malformed"}


def _fen(example: int) -> str:
    from whale_envs import make_env

    env = make_env("chess_puzzles", examples=EXAMPLES)
    opening, _ = env.reset(options={"example_id": EXAMPLES.ids[example]})
    return next(line for line in opening.splitlines() if line.startswith("FEN: "))


# --- a process that has left a child behind which holds its pipes ------------------------------------


@pytest.fixture
def leaves_a_child(lines_agent: Write, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """As `lines_agent`, of a program that first starts one that outlives it, in a session of its own."""
    pid = tmp_path / "child"

    def write(body: str, **more: str) -> str:
        top = "import subprocess\nchild = subprocess.Popen(['sleep', '900'], start_new_session=True)\n"
        top += f"open({str(pid)!r}, 'a').write(f'{{child.pid}} ')\n" + more.pop("top", "")
        return lines_agent(body, top=top, **more)

    yield write
    for child in map(int, pid.read_text().split()):
        os.kill(child, signal.SIGKILL)


SAYS = 'm["type"] == "end" or say(rollout=m["rollout"], action="e9")'


@pytest.mark.parametrize(
    ("body", "seconds", "said"),
    [
        ("os._exit(3)", 900.0, ("agent_error", "it ended with exit status 3")),
        (f"{SAYS}\nos._exit(3)", 900.0, ("agent_error", "it ended with exit status 3")),
        ("os.kill(os.getpid(), signal.SIGTERM)", 900.0, ("agent_error", "it was ended by SIGTERM")),
        ("signal.pause()", 0.3, ("agent_timeout", "no answer within 0.3 s")),
        (SAYS, 900.0, ("malformed", "")),
    ],
    ids=["dies", "answers and dies", "is killed", "hangs", "plays on"],
)
def test_a_process_ends_with_itself_whoever_holds_its_pipes(
    leaves_a_child: Write, body: str, seconds: float, said: tuple[str, str]
) -> None:
    async def played() -> Rollout:
        async with OwnAgent(leaves_a_child(body), seconds=seconds) as agent:
            return await play_own(agent)

    row = asyncio.run(played())
    assert (row.stop_condition, said[1] in row.error) == (said[0], True)
    gc.collect()  # a pipe left open would now be one of a closed loop


def test_one_that_ends_before_it_said_hello_is_not_waited_for(leaves_a_child: Write) -> None:
    async def started() -> None:
        async with OwnAgent(leaves_a_child("", top="os._exit(3)"), seconds=900.0):
            pass

    with pytest.raises(UsageError, match="ended with exit status 3 before it said hello"):
        asyncio.run(started())
    gc.collect()


async def test_an_agent_that_cannot_be_started_again_fails_its_rollouts(
    python_agent: Write, tmp_path: Path
) -> None:
    name = python_agent("import os\ndef act(o): os._exit(1)")
    async with OwnAgent(name) as agent:
        (tmp_path / "mine.py").write_text("def other(o): pass")
        rows = [await play_own(agent) for _ in range(2)]
    assert [row.stop_condition for row in rows] == ["agent_error"] * 2
    assert "it cannot be started again" in rows[1].error
    assert "has no 'act'" in rows[1].error


def test_a_run_that_fails_everywhere_is_complete_and_charged(python_agent: Write, tmp_path: Path) -> None:
    name = python_agent("def act(o): raise ValueError('never')")
    summary = run(EvalPlan(domain="chess_puzzles", model=name, n=10, k=2), tmp_path / "run")
    assert (summary.complete, summary.stop_conditions) == (True, {"agent_error": 20})
    with Ledger(tmp_path / "run" / "ledger.sqlite", readonly=True) as ledger:
        charged = ledger.charged()["test"]
    assert charged == Charge(rollouts=20, seconds=charged.seconds, unmetered_tokens=True)


# --- the end --------------------------------------------------------------------------------------


def test_no_process_outlives_a_host_that_is_killed(python_agent: Write, tmp_path: Path) -> None:
    source = f"""
import pathlib, threading
def act(o):
    pathlib.Path({str(tmp_path / "here")!r}).touch()
    threading.Event().wait()
"""
    name = python_agent(source)
    command = [sys.executable, "-m", "whale_bench.cli", "eval", "chess_puzzles", "-n", "1", "-k", "1"]
    with subprocess.Popen([*command, "-m", name, "--out", str(tmp_path / "run")]) as process:
        assert wait_for((tmp_path / "here").exists, process)
        agents = children(process.pid)
        assert agents
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with subprocess.Popen(["tail", "-f", "/dev/null"]) as clock:
        assert wait_for(lambda: not any(alive(pid) for pid in agents), clock)
        clock.kill()


async def test_a_cancelled_rollout_leaves_no_answer_for_the_next(lines_agent: Write) -> None:
    body = 'm["type"] == "start" and m["observation"] != "wait" and say(rollout=m["rollout"], action="x")'
    async with OwnAgent(lines_agent(body)) as agent:
        waiting = asyncio.create_task(ask(agent, "wait"))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await ask(agent, "a") == ["x"]
