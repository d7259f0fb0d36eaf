"""Calls of scored rollouts made again: what a harness kept, or took from outside, shows."""

import asyncio
from random import Random
from typing import Any

import msgspec
import pytest
from bench_fakes import EXAMPLES, HEAD

from whale_bench import Agent, Rollout, Task, rollout
from whale_bench.harness.host import InProcessHarness, ProcessHarness
from whale_bench.harness.replaying import replay_calls
from whale_bench.models.base import Request
from whale_bench.models.scripted import ScriptedModel
from whale_envs import UsageError

BASE = "from whale_bench.harness.h0.chess_puzzles import Harness as H0\n"
COUNTS = (
    "n = [0]\nclass Harness(H0):\n    def messages(self, view):\n        n[0] += 1\n"
    "        return [*super().messages(view), {'role': 'user', 'content': str(n[0])}]\n"
)
LATER = COUNTS.replace("n[0] += 1", "n[0] += len(view.turns) == 2")
REMEMBERS = (
    "seen = {}\nclass Harness(H0):\n    def read(self, reply, view):\n"
    "        if view.opening in seen:\n            return Nudge('Again: ' + str(len(view.turns)))\n"
    "        if len(view.turns) > 1:\n            seen[view.opening] = 1\n"
    "        return super().read(reply, view) if len(view.turns) > 1 else Nudge('Think.')\n"
)
KEEPS = (
    "n = [0]\nclass Harness(H0):\n    def read(self, reply, view):\n        n[0] += 1\n"
    "        view.state['n'] = n[0]\n        return super().read(reply, view)\n"
)
CLOCK = (
    "import time\nclass Harness(H0):\n    def messages(self, view):\n"
    "        word = str(time.perf_counter_ns())\n"
    "        return [*super().messages(view), {'role': 'user', 'content': word}]\n"
)
DIFFER = {
    "a counter": (COUNTS, ":5: messages answers"),
    "a counter that begins late": (LATER, ":5: messages answers"),
    "a cache of earlier calls": (REMEMBERS, ":5: read answers"),
    "a count in the state": (KEEPS, ":5: read answers a recorded call otherwise in another order"),
    "a clock": (CLOCK, ":5: messages answers"),
    "an address": (
        CLOCK.replace("time.perf_counter_ns()", "id(view)").replace("import time", "import re"),
        ":5: messages answers",
    ),
}  # fmt: skip
HOLDS = {
    "h0": "class Harness(H0): pass\n",
    "state, seed, retries": (
        "import random\nclass Harness(H0):\n    MAX_TURNS = 12\n    def read(self, reply, view):\n"
        "        view.state['n'] = view.state.get('n', 0) + 1\n"
        "        draw = random.Random(view.seed + view.state['n']).random() + random.random()\n"
        "        return Nudge(f'{draw} {view.tokens_left}') if draw < 1.2 else super().read(reply, view)\n"
    ),
    "the order of a set, hash": (
        "class Harness(H0):\n    def messages(self, view):\n"
        "        words = str(set(view.opening.split())) + str(hash(view.opening))\n"
        "        return [{'role': 'user', 'content': words}]\n"
    ),
    "a cache of what does not change": (
        "seen = {}\nclass Harness(H0):\n    def messages(self, view):\n"
        "        size = seen.setdefault(view.opening, len(view.opening))\n"
        "        return [{'role': 'user', 'content': str(size)}]\n"
    ),
}


def says(request: Request) -> str:
    rng, env = Random(request.seed), request.host
    right = f"<think>hm</think><move>{env.oracle_action()}</move>"
    return rng.choice([right, right, "Hm.", f"[{env.random_action(rng)}]"])


async def played(source: str, examples: int = 6, samples: int = 2) -> list[Rollout]:
    task = Task("chess_puzzles", EXAMPLES)
    async with ProcessHarness("c.py", source=source) as harness:
        agent = Agent(ScriptedModel(says), harness)
        return await asyncio.gather(
            *(
                rollout(task, agent, example, sample=sample, seed=1, key=f"dev:{example.id}:{sample}")
                for example in EXAMPLES[:examples]
                for sample in range(samples)
            )
        )


async def replayed(source: str, **options: Any) -> str:
    rows = await played(source)
    assert not {row.stop_condition for row in rows} & {"harness_error", "provenance"}
    # As a search has them: from the lines of a run.
    rows = msgspec.json.decode(msgspec.json.encode(rows), type=list[Rollout])
    found = await replay_calls(source, "chess_puzzles", rows, name="c.py", **options)
    assert found is None or (found.file, found.domain) == ("c.py", "chess_puzzles")
    return "" if found is None else found.message


@pytest.mark.parametrize("what", DIFFER)
async def test_what_does_not_come_from_the_call_shows_with_hook_file_and_line(what: str) -> None:
    source, words = DIFFER[what]
    assert (await replayed(HEAD + BASE + source)).startswith(f"c.py{words}")


@pytest.mark.parametrize("what", HOLDS)
async def test_what_comes_from_the_call_is_the_same_again(what: str) -> None:
    assert await replayed(HEAD + BASE + HOLDS[what]) == ""


async def test_the_calls_are_bounded_and_all_are_made_where_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    source, made = HEAD + BASE + HOLDS["h0"], [0]
    rows = await played(source)
    call = ProcessHarness.call

    async def counted(self: ProcessHarness, *args: Any) -> Any:
        made[0] += 1
        return await call(self, *args)

    monkeypatch.setattr(ProcessHarness, "call", counted)
    assert await replay_calls(source, "chess_puzzles", rows, calls=20) is None
    assert made == [20]
    made[0] = 0
    assert await replay_calls(source, "chess_puzzles", rows) is None
    assert made == [2 * sum(len(row.segments) + len(row.steps) for row in rows)]
    assert await replay_calls(source, "chess_puzzles", []) is None


async def test_a_harness_that_fails_now_and_rollouts_of_another() -> None:
    source = HEAD + BASE + "class Harness(H0):\n    def read(self, reply, view):\n        return LATER\n"
    rows = await played(HEAD + BASE + HOLDS["h0"])
    with pytest.raises(UsageError, match="was played by sha256"):
        await replay_calls(source, "chess_puzzles", rows)
    mine = InProcessHarness(source, "c.py").harness_id
    rows = [msgspec.structs.replace(row, harness_id=mine) for row in rows]
    found = await replay_calls(source, "chess_puzzles", rows, name="c.py")
    assert found is not None
    assert "read answers a recorded call otherwise" in found.message
    assert "harness_error: c.py:5: NameError"[:20] in found.message
