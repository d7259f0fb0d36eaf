"""Own agents that work: every form of a Python agent, JSON lines in Python and sh, overlap, identity."""

import asyncio
import json
import os
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_fakes import EXAMPLES, GOLD, LONG, SOLVES, ask, play_own
from bench_fakes import alive, plain, results, run

from whale_bench import EvalPlan
from whale_bench.agents.child import PlayedRollout, construct
from whale_bench.agents.host import OwnAgent
from whale_bench.agents.loading import AgentFault, LoadedAgent, load_agent
from whale_bench.agents.names import read_name
from whale_bench.records import Rollout
from whale_envs import UsageError

Write = Callable[..., str]

FORMS = {
    "class": ("A", "class A:\n    def act(self, o): return 'hm'"),
    "callable class": ("A", "class A:\n    def __call__(self, o): return 'hm'"),
    "factory of a function": ("make", "def make(): return lambda o: 'hm'"),
    "factory with defaults": ("make", "def make(model='m'):\n    return lambda o: 'hm'"),
    "asynchronous factory": ("make", "async def make(): return lambda o: 'hm'"),
    "function": ("act", "def act(o): return 'hm'"),
    "function with info": ("act", "def act(o, info): return 'hm' if info['domain'] else 1"),
    "coroutine function": ("act", "import asyncio\nasync def act(o): return await asyncio.sleep(0, 'hm')"),
    "asynchronous class": ("A", "class A:\n    async def reset(self, info): self.said = 'hm'\n"
                           "    async def act(self, o): return self.said\n    async def close(self): pass"),
    "partial": ("act", "import functools\nact = functools.partial(lambda word, o: word, 'hm')"),
    "nested name": ("Box.act", "class Box:\n    @staticmethod\n    def act(o): return 'hm'"),
}  # fmt: skip


@pytest.fixture
def load(python_agent: Write, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LoadedAgent]:
    """Loads an agent in this process, which forgets it afterwards."""

    def loaded(source: str, name: str = "act") -> LoadedAgent:
        file = read_name(python_agent(source, name)).target
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setitem(sys.modules, "whale_agent", sys)
        return load_agent(file, name)

    return loaded


@pytest.mark.parametrize("form", FORMS)
async def test_every_form_of_a_python_agent_plays(load: Callable[..., LoadedAgent], form: str) -> None:
    name, source = FORMS[form]
    loaded = load(source, name)
    await construct(loaded)
    rollout = PlayedRollout(loaded.make, {})
    assert [await rollout.act(text, {"domain": "d"}) for text in ("first", "second")] == ["hm", "hm"]
    await rollout.close()


async def test_an_agent_that_knows_the_moves_solves_the_puzzle(python_agent: Write) -> None:
    async with OwnAgent(python_agent(SOLVES, "Solver")) as agent:
        row = await play_own(agent)
    assert (row.stop_condition, row.verdict.reward) == ("solved", 1.0)
    assert [step.action for step in row.steps] == list(GOLD[::2])
    assert (row.metered, row.prompt_tokens, row.sampled_tokens) == (False, None, None)
    assert row.metrics["correct_moves"] == len(GOLD[::2])


async def test_an_agent_is_told_of_the_rollout_and_nothing_of_the_example(python_agent: Write) -> None:
    source = "import json\ndef act(observation, info): return json.dumps(info, sort_keys=True)"
    async with OwnAgent(python_agent(source)) as agent:
        rows = [await play_own(agent, sample=sample) for sample in (0, 0, 1)]
    told = [json.loads(row.steps[0].action or "") for row in rows]
    assert told[0]["domain"] == "chess_puzzles"
    assert told[0].keys() == {"domain", "max_turns", "observation", "rollout", "seed", "tools"}
    assert told[0]["max_turns"] == 9
    assert told[0]["seed"] == told[1]["seed"] != told[2]["seed"]
    later = json.loads(rows[0].steps[1].action or "")
    assert (later["event"], later["seed"]) == ("malformed", told[0]["seed"])
    for text in (EXAMPLES[LONG].id, EXAMPLES[LONG].source, " ".join(GOLD)):
        assert text not in json.dumps(told)


async def test_the_process_is_fresh_and_runs_where_the_command_does(python_agent: Write) -> None:
    source = "import os, sys\ndef act(o): return f'{os.getppid()} {os.getcwd()} {sorted(sys.modules)}'"
    async with OwnAgent(python_agent(source)) as agent:
        [said] = await ask(agent, "hm")
    parent, folder, modules = said.split(" ", 2)
    assert (int(parent), folder) == (os.getpid(), str(Path.cwd()))
    assert "'whale_envs" not in modules
    assert "'whale_bench.engine'" not in modules


async def test_what_an_agent_prints_is_no_answer(python_agent: Write) -> None:
    source = (
        "import os, sys\nprint('at import')\ndef act(o):\n"
        '    print(\'{"rollout": "r1", "action": "no"}\', flush=True)\n'
        "    os.write(1, b'garbage\\n')\n    sys.__stdout__.write('more')\n    os.system('echo sub')\n"
        "    return input.__name__"
    )
    async with OwnAgent(python_agent(source)) as agent:
        assert await ask(agent, "a", "b") == ["input", "input"]


async def test_all_calls_of_a_rollout_are_made_in_one_thread_and_it_is_closed(
    python_agent: Write, tmp_path: Path
) -> None:
    source = f"""
import pathlib, threading
class A:
    def __init__(self): self.seen = [threading.get_ident()]
    def reset(self, info): self.seen.append(threading.get_ident())
    def act(self, o):
        self.seen.append(threading.get_ident())
        return str(len(set(self.seen)))
    def close(self): pathlib.Path({str(tmp_path / "closed")!r}).touch()
"""
    async with OwnAgent(python_agent(source, "A")) as agent:
        (tmp_path / "closed").unlink()  # the one that was made to see whether it can be
        assert await ask(agent, "a", "b") == ["1", "1"]
    assert (tmp_path / "closed").exists()


@pytest.mark.parametrize("kind", ["", "async "])
async def test_rollouts_of_one_process_overlap(python_agent: Write, kind: str) -> None:
    source = f"""
import asyncio, os, threading
barrier, count, all_here = threading.Barrier(4), 0, None
{kind}def act(o):
    global count, all_here
    if {bool(kind)}:
        all_here = all_here or asyncio.Event()
        count += 1
        all_here.set() if count == 4 else await all_here.wait()
    else:
        barrier.wait()
    return str(os.getpid())
"""
    source = source if kind else source.replace("await all_here.wait()", "None")
    async with OwnAgent(python_agent(source)) as agent:
        said = await asyncio.gather(*(ask(agent, "go", key=str(i)) for i in range(4)))
    assert len({pid for [pid] in said}) == 1


async def test_a_process_that_says_so_has_several_rollouts_at_a_time(lines_agent: Write) -> None:
    body = """
if m["type"] == "start":
    seen.append(m["rollout"])
    if len(seen) == 3:
        for rollout in reversed(seen):
            say(rollout=rollout, action=rollout)"""
    name = lines_agent(body, hello='"version": 1, "concurrent": True', top="seen = []")
    async with OwnAgent(name) as agent:
        said = await asyncio.gather(*(ask(agent, "go", key=str(i)) for i in range(3)))
    assert sorted(said) == [["r1"], ["r2"], ["r3"]]


async def test_one_that_does_not_has_a_process_for_each_rollout_in_flight(lines_agent: Write) -> None:
    here: list[asyncio.StreamWriter] = []

    async def arrive(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        here.append(writer)
        if len(here) == 3:
            for each in here:
                each.write(b".")
                each.close()

    server = await asyncio.start_server(arrive, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    body = """
if m["type"] == "start" and m["observation"] == "meet":
    socket.create_connection(("127.0.0.1", PORT)).recv(1)
if m["type"] != "end":
    say(rollout=m["rollout"], action=str(os.getpid()))""".replace("PORT", str(port))
    async with server, OwnAgent(lines_agent(body, top="import socket")) as agent:
        said = await asyncio.gather(*(ask(agent, "meet", "on", key=str(i)) for i in range(3)))
        assert all(first == second for first, second in said)
        pids = {first for first, _ in said}
        assert len(pids) == 3
        assert set(await ask(agent, "alone")) <= pids  # used again
    assert not [pid for pid in pids if alive(int(pid))]


async def test_an_agent_in_sh(tmp_path: Path) -> None:
    (tmp_path / "agent.sh").write_text(
        """echo '{"type": "hello", "version": 1}'
while read -r line; do
  id=$(printf '%s' "$line" | sed 's/.*"rollout":"\\([^"]*\\)".*/\\1/')
  case $line in
    *'"type":"end"'*) ;;
    *'"type":"start"'*) echo "{\\"rollout\\": \\"$id\\", \\"action\\": \\"GOLD\\"}" ;;
    *) echo "{\\"rollout\\": \\"$id\\", \\"action\\": \\"e9\\"}" ;;
  esac
done
""".replace("GOLD", GOLD[0])
    )
    async with OwnAgent(f"process:sh {tmp_path / 'agent.sh'}") as agent:
        rows = [await play_own(agent) for _ in range(2)]
    assert [step.event for step in rows[1].steps] == ["ok", "malformed", "malformed"]
    assert rows[0].steps == rows[1].steps


async def test_a_program_that_ends_after_each_rollout_is_started_again(lines_agent: Write) -> None:
    body = 'say(rollout=m["rollout"], action="hm") if m["type"] != "end" else sys.exit()'
    async with OwnAgent(lines_agent(body)) as agent:
        for _ in range(3):
            assert await ask(agent, "a", "b") == ["hm", "hm"]


async def test_odd_text_goes_through_and_lone_surrogates_are_replaced(
    python_agent: Write, lines_agent: Write
) -> None:
    odd = "é\n\x00\u2028" + "x" * 100_000
    async with OwnAgent(python_agent("def act(o): return o + '\\ud800'")) as agent:
        assert await ask(agent, odd) == [odd + "?"]
    body = 'm["type"] == "end" or say(rollout=m["rollout"], action="\\ud800" + m["observation"], more=1)'
    async with OwnAgent(lines_agent(body)) as agent:
        assert await ask(agent, odd) == ["?" + odd]


# --- tools and options ----------------------------------------------------------------------------

SEARCHES = """
import json
class A:
    ENV_OPTIONS = {"topk": 2, "keep_state": 1, "max_turns": 99}
    def reset(self, info):
        self.info = info
    def act(self, observation):
        if observation == self.info["observation"]:
            [tool] = self.info["tools"]
            name, [argument] = tool["function"]["name"], tool["function"]["parameters"]["required"]
            return json.dumps({"tool": name, "arguments": {argument: observation}})
        return f"<answer>{self.info['max_turns']}</answer>" + r"\\boxed{" + observation.strip() + "}"
"""


def test_own_agents_use_the_tools_of_the_environment(python_agent: Write, tmp_path: Path) -> None:
    plan = EvalPlan(domain="search_qa", model=python_agent(SEARCHES, "A"), n=2, k=1)
    summary = run(plan, tmp_path / "run")
    assert (summary.complete, summary.metrics["tool_calls"], summary.metrics["tool_errors"]) == (True, 1, 0)
    rows: list[Rollout] = list(results(tmp_path / "run").values())
    for row in rows:
        assert "16" in (row.steps[1].action or "")[:20]  # max_turns, held within the bounds
        assert row.steps[0].observation.count("Document ") == 2


async def test_a_closed_book_run_offers_no_tool(python_agent: Write, tmp_path: Path) -> None:
    name = python_agent("def act(o, info): return str(info['tools'])")
    plan = EvalPlan(domain="search_qa", model=name, n=1, k=1, closed_book=True)
    await asyncio.to_thread(run, plan, tmp_path / "run")
    [row] = results(tmp_path / "run").values()
    assert row.steps[0].action == "[]"


# --- identity and resuming ------------------------------------------------------------------------


def test_a_run_of_an_own_agent_is_equal_at_any_concurrency_and_can_be_resumed(
    python_agent: Write, tmp_path: Path
) -> None:
    source = (
        "import random, re\nclass A:\n    def reset(self, info): self.rng = random.Random(info['seed'])\n"
        "    def act(self, o): return self.rng.choice(re.findall(r'\\[(\\w+)\\]', o))"
    )
    plan = EvalPlan(domain="chess_puzzles", model=python_agent(source, "A"), n=8, k=2, concurrency=16)
    summary = run(plan, tmp_path / "whole")
    assert (summary.complete, summary.metered, summary.fixture, summary.warnings) == (True, False, False, [])
    settings = tomllib.loads((tmp_path / "whole" / "run.toml").read_text())
    assert settings["weights_id"] == settings["model"] == plan.model
    assert settings["agent_id"] == settings["harness_id"]
    assert settings["agent_id"].startswith("sha256:")
    assert not (tmp_path / "whole" / "harness.py").exists()
    [part] = (tmp_path / "whole").glob("rollouts-*.jsonl")
    before = results(tmp_path / "whole")
    part.write_bytes(b"".join(part.read_bytes().splitlines(keepends=True)[:5]))
    assert plain(run(None, tmp_path / "whole")) == plain(summary)

    def kept(rows: dict[str, Any]) -> dict[str, Any]:
        return {key: (row.steps, row.verdict) for key, row in rows.items()}

    assert kept(results(tmp_path / "whole")) == kept(before)
    (tmp_path / "mine.py").write_text(source + "\n")
    with pytest.raises(UsageError, match="cannot be resumed: its agent_id is 'sha256:"):
        run(None, tmp_path / "whole")


def test_a_run_of_relative_paths_goes_on_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for folder in (home, elsewhere):
        folder.mkdir()
    (home / "beside.py").write_text("MOVE = 'e2e4'\n")
    source = "import os\nfrom beside import MOVE\ndef act(o): return MOVE + open('data.txt').read()\n"
    (home / "mine.py").write_text(source)
    (home / "data.txt").write_text("?")
    program = """
import json, sys
print(json.dumps({"type": "hello", "version": 1}), flush=True)
for line in sys.stdin:
    m = json.loads(line)
    if m["type"] != "end":
        print(json.dumps({"rollout": m["rollout"], "action": open("data.txt").read()}), flush=True)
"""
    (home / "lines").write_text(f"#!{sys.executable}{program}")
    (home / "lines").chmod(0o755)
    for number, name in enumerate(
        ("agent:mine.py:act", "agent:mine:act", "process:./lines", "process:./lines data.txt")
    ):
        run_folder = tmp_path / f"run{number}"
        monkeypatch.chdir(home)
        before = run(EvalPlan(domain="chess_puzzles", model=name, n=2, k=1), run_folder)
        settings = tomllib.loads((run_folder / "run.toml").read_text())
        assert (settings["model"], settings["directory"]) == (name, str(home))
        assert not {"temperature", "top_p", "top_k"} & settings.keys()
        [part] = run_folder.glob("rollouts-*.jsonl")
        part.write_bytes(part.read_bytes().splitlines(keepends=True)[0])
        monkeypatch.chdir(elsewhere)
        assert plain(run(None, run_folder)) == plain(before)
        assert before.complete


async def ids(*names: str) -> list[str]:
    found = []
    for name in names:
        async with OwnAgent(name) as agent:
            found.append(agent.harness_id)
    return found


async def test_an_agents_id_covers_what_it_imports_from_beside_it(
    python_agent: Write, tmp_path: Path
) -> None:
    (tmp_path / "helper.py").write_text("WORD = 'hm'\n")
    (tmp_path / "other.py").write_text("")
    name = python_agent("import json, helper\ndef act(o): return helper.WORD")
    [first] = await ids(name)
    (tmp_path / "other.py").write_text("changed = 1")
    assert await ids(name) == [first]
    (tmp_path / "helper.py").write_text("WORD = 'no'\n")
    assert await ids(name) != [first]


async def test_a_process_has_the_id_of_the_files_that_its_command_names(
    lines_agent: Write, tmp_path: Path
) -> None:
    name = lines_agent("pass")
    [first, again, flagged] = await ids(name, name, f"{name} --flag")
    (tmp_path / "mine.py").write_text((tmp_path / "mine.py").read_text() + "\n")
    [changed] = await ids(name)
    assert first == again
    assert len({first, flagged, changed}) == 3


# --- misuse ---------------------------------------------------------------------------------------

MISUSE = {
    "no attribute": ("agent:a.py", "agent:MODULE:NAME or agent:FILE.py:NAME, got 'agent:a.py'"),
    "no name": ("agent:a.py:", "got 'agent:a.py:'"),
    "no file": ("agent:nowhere.py:act", "agent file 'nowhere.py' does not exist in /"),
    "odd module": ("agent:a-b:act", "'a-b' is neither a module nor a file ending in .py"),
    "no command": ("process:", "process: needs a command"),
    "open quote": ("process:'a", "cannot be read as a command"),
    "no program": ("process:./nowhere --x", "'./nowhere' is no program that can be run"),
    "no module": ("agent:nowhere.agents:act", "nowhere.agents cannot be imported: .*ModuleNotFoundError"),
    "no such name": ("agent:json:act", "json has no 'act'"),
    "no callable": ("agent:sys:path", "sys:path is \\[.*neither a class nor a callable"),
    "many arguments": ("agent:shutil:move", None),
    "factory of nothing": ("agent:builtins:object", "the factory returned <object .*no callable"),
    "silent program": ("process:true", "it ended with exit status 0 before it said hello"),
    "failing program": (
        "process:sh -c 'echo why >&2; exit 3'",
        "exit status 3 before it said hello; .*\nwhy",
    ),
    "other lines": ("process:echo ready", "its first line 'ready' is no hello"),
    "other version": ('process:echo \'{"type": "hello", "version": 2}\'', "it speaks version 2 of the"),
}


@pytest.mark.parametrize("case", MISUSE)
async def test_misuse_is_found_before_any_rollout(case: str) -> None:
    name, words = MISUSE[case]
    if words is None:
        async with OwnAgent(name):  # (src, dst): two positional arguments, which might be an act
            return
    with pytest.raises(UsageError, match=f"(?s){words}"):
        async with OwnAgent(name):
            pass


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def act(o) return 1", "SyntaxError"),
        ("raise SystemExit('no')", "cannot be imported: .*SystemExit: no"),
        ("def act(a, b, c): pass", "takes neither no arguments, as a factory, nor"),
        ("def act(*, a): pass", "takes neither no arguments"),
        ("class act:\n    def act(self): pass", "`act` of act must take"),
        ("def act(): return None", "the factory returned None"),
        ("CONCURRENT = 'yes'\ndef act(o): pass", "CONCURRENT of .* must be True or False, got 'yes'"),
        ("ENV_OPTIONS = {'topk': '2'}\ndef act(o): pass", "ENV_OPTIONS of .* must map names to integers"),
    ],
)
async def test_a_python_agent_that_cannot_play_is_said_why(
    load: Callable[..., LoadedAgent], source: str, words: str
) -> None:
    with pytest.raises(AgentFault, match=f"(?s){words}"):
        await construct(load(source))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("class act:\n    def __init__(self): 1 / 0", "the factory raised .*mine.py.*ZeroDivisionError"),
        ("import os\nos._exit(7)", "it ended with exit status 7 before it said hello"),
    ],
)
def test_a_python_agent_that_cannot_play_starts_no_run(
    python_agent: Write, tmp_path: Path, source: str, words: str
) -> None:
    plan = EvalPlan(domain="chess_puzzles", model=python_agent(source), n=1, k=1)
    with pytest.raises(UsageError, match=f"(?s)agent:.* cannot play: .*{words}"):
        run(plan, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_options_that_no_environment_has_are_refused(python_agent: Write, tmp_path: Path) -> None:
    name = python_agent("ENV_OPTIONS = {'tpk': 2}\ndef act(o): pass")
    with pytest.raises(UsageError, match="'tpk'; did you mean 'topk'"):
        run(EvalPlan(domain="chess_puzzles", model=name), tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"harness": "h.py"}, "to which --harness means nothing"),
        ({"temperature": 0.5}, "to which --temperature means nothing"),
        ({"token_budget": 5}, "to which --token-budget means nothing"),
        ({"agent_seconds": 0.0}, "agent_seconds must be more than 0"),
        ({"model": "scripted/random", "agent_seconds": 5.0}, "--agent-seconds goes with an own agent"),
        ({"base_url": "localhost:8000"}, "--base-url must be an address"),
        ({"judge": "agent:json:dumps", "domain": "search_qa"}, "is a whole agent, which can be evaluated"),
    ],
)
def test_settings_that_mean_nothing_to_an_own_agent_are_refused(
    python_agent: Write, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    name = python_agent("def act(o): return ''")
    with pytest.raises(UsageError, match=words):
        run(
            EvalPlan(**{"domain": "chess_puzzles", "model": name, "n": 1, "k": 1, **changes}),
            tmp_path / "run",
        )


def test_names_keep_files_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").touch()
    monkeypatch.chdir(tmp_path)
    assert read_name("agent:a.py:act").target == str(tmp_path / "a.py")
    assert read_name("process:sh -c 'a b'").command == ("sh", "-c", "a b")
