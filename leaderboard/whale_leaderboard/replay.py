"""Level 2, replayed: every whole rollout of a bundle played again, from what the model said then.

    done = await replay(entry, seconds=3600.0)
    done.replay, done.findings, done.varied

The harness runs as any file does, in a process of its own (a shipped h0 in this one); the environment, its
tools and the verifiers are those of this package; the model's replies are the recorded ones. Every prompt,
action, observation, tool result, verdict, metric and token count must come out as it was written down. What
cannot is counted apart, see `Replay`: Python results that vary, searches of an index that is not here,
verdicts of a judge, failures of a harness that do not happen again.

Bounded: by `seconds` in all, by the host's limits for each call of a harness, and by `MOST_FINDINGS`, after
which nothing more is played.

Not covered: whether the model said it, see `reproduce.py`.
"""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from whale_bench.engine import Agent, LostRolloutError, Task, rollout
from whale_bench.harness.host import HarnessHost, load_harness, shipped_harnesses
from whale_bench.records import Rollout
from whale_envs import ExampleSet, InfrastructureError, UsageError, get_domain
from whale_envs.errors import RolloutError, UnconfinedError
from whale_leaderboard.comparing import failed_otherwise, first_difference
from whale_leaderboard.digests import source_digest
from whale_leaderboard.layout import MOST_ROLLOUT, TEST, harness_file
from whale_leaderboard.recorded import (
    Diverged,
    RecordedAgent,
    RecordedBackend,
    RecordedJudge,
)
from whale_leaderboard.recorded_tools import CountingRetriever, RecordedRetriever, ReplayedInterpreter
from whale_leaderboard.report import Finding, Replay, Say
from whale_leaderboard.rows import read_plain
from whale_leaderboard.runs import Run, examples_here
from whale_leaderboard.sampled import gives_tool_calls
from whale_leaderboard.varying import Trials
from whale_leaderboard.wellformed import Entry

MOST_FINDINGS = 20
"""Refused rollouts after which no more are played."""

AT_ONCE = 16
"""Rollouts in flight; tools then run beside one another."""


@dataclass(slots=True)
class Replayed:
    """What came of it."""

    replay: Replay = field(default_factory=Replay)
    findings: list[Finding] = field(default_factory=list)
    varied: set[str] = field(default_factory=set)
    """Keys of the test rollouts in which a result was taken as recorded because it varies."""


@dataclass(slots=True)
class _World:
    """What the rollouts of all runs share."""

    entry: Entry
    interpreter: Any = None
    trials: Any = None
    retriever: Any = None
    done: Replayed = field(default_factory=Replayed)
    played: int = 0


async def replay(entry: Entry, *, seconds: float, say: Say = lambda _what, _count: None) -> Replayed:
    """Plays the test rollouts and the samples of an entry that is well-formed.

    Args:
        entry: as level 1 read it.
        seconds: most wall time in all.
        say: told how far it is.

    Raises:
        InfrastructureError: a tool of this machine failed.
        UnconfinedError: this machine cannot confine programs or harnesses.
    """
    world = _World(entry)
    try:
        async with asyncio.timeout(seconds), AsyncExitStack() as stack:
            await _open_tools(world, stack)
            for run in entry.runs:
                for harness_id, rows in _batches(entry, run):
                    if len(world.done.findings) < MOST_FINDINGS:
                        await _play_batch(world, run, harness_id, rows, say)
    except TimeoutError:
        world.done.findings.append(
            _finding("time", "", f"was not done after {seconds:g} s and {world.played} rollouts")
        )
    world.done.findings.sort(key=lambda found: _order(found.place))
    return world.done


def _batches(entry: Entry, run: Run) -> Iterator[tuple[str, Iterator[tuple[str, bytes]]]]:
    """(harness id, (place, line) of its rollouts): the test rollouts, then the samples by harness."""
    if run.number == 0:
        yield entry.manifest.harness_id, _places(entry, TEST)
    for harness_id in dict.fromkeys(record.harness_id for record, _ in run.sampled.values()):
        keys = {key for key, (record, _) in run.sampled.items() if record.harness_id == harness_id}
        name = f"{run.place}/samples.jsonl"
        yield (
            harness_id,
            (
                (place, line)
                for (place, line), key in zip(_places(entry, name), run.sampled, strict=True)
                if key in keys
            ),
        )


def _places(entry: Entry, name: str) -> Iterator[tuple[str, bytes]]:
    return ((f"{name}:{number}", line) for number, line in entry.bundle.lines(name, MOST_ROLLOUT))


async def _open_tools(world: _World, stack: AsyncExitStack) -> None:
    tools = get_domain(world.entry.manifest.domain).tools
    if "code_interpreter" in tools:
        from whale_envs.math_python.tools import open_interpreter
        from whale_envs.math_python.verifier import warm_up

        await asyncio.to_thread(warm_up)
        world.interpreter = await stack.enter_async_context(open_interpreter())
        world.trials = await stack.enter_async_context(Trials(world.interpreter))
    if "search" in tools and any(not run.plan.closed_book for run in world.entry.runs):
        from whale_envs.search_qa.retrievers import open_retriever

        try:
            found = open_retriever("bm25", tier=world.entry.manifest.tier)
        except UsageError:  # a tier whose index is for its users to build: results are taken as recorded
            return
        world.retriever = await stack.enter_async_context(found)


async def _play_batch(
    world: _World, run: Run, harness_id: str, rows: Iterator[tuple[str, bytes]], say: Say
) -> None:
    """Plays rollouts of one harness, some at a time."""
    async with AsyncExitStack() as stack:
        try:
            harness = await _open_harness(world, harness_id, stack)
        except UnconfinedError:  # says nothing about the harness
            raise
        except UsageError as error:
            why = str(error).replace(str(world.entry.bundle.folder), "")
            world.done.findings.append(_finding("harness", f"harnesses/{harness_id}", why))
            return

        async def work() -> None:
            for place, line in rows:
                if len(world.done.findings) >= MOST_FINDINGS:
                    return
                await _play(world, run, harness, place, read_plain(line))
                world.played += 1
                say("replayed rollouts", world.played)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(work())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None


async def _open_harness(world: _World, harness_id: str, stack: AsyncExitStack) -> HarnessHost | None:
    """The harness, in this process only where it is one that we ship; None for an own agent."""
    if not harness_id.startswith("sha256:") or world.entry.manifest.own_agent:
        return None
    domain = world.entry.manifest.domain
    shipped = source_digest(shipped_harnesses()[domain].encode()) == harness_id
    file = world.entry.bundle.folder / harness_file(harness_id)
    return await stack.enter_async_context(load_harness(domain, None if shipped else file))


async def _play(world: _World, run: Run, harness: HarnessHost | None, place: str, row: Rollout) -> None:
    """Plays one rollout again and notes what came of it."""
    examples = _examples(world.entry, row.key, run)
    tools = _Tools(world, run, row)
    plan = run.plan
    task = Task(plan.domain, examples, plan.profile, plan.max_tokens, plan.token_budget, tools.resources)
    agent: Agent | RecordedAgent
    if harness is None:
        agent = RecordedAgent(row, dict(run.settings.get("env_options", {})))
    else:
        agent = Agent(RecordedBackend(row, native=gives_tool_calls(plan)), harness)
    try:
        example = examples.by_id(row.example_id)
        again = await rollout(task, agent, example, sample=row.sample, seed=row.seed, key=row.key)
        apart = failed_otherwise(again, row)
        why = "" if apart else first_difference(again, row, searched=tools.recorded_searches > 0)
    except Diverged as error:
        why, apart = str(error), False
    except LostRolloutError as error:
        raise InfrastructureError(f"{place}: {error}") from error
    except UnconfinedError:
        raise
    except (UsageError, RolloutError) as error:
        why, apart = str(error), False
    if why:
        world.done.findings.append(_finding("replay", place, f"{row.key!r}: {why}"))
    world.done.replay = world.done.replay.plus(
        Replay(
            replayed=1,
            samples=int(not place.startswith(TEST)),
            harness_apart=int(apart),
            own=int(harness is None),
            **tools.counts(),
        )
    )
    if place.startswith(TEST) and tools.varied:
        world.done.varied.add(row.key)


def _examples(entry: Entry, key: str, run: Run) -> ExampleSet[Any]:
    """The examples of a rollout's purpose."""
    record, _ = run.sampled.get(key, (None, None))
    if record is None or record.purpose == "test":
        return entry.examples
    purposes = ("weight", "harness", "dev") if record.purpose == "smoke" else (record.purpose,)
    for purpose in purposes:
        examples = examples_here(entry.manifest.domain, entry.manifest.tier, purpose)
        if record.example_id in examples.ids:
            return examples
    raise AssertionError("an example that level 1 has found in its split is in none")


class _Tools:
    """The tools of one rollout."""

    def __init__(self, world: _World, run: Run, row: Rollout) -> None:
        self.resources: dict[str, Any] = {}
        self._interpreter: ReplayedInterpreter | None = None
        self._retriever: CountingRetriever | RecordedRetriever | None = None
        self._judge: RecordedJudge | None = None
        if world.interpreter is not None:
            self._interpreter = self.resources["interpreter"] = ReplayedInterpreter(
                row, world.interpreter, world.trials
            )
        if "search" not in get_domain(run.plan.domain).tools:
            return
        if run.plan.closed_book:
            self.resources["closed_book"] = 1
        else:
            here = world.retriever
            pinned = here is not None and here.retriever_id == run.settings.get("retriever_id")
            self._retriever = CountingRetriever(here) if pinned else RecordedRetriever(row)
            self.resources["retriever"] = self._retriever
        if run.plan.judge is not None:
            self._judge = self.resources["judge"] = RecordedJudge(row)

    @property
    def varied(self) -> bool:
        return self._interpreter is not None and self._interpreter.apart > 0

    @property
    def recorded_searches(self) -> int:
        return self._retriever.searches if isinstance(self._retriever, RecordedRetriever) else 0

    def counts(self) -> dict[str, int]:
        interpreter, retriever = self._interpreter, self._retriever
        return {
            "python_calls": interpreter.calls if interpreter else 0,
            "python_apart": interpreter.apart if interpreter else 0,
            "searches": retriever.searches if isinstance(retriever, CountingRetriever) else 0,
            "searches_recorded": self.recorded_searches,
            "judged": int(self._judge is not None and self._judge.asked > 0),
        }


def _finding(code: str, place: str, message: str) -> Finding:
    return Finding(level=2, code=code, place=place, message=message, refuses=True)


def _order(place: str) -> tuple[bool, str, int]:
    """Test rollouts first, then by line."""
    name, _, number = place.rpartition(":")
    return name != TEST, name, int(number) if number.isdecimal() else 0
