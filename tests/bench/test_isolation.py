"""Hostile harness files: what they reach, what they break, and whom it costs."""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bench_fakes import EXAMPLES, FILES, HEAD, alive, children, play

from whale_bench import Agent, Task, rollout
from whale_bench.engine import env_options
from whale_bench.harness import host, process, workers
from whale_bench.harness.base import STATE_BYTES, Act, Nudge, Reply, View
from whale_bench.harness.calls import Answer, Call, HarnessFault, answer_call, check_answer
from whale_bench.harness.host import (
    InProcessHarness,
    ProcessHarness,
    load_harness_source,
    shipped_harnesses,
)
from whale_bench.models.scripted import ScriptedModel, load_scripted
from whale_envs import DOMAINS, UsageError, load_examples
from whale_envs.errors import HarnessError, HarnessFileError
from whale_envs.sandbox.confined import Confined, Job, refuse, start

VIEW = View("chess_puzzles", "opening", "now", max_turns=9, seed=5)
ROOT = Path(__file__).resolve().parents[2]


async def said(harness: host.HarnessHost, text: str) -> str:
    decision, _ = await harness.call(VIEW, Reply(text))
    assert isinstance(decision, Act | Nudge)
    return decision.action if isinstance(decision, Act) else decision.message


async def tells(*attacks: str, path: Path = FILES / "spy.py") -> list[str]:
    """What each attack came to, in one worker."""
    async with ProcessHarness(path) as harness:
        return [await said(harness, attack) for attack in attacks]


def keeper(harness: ProcessHarness) -> int:
    assert harness._worker is not None
    return harness._worker._process._process.pid


# --- what it reaches ------------------------------------------------------------------------------


async def test_o39_no_object_module_or_frame_of_a_worker_holds_an_answer() -> None:
    example = max(EXAMPLES, key=lambda example: len(example.gold))
    needles = [example.id, example.fen, " ".join(example.gold), repr(example.gold), "load_examples"]
    told = await tells(*(f"objects {needle[::-1]}" for needle in [*needles, "whale_bench.harness"]))
    assert told[:-1] == ["0"] * len(needles)
    assert int(told[-1]) > 0  # it does look


async def test_o39_no_file_of_the_suite_is_there_nor_any_of_the_hosts(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("x")
    paths = [
        str(ROOT / "whale_envs" / "suite.py"),
        str(ROOT / "README.md"),
        str(FILES / "spy.py"),
        str(tmp_path / "secret.txt"),
    ]
    told = await tells(
        *(f"files {word}" for word in ("whale_envs", "whale_bench", "site-packages/")),
        *(f"read {path}" for path in [*paths, "/etc/shadow", "/etc/hostname", "/root/.ssh/id_rsa"]),
        f"list {ROOT}", "list /proc", "list /scratch",
    )  # fmt: skip
    assert told[:2] == ["[]"] * 2
    assert told[2].count("site-packages/") == told[2].count("msgspec/_core") == 1  # it is mapped
    assert all(line.startswith(("FileNotFoundError", "PermissionError")) for line in told[3:10])
    # The way to an interpreter's libraries is there, where they lie within this folder, and nothing beside.
    assert told[10].startswith("FileNotFoundError") or told[10] == "['.venv']"
    assert told[11:] == ["[]", "[]"]


async def test_a_worker_cannot_write_anywhere(tmp_path: Path) -> None:
    places = ["/scratch/x", "/tmp/x", "/x", str(tmp_path / "x"), "/dev/shm/x", "/usr/lib/x"]
    for line in await tells(*(f"write {place}" for place in places)):
        assert line.startswith(("OSError", "PermissionError", "FileNotFoundError"))
    assert not (tmp_path / "x").exists()


async def test_what_a_harness_may_import() -> None:
    ours = ["whale_bench.harness", "whale_bench.harness.python_code", "whale_bench.harness.h0.math_python"]
    rest = ["statistics", "decimal", "msgspec", "unicodedata"]
    for line in await tells(*(f"import {name}" for name in [*ours, *rest])):
        assert line.startswith("<module ")
    others = ["whale_envs", "whale_bench.engine", "whale_bench.harness.provenance", "numpy", "chess", "sympy"]
    for line in await tells(*(f"import {name}" for name in others)):
        assert line.startswith("ModuleNotFoundError")


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def test_a_worker_has_no_network_no_process_no_thread_and_no_more_memory(port: int) -> None:
    told = await tells(
        f"socket {port}", "unix", "fork", "program /bin/true", "become /bin/true", "thread",
        f"kill {os.getpid()}", f"trace {os.getpid()}", f"memory {10**10}", f"memory {10**9}",
        "memory 1000000",
    )  # fmt: skip
    for line in told[:5]:
        assert line.startswith("PermissionError")
    assert told[5].startswith("RuntimeError: can't start new thread")
    assert told[6].startswith(("PermissionError", "ProcessLookupError"))
    assert told[7] == "-1"
    assert told[8:] == ["MemoryError: ", "MemoryError: ", "1000000"]


@pytest.mark.parametrize("walls", ["landlock and seccomp", "namespaces"])
def test_each_set_of_walls_holds_alone(walls: str, tmp_path: Path) -> None:
    """The same worker with the other layers left out, as a kernel that lacks them would have it."""
    (tmp_path / "secret.txt").write_text("x")
    without = ("namespaces",) if walls != "namespaces" else ("landlock", "seccomp")
    layers, told = _try_alone(without, [str(tmp_path / "secret.txt"), str(ROOT / "whale_envs" / "suite.py")])
    assert {layer["name"] for layer in layers if not layer["active"]} == set(without)
    refuse(layers, "it", "x")
    assert told == ["False"] * 4


def _try_alone(without: tuple[str, ...], paths: list[str]) -> tuple[list[dict[str, Any]], list[str]]:
    import json

    worker = start(Job("probe:serve", ("probe",), (str(FILES),), without=without))
    try:
        worker.sock.settimeout(60)
        with worker.sock.makefile("rwb") as lines:
            layers = json.loads(lines.readline())["layers"]
            lines.write(json.dumps(paths).encode() + b"\n")
            lines.flush()
            return layers, json.loads(lines.readline())
    finally:
        worker.end()


# --- where it cannot be confined ------------------------------------------------------------------


@pytest.fixture
def no_walls(monkeypatch: pytest.MonkeyPatch) -> None:
    job = workers._job(workers.MEMORY_MB)
    bare = Job(job.entry, job.modules, job.roots, job.memory_mb, ("namespaces", "landlock", "seccomp"))
    monkeypatch.setattr(workers, "_job", lambda _: bare)


async def test_without_walls_a_file_is_refused_unless_the_caller_says_so(no_walls: None) -> None:
    with pytest.raises(UsageError, match=r"would not be confined here \(open: files, network, processes;"):
        await ProcessHarness(FILES / "good.py").__aenter__()
    async with ProcessHarness(FILES / "good.py", unsafe=True) as harness:
        assert await said(harness, "e2e4") == "e2e4"
    async with load_harness_source("chess_puzzles", shipped_harnesses()["chess_puzzles"], "h0") as h0:
        assert isinstance(h0, InProcessHarness)  # what ships needs no walls


def test_the_doctor_says_what_protects(no_walls: None) -> None:
    from whale_bench import doctor

    found = doctor._harness_workers()
    assert (found.part, found.state) == ("harness workers", "broken")
    assert "open: files, network, processes" in found.what


def test_the_doctor_names_the_layers() -> None:
    from whale_bench import doctor

    found = doctor._harness_workers()
    assert (found.state, found.what) == (
        "ok", "harness files are confined by namespaces, landlock, seccomp, limits",
    )  # fmt: skip


# --- whom a fault costs ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["die", "hang"])
async def test_only_the_guilty_call_is_charged_among_many_in_flight(how: str) -> None:
    async with ProcessHarness(FILES / "moody.py", call_seconds=1.0) as harness:
        texts = [f"move {i}" for i in range(30)]
        texts[7] = texts[21] = how
        told = await asyncio.gather(*(said(harness, text) for text in texts), return_exceptions=True)
        wrong = [i for i, (text, answer) in enumerate(zip(texts, told, strict=True)) if text != answer]
        assert wrong == [7, 21]
        reasons = {error.reason for error in told if isinstance(error, HarnessError)}
        assert reasons == {"harness_timeout" if how == "hang" else "harness_error"}
        assert await said(harness, "e2e4") == "e2e4"


async def test_a_worker_that_somebody_else_kills_costs_nothing() -> None:
    async with ProcessHarness(FILES / "moody.py") as harness:
        for _ in range(2):
            [victim] = children(keeper(harness))
            os.kill(victim, signal.SIGSTOP)
            calls = asyncio.gather(*(said(harness, f"move {i}") for i in range(20)))
            while not harness._flying:  # noqa: ASYNC110 - it is to be in flight, whatever comes next
                await asyncio.sleep(0)
            os.kill(victim, signal.SIGKILL)
            assert await calls == [f"move {i}" for i in range(20)]
        assert harness.restarts == 2


async def test_calls_that_wait_at_the_same_time_go_as_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    send = workers.Worker.send
    monkeypatch.setattr(
        workers.Worker, "send", lambda self, lines: (sent.append(len(lines)), send(self, lines))
    )
    async with ProcessHarness(FILES / "good.py") as harness:
        await asyncio.gather(*(harness.call(VIEW) for _ in range(40)))
    assert sent == [1, 40]  # the first is the file itself


async def test_a_call_that_waits_behind_another_is_not_late_for_it() -> None:
    """The time limit of a call begins when the worker can begin with it."""
    slow = HEAD + (
        "class Harness(BaseHarness):\n    def read(self, reply, view):\n"
        "        for _ in range(int(reply.text)): pass\n        return Nudge('done')\n"
    )
    async with ProcessHarness("slow.py", source=slow, call_seconds=3.0) as harness:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await said(harness, "3000000")
        once = max(loop.time() - began, 0.01)
        many = int(4.0 / once) + 2  # together longer than the limit, each far below it
        if many > 63:
            many = 63
        assert await asyncio.gather(*(said(harness, "3000000") for _ in range(many))) == ["done"] * many
        assert harness.restarts == 0


async def test_nothing_is_left_of_a_worker_whose_host_is_killed() -> None:
    code = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom whale_bench.harness.host import ProcessHarness\n"
        "from whale_bench.harness.base import Reply, View\n"
        "async def main():\n"
        f"    async with ProcessHarness(Path({str(FILES / 'moody.py')!r}), call_seconds=999) as harness:\n"
        "        print(harness._worker._process._process.pid, flush=True)\n"
        "        await harness.call(View('d', 'o', 'o'), Reply('spin'))\n"
        "asyncio.run(main())\n"
    )
    import sys

    victim = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert victim.stdout is not None
    pid = int(await victim.stdout.readline())
    [worker] = children(pid)
    victim.kill()
    await victim.wait()
    async with asyncio.timeout(30):
        while alive(pid) or alive(worker):  # noqa: ASYNC110 - it waits for other processes
            await asyncio.sleep(0.01)


def test_a_host_may_end_without_leaving_and_nothing_is_left() -> None:
    before = set(threading.enumerate())  # a loop of the environments' own may be there already

    async def leave() -> list[int]:
        harness = ProcessHarness(FILES / "moody.py")
        await harness.__aenter__()
        pids = [keeper(harness), *children(keeper(harness))]
        await harness.__aexit__()
        await harness.__aexit__()
        return pids

    assert not [pid for pid in asyncio.run(leave()) if alive(pid)]
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("whale")]


# --- what it returns ------------------------------------------------------------------------------

RETURNS = [
    "None",
    "'0.9'",
    "True",
    "float('nan')",
    "float('inf')",
    "1.7",
    "Act(None)",
    "Act(1.0)",
    "Nudge(b'x')",
]


@pytest.mark.parametrize("value", RETURNS)
async def test_o37_a_wrong_type_is_a_fault_with_its_line_and_never_a_score(value: str) -> None:
    source = HEAD + f"class Harness(BaseHarness):\n    def read(self, reply, view):\n        return {value}\n"
    row = await play(["e2e4"] * 9, InProcessHarness(source, "mine.py"))
    assert (row.stop_condition, row.verdict.reward) == ("harness_error", 0.0)
    assert row.error.startswith("mine.py:3: read ")


@pytest.mark.parametrize(
    ("decision", "asked", "words"),
    [
        ({"type": "act", "action": "e2e4"}, None, "answered with Act where it may not"),
        ({"type": "ask", "messages": []}, "hm", "answered with Ask where it may not"),
        ({"type": "ask", "messages": []}, None, "messages must return a non-empty list"),
        ({"type": "ask", "messages": [{"role": "judge", "content": "x"}]}, None, "no chat"),
        ({"type": "ask", "messages": [{"role": "assistant", "content": "x"}]}, None, "must not end with"),
    ],
)
async def test_a_harness_that_answers_past_the_checks_meets_the_hosts_own(
    decision: dict[str, Any], asked: str | None, words: str
) -> None:
    forged = f"""{HEAD}
import whale_bench.harness.worker as worker
class Forged:
    def __init__(self, number): self.number = number
def forge(harness, call, path, *, strict=False):
    answer = {{"type": "answer", "decision": {decision!r}, "state": {{}}}}
    return dict(answer, number=call.number)
worker.answer_call = forge
class Harness(BaseHarness): pass
"""
    async with ProcessHarness("forged.py", source=forged) as harness:
        with pytest.raises(HarnessError, match=words):
            await harness.call(VIEW, None if asked is None else Reply(asked))


def test_state_beyond_its_cap_is_refused_by_the_host_too() -> None:
    with pytest.raises(HarnessFault, match=f"more than {STATE_BYTES} bytes"):
        check_answer(Answer(Act("x"), {"x": "y" * STATE_BYTES}), Call(VIEW, Reply("x")))


async def test_an_endless_answer_ends_its_worker() -> None:
    source = HEAD + (
        "import os\nclass Harness(BaseHarness):\n    def read(self, reply, view):\n"
        "        while True: os.write(3, b'x' * 1_000_000)\n"
    )
    async with ProcessHarness("mine.py", source=source, call_seconds=60) as harness:
        pid = keeper(harness)
        with pytest.raises(HarnessError, match="it wrote a line of more than 2 MiB"):
            await said(harness, "x")
    assert not alive(pid)


# --- what it changes ------------------------------------------------------------------------------

MUTATES = HEAD + (
    "class Harness(BaseHarness):\n    def messages(self, view):\n"
    "        view.opening = view.observation = 'mine'\n        view.turns = ()\n"
    "        return [{'role': 'user', 'content': str(len(view.turns))}]\n"
)


async def test_a_view_that_is_changed_is_the_workers_copy() -> None:
    async with ProcessHarness("mine.py", source=MUTATES) as harness:
        row = await play(["x"] * 9, harness)
        assert row.opening.startswith("Chess puzzle")
        assert [step.event for step in row.steps] == ["malformed", "malformed"]
        view = View("d", "o", "o")
        await harness.call(view)
        assert (view.opening, view.observation) == ("o", "o")


def test_changing_what_was_given_is_a_fault_where_it_is_looked_for() -> None:
    from whale_bench.harness.calls import load

    harness, _ = load(MUTATES, "mine.py")
    answer_call(harness, Call(View("d", "o", "o")), "mine.py")
    with pytest.raises(HarnessFault, match=r"mine\.py:3: messages changed the view or the reply"):
        answer_call(harness, Call(View("d", "o", "o")), "mine.py", strict=True)


TWO = """
import random, os, sys, types
from whale_bench.harness import *
NAME = {name!r}
utils = types.ModuleType("utils")
utils.word = NAME
sys.modules.setdefault("utils", utils)
random.seed(0)
os.environ["X"] = os.environ.get("X", "") + NAME
import whale_bench.harness.calls as calls
calls.BROKEN = getattr(calls, "BROKEN", "") + NAME
import msgspec.json
if NAME == "a":
    BaseHarness.SYSTEM_PROMPT = "a was here"
    json_encode, msgspec.json.extra = msgspec.json.encode, "a"

class Harness(BaseHarness):
    def read(self, reply, view):
        from utils import word
        seen = [word, os.environ["X"], calls.BROKEN, self.SYSTEM_PROMPT, getattr(msgspec.json, "extra", "")]
        return Nudge(" ".join(seen))
"""


async def test_o38_candidates_do_not_touch_each_other_in_any_order() -> None:
    names = ["a", "b", "a", "b", "b"]
    hosts = [ProcessHarness("utils.py", source=TWO.format(name=name)) for name in names]
    told = []
    for harness in hosts:
        await harness.__aenter__()
        told.append(await said(harness, "x"))
    told += [await said(harness, "y") for harness in reversed(hosts)]
    for harness in hosts:
        await harness.__aexit__()
    want = {"a": "a a a a was here a", "b": "b b b  "}
    assert told == [want[name] for name in [*names, *reversed(names)]]
    assert "X" not in os.environ


async def test_o38_random_numbers_of_a_call_come_from_the_rollouts_seed() -> None:
    source = HEAD + (
        "import random\nrandom.random()\nclass Harness(BaseHarness):\n    def read(self, reply, view):\n"
        '        return Nudge(f\'{random.random()} {list({"one", "two", "three"})}\')\n'
    )
    told = []
    for _ in range(2):
        async with ProcessHarness("mine.py", source=source) as harness:
            told.append([await said(harness, text) for text in ("x", "x", "y")])
    assert len({word for lines in told for word in lines}) == 1  # also the order of a set


# --- at import ------------------------------------------------------------------------------------

AT_IMPORT = {
    "hang": ("import time\ntime.sleep(10**6)\n", r"mine\.py: not loaded in 0\.8 s"),
    "spin": ("while True: pass\n", r"mine\.py: not loaded in 0\.8 s"),
    "memory": ("x = bytearray(10**10)\n", r"mine\.py:1: MemoryError"),
    "fork": ("import os\nwhile True: os.fork()\n", r"mine\.py:2: PermissionError"),
    "socket": ("import socket\nsocket.socket()\n", r"mine\.py:2: PermissionError"),
    "leave": ("import os\nos._exit(0)\n", r"mine\.py: its process ended while .* \(status 0"),
    "kill": ("import os\nos.kill(os.getpid(), 11)\nos.abort()\n", r"mine\.py: its process ended"),
    "exit": ("raise SystemExit(0)\n", r"mine\.py:1: SystemExit: 0"),
    "interrupt": ("raise KeyboardInterrupt\n", r"mine\.py: its process ended"),
    "recurse": ("def f(): f()\nf()\n", r"mine\.py:1: RecursionError"),
    "flood": ("while True: print('x' * 10**6)\n", r"mine\.py: not loaded in 0\.8 s"),
    "no gold": ("from whale_envs import load_examples\n", r"mine\.py:1: ModuleNotFoundError"),
}  # fmt: skip


@pytest.mark.parametrize("what", AT_IMPORT)
async def test_o37_a_file_that_misbehaves_at_import_is_named(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "START_SECONDS", 0.8 if "not loaded" in AT_IMPORT[what][1] else 30.0)
    source, words = AT_IMPORT[what]
    pids = []
    ended = Confined.end
    monkeypatch.setattr(Confined, "end", lambda self: (pids.append(self._process.pid), ended(self))[1])
    with pytest.raises(HarnessFileError, match=words):
        await ProcessHarness("mine.py", source=source).__aenter__()
    assert pids
    assert not [pid for pid in pids if alive(pid)]


# --- what the host holds, whatever the file says ----------------------------------------------------

GREEDY = (
    HEAD
    + """
import json
class Harness(BaseHarness):
    MAX_TURNS = 10**9
    MAX_TOKENS = 10**9
    ENV_OPTIONS = <options>
    def read(self, reply, view):
        return <decision>
"""
)


def greedy(options: str, action: str) -> ProcessHarness:
    source = GREEDY.replace("<options>", options).replace("<decision>", action)
    return ProcessHarness("greedy.py", source=source)


async def play_in(domain: str, harness: host.HarnessHost, text: str, **limits: Any) -> Any:
    model = ScriptedModel(lambda _: text)
    examples = load_examples(domain, "mini", "dev")
    task = Task(domain, examples, **limits)
    row = await rollout(task, Agent(model, harness), examples[0], sample=0, seed=0, key="dev:x:0")
    return row, model.requests


async def test_turns_retries_documents_and_tokens_are_the_hosts() -> None:
    retries = "{'illegal_retry_budget': 10**6, 'format_retry_budget': 10**6}"
    async with greedy(retries, "Act('e')") as harness:
        row, requests = await play_in("chess_puzzles", harness, "e", max_tokens=50)
        assert (row.stop_condition, len(row.steps)) == ("malformed", 11)  # ten are forgiven
        assert {request.max_tokens for request in requests} == {50}
    async with greedy("{}", "Nudge('again')") as harness:
        row, _ = await play_in("chess_puzzles", harness, "e")
        assert (row.stop_condition, len(row.steps)) == ("max_turns", 18)
    search = "Act(json.dumps({'tool': 'search', 'arguments': {'query': reply.text}}))"
    async with greedy("{'topk': 10**6, 'max_doc_tokens': 10**6}", search) as harness:
        bounds = env_options("search_qa", harness)
        row, _ = await play_in("search_qa", harness, "Paris", token_budget=20)
    most = {name: high for name, (_, high) in DOMAINS["search_qa"].module.ENV.BOUNDS.items()}
    assert bounds == {name: most[name] for name in ("topk", "max_doc_tokens", "max_turns")}
    assert len(row.steps) <= most["max_turns"]
    assert row.sampled_tokens <= 20


@pytest.mark.parametrize(
    ("domain", "action", "text"),
    [
        ("chess_puzzles", "Act(view.observation.partition('Legal moves: [')[2][:4])", "I think."),
        ("math_python", "Act('\\\\boxed{7}')", "I think."),
        ("search_qa", "Act('<answer>Paris</answer>')", "I think."),
        (
            "math_python",
            "Act(json.dumps({'tool': 'code_interpreter', 'arguments': {'code': reply.text + ' * 7'}}))",
            "```python\nprint(6)\n```",
        ),
        (
            "math_python",
            "Act(json.dumps({'tool': 'code_interpreter', 'arguments': {'code': 'import sympy'}}))",
            "```python\nprint(6)\n```",
        ),
    ],
)
async def test_what_the_model_did_not_say_is_refused_at_run_time(domain: str, action: str, text: str) -> None:
    async with greedy("{}", action) as harness:
        row, _ = await play_in(domain, harness, text)
    assert (row.stop_condition, row.verdict.reward) == ("provenance", 0.0)
    assert row.tool_calls == 0


async def test_code_that_is_said_up_to_normalisation_runs() -> None:
    action = "Act(json.dumps({'tool': 'code_interpreter', 'arguments': {'code': 'print(6*7)'}}))"
    async with greedy("{}", f"{action} if not view.turns else Act(reply.text)") as harness:
        row, _ = await play_in("math_python", harness, "I compute:\n```python\n6*7\n```")
    assert row.steps[0].observation == "42\n"


async def test_o37_beside_hostile_candidates_the_others_score_as_if_alone() -> None:
    """Every kind of hostile reply in one file, honest rollouts of another at the same time."""

    async def honest() -> list[Any]:
        async with load_harness_source(
            "chess_puzzles", shipped_harnesses()["chess_puzzles"] + "\n", "b.py"
        ) as b:
            rows = [play(None, b, backend=load_scripted("noisy-oracle:0.7"), example=i) for i in range(12)]
            return [
                msgspec.structs.replace(row, seconds=0.0, env_seconds=0.0)
                for row in await asyncio.gather(*rows)
            ]

    async def hostile() -> list[str]:
        async with ProcessHarness(FILES / "moody.py", call_seconds=0.8) as a:
            ways = ["hang", "die", "exit", "flood", "e2e4", "spin"]
            return [row.stop_condition for row in await asyncio.gather(*(play([w] * 9, a) for w in ways))]

    alone = await honest()
    beside, ends = await asyncio.gather(honest(), hostile())
    assert beside == alone
    assert len({row.verdict.reward for row in alone}) == 2
    timeout, error, rest = "harness_timeout", "harness_error", "malformed"
    assert ends[:4] == [timeout, error, error, rest]
    assert (ends[4] in ("illegal", "wrong_move", "solved"), ends[5]) == (True, timeout)
