"""What the tests here share: honest runs of every kind, small and real, and a forger of bundles."""

import asyncio
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from whale_baselines.curves import cross_play
from whale_leaderboard.layout import About

from whale_bench import Agent, EvalPlan, Task, evaluate, rollout
from whale_bench.evaluation import charge_of
from whale_bench.harness.host import load_harness
from whale_bench.ledger import GENESIS, Charge, Ledger
from whale_bench.models.base import Backend, Generation, Request, Usage
from whale_bench.plan import resolve
from whale_bench.statistics import mean_at_k
from whale_bench.store import RunStore, outcome_of
from whale_envs import load_examples

ABOUT = About(agent="An agent", authors=("A. Author",), licence="CC0-1.0", hardware="two CPU cores")

HARNESS = """\
import re

from whale_bench.harness import Act, BaseHarness, Nudge


class Harness(BaseHarness):
    SYSTEM_PROMPT = "Play the best move."
    ENV_OPTIONS = {"illegal_retry_budget": 2}

    def read(self, reply, view):
        view.state["turns"] = view.state.get("turns", 0) + 1
        if not reply.text:
            return Nudge("Say a move.")
        return Act(reply.text)
"""


class Honest(Backend):
    """A model that is no fixture: its reply is a function of what it is sent and of the seed."""

    name = "local/honest"
    weights_id = "sha256:" + "ab" * 32

    def __init__(self, reply: Callable[[Request], str], weights_id: str = "") -> None:
        self._reply = reply
        self.weights_id = weights_id or self.weights_id

    async def generate(self, request: Request) -> Generation:
        text = self._reply(request)
        words = max(1, len(text.split()))
        return Generation(text=text, raw_text=f"<s>{text}</s>", usage=Usage(len(request.messages), words))


def a_move(request: Request) -> str:
    """One of the legal moves that the prompt shows, by the seed; now and then none."""
    moves = re.findall(r"\[(\w+)\]", request.messages[-1].content)
    return "I do not know." if request.seed % 11 == 0 or not moves else moves[request.seed % len(moves)]


VARIES = "import time\nprint(time.time())"
PROGRAMS = ("6 * 7", "print({'a', 'b'}, 'time')", "print(undefined)", "print(sum(range(100)))")


def programs(request: Request, *, often: int = 7) -> str:
    """Runs a program where the seed says so, one in `often` a varying one, then boxes what it printed."""
    said = request.messages[-1].content
    if len(request.messages) > 1:
        return rf"\boxed{{{(re.findall(r'[0-9]+', said) or ['0'])[0]}}}"
    number = request.seed % 60
    if number > 3:
        return rf"\boxed{{{number}}}"
    program = PROGRAMS[number] if request.seed % often else VARIES
    return f"I compute.\n```python\n{program}\n```"


def searches(request: Request) -> str:
    """Searches for the question where the seed says so, then answers with a word of what came."""
    said = request.messages[-1].content
    if request.seed % 16 or len(request.messages) > 2:
        return f"<answer>{(re.findall(r'[A-Z][a-z]+', said) or ['nothing'])[0]}</answer>"
    return f"<search>{said.splitlines()[0]}</search>"


def evaluated(folder: Path, domain: str, backend: Backend | None = None, **plan: Any) -> Path:
    """A run on the whole test split of the mini tier."""
    plan = {"model": backend.name if backend else "scripted/random"} | plan
    asyncio.run(evaluate(EvalPlan(domain=domain, **plan), folder, backend=backend))
    return folder


def spent_run(folder: Path, harness_file: Path) -> Path:
    """A run of the shape of the baselines': weights and harnesses change, and not all events are rollouts."""
    asyncio.run(_spend(folder, harness_file))
    weights, harnesses = (
        ("sha256:" + "cd" * 32, Honest.weights_id),
        ("sha256:" + "11" * 32, "sha256:" + "22" * 32),
    )
    means = [[[0.5, float(a == b) / 2] for b in range(2)] for a in range(2)]
    matrix = cross_play(weights, harnesses, means, dict(zip(weights, harnesses, strict=True)))
    (folder / "crossplay").mkdir()
    (folder / "crossplay" / "matrix.json").write_bytes(msgspec.json.encode(matrix))
    return folder


async def _spend(folder: Path, harness_file: Path) -> None:
    plan = EvalPlan(domain="chess_puzzles", model="local/honest", split="weight", k=2)
    splits = {name: load_examples("chess_puzzles", "mini", name) for name in ("weight", "harness", "dev")}
    h0 = load_harness("chess_puzzles")
    async with load_harness("chess_puzzles", harness_file) as other:
        old, new = (Honest(a_move, weights_id) for weights_id in ("sha256:" + "cd" * 32, Honest.weights_id))
        settings = resolve(plan, Task("chess_puzzles", splits["weight"]), Agent(old, h0)) | {"kind": "weight"}
        settings["base_id"] = settings.pop("weights_id")
        del settings["harness_id"]
        (folder / "archive" / "h1").mkdir(parents=True)
        (folder / "archive" / "h1" / "harness.py").write_text(HARNESS)
        shutil.move(folder, folder.with_name("archive-of-a-run"))
        store = RunStore.create(folder, settings, h0.source)
        shutil.move(folder.with_name("archive-of-a-run") / "archive", folder / "archive")
        with store, Ledger(folder / "ledger.sqlite") as ledger:
            phases = (
                ("smoke", "harness", Agent(old, other), 2),
                ("weight", "weight", Agent(old, h0), 48),
                ("dev", "dev", Agent(old, h0), 64),
                ("harness", "harness", Agent(new, h0), 40),
                ("harness", "harness", Agent(new, other), 40),
                ("dev", "dev", Agent(new, other), 64),
            )
            for number, (purpose, split, agent, count) in enumerate(phases):
                await _phase(
                    store, ledger, number, purpose, Task("chess_puzzles", splits[split][:count]), agent
                )
            step = ledger.reserve("train:1", "weight")
            ledger.settle("train:1", step, Charge(optimizer_steps=3, trained_tokens=48, device_seconds=1.5))
            session = ledger.reserve("proposer:1", "harness")
            ledger.settle(
                "proposer:1",
                session,
                Charge(proposer_calls=2, proposer_prompt_tokens=25_010, proposer_micro_usd=90_000),
            )


async def _phase(
    store: RunStore, ledger: Ledger, number: int, purpose: str, task: Task, agent: Agent
) -> None:
    for example in task.examples:
        key = f"{purpose}:{example.id}:{number}"
        attempt = ledger.reserve(key, purpose)
        if task.examples.ids.index(example.id) == 3:  # a server that fails, and the same rollout once more
            ledger.fail(key, attempt, Charge(rollouts=1, unmetered_tokens=True))
            attempt = ledger.reserve(key, purpose)
        row = await rollout(task, agent, example, sample=number, seed=0, key=key)
        store.append(row)
        ledger.settle(key, attempt, charge_of(outcome_of(row)))


class Forger:
    """Edits a copy of a bundle; `seal` makes the manifest's digests those of the edited files again."""

    def __init__(self, bundle: Path, copy: Path) -> None:
        shutil.copytree(bundle, copy)
        self.folder = copy

    def lines(self, name: str) -> list[bytes]:
        return (self.folder / name).read_bytes().splitlines()

    def write(self, name: str, lines: list[bytes]) -> None:
        (self.folder / name).write_bytes(b"\n".join([*lines, b""]))

    def edit(self, name: str, number: int, change: Callable[[dict[str, Any]], None]) -> None:
        """Changes the JSON of a line, counted from 1."""
        lines = self.lines(name)
        value = json.loads(lines[number - 1])
        change(value)
        lines[number - 1] = msgspec.json.encode(value)
        self.write(name, lines)

    def manifest(self, change: Callable[[dict[str, Any]], None]) -> None:
        self.edit_file("manifest.json", change)

    def edit_file(self, name: str, change: Callable[[dict[str, Any]], Any]) -> None:
        """Changes the JSON that a whole file is."""
        path = self.folder / name
        value = json.loads(path.read_bytes())
        change(value)
        path.write_text(json.dumps(value))

    def seal(self) -> None:
        """As an author who edits files would."""

        def change(manifest: dict[str, Any]) -> None:
            manifest["files"] = {
                path.relative_to(self.folder).as_posix(): {
                    "bytes": path.stat().st_size,
                    "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
                }
                for path in sorted(self.folder.rglob("*"))
                if path.is_file() and path.name != "manifest.json"
            }

        self.manifest(change)

    def rechain(self, run: int = 0) -> None:
        """As an author who rebuilds the whole chain would."""
        name, prev = f"runs/{run}/ledger.jsonl", GENESIS
        lines = []
        for seq, line in enumerate(self.lines(name), start=1):
            event = json.loads(line) | {"seq": seq, "prev": prev}
            body = [
                event[field] for field in ("seq", "kind", "key", "attempt", "purpose", "at", "charge", "prev")
            ]
            event["hash"] = prev = hashlib.sha256(msgspec.json.encode(body)).hexdigest()
            lines.append(msgspec.json.encode(event))
        self.write(name, lines)

        def change(manifest: dict[str, Any]) -> None:
            records = len(self.lines(f"runs/{run}/charged.jsonl"))
            manifest["runs"][run] |= {"head": prev, "events": len(lines), "records": records}

        self.manifest(change)

    def replace_row(self, number: int, change: Callable[[dict[str, Any]], None]) -> None:
        """Changes a test rollout, its record, and all digests."""
        self.edit("test.jsonl", number, change)
        line = self.lines("test.jsonl")[number - 1]
        row = json.loads(line)

        def record(value: dict[str, Any]) -> None:
            value |= {"reward": row["verdict"]["reward"], "reason": row["verdict"]["reason"]}
            value["digest"] = hashlib.sha256(line).hexdigest()

        place = next(
            n
            for n, text in enumerate(self.lines("runs/0/charged.jsonl"), 1)
            if json.loads(text)["key"] == row["key"]
        )
        self.edit("runs/0/charged.jsonl", place, record)
        self.seal()

    def claim_what_follows(self) -> None:
        """Makes the claimed score that of the rollouts."""

        rows = [json.loads(line) for line in self.lines("test.jsonl")]
        rewards = [[row["verdict"]["reward"] for row in rows[i : i + 8]] for i in range(0, len(rows), 8)]
        score = msgspec.to_builtins(mean_at_k(rewards))

        def change(manifest: dict[str, Any]) -> None:
            manifest["claim"]["score"] = score

        self.manifest(change)


def swap_harness(forger: Forger, old_id: str, source: str) -> None:
    """Puts another source in the place of the harness, under an id that fits, everywhere."""
    from whale_bench.store import settings_id

    new_id = "sha256:" + hashlib.sha256(source.encode()).hexdigest()
    old, new = old_id.removeprefix("sha256:").encode(), new_id.removeprefix("sha256:").encode()
    (forger.folder / "harnesses" / f"{old.decode()}.py").unlink()
    (forger.folder / "harnesses" / f"{new.decode()}.py").write_text(source)
    for name in ("manifest.json", "test.jsonl", "runs/0/run.toml", "runs/0/charged.jsonl"):
        path = forger.folder / name
        path.write_bytes(path.read_bytes().replace(old, new))
    import tomllib

    path = forger.folder / "runs/0/run.toml"
    settings = tomllib.loads(path.read_text())
    path.write_text(path.read_text().replace(settings["settings_id"], settings_id(settings)))

    def change(manifest: dict[str, Any]) -> None:
        manifest["runs"][0]["settings_id"] = settings_id(settings)

    forger.manifest(change)
    digests = {
        json.loads(line)["key"]: hashlib.sha256(line).hexdigest() for line in forger.lines("test.jsonl")
    }
    records = [json.loads(line) for line in forger.lines("runs/0/charged.jsonl")]
    forger.write(
        "runs/0/charged.jsonl", [msgspec.json.encode(r | {"digest": digests[r["key"]]}) for r in records]
    )
    forger.seal()
