"""Evaluates an agent: k rollouts of each example into a run folder, resumable at any instant.

    plan = EvalPlan(domain="chess_puzzles", model="scripted/random", n=8, k=8)
    summary = asyncio.run(evaluate(plan, Path("runs/demo")))

Each rollout is reserved in the ledger, played, written as a line, and then settled under the key
that stands in the line. `evaluate(None, folder)` resumes: lines that were not settled are settled,
reservations that nothing came of are closed as interrupted, and what is missing runs. A rollout that
is settled but whose line was lost runs again, and is still charged once. Where nothing is missing a
complete summary.json stays as it is.

Infrastructure failures leave a rollout missing. When `GIVE_UP_AFTER` rollouts in a row end that way
the run stops early, as incomplete.

Not covered: several models at once (the command line runs them in turn), other executors.
"""

import asyncio
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from whale_bench.agents.host import OwnAgent
from whale_bench.agents.names import is_own_agent, read_name
from whale_bench.engine import Agent, LostRolloutError, Task, env_options, rollout
from whale_bench.harness.check import check_rollouts
from whale_bench.harness.host import load_harness
from whale_bench.ledger import CACHED, COUNTED, Charge, Ledger
from whale_bench.models import Backend, Message, Sampling, TokenBackend, load_backend
from whale_bench.models.registry import LOADED, one_address
from whale_bench.plan import EvalPlan, check_same, plan_of, resolve
from whale_bench.scoring import Groups, Summary, summarise
from whale_bench.store import Outcome, RunStore, outcome_of
from whale_envs import (
    ExampleSet,
    InfrastructureError,
    UnknownNameError,
    UsageError,
    get_domain,
    load_examples,
)
from whale_envs.paths import cache_dir

__all__ = [
    "GIVE_UP_AFTER",
    "EvalPlan",
    "Report",
    "charge_of",
    "evaluate",
    "open_agent",
    "open_resources",
    "reconcile",
]

GIVE_UP_AFTER = 16
"""Rollouts in a row that an infrastructure failure ended, before the run stops early."""

TOOL_OPTIONS = {
    "code_interpreter": ("python_url", "unsafe_python"),
    "search": ("retriever", "index", "retriever_url", "closed_book", "judge", "judge_url"),
}
"""Settings of a plan that only environments with a tool take."""

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
    )
    examples = planned_examples(plan)
    async with AsyncExitStack() as stack:
        agent = await open_agent(plan, backend, stack)
        resources = await open_resources(plan, stack)
        task = Task(plan.domain, examples, plan.profile, plan.max_tokens, plan.token_budget, resources)
        settings = resolve(plan, task, agent)
        fresh = store is None
        if store is None:
            await agent.probe()  # before there is a folder
            store = RunStore.create(folder, settings, agent.source)
        else:
            check_same(store.settings, settings, folder)
        stack.enter_context(store)
        address = settings.get("base_url")
        report = report or _silent
        return await _run(
            plan, store, task, agent, base_url=address, probed=fresh, report=report, began=began
        )


def planned_examples(plan: EvalPlan) -> ExampleSet[Any]:
    """The examples that a plan is of.

    Raises:
        UsageError: there are fewer than it asks for, or none of a family.
    """
    examples = load_examples(plan.domain, plan.tier, plan.split)
    if plan.families is not None:
        examples = of_families(examples, plan.families)
    if plan.n is not None and plan.n > len(examples):
        raise UsageError(f"{examples.name} has {len(examples)} examples, fewer than the {plan.n} asked for")
    return examples[: plan.n]


def of_families(examples: ExampleSet[Any], families: Sequence[str]) -> ExampleSet[Any]:
    """Those of `examples` that belong to one of `families`, in their order.

    Raises:
        UsageError: a family has no example among them, or they have no families at all.
    """
    found = {example.id: dict(example.groups).get("family", "") for example in examples}
    valid = sorted(set(found.values()) - {""})
    if not valid:
        raise UsageError(f"the examples of {examples.name} have no families: leave the filter out")
    for family in families:
        if family not in valid:
            raise UnknownNameError(f"family of {examples.name}", family, valid, most=len(valid))
    chosen = (example for example in examples if found[example.id] in families)
    return ExampleSet(chosen, name=f"{examples.name} ({', '.join(families)})")


def check_tool_options(plan: EvalPlan) -> None:
    """Refuses options of a tool that the environment does not have."""
    for tool, options in TOOL_OPTIONS.items():
        given = [name for name in options if getattr(plan, name)]
        if given and tool not in get_domain(plan.domain).tools:
            named = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise UsageError(f"{plan.domain} has no tool {tool}: leave out {named}")


def check_model(plan: EvalPlan) -> None:
    """Refuses a model's name or settings that cannot be, as far as that shows without its weights.

    Raises:
        UsageError: says what is wrong.
    """
    if is_own_agent(plan.model):
        read_name(plan.model)
    elif not plan.model.startswith(LOADED):  # these are loaded when their turn comes
        load_backend(plan.model, base_url=plan.base_url, tokenizer=plan.tokenizer)


async def open_agent(plan: EvalPlan, backend: Backend | None, stack: AsyncExitStack) -> Agent | OwnAgent:
    """Who plays, open until `stack` closes."""
    if is_own_agent(plan.model):
        own = OwnAgent(
            plan.model, base_url=one_address(plan.model, plan.base_url), seconds=plan.agent_seconds
        )
        await stack.enter_async_context(own)
        own.env_options(plan.domain)
        return own
    harness = await stack.enter_async_context(load_harness(plan.domain, plan.harness))
    sampling = Sampling(temperature=plan.temperature, top_p=plan.top_p, top_k=plan.top_k)
    env_options(plan.domain, harness)
    if plan.harness is not None:
        await check_rollouts(harness, plan.domain)
    if backend is None:
        backend = await stack.enter_async_context(
            load_backend(plan.model, base_url=plan.base_url, tokenizer=plan.tokenizer)
        )
    agent = Agent(backend, harness, sampling)
    _check_tools(agent)
    return agent


async def open_resources(plan: EvalPlan, stack: AsyncExitStack) -> dict[str, Any]:
    """What all rollouts share, open until `stack` closes."""
    check_tool_options(plan)
    tools = get_domain(plan.domain).tools
    resources: dict[str, Any] = {}
    if "code_interpreter" in tools:
        from whale_envs.math_python.tools import open_interpreter
        from whale_envs.math_python.verifier import warm_up

        await asyncio.to_thread(warm_up)
        interpreter = open_interpreter(url=plan.python_url, unsafe=plan.unsafe_python)
        resources["interpreter"] = await stack.enter_async_context(interpreter)
    if "search" in tools:
        resources |= await _search_resources(plan, stack)
    return resources


async def _search_resources(plan: EvalPlan, stack: AsyncExitStack) -> dict[str, Any]:
    """The retriever, unless the run is closed-book, and the judge, if it has one."""
    from whale_envs.search_qa.retrievers import open_retriever

    resources: dict[str, Any] = {}
    where = [name for name in ("retriever", "index", "retriever_url") if getattr(plan, name)]
    if not plan.closed_book:
        retriever = open_retriever(
            plan.retriever or "bm25", tier=plan.tier, index=plan.index, url=plan.retriever_url
        )
        resources["retriever"] = await stack.enter_async_context(retriever)
    elif where:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in where)
        raise UsageError(f"a closed-book run searches nothing: leave out {named}")
    else:
        resources["closed_book"] = 1
    if plan.judge is not None:
        from whale_bench.judge import LLMJudge
        from whale_bench.models.openai import is_address

        if plan.judge_url is not None and not is_address(plan.judge_url):
            raise UsageError(
                f"--judge-url must be an address such as http://127.0.0.1:8000/v1, got {plan.judge_url!r}"
            )
        judge = LLMJudge(load_backend(plan.judge, base_url=plan.judge_url), cache_dir() / "judge.sqlite")
        resources["judge"] = await stack.enter_async_context(judge)
        await judge.probe()
    elif plan.judge_url is not None:
        raise UsageError("--judge-url is the server of --judge, which is not given")
    return resources


async def _run(
    plan: EvalPlan,
    store: RunStore,
    task: Task,
    agent: Agent | OwnAgent,
    *,
    base_url: str | list[str] | None,
    probed: bool,
    report: Report,
    began: float,
) -> Summary:
    """Runs what is missing in an open folder, and writes the summary."""
    keys = {f"{plan.split}:{e.id}:{s}": (e.id, s) for e in task.examples for s in range(plan.k)}
    rows = {row.key: row for row in store.outcomes()}
    for row in rows.values():
        if keys.get(row.key) != (row.example_id, row.sample):
            raise UsageError(f"{store.folder}: rollout {row.key!r} is none of this run's")
    groups = {e.id: e.groups for e in task.examples}
    earlier = _earlier(store, rows, keys, groups)
    missing = len(rows) < len(keys)
    if missing and not probed:
        await agent.probe()
    if agent.source is not None:
        store.write_harness(agent.source)  # a kill may have come before `create` did
    with Ledger(store.folder / "ledger.sqlite") as ledger:
        settled = reconcile(store, ledger, rows, plan.split)
        if missing:
            store.write_base_url(base_url)
        started = time.perf_counter()
        launch = _Launch(task, agent, plan, store, ledger, keys, rows, settled, report)
        await launch.run()
    if not missing and earlier.complete is not None:
        return earlier.complete
    seconds = {"start": started - began, "rollouts": time.perf_counter() - started}
    seconds |= agent.seconds()
    summary = summarise(
        rows.values(),
        keys=keys,
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
    return summary


class _Earlier(NamedTuple):
    """What summary.json says of the launches before this one."""

    complete: Summary | None
    """The summary, where it is one of all rollouts."""
    seconds: dict[str, float]
    warnings: list[str]
    """The backend's; those of the scores are found anew."""


def _earlier(
    store: RunStore, rows: Mapping[str, Outcome], keys: Mapping[str, tuple[str, int]], groups: Groups
) -> _Earlier:
    data = store.read_summary()
    try:
        summary = msgspec.json.decode(data or b"", type=Summary)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # none, or damaged: made anew
        return _Earlier(None, {}, [])
    found = summarise(
        rows.values(), keys=keys, groups=groups, settings=store.settings, seconds={}, problems={}
    )
    kept = [warning for warning in summary.warnings if warning not in found.warnings]
    return _Earlier(summary if summary.complete else None, summary.seconds, kept)


def reconcile(store: RunStore, ledger: Ledger, rows: Mapping[str, Outcome], purpose: str) -> set[str]:
    """Makes ledger and lines agree after a kill; returns the keys that an earlier launch settled.

    Raises:
        DataError: the ledger's events do not follow from one another.
    """
    ledger.audit()
    settled, waiting = ledger.settled_keys(), dict(ledger.open_reservations())
    unreserved = 0
    for row in rows.values():
        attempt = waiting.pop(row.key, None)
        if attempt is None and row.key not in settled:
            unreserved += 1
            attempt = ledger.reserve(row.key, purpose)
        if attempt is not None:
            close = ledger.repeat if row.key in settled else ledger.settle
            close(row.key, attempt, charge_of(row))
    for key, attempt in waiting.items():
        ledger.interrupt(key, attempt)
    if unreserved:
        warnings.warn(
            f"{unreserved} rollouts of {store.folder} stood in no ledger reservation; they are charged now",
            stacklevel=2,
        )
    return settled


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
    keys: Mapping[str, tuple[str, int]]
    rows: dict[str, Outcome]
    """Finished rollouts by key, those of earlier launches too."""
    settled: set[str]
    """Charged by an earlier launch; the ones without a line run again without a second charge."""
    report: Report
    rewards: float = 0.0
    """Sum over the finished rollouts."""
    failed_in_a_row: int = 0
    problems: Counter[str] = field(default_factory=Counter)

    async def run(self) -> None:
        missing = [key for key in self.keys if key not in self.rows]
        self.rewards = math.fsum(row.verdict.reward for row in self.rows.values())
        self._tell()
        queue = iter(missing)
        workers = min(self.plan.concurrency or self.agent.default_concurrency, len(missing))
        try:
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
        example_id, sample = self.keys[key]
        example = self.task.examples.by_id(example_id)
        again = key in self.settled
        attempt = self.ledger.reserve(key, self.plan.split, again=again)
        began = time.perf_counter()
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
            self.failed_in_a_row += 1
            if self.failed_in_a_row >= GIVE_UP_AFTER:
                raise _GiveUpError(str(error)) from error
            return
        self.store.append(record)
        row = outcome_of(record)
        close = self.ledger.repeat if again else self.ledger.settle
        close(key, attempt, charge_of(row))
        self.rows[key] = row
        self.rewards += row.verdict.reward
        self.failed_in_a_row = 0
        self._tell()

    def _tell(self) -> None:
        finished = len(self.rows)
        self.report(finished, len(self.keys), self.rewards / finished if finished else None)


class _GiveUpError(Exception):
    """The server has failed too many rollouts in a row."""


def charge_of(row: Outcome) -> Charge:
    """What the ledger settles a finished rollout with."""
    return Charge(
        rollouts=1,
        prompt_tokens=row.prompt_tokens or 0,
        sampled_tokens=row.sampled_tokens or 0,
        model_calls=row.model_calls,
        seconds=row.seconds,
        unmetered_tokens=row.prompt_tokens is None or row.sampled_tokens is None,
        **{name: int(row.metrics.get(name, 0)) for name in (*COUNTED, *CACHED)},
    )


def _check_tools(agent: Agent) -> None:
    settings, backend = agent.harness.settings, agent.backend
    if settings.tool_mode != "native" or not settings.tools or not isinstance(backend, TokenBackend):
        return
    chat = (Message("user", "Which tools are there?"),)
    if backend.render(chat, tuple(settings.tools)) == backend.render(chat):
        raise UsageError(
            f"{agent.harness.name} has TOOL_MODE 'native', "
            f"but the chat template of {backend.name} shows no tools"
        )
