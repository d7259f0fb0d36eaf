"""Harness files: loading, the worker process and its limits, and the checker on good and broken files."""

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench_fakes import FILES, HEAD, alive, children, in_process, play
from hypothesis import given
from hypothesis import strategies as st

from whale_bench.harness import host, process
from whale_bench.harness.base import STATE_BYTES, Act, Ask, Nudge, Reply, View
from whale_bench.harness.calls import Call, answer_call, load
from whale_bench.harness.check import check_harness
from whale_bench.harness.host import InProcessHarness, ProcessHarness, load_harness, shipped_harnesses
from whale_bench.harness.provenance import is_sampled
from whale_bench.models.scripted import load_scripted
from whale_envs import UnknownNameError, UsageError
from whale_envs.errors import HarnessError, HarnessFileError

VIEW = View("chess_puzzles", "opening", "now", max_turns=9, seed=5)


def write(folder: Path, source: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text(source, encoding="utf-8")
    return path


async def said(harness: host.HarnessHost, text: str) -> str:
    decision, _ = await harness.call(VIEW, Reply(text))
    assert isinstance(decision, Act | Nudge)
    return decision.action if isinstance(decision, Act) else decision.message


def keeper(harness: ProcessHarness) -> int:
    """The process that this one started for the harness; its worker ends with it."""
    assert harness._worker is not None
    return harness._worker._process._process.pid


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - it waits for another process
            await asyncio.sleep(0.005)


# --- loading --------------------------------------------------------------------------------------

BAD_FILES = {
    "syntax": (HEAD + "class Harness(BaseHarness)\n    pass\n", ":2: syntax error: expected ':'"),
    "indent": (HEAD + "class Harness(BaseHarness):\npass\n", ":3: syntax error: expected an indented block"),
    "null": (HEAD + "\0", "cannot contain null bytes"),
    "no class": ("x = 1\n", ":1: defines no `class Harness(BaseHarness)`"),
    "other class": ("class Harness:\n    pass\n", ":1: defines no `class Harness(BaseHarness)`"),
    "an instance": (HEAD + "Harness = BaseHarness()\n", ":1: defines no `class Harness(BaseHarness)`"),
    "raises": (HEAD + "\ndef f():\n    return 1 / 0\nf()\n", ":4: ZeroDivisionError: division by zero"),
    "missing module": ("import no_such_module_anywhere\n", ":1: ModuleNotFoundError: No module named"),
    "exits": ("import sys\nsys.exit(0)\n", ":2: SystemExit: 0"),
    "init": (
        HEAD + "class Harness(BaseHarness):\n    def __init__(self):\n        {}['k']\n",
        ":4: KeyError: 'k'",
    ),
    "init wants": (
        HEAD + "\nclass Harness(BaseHarness):\n    def __init__(self, x): ...\n",
        ":3: TypeError: ",
    ),
    "turns": (
        HEAD + "\nclass Harness(BaseHarness):\n    MAX_TURNS = '9'\n",
        ":3: constant: Expected `int | null`",
    ),
    "bool": (HEAD + "class Harness(BaseHarness):\n    MAX_TOKENS = True\n", "got `bool` - at `max_tokens`"),
    "mode": (HEAD + "class Harness(BaseHarness):\n    TOOL_MODE = 'json'\n", "Invalid enum value 'json'"),
    "tools": (HEAD + "class Harness(BaseHarness):\n    TOOLS = [{'f': {1, 2j}}]\n", ":2: constant: "),
    "options": (
        HEAD + "class Harness(BaseHarness):\n    ENV_OPTIONS = {'a': 1.5}\n",
        "Expected `int`, got `float`",
    ),
    "prompt": (
        HEAD + "class Harness(BaseHarness):\n    SYSTEM_PROMPT = 5\n",
        ":2: SYSTEM_PROMPT must be a string",
    ),
}


@pytest.mark.parametrize("what", BAD_FILES)
async def test_a_file_that_cannot_be_used_is_named_with_its_line(tmp_path: Path, what: str) -> None:
    source, words = BAD_FILES[what]
    path = write(tmp_path, source)
    with pytest.raises(HarnessFileError) as caught:
        InProcessHarness(source, str(path))
    assert str(caught.value).startswith(f"{path}:")
    assert words in str(caught.value)
    if what in ("syntax", "exits", "init", "tools", "turns"):  # the same words from a worker
        with pytest.raises(HarnessFileError) as again:
            await ProcessHarness(path).__aenter__()
        assert str(again.value) == str(caught.value)


async def test_a_file_that_ends_its_process_while_loading_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "import os\nos._exit(3)\n")
    with pytest.raises(HarnessFileError, match="its process ended while the file was loaded"):
        await ProcessHarness(path).__aenter__()


async def test_a_file_that_hangs_while_loading_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "START_SECONDS", 0.3)
    path = write(tmp_path, "import time\ntime.sleep(10**6)\n")
    with pytest.raises(HarnessFileError, match=r"mine\.py: not loaded in 0\.3 s"):
        await ProcessHarness(path).__aenter__()


def test_a_file_that_is_not_there_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.py' does not exist"):
        load_harness("chess_puzzles", tmp_path / "nowhere.py")
    (tmp_path / "b.py").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(HarnessFileError, match="cannot be read as a harness file"):
        load_harness("chess_puzzles", tmp_path / "b.py")
    with pytest.raises(UnknownNameError, match="'checkers'"):
        load_harness("checkers")


async def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "bom.py"
    path.write_bytes(b"\xef\xbb\xbf" + (HEAD + "class Harness(BaseHarness): pass\n").encode())
    async with ProcessHarness(path) as harness:
        assert await said(harness, "e2e4") == "e2e4"


@pytest.mark.parametrize("first", ["load", "call"])
async def test_a_forged_answer_is_no_crash_and_ends_its_process(tmp_path: Path, first: str) -> None:
    source = """
import os
from whale_bench.harness import *

def forge():
    for number in range(3, 9):
        try:
            os.write(number, b"{}\\n")
        except OSError:
            pass

if FIRST == "load":
    forge()

class Harness(BaseHarness):
    def read(self, reply, view):
        forge()
        return Act(reply.text)
"""
    path = write(tmp_path, source.replace("FIRST", repr(first)))
    if first == "load":
        with pytest.raises(HarnessFileError, match="broken answer while it was loaded"):
            await ProcessHarness(path).__aenter__()
        return
    async with ProcessHarness(path) as harness:
        pid = keeper(harness)
        with pytest.raises(HarnessError, match="broken answer"):
            await said(harness, "x")
        await until(lambda: not alive(pid))


# --- state ----------------------------------------------------------------------------------------


async def test_state_is_the_hosts_and_every_call_gets_a_copy() -> None:
    harness = in_process("""
kept = []
def stop(self, view):
    self.kept.append(view.state)
    for old in self.kept[:-1]:
        old["n"] = -1
    view.state["n"] = view.state.get("n", 0) + 1
    view.state.setdefault("deep", []).append(1)
    return False""")
    view = View("d", "o", "o")
    for n in range(1, 4):
        _, view.state = await harness.call(view)
        assert view.state == {"n": n, "deep": [1] * n}


async def test_state_is_plain_json_whatever_was_put_into_it() -> None:
    harness = in_process("def stop(self, view):\n    view.state = {1: (2, 3)}\n    return False")
    _, state = await harness.call(View("d", "o", "o"))
    assert state == {"1": [2, 3]}


@pytest.mark.parametrize(("extra", "ok"), [(0, True), (1, False)])
async def test_state_has_a_cap_in_bytes(extra: int, ok: bool) -> None:
    size = STATE_BYTES - len('{"x":""}') + extra
    harness = in_process(f"def stop(self, view):\n    view.state['x'] = 'y' * {size}\n    return False")
    if ok:
        await harness.call(View("d", "o", "o"))
    else:
        with pytest.raises(HarnessError, match=f"takes {STATE_BYTES + 1} bytes, more than {STATE_BYTES}"):
            await harness.call(View("d", "o", "o"))


# --- the worker -----------------------------------------------------------------------------------


async def test_a_worker_plays_as_the_shipped_harness_does(tmp_path: Path) -> None:
    path = write(tmp_path, shipped_harnesses()["chess_puzzles"])
    async with ProcessHarness(path) as harness:
        for sample in range(4):
            backend = load_scripted("noisy-oracle:0.6")
            here, there = [await play(None, h, backend=backend, sample=sample) for h in (None, harness)]
            for name in ("segments", "steps", "verdict", "stop_condition", "metrics", "harness_id"):
                assert getattr(here, name) == getattr(there, name)
        here, there = [await play(lambda r: "hm é♞ \ud800", h) for h in (None, harness)]
        assert here.steps == there.steps


async def test_prints_and_writes_do_not_break_the_protocol() -> None:
    async with ProcessHarness(FILES / "moody.py") as harness:
        assert await said(harness, "flood") == "flood"
        assert await said(harness, "e2e4") == "e2e4"
        assert harness.restarts == 0


async def test_a_worker_has_no_input_to_read() -> None:
    async with ProcessHarness(FILES / "moody.py") as harness:
        assert await said(harness, "input") == "''"


async def test_a_worker_sees_no_variables_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "HF_TOKEN", "HOME", "PYTHONPATH", "PYTHONSTARTUP"):
        monkeypatch.setenv(name, "secret")
    async with ProcessHarness(FILES / "moody.py") as harness:
        names = await said(harness, "environment")
    assert not [n for n in ("OPENAI", "TOKEN", "HOME", "PYTHON") if n in names]


async def test_a_worker_holds_no_environment_and_no_data() -> None:
    async with ProcessHarness(FILES / "moody.py") as harness:
        modules = (await said(harness, "modules")).split()
    assert "whale_bench.harness.calls" in modules
    assert not [
        m for m in modules if m.split(".")[0] in ("whale_envs", "chess", "gymnasium", "sqlite3", "aiohttp")
    ]


@pytest.mark.parametrize("how", ["hang", "spin"])
async def test_a_hang_costs_its_rollout_and_the_worker_starts_anew(how: str) -> None:
    async with ProcessHarness(FILES / "moody.py", call_seconds=0.6) as harness:
        pid = keeper(harness)
        rows = await asyncio.gather(*(play([text] * 9, harness) for text in ("x", how, "y")))
        assert [row.stop_condition for row in rows] == ["malformed", "harness_timeout", "malformed"]
        assert "no answer in 0.6 s" in rows[1].error
        assert rows[1].verdict.reward == 0.0
        assert harness.restarts == 1
        assert not alive(pid)


@pytest.mark.parametrize(
    ("how", "words"), [("die", "its process ended during a call"), ("exit", "SystemExit: bye")]
)
async def test_a_harness_that_ends_itself_costs_its_rollout_only(how: str, words: str) -> None:
    async with ProcessHarness(FILES / "moody.py") as harness:
        rows = [await play([text] * 9, harness) for text in ("x", how, "y")]
        assert [row.stop_condition for row in rows] == ["malformed", "harness_error", "malformed"]
        assert words in rows[1].error


async def test_leaving_or_cancelling_leaves_no_worker_behind() -> None:
    async with ProcessHarness(FILES / "moody.py", call_seconds=60) as harness:
        pid = keeper(harness)
        task = asyncio.ensure_future(said(harness, "hang"))
        await until(lambda: len(harness._flying) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        [worker] = children(pid)
    assert not alive(pid)
    assert not alive(worker)


async def test_the_answer_to_a_cancelled_call_meets_no_other() -> None:
    async with ProcessHarness(FILES / "moody.py") as harness:
        for text in ("a", "b"):
            task = asyncio.ensure_future(said(harness, text))
            while not harness._flying:  # noqa: ASYNC110 - it is to be in flight, whatever comes next
                await asyncio.sleep(0)
            task.cancel()
            assert await said(harness, "c") == "c"
        assert harness.restarts == 0


async def test_the_code_that_runs_is_the_code_that_was_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    shutil.copy(FILES / "moody.py", path)
    async with ProcessHarness(path) as harness:
        path.write_text("broken(")
        with pytest.raises(HarnessError):
            await said(harness, "die")
        assert await said(harness, "e2e4") == "e2e4"
        path.unlink()
        with pytest.raises(HarnessError):
            await said(harness, "die")
        assert await said(harness, "e2e4") == "e2e4"
        assert harness.restarts == 4  # each of the two was tried again, alone, before it was charged


async def test_two_hosts_with_different_files_do_not_see_each_other(tmp_path: Path) -> None:
    source = (
        HEAD
        + "import random, os, sys\nrandom.seed(0)\nos.environ['X'] = '{0}'\nsys.mine = '{0}'\n"
        + (
            "class Harness(BaseHarness):\n    def read(self, reply, view):\n"
            "        return Nudge('{0} ' + os.environ['X'] + sys.mine)\n"
        )
    )
    async with (
        ProcessHarness(write(tmp_path, source.replace("{0}", "a"), "a.py")) as a,
        ProcessHarness(write(tmp_path, source.replace("{0}", "b"), "b.py")) as b,
    ):
        for _ in range(2):
            assert [await said(h, "x") for h in (a, b)] == ["a aa", "b bb"]
        assert a.harness_id != b.harness_id
    assert "X" not in os.environ


async def test_many_calls_at_once_are_answered_each_with_its_own() -> None:
    async with ProcessHarness(FILES / "moody.py") as harness:
        texts = [f"move {i}" for i in range(50)]
        assert await asyncio.gather(*(said(harness, text) for text in texts)) == texts


def test_in_process_and_worker_share_the_code_that_answers() -> None:
    harness, settings = load((FILES / "good.py").read_text(), "good.py")
    answer = answer_call(harness, Call(VIEW), "good.py")
    assert isinstance(answer.decision, Ask)
    assert answer.state == {"asked": 1}
    assert settings.max_turns == 6


# --- the checker ----------------------------------------------------------------------------------


def findings(path: Path, domains: tuple[str, ...] | None = ("chess_puzzles",)) -> list[str]:
    return [f"[{f.domain}] {f.message}" for f in asyncio.run(check_harness(path, domains))]


def test_good_files_pass(tmp_path: Path) -> None:
    assert findings(FILES / "good.py") == []
    assert findings(write(tmp_path, HEAD + "class Harness(BaseHarness): pass\n")) == []
    for domain, source in shipped_harnesses().items():
        assert findings(write(tmp_path, source, f"{domain}.py"), (domain,)) == []
        assert findings(write(tmp_path, source, f"{domain}.py"), None) == []


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("two_faced.py", "messages answered the same call in two ways"),
        ("remembers.py", "answered otherwise in another process or order"),
        ("plays_itself.py", "read acts with 'e2e4', which does not stand in the reply"),
        ("wrong_type.py", "wrong_type.py:7: read must return Act, Nudge or Stop"),
        ("unknown_option.py", "unknown ENV_OPTIONS"),
    ],
)
def test_broken_files_are_found(file: str, words: str) -> None:
    [finding] = findings(FILES / file)
    assert finding.startswith("[chess_puzzles] ")
    assert f"{file}:" in finding
    assert words in finding


@pytest.mark.parametrize("what", ["syntax", "missing module", "exits", "no class"])
def test_files_that_do_not_load_are_found(tmp_path: Path, what: str) -> None:
    source, words = BAD_FILES[what]
    [finding] = findings(write(tmp_path, source))
    assert finding.startswith(f"[] {tmp_path}/mine.py:")
    assert words in finding


def test_a_hook_that_hangs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    defaults: Any = ProcessHarness.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "call_seconds", 0.3)
    source = HEAD + "class Harness(BaseHarness):\n    def read(self, reply, view):\n        while True: pass"
    [finding] = findings(write(tmp_path, source))
    assert "mine.py:3: no answer in 0.3 s" in finding


WORDS = (
    *("e2e4", "e7e8", "e7e8q", "E2E4", "Nf3", "O-O", "a1-b2", "-", "=", "=N", "/", "(Q)", "(", ")"),
    *("[", "]", "<move>", "</move>", "x", ".", " ", "\n", "3", ":", "_"),
)


@given(st.lists(st.sampled_from(WORDS), max_size=8).map("".join))
def test_h0_never_acts_with_what_the_model_did_not_say(text: str) -> None:
    harness = load_harness("chess_puzzles")
    decision, _ = asyncio.run(harness.call(View("chess_puzzles", "", "", max_turns=9), Reply(text)))
    assert isinstance(decision, Act)
    assert is_sampled(decision.action, [text])
