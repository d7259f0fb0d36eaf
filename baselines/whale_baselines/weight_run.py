"""A run of the weight operator from a file: everything opened, so many steps, everything closed.

    plan = read_plan(find_recipe("demo/weight_only"))
    asyncio.run(run(plan, Path("runs/weight")))

The run's folder is that of an evaluation (run.toml, harness.py, rollouts, ledger), with `checkpoints/`,
`metrics.jsonl` and `dev.jsonl` beside it. Where it is there already, the run goes on.

Under `accelerate launch` or torchrun the first process does all this, and the others train with it
(`processes.py`).

Not covered: what a file may say, see `weight_plan.py`; schedules of several phases.
"""

import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from whale_baselines.checkpoint import Checkpoints
from whale_baselines.dev import DevEvaluation
from whale_baselines.explain import explain
from whale_baselines.play import Player
from whale_baselines.processes import follow, leading
from whale_baselines.rsft import RsftTrainer
from whale_baselines.rsft_loop import Phase
from whale_baselines.weight_plan import WeightPlan, find_recipe, read_plan
from whale_bench.engine import Agent, Task
from whale_bench.evaluation import open_agent, open_resources, planned_examples
from whale_bench.ledger import Ledger
from whale_bench.models.base import Backend, Reloadable
from whale_bench.models.folder import model_folder
from whale_bench.plan import EvalPlan, check_same, resolve
from whale_bench.records import Rollout
from whale_bench.store import RunStore
from whale_envs import ExampleSet
from whale_envs.errors import UsageError

__all__ = ["Told", "WeightPlan", "find_recipe", "read_plan", "run"]

_TRAINABLE = "local/PATH and vllm/PATH can be trained, and openai/NAME with `tokenizer`, the model's folder"

Told = Callable[[str, dict[str, Any]], None]
"""A report: called with a kind and what there is to tell, see `run`."""


async def run(plan: WeightPlan, folder: Path, *, report: Told | None = None) -> None:
    """Steps until `plan.steps` are finished, those of earlier launches included.

    Args:
        plan: what to train, and how.
        folder: of the run.
        report: called with ("explain", what to expect) first, then with ("step", metrics) after each step,
            ("dev", score) after each evaluation, and ("rollouts", {"what", "done", "of"}) as they finish.

    Raises:
        UsageError: plan, model or folder cannot be used, or nothing can be learned.
        InfrastructureError: rollouts are missing or something cannot be written; can be resumed.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as in models/local.py, before torch is loaded
    report = report or _silent
    recipe = plan.recipe
    base = _base(plan.agent)
    examples = planned_examples(plan.agent)
    held_out = planned_examples(plan.dev_agent) if plan.dev_agent is not None else None
    async with AsyncExitStack() as stack:
        trainer = RsftTrainer(base, recipe)
        if not trainer.is_first:
            follow(trainer)
            return
        together = stack.enter_context(leading(trainer))
        agent = await _open_agent(plan.agent, trainer, stack)
        resources = await open_resources(plan.agent, stack)
        task = _task(plan.agent, examples, resources)
        shared = getattr(agent.backend, "shares", False)
        report("explain", explain(recipe, task, agent.harness.settings, trainer, shared=shared))
        store = _open_store(folder, plan, task, agent, trainer.base_id)
        store.report = report
        stack.enter_context(store)
        ledger = stack.enter_context(Ledger(folder / "ledger.sqlite"))
        phase = Phase(
            recipe,
            examples.ids,
            Player(task, agent, store, ledger, recipe, plan.agent.concurrency),
            together,
            Checkpoints(folder / "checkpoints", recipe.keep_last),
            _reloadable(agent.backend),
            folder / "metrics.jsonl",
            ledger,
        )
        await phase.begin(base)
        dev = None
        if plan.dev is not None and held_out is not None:
            of_dev = _task(plan.agent, held_out, resources)
            dev = DevEvaluation(
                plan.dev,
                of_dev,
                agent,
                store,
                ledger,
                recipe.seed,
                folder / "dev.jsonl",
                plan.agent.concurrency,
            )
        while True:
            state = phase.now.state
            if dev is not None and dev.plan.due(state.step, plan.steps):
                store.expect(f"dev after step {state.step}", dev.rollouts)
                report("dev", await dev.score(step=state.step, total=state.rollouts))
            if state.step >= plan.steps:
                break
            store.expect(f"step {state.step + 1}", recipe.prompts * recipe.samples)
            report("step", await phase.step())


class _ToldStore(RunStore):
    """A run folder that tells of every rollout that is written."""

    report: Told
    _what, _done, _of = "", 0, 0

    def expect(self, what: str, of: int) -> None:
        """Says what the next rollouts are for, and how many they are at most."""
        self._what, self._done, self._of = what, 0, of

    def append(self, rollout: Rollout) -> None:
        super().append(rollout)
        self._done += 1
        self.report("rollouts", {"what": self._what, "done": self._done, "of": self._of})


async def _open_agent(plan: EvalPlan, trainer: RsftTrainer, stack: AsyncExitStack) -> Agent:
    """Who plays: on the trainer's own weights in memory where that can be."""
    kind, _, name = plan.model.partition("/")
    shared: Backend | None = None
    if kind == "local" and trainer.shareable:
        from whale_bench.models.shared import SharedBackend

        shared = await stack.enter_async_context(SharedBackend.of(trainer.model, name))
    elif kind == "openai" and plan.tokenizer is not None:
        from whale_bench.models.openai_reload import ReloadedServer

        server = ReloadedServer(name, plan.tokenizer, logprobs=trainer.logprobs, base_url=plan.base_url)
        shared = await stack.enter_async_context(server)
        await server.probe()
    agent = await open_agent(replace(plan, base_url=None) if shared else plan, shared, stack)
    if not isinstance(agent, Agent):
        raise UsageError(f"{plan.model!r} is a whole agent, whose weights are not ours to train")
    return agent


def _reloadable(backend: Backend) -> Reloadable:
    if not isinstance(backend, Reloadable):
        raise UsageError(f"{backend.name!r} cannot take new weights; {_TRAINABLE}")
    return backend


def _base(plan: EvalPlan) -> Path:
    kind, _, name = plan.model.partition("/")
    if kind == "openai" and plan.tokenizer is not None:
        return model_folder("tokenizer =", plan.tokenizer)
    if kind not in ("local", "vllm"):
        raise UsageError(f"{plan.model!r} has no weights here to train; {_TRAINABLE}")
    return model_folder(kind, name)


def _task(plan: EvalPlan, examples: ExampleSet[Any], resources: dict[str, Any]) -> Task:
    return Task(plan.domain, examples, plan.profile, plan.max_tokens, plan.token_budget, resources)


def _open_store(folder: Path, plan: WeightPlan, task: Task, agent: Agent, base_id: str) -> _ToldStore:
    settings = resolve(plan.agent, task, agent) | {"kind": "weight", "recipe": asdict(plan.recipe)}
    del settings["weights_id"]  # that of the rollouts changes from step to step
    settings["base_id"] = base_id
    if not (folder / "run.toml").exists():
        return _ToldStore.create(folder, settings, agent.source)
    store = _ToldStore.open(folder)
    check_same(store.settings, settings, folder)
    return store


def _silent(_kind: str, _told: dict[str, Any]) -> None:
    """The report of a caller who wants none."""
