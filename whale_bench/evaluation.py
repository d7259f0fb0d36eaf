"""Evaluates an agent: k rollouts of each example into a run folder, resumable at any instant.

    plan = EvalPlan(domain="chess_puzzles", model="scripted/random", n=8, k=8)
    summary = asyncio.run(evaluate(plan, Path("runs/demo")))

Each rollout is reserved in the ledger, played, written as a line, and then settled under the key
that stands in the line. `evaluate(None, folder)` resumes: lines that were not settled are settled,
reservations that nothing came of are closed as interrupted, and what is missing runs. A rollout that
is settled but whose line was lost runs again, and is still charged once. Where nothing is missing a
complete summary.json stays as it is.

Infrastructure failures leave a rollout missing. When too many in a row end that way, or for too long
(`giving_up.py`), the run stops early, as incomplete.

Not covered: opening what a plan names, see `opening.py`; several models at once (the command line runs
them in turn), other executors.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from whale_bench.agents.host import OwnAgent
from whale_bench.charging import charge_of, reconcile, settle_lines, standing_of
from whale_bench.engine import Agent, LostRolloutError, Task, rollout
from whale_bench.garbage import fewer_collections
from whale_bench.giving_up import GIVE_UP_AFTER, Failures
from whale_bench.keys import Keys
from whale_bench.ledger import Charge, Ledger
from whale_bench.models import Backend
from whale_bench.opening import open_agent, open_resources, planned_examples
from whale_bench.plan import EvalPlan, check_same, plan_of, resolve
from whale_bench.scoring import Groups, Summary, summarise
from whale_bench.store import Outcome, RunStore, outcome_of
from whale_bench.tally import Tally
from whale_envs import InfrastructureError, UsageError

__all__ = [
    "GIVE_UP_AFTER",
    "EvalPlan",
    "Report",
    "charge_of",
    "evaluate",
    "open_agent",
    "open_resources",
    "planned_examples",
    "reconcile",
]

Report = Callable[[int, int, float | None], None]
"""Called with (finished rollouts, all rollouts, mean reward of the finished ones, None without any)."""


async def evaluate(
    plan: EvalPlan | None,
    folder: Path,
    *,
    report: Report | None = None,
    backend: Backend | None = None,
    base_url: str | tuple[str, ...] | None = None,
    retriever_url: str | None = None,
    judge_url: str | None = None,
    python_url: str | None = None,
    bootstrap: bool = False,
) -> Summary:
    """Runs a plan in a new folder, or, without a plan, resumes the run of an existing one.

    Args:
        plan: what to evaluate; None resumes.
        folder: the run's folder.
        report: called at the start and after each rollout.
        backend: use this loaded backend; it is left open.
        base_url: where the server is now, or several are, in place of the plan's or the run's.
        retriever_url: the same for the retrieval server; it has to be the run's, with its password.
        judge_url: the same for the judge's.
        python_url: the same for the SandboxFusion server.
        bootstrap: return intervals by resampling examples; summary.json has Student's all the same.

    Raises:
        UsageError: the plan or the folder cannot be used, or the resumed run was of other weights,
            another harness or other data.
        InfrastructureError: no server answers, or the folder can no longer be written to.
    """
    began = time.perf_counter()
    store = None
    if plan is None:
        store = RunStore.open(folder)
        plan = plan_of(store.settings, folder)
    plan = replace(
        plan,
        base_url=base_url or plan.base_url,
        retriever_url=retriever_url or plan.retriever_url,
        judge_url=judge_url or plan.judge_url,
        python_url=python_url or plan.python_url,
    )
    examples = planned_examples(plan)
    async with AsyncExitStack() as stack:
        agent = await open_agent(plan, backend, stack)
        resources = await open_resources(plan, stack)
        task = Task(plan.domain, examples, plan.profile, plan.max_tokens, plan.token_budget, resources)
        settings = resolve(plan, task, agent)
        fresh = store is None
        if store is None:
            await _probe(agent, task)  # before there is a folder
            store = RunStore.create(folder, settings, agent.source)
        else:
            check_same(store.settings, settings, folder)
        stack.enter_context(store)
        report = report or _silent
        summary, tally = await _run(
            plan, store, task, agent, addresses=settings, probed=fresh, report=report, began=began
        )
        if not bootstrap:
            return summary
        resampled = summarise(
            tally,
            groups={e.id: e.groups for e in task.examples},
            settings=store.settings,
            seconds=summary.seconds,
            problems=summary.problems,
            bootstrap=True,
        )
        return msgspec.structs.replace(resampled, warnings=summary.warnings)


async def _run(
    plan: EvalPlan,
    store: RunStore,
    task: Task,
    agent: Agent | OwnAgent,
    *,
    addresses: Mapping[str, Any],
    probed: bool,
    report: Report,
    began: float,
) -> tuple[Summary, Tally]:
    """Runs what is missing in an open folder, writes the summary, and returns it with what it is of."""
    account = store.folder / "ledger.sqlite"
    keys = Keys.of(plan.split, task.examples.ids, plan.k)
    standing, tally = standing_of(account, keys), Tally(keys, plan.profile)
    owed: dict[str, Outcome] = {}
    for row in store.skimmed():
        if keys.get(row.key) != (row.example_id, row.sample):
            raise UsageError(f"{store.folder}: rollout {row.key!r} is none of this run's")
        if tally.add(row) and standing.owes(row.key):
            owed[row.key] = outcome_of(row)
    groups = {e.id: e.groups for e in task.examples}
    earlier = _earlier(store, tally, groups)
    missing = tally.rollouts < len(keys)
    if missing and not probed:
        await _probe(agent, task)
    if agent.source is not None:
        store.write_harness(agent.source)  # a kill may have come before `create` did
    with Ledger(account) as ledger:
        settle_lines(store, ledger, owed, plan.split, standing)
        if missing:
            store.write_addresses(addresses)
        started = time.perf_counter()
        launch = _Launch(task, agent, plan, store, ledger, tally, standing.settled, report)
        await launch.run()
    if not missing and earlier.complete is not None:
        return earlier.complete, tally
    seconds = {"start": started - began, "rollouts": time.perf_counter() - started}
    seconds |= agent.seconds()
    summary = summarise(
        tally,
        groups=groups,
        settings=store.settings,
        seconds={
            part: earlier.seconds.get(part, 0.0) + seconds.get(part, 0.0)
            for part in earlier.seconds | seconds
        },
        problems=launch.problems,
        warnings=list(dict.fromkeys([*earlier.warnings, *agent.warnings()])),
    )
    store.write_summary(summary)
    return summary, tally


async def _probe(agent: Agent | OwnAgent, task: Task) -> None:
    await (agent.probe(task) if isinstance(agent, Agent) else agent.probe())


class _Earlier(NamedTuple):
    """What summary.json says of the launches before this one."""

    complete: Summary | None
    """The summary, where it is one of all rollouts."""
    seconds: dict[str, float]
    warnings: list[str]
    """The backend's; those of the scores are found anew."""


def _earlier(store: RunStore, tally: Tally, groups: Groups) -> _Earlier:
    data = store.read_summary()
    try:
        summary = msgspec.json.decode(data or b"", type=Summary)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # none, or damaged: made anew
        return _Earlier(None, {}, [])
    if not summary.warnings:
        return _Earlier(summary if summary.complete else None, summary.seconds, [])
    found = summarise(tally, groups=groups, settings=store.settings, seconds={}, problems={})
    kept = [warning for warning in summary.warnings if warning not in found.warnings]
    return _Earlier(summary if summary.complete else None, summary.seconds, kept)


def _silent(finished: int, total: int, mean: float | None) -> None:
    """The report of a caller who wants none."""


@dataclass(slots=True)
class _Launch:
    """The rollouts of one launch: workers take keys from one queue until it is empty."""

    task: Task
    agent: Agent | OwnAgent
    plan: EvalPlan
    store: RunStore
    ledger: Ledger
    tally: Tally
    """Finished rollouts, those of earlier launches too."""
    settled: Container[str]
    """Charged by an earlier launch; the ones without a line run again without a second charge."""
    report: Report
    failures: Failures = field(default_factory=Failures)
    problems: Counter[str] = field(default_factory=Counter)

    async def run(self) -> None:
        tally = self.tally
        self._tell()
        missing = len(tally.keys) - tally.rollouts
        queue = tally.missing()
        workers = min(self.plan.concurrency or self.agent.default_concurrency, missing)
        try:
            with fewer_collections():
                async with asyncio.TaskGroup() as group:
                    for _ in range(workers):
                        group.create_task(self._work(queue))
        except ExceptionGroup as failures:
            if not isinstance(failures.exceptions[0], _GiveUpError):
                raise failures.exceptions[0] from None
            for key, attempt in self.ledger.open_reservations():  # cancelled with the rest
                self.ledger.fail(key, attempt, Charge(rollouts=1, unmetered_tokens=True))

    async def _work(self, queue: Iterator[str]) -> None:
        for key in queue:
            await asyncio.sleep(0)  # a scripted model never waits, and a Ctrl-C has to be heard
            await self._play(key)

    async def _play(self, key: str) -> None:
        example_id, sample = self.tally.keys[key]
        example = self.task.examples.by_id(example_id)
        again = key in self.settled
        attempt = self.ledger.reserve(key, self.plan.split, again=again)
        began = time.perf_counter()
        self.failures.began(key, time.monotonic())
        try:
            record = await rollout(
                self.task, self.agent, example, sample=sample, seed=self.plan.seed, key=key
            )
        except InfrastructureError as error:
            unused = Charge(rollouts=1, seconds=time.perf_counter() - began)
            used = error.used if isinstance(error, LostRolloutError) else unused
            self.ledger.fail(key, attempt, used)
            if isinstance(error, LostRolloutError) and error.again:
                await self._play(key)  # alone this time, where that cannot be
                return
            self.problems[str(error)] += 1
            self._tell()
            if self.failures.failed(key, time.monotonic()):
                raise _GiveUpError(str(error)) from error
            return
        self.store.append(record)
        row = outcome_of(record)
        close = self.ledger.repeat if again else self.ledger.settle
        close(key, attempt, charge_of(row))
        self.tally.add(row)
        self.failures.finished(key)
        self._tell()

    def _tell(self) -> None:
        self.report(self.tally.rollouts, len(self.tally.keys), self.tally.mean)


class _GiveUpError(Exception):
    """The server has failed too many rollouts in a row."""
