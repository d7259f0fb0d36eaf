"""Every hostile thing that a hook can do, in a rollout: no reward, its reason, and nobody else pays."""

import asyncio
from collections.abc import Iterator

import pytest
from bench_fakes import HEAD, play

from whale_bench import Rollout
from whale_bench.harness.base import STATE_BYTES
from whale_bench.harness.process import ProcessHarness

KINDS = {
    "hang": ("time.sleep(10**6)", "harness_timeout", "no answer in 1.5 s"),
    "spin": ("while True: pass", "harness_timeout", "no answer in 1.5 s"),
    "spin in C": ("sum(range(10**12))", "harness_timeout", "no answer in 1.5 s"),
    "memory": ("bytearray(10**10)", "harness_error", "MemoryError"),
    "memory, in steps": ("keep = [bytearray(10**6) for _ in range(10**4)]", "harness_error", "MemoryError"),
    "fork": ("while True: os.fork()", "harness_error", "PermissionError"),
    "a thread": ("threading.Thread(target=print).start()", "harness_error", "RuntimeError"),
    "a program": ("os.execv('/bin/true', ['true'])", "harness_error", "PermissionError"),
    "a socket": ("socket.socket()", "harness_error", "PermissionError"),
    "a file": ("open('/etc/hostname')", "harness_error", "Error: "),
    "a file of its own": ("open('/tmp/x', 'w')", "harness_error", "Error: "),
    "the data": ("import whale_envs", "harness_error", "ModuleNotFoundError"),
    "exit": ("sys.exit(0)", "harness_error", "SystemExit: 0"),
    "leave": ("os._exit(0)", "harness_error", "its process ended during a call"),
    "abort": ("os.abort()", "harness_error", "its process ended during a call"),
    "interrupt": ("raise KeyboardInterrupt", "harness_error", "its process ended during a call"),
    "recurse": ("read = self.read(reply, view)", "harness_error", "RecursionError"),
    "close": ("os.closerange(0, 99)", "harness_error", "its process ended"),
    "a forged line": ('os.write(3, b\'{"type":"answer"}\\n\')', "harness_error", "broken answer"),
    "a great state": (f"view.state['x'] = 'y' * {STATE_BYTES}", "harness_error", "view.state takes"),
    "a state of itself": ("view.state['x'] = view.state", "harness_error", "RecursionError"),
    "a state that is none": ("view.state = [1]", "harness_error", "view.state must be a dict"),
    "a state of functions": ("view.state['x'] = print", "harness_error", "TypeError"),
    "nothing": ("return None", "harness_error", "read must return Act, Nudge or Stop, got None"),
    "a kind of its own": ("return type('Act', (Act,), {})('e2e4')", "harness_error", "read must return"),
    "another's move": (
        "return Act(view.observation.partition('moves: [')[2][:4])",
        "provenance",
        "not in the",
    ),
    "a finalizer": (
        "view.state = type('S', (dict,), {'__del__': lambda self: os._exit(0)})()",
        "harness_error",
        "",
    ),
    "its own modules": (
        "sys.modules['msgspec'] = sys.modules['whale_bench.text'] = None; import msgspec",
        "harness_error",
        "ModuleNotFoundError",
    ),
    "a great number": ("return Act(str(10**5_000))", "harness_error", "ValueError"),
    "a great number in its state": ("view.state['x'] = 10**5_000", "harness_error", "Error"),
    "a pattern": ("re.match('(a|a)*$', 'a' * 60 + 'b')", "harness_timeout", "no answer in 1.5 s"),
    "a great exception": ("raise ValueError('x' * 10**6)", "harness_error", "ValueError: xxx"),
    "an exception that has no words": (
        "raise type('E', (Exception,), {'__str__': lambda self: 1 / 0})()",
        "harness_error",
        "",
    ),
    "an exception that leaves": (
        "raise type('E', (Exception,), {'__str__': lambda self: sys.exit(0)})()",
        "harness_error",
        "",
    ),
    "a text of its own kind": (
        "return Act(type('S', (str,), {'__eq__': lambda a, b: True, '__hash__': str.__hash__,"
        " '__contains__': lambda a, b: True, 'split': lambda a: ['h7h5']})('h7h5'))",
        "harness_error",
        "",
    ),
    "half a letter": ("return Act('\\ud800h7h5')", "provenance", "is not in the text"),
    "a key that is half a letter": (
        "view.state['\\ud800'] = '\\udfff'; return Act('h7h5')",
        "provenance",
        "h7h5",
    ),
    "no number": ("view.state['x'] = float('nan'); return Act('h7h5')", "provenance", "h7h5"),
    "a trace": ("sys.settrace(lambda *a: sys.exit(0)); (lambda: 0)()", "harness_error", ""),
    "what it patched": (
        "import whale_bench.harness.calls as calls; calls.scrub = lambda text: 'h7h5'",
        "provenance",
        "'h7h5' is not in the text",
    ),
}
SOURCE = (
    HEAD
    + "import os, re, socket, sys, threading, time\nclass Harness(BaseHarness):\n    MAX_TURNS = 9\n"
    + "    def read(self, reply, view):\n"
    + "".join(f"        if reply.text == {kind!r}:\n            {KINDS[kind][0]}\n" for kind in KINDS)
    + "        return Act(reply.text)\n"
)


@pytest.fixture(scope="module")
def stage() -> Iterator[tuple[asyncio.Runner, ProcessHarness]]:
    """One worker for all of them, so that each comes after what the others did."""
    with asyncio.Runner() as runner:
        harness = ProcessHarness("mine.py", source=SOURCE, call_seconds=1.5)
        runner.run(harness.__aenter__())
        yield runner, harness
        runner.run(harness.__aexit__())


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_hostile_hook_does_costs_its_rollout_and_no_other(
    kind: str, stage: tuple[asyncio.Runner, ProcessHarness]
) -> None:
    runner, harness = stage
    _, reason, words = KINDS[kind]

    async def both() -> list[Rollout]:
        return await asyncio.gather(play([kind] * 9, harness), play(["a1a8"] * 9, harness, example=1))

    row, other = runner.run(both())
    assert (row.stop_condition, row.verdict.reward, row.truncated) == (reason, 0.0, False)
    assert words in row.error
    if reason == "harness_error" and "process" not in row.error and "broken" not in row.error:
        assert row.error.startswith("mine.py:")
    if kind != "what it patched":  # its next rollouts are its own to spoil
        assert other.stop_condition in ("illegal", "wrong_move", "malformed")
