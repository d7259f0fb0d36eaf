"""Evaluates an agent: k rollouts of each example into a run folder, resumable at any instant.

    plan = EvalPlan(domain="chess_puzzles", model="scripted/random", n=8, k=8)
    summary = asyncio.run(evaluate(plan, Path("runs/demo")))

Each rollout is reserved in the ledger, played, written as a line, and then settled under the key
that stands in the line. `evaluate(None, folder)` resumes: lines that were not settled are settled,
reservations that nothing came of are closed as interrupted, and what is missing runs. A rollout that
is settled but whose line was lost runs again, and is still charged once.

Infrastructure failures leave a rollout missing. When `GIVE_UP_AFTER` rollouts in a row end that way
the run stops early, as incomplete.

Not covered: several models at once (the command line runs them in turn), other executors.
"""

import asyncio
import hashlib
import platform
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from whale_bench.engine import Agent, Task, env_options, rollout
from whale_bench.harness.check import check_rollouts
from whale_bench.harness.host import load_harness
from whale_bench.ledger import Charge, Ledger
from whale_bench.models import Backend, Message, Sampling, TokenBackend, load_backend
from whale_bench.records import Rollout
from whale_bench.scoring import Summary, summarise
from whale_bench.store import Outcome, RunStore, outcome_of
from whale_envs import (
    PROFILES,
    InfrastructureError,
    UnknownNameError,
    UsageError,
    __version__,
    get_domain,
    load_examples,
)
from whale_envs.core import Profile

GIVE_UP_AFTER = 16
"""Rollouts in a row that an infrastructure failure ended, before the run stops early."""

Report = Callable[[int, int, Rollout | None], None]
"""Called with (finished rollouts, all rollouts, the rollout just finished or None)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalPlan:
    """What to evaluate; the resolved form stands in run.toml."""

    domain: str
    model: str
    tier: str = "mini"
    split: str = "test"
    profile: Profile = "standard"
    n: int | None = None
    """Examples, the first of the split; None for all."""
    k: int = 8
    """Rollouts per example."""
    seed: int = 0
    concurrency: int | None = None
    """Rollouts in flight; None for what suits the backend."""
    harness: str | None = None
    """A harness file; None for h0."""
    base_url: str | None = None
    max_tokens: int | None = None
    """Most sampled tokens per turn."""
    token_budget: int | None = None
    """Most sampled tokens per rollout; None for the published budget."""
    python_url: str | None = None
    """SandboxFusion server for the Python tool; None for a confined interpreter on this machine."""
    unsafe_python: bool = False
    """Run model-written code even where this machine cannot confine it."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 20

    def __post_init__(self) -> None:
        for name in ("n", "k", "concurrency", "max_tokens", "token_budget"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, got {value}")
        if self.profile not in PROFILES:
            raise UnknownNameError("profile", self.profile, PROFILES)
        for name, low, high in (("temperature", 0.0, 100.0), ("top_p", 1e-6, 1.0), ("top_k", 0, 2**31)):
            if not low <= getattr(self, name) <= high:
                raise UsageError(f"{name} must be from {low:g} to {high:g}, got {getattr(self, name)}")


async def evaluate(
    plan: EvalPlan | None, folder: Path, *, report: Report | None = None, backend: Backend | None = None
) -> Summary:
    """Runs a plan in a new folder, or, without a plan, resumes the run of an existing one.

    Args:
        plan: what to evaluate; None resumes.
        folder: the run's folder.
        report: called after each rollout.
        backend: use this loaded backend; it is left open.

    Raises:
        UsageError: the plan or the folder cannot be used, or the resumed run was of other weights,
            another harness or other data.
    """
    began = time.perf_counter()
    store = None
    if plan is None:
        store = RunStore.open(folder)
        plan = _plan_of(store.settings, folder)
    examples = load_examples(plan.domain, plan.tier, plan.split)
    if plan.n is not None and plan.n > len(examples):
        raise UsageError(f"{examples.name} has {len(examples)} examples, fewer than the {plan.n} asked for")
    examples = examples[: plan.n]
    harness = load_harness(plan.domain, plan.harness)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(harness)
        env_options(plan.domain, harness)
        if plan.harness is not None:
            await check_rollouts(harness, plan.domain)
        if backend is None:
            backend = await stack.enter_async_context(load_backend(plan.model, base_url=plan.base_url))
        sampling = Sampling(temperature=plan.temperature, top_p=plan.top_p, top_k=plan.top_k)
        agent = Agent(backend, harness, sampling)
        _check_tools(agent)
        resources = {}
        if "code_interpreter" in get_domain(plan.domain).tools:
            from whale_envs.math_python.tools import open_interpreter

            interpreter = open_interpreter(url=plan.python_url, unsafe=plan.unsafe_python)
            resources["interpreter"] = await stack.enter_async_context(interpreter)
        elif plan.python_url or plan.unsafe_python:
            raise UsageError(f"{plan.domain} has no Python tool: leave out --python-url and --unsafe-python")
        task = Task(plan.domain, examples, plan.profile, plan.max_tokens, plan.token_budget, resources)
        settings = _settings(plan, task, agent)
        if store is None:
            store = RunStore.create(folder, settings, harness.source)
        else:
            _check_same(store.settings, settings, folder)
        stack.enter_context(store)
        store.write_harness(harness.source)  # a kill may have come before `create` did
        ledger = stack.enter_context(Ledger(folder / "ledger.sqlite"))
        keys = {f"{plan.split}:{e.id}:{s}": (e.id, s) for e in examples for s in range(plan.k)}
        done, settled = _reconcile(store, ledger, plan.split)
        started = time.perf_counter()
        launch = _Launch(task, agent, plan, store, ledger, keys, settled, report or _silent)
        await launch.run(done)
        seconds = {"start": started - began, "rollouts": time.perf_counter() - started, **backend.seconds()}
        summary = summarise(
            store.outcomes(),
            keys=keys,
            settings=store.settings,
            seconds=seconds,
            problems=launch.problems,
            warnings=backend.warnings(),
        )
        store.write_summary(summary)
        return summary


def _reconcile(store: RunStore, ledger: Ledger, purpose: str) -> tuple[set[str], set[str]]:
    """Makes ledger and lines agree after a kill; returns the keys that are done, and the settled ones.

    Raises:
        DataError: the ledger's events do not follow from one another.
    """
    ledger.audit()
    settled, waiting = ledger.settled_keys(), dict(ledger.open_reservations())
    done, unreserved = set(), 0
    for row in store.outcomes():
        done.add(row.key)
        attempt = waiting.pop(row.key, None)
        if attempt is None and row.key not in settled:
            unreserved += 1
            attempt = ledger.reserve(row.key, purpose)
        if attempt is not None:
            close = ledger.repeat if row.key in settled else ledger.settle
            close(row.key, attempt, _charge(row))
    for key, attempt in waiting.items():
        ledger.interrupt(key, attempt)
    if unreserved:
        warnings.warn(
            f"{unreserved} rollouts of {store.folder} stood in no ledger reservation; they are charged now",
            stacklevel=2,
        )
    return done, settled


def _silent(finished: int, total: int, record: Rollout | None) -> None:
    """The report of a caller who wants none."""


@dataclass(slots=True)
class _Launch:
    """The rollouts of one launch: workers take keys from one queue until it is empty."""

    task: Task
    agent: Agent
    plan: EvalPlan
    store: RunStore
    ledger: Ledger
    keys: Mapping[str, tuple[str, int]]
    settled: set[str]
    """Charged by an earlier launch; the ones without a line run again without a second charge."""
    report: Report
    finished: int = 0
    failed_in_a_row: int = 0
    problems: Counter[str] = field(default_factory=Counter)

    async def run(self, done: set[str]) -> None:
        missing = [key for key in self.keys if key not in done]
        self.finished = len(self.keys) - len(missing)
        self.report(self.finished, len(self.keys), None)
        queue = iter(missing)
        workers = min(self.plan.concurrency or self.agent.backend.default_concurrency, len(missing))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(self._work(queue))
        except ExceptionGroup as failures:
            if not isinstance(failures.exceptions[0], _GiveUpError):
                raise failures.exceptions[0] from None
            for key, attempt in self.ledger.open_reservations():  # cancelled with the rest
                self.ledger.fail(key, attempt, Charge(rollouts=1))

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
            self.ledger.fail(key, attempt, Charge(rollouts=1, seconds=time.perf_counter() - began))
            self.problems[str(error)] += 1
            self.report(self.finished, len(self.keys), None)
            self.failed_in_a_row += 1
            if self.failed_in_a_row >= GIVE_UP_AFTER:
                raise _GiveUpError(str(error)) from error
            return
        self.store.append(record)
        close = self.ledger.repeat if again else self.ledger.settle
        close(key, attempt, _charge(outcome_of(record)))
        self.finished += 1
        self.failed_in_a_row = 0
        self.report(self.finished, len(self.keys), record)


class _GiveUpError(Exception):
    """The server has failed too many rollouts in a row."""


def _charge(row: Outcome) -> Charge:
    return Charge(
        rollouts=1,
        prompt_tokens=row.prompt_tokens or 0,
        sampled_tokens=row.sampled_tokens or 0,
        model_calls=row.model_calls,
        tool_calls=row.tool_calls,
        seconds=row.seconds,
        unmetered_tokens=row.prompt_tokens is None or row.sampled_tokens is None,
    )


def _settings(plan: EvalPlan, task: Task, agent: Agent) -> dict[str, Any]:
    """The resolved plan with hashes and versions, without what is unset."""
    ids = hashlib.sha256("\n".join(task.examples.ids).encode()).hexdigest()
    env_id = get_domain(plan.domain).env_id
    settings = {name: value for name, value in asdict(plan).items() if value is not None}
    return settings | {
        "n": len(task.examples),
        "env_id": env_id,
        "fixture": agent.backend.fixture,
        "weights_id": agent.backend.weights_id,
        "harness_id": agent.harness.harness_id,
        "examples_id": f"sha256:{ids}",
        "versions": {"whale-envs": __version__, "python": platform.python_version()},
    }


def _plan_of(settings: Mapping[str, Any], folder: Path) -> EvalPlan:
    plan = {name: settings[name] for name in EvalPlan.__dataclass_fields__ if name in settings}
    if "harness" in plan and (folder / "harness.py").is_file():
        plan["harness"] = str(folder / "harness.py")
    try:
        return EvalPlan(**plan)
    except TypeError as error:
        raise UsageError(f"{folder / 'run.toml'} lacks a setting: {error}") from error


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


def _check_same(old: Mapping[str, Any], new: Mapping[str, Any], folder: Path) -> None:
    for name in ("env_id", "examples_id", "weights_id", "harness_id"):
        if old.get(name) != new[name]:
            raise UsageError(
                f"{folder} cannot be resumed: its {name} is {old.get(name)!r}, now it is {new[name]!r}"
            )
