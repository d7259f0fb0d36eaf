"""What several tests here share: small records, scripted replies, harnesses from a few lines."""

import asyncio
import sqlite3
import struct
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from whale_bench import Agent, EvalPlan, Rollout, Summary, Task, evaluate, rollout
from whale_bench.harness.host import HarnessHost, InProcessHarness, load_harness
from whale_bench.models import Backend
from whale_bench.models.scripted import ScriptedModel
from whale_bench.store import Outcome, RunStore
from whale_envs import Verdict, load_examples

FILES = Path(__file__).parent / "harness_files"
EXAMPLES = load_examples("chess_puzzles", "mini", "dev")
HEAD = "from whale_bench.harness import *\n"


def record(
    key: str = "test:a:0", *, reward: float = 1.0, texts: Sequence[str] = (), **changes: Any
) -> Rollout:
    """A finished rollout without content."""
    _, example_id, sample = key.split(":")
    fields: dict[str, Any] = {
        "key": key, "domain": "chess_puzzles", "example_id": example_id, "sample": int(sample), "seed": 0,
        "harness_id": "h", "weights_id": "w", "opening": "o", "segments": (), "steps": (),
        "verdict": Verdict(reward, "solved", standard=reward, paper=reward), "stop_condition": "solved",
        "truncated": False, "prompt_tokens": 3, "sampled_tokens": 2,
    }  # fmt: skip
    return Rollout(**{**fields, **changes})


def outcome(key: str, reward: float, **changes: Any) -> Outcome:
    _, example_id, sample = key.split(":")
    fields: dict[str, Any] = {
        "key": key, "example_id": example_id, "sample": int(sample),
        "verdict": Verdict(reward, "solved", standard=reward, paper=reward), "stop_condition": "solved",
        "truncated": False, "metrics": {}, "groups": (), "model_calls": 1, "tool_calls": 0,
        "prompt_tokens": 1, "sampled_tokens": 1, "seconds": 0.0, "texts": hash(key),
    }  # fmt: skip
    return Outcome(**{**fields, **changes})


def in_process(body: str) -> InProcessHarness:
    """A trusted harness whose class has this body."""
    lines = "\n".join(f"    {line}" for line in body.strip("\n").split("\n"))
    return InProcessHarness(f"{HEAD}class Harness(BaseHarness):\n{lines}\n", "mine.py")


async def play(
    replies: Any,
    harness: HarnessHost | None = None,
    *,
    example: int = 0,
    sample: int = 0,
    seed: int = 0,
    backend: Backend | None = None,
    **limits: Any,
) -> Rollout:
    """One rollout of a scripted model on a chess puzzle of the dev split."""
    agent = Agent(backend or ScriptedModel(replies), harness or load_harness("chess_puzzles"))
    task = Task("chess_puzzles", EXAMPLES, **limits)
    return await rollout(task, agent, EXAMPLES[example], sample=sample, seed=seed, key="dev:x:0")


def run(plan: EvalPlan | None, folder: Path, **options: Any) -> Summary:
    return asyncio.run(evaluate(plan, folder, **options))


def plain(summary: Summary) -> dict[str, Any]:
    """A summary without what differs between equal runs."""
    import msgspec

    fields: dict[str, Any] = msgspec.to_builtins(summary)
    return {name: value for name, value in fields.items() if name not in ("seconds", "problems")}


def results(folder: Path) -> dict[str, Any]:
    """Every rollout of a run by key, without times."""
    import msgspec

    rows = RunStore.open(folder).rollouts()
    return {row.key: msgspec.structs.replace(row, seconds=0.0, env_seconds=0.0) for row in rows}


def settled(folder: Path) -> dict[str, tuple[int, ...]]:
    """Every settled charge by key, without times."""
    import msgspec

    from whale_bench.ledger import Charge, Ledger

    with Ledger(folder / "ledger.sqlite", readonly=True) as ledger:
        ledger.audit()
        charges = [
            (e.key, msgspec.json.decode(e.charge, type=Charge)) for e in ledger.events() if e.kind == "settle"
        ]
    assert len(charges) == len(dict(charges))
    return {
        key: (c.rollouts, c.prompt_tokens, c.sampled_tokens, c.model_calls, c.tool_calls)
        for key, c in charges
    }


BEGUN = ("empty", "header", "journal")
"""See `begin_ledger`."""


def begin_ledger(path: Path, state: str) -> None:
    """A file as a kill leaves it before it has its table."""
    if state == "empty":
        path.touch()
        return
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode=WAL")
    db.close()
    if state == "journal":  # of the header, for which a file of no pages grew to one
        head = struct.pack(">8s5I", bytes.fromhex("d9d505f920a163d7"), 0, 7, 0, 512, 4096)
        Path(f"{path}-journal").write_bytes(head.ljust(512, b"\0"))


def lines(folder: Path) -> int:
    """How many rollouts stand in a run folder."""
    return sum(part.read_bytes().count(b"\n") for part in folder.glob("rollouts-*.jsonl"))


def children(pid: int) -> list[int]:
    """The processes that `pid` started and that still are."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition: Callable[[], bool], process: "subprocess.Popen[Any]", *, seconds: float = 60) -> bool:
    """Looks a hundred times a second until the condition holds (True) or the process has ended (False)."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        try:
            process.wait(timeout=0.01)
        except subprocess.TimeoutExpired:
            continue
        return False
    return True


class Clock:
    """The time of `servers.py`: it passes while a request waits, and only then.

    Attributes:
        waits: seconds of each wait, in order.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits: list[float] = []
        self._now, self._yield = 1_000.0, asyncio.sleep
        for module in ("server", "servers"):
            monkeypatch.setattr(f"whale_bench.models.{module}.time", self)
        monkeypatch.setattr("whale_bench.models.servers.asyncio.sleep", self._sleep)

    def monotonic(self) -> float:
        return self._now

    async def _sleep(self, seconds: float) -> None:
        if seconds:  # a server on the loopback yields now and then
            self.waits.append(seconds)
            self._now += seconds
        await self._yield(0)
