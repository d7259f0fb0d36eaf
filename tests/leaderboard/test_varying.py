"""Python results in a replay: what varies is told by running programs again, never by what they name."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from whale_leaderboard.recorded import Diverged
from whale_leaderboard.recorded_tools import ReplayedInterpreter
from whale_leaderboard.varying import Ran, Trials, explained

from whale_bench.records import Rollout, Step
from whale_envs.core import Verdict
from whale_envs.math_python.tools import call_text
from whale_envs.sandbox import Sandbox

FORGED = {
    "names time": ("import time\nt = time.time()\nprint(6 * 7)", "43\n"),
    "names a set": ("s = set([3, 1, 2])\nprint(sum(s))", "7\n"),
    "names sys and os": ("import sys, os\nprint(len('abc'))", "4\n"),
    "names random, seeded": ("import random\nrandom.seed(5)\nprint(random.randint(1, 9))", "77\n"),
    "prints the time beside it": ("import time\nprint(6 * 7, time.time())", "43 1700000000.25\n"),
    "another word beside a number that varies": (
        "import random\nprint('no', random.random())", "yes 0.25\n",
    ),
    "another set": ("print({'a', 'b', 'c'})", "{'a', 'b', 'd'}\n"),
    "more after it": ("import time\nprint(6 * 7)", "42\n43\n"),
    "a sum over a list of a set": ("print(sum(map(len, list({'ab', 'cd'}))))", "5\n"),
    "names of no set in a list": ("print(list({'ab', 'cd'}), 6 * 7)", "['cd', 'ab'] 43\n"),
    "ordered": ("print(sorted({'ann', 'bob'}))", "['bob', 'ann']\n"),
    "goes by its file's name": (
        "if '__file__' in globals():\n    pass\nelse:\n    print('the answer is 42')", "anything at all 17\n",
    ),
    "goes by having a file": ("try:\n    __file__; print(41)\nexcept NameError:\n    print(42)", "77\n"),
    "goes by its arguments": ("import sys\nprint(42 if sys.argv == [''] else 41)", "77\n"),
    "goes by its flags": ("import sys\nprint(41 if sys.flags.hash_randomization else 42)", "77\n"),
    "goes by its callers": (
        "import sys\nf, n = sys._getframe(), 0\nwhile f:\n    f, n = f.f_back, n + 1\nprint(n)", "77\n",
    ),
    "goes by its environment": (
        "import os\nprint(42 if os.environ['PYTHONHASHSEED'] == '0' else 41)", "77\n",
    ),
    "goes by its folder": ("import os\nprint(os.getcwd() and 42 + len(os.listdir()))", "77\n"),
    "goes by its hash seed": ("print(42 if hash('a') % 2 else 41)", "77\n"),
    "sleeps": ("import time\ntime.sleep(0.05)\nprint(42)", "43\n"),
}  # fmt: skip
"""Programs that give one result, or one in part, and another one on record."""

HONEST = {
    "time": ("import time\nprint(time.time())", "1700000000.1234567\n"),
    "time that passed, rounded": (
        "import time\nt = time.perf_counter()\nprint(f'{time.perf_counter() - t:.2f} s')", "0.01 s\n",
    ),
    "the day": ("from datetime import date\nprint(date.today())", "2026-03-01\n"),
    "now": ("import datetime\nprint(datetime.datetime.now().year)", "2025\n"),
    "a set of strings under another hash seed": (
        "print({'a', 'b', 'c'}, {'x': 1})", "{'c', 'b', 'a'} {'x': 1}\n",
    ),
    "a list of a set under another hash seed": (
        "print(list({'ab', 'cd', 'ef', 'gh'}))", "['gh', 'ab', 'ef', 'cd']\n",
    ),
    "a loop over two names": ("for name in {'ann', 'bob'}:\n    print(name)", None),
    "what comes first in a set": ("print(next(iter({'x1', 'y1', 'z1'})), 6 * 7)", None),
    "a hash": ("print(hash('a') % 1000, 'of a thousand')", "123 of a thousand\n"),
    "id": ("print(id(object()) > 5, id([]))", "True 140421000000064\n"),
    "an address": ("print(object())", "<object object at 0x7f00aaaabbb0>\n"),
    "random": ("import random\nprint(random.random() * 6)", "0.25\n"),
    "a rounded estimate": (
        "import random\nprint(round(sum(random.random() < 0.5 for _ in range(4000)) / 4000, 1))", "0.4\n",
    ),
    "as many lines as chance wants": (
        "import random\nfor i in range(random.randint(1, 50)):\n    print(i)\nprint('end')", "0\n1\nend\n",
    ),
    "processors": ("import os\nprint(os.cpu_count())", "64\n"),
}  # fmt: skip
"""Programs whose results vary, and another honest result of theirs."""


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def tools(loop: asyncio.Runner) -> Iterator[tuple[Sandbox, Trials]]:
    sandbox = Sandbox()
    trials = Trials(sandbox)
    yield sandbox, trials
    loop.run(trials.__aexit__())
    sandbox.close()


def under_another_seed(code: str) -> str:
    """What the program prints on a server whose hash seed makes a difference."""
    texts = (
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (0, *range(1_000, 1_100))
    )
    ours = next(texts)
    return next(text for text in texts if text != ours)


def replayed(
    loop: asyncio.Runner, tools: tuple[Sandbox, Trials], code: str, text: str, event: str = "ok"
) -> ReplayedInterpreter:
    """The interpreter after a rollout of one call, of which this result is on record."""
    row = Rollout(
        key="k", domain="math_python", example_id="e", sample=0, seed=0, harness_id="h", weights_id="w",
        opening="", segments=(), steps=(Step(call_text(code), text, event, ""),),
        verdict=Verdict(reward=0.0, reason="no_answer"), stop_condition="no_answer", truncated=False,
    )  # fmt: skip
    interpreter = ReplayedInterpreter(row, *tools)
    loop.run(interpreter.run(code))
    return interpreter


@pytest.mark.parametrize("name", FORGED)
def test_a_result_that_the_program_cannot_give_is_refused_whatever_it_names(
    name: str, loop: asyncio.Runner, tools: tuple[Sandbox, Trials]
) -> None:
    with pytest.raises(Diverged, match="Python call 1: its result differs at character"):
        replayed(loop, tools, *FORGED[name])


@pytest.mark.parametrize("name", HONEST)
def test_a_result_that_varies_is_counted_apart(
    name: str, loop: asyncio.Runner, tools: tuple[Sandbox, Trials]
) -> None:
    code, text = HONEST[name]
    assert replayed(loop, tools, code, text or under_another_seed(code)).apart == 1


def test_what_comes_out_the_same_is_not_apart(loop: asyncio.Runner, tools: tuple[Sandbox, Trials]) -> None:
    assert replayed(loop, tools, "import time, random\nprint(set('a'), 6 * 7)", "{'a'} 42\n").apart == 0


def test_a_limit_is_believed_where_a_slower_or_smaller_machine_reaches_it(
    loop: asyncio.Runner, tools: tuple[Sandbox, Trials]
) -> None:
    slow = "import time\nprint(1, flush=True)\ntime.sleep(0.4)"
    stopped = "(stopped at the time limit of 30 s)"
    assert replayed(loop, tools, slow, f"1\n{stopped}", "timed_out").apart == 1
    for code, said in ((slow, f"2\n{stopped}"), ("print(6 * 7)", stopped)):
        with pytest.raises(Diverged, match="Python call 1"):
            replayed(loop, tools, code, said, "timed_out")
    with pytest.raises(Diverged, match="Python call 1"):
        replayed(loop, tools, "print(6 * 7)", "42\n(stopped at the memory limit of 1024 MB)", "memory")


def test_a_result_depends_on_the_calls_before_it_where_variables_are_kept(
    loop: asyncio.Runner, tools: tuple[Sandbox, Trials]
) -> None:
    trials = tools[1]
    codes = ("import random\nx = random.random()\ny = 5", "print(x, y)")
    first = Ran(True, "finished", "0.125 5\n")
    for text, believed in (("0.5 5\n", True), ("0.5 6\n", False)):
        recorded = Ran(True, "finished", text)
        found = loop.run(trials.explain(codes, recorded, first, kept=True, timeout_s=30.0))
        assert found is believed


texts = st.lists(st.sampled_from(["42", "0.5", "x", "yes", " ", "\n", ":", "{a, b}"]), max_size=8).map(
    "".join
)


@given(texts, texts)
def test_without_variation_only_the_same_text_is_explained(recorded: str, here: str) -> None:
    assert explained(recorded, [here] * 3) == (recorded == here)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), min_size=1, max_size=6), st.data())
def test_what_all_runs_share_has_to_be_there(parts: list[tuple[str, bool]], data: st.DataObject) -> None:
    """A text of constant words and varying numbers: the numbers may be others, no word may."""
    numbers = st.integers(0, 10**6)

    def text(words: list[str]) -> str:
        drawn = [data.draw(numbers) for _ in words]
        pairs = zip(words, parts, drawn, strict=True)
        return " ".join(f"{word} {number}" if varies else word for word, (_, varies), number in pairs)

    words = [word for word, _ in parts]
    runs = [text(words) for _ in range(2)] + [" ".join(f"{w} -1" if v else w for w, v in parts)]
    assert explained(text(words), [*runs, " ".join(f"{w} -2" if v else w for w, v in parts)])
    at = data.draw(st.integers(0, len(words) - 1))
    forged = [*words[:at], "no", *words[at + 1 :]]
    assert not explained(text(forged), runs)
