"""A run of the weight operator from a file: everything opened, so many steps, everything closed.

    steps = 3
    [agent]                     # what `whale-bench eval` takes, but for split, k and seed
    domain = "chess_puzzles"
    model = "local/smollm2"
    max_tokens = 16
    [recipe]                    # what differs from the paper's, see recipe.py
    prompts = 16
    lr = 3e-5

    asyncio.run(run(read_plan(Path("weight.toml")), Path("runs/weight")))

The run's folder is that of an evaluation (run.toml, harness.py, rollouts, ledger), with `checkpoints/`
and `metrics.jsonl` beside it. Where it is there already, the run goes on.

Not covered: schedules of several phases; training in several processes, for which the update is made
and the loop is not.
"""

import tomllib
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from whale_baselines.checkpoint import Checkpoints
from whale_baselines.explain import explain
from whale_baselines.play import Player
from whale_baselines.recipe import Recipe, recipe_of
from whale_baselines.rsft import RsftTrainer
from whale_baselines.rsft_loop import Phase
from whale_bench.engine import Agent, Task
from whale_bench.evaluation import open_agent, open_resources, planned_examples
from whale_bench.ledger import Ledger
from whale_bench.models.base import Reloadable
from whale_bench.models.folder import FolderBackend, model_folder
from whale_bench.plan import EvalPlan, check_same, resolve
from whale_bench.store import RunStore
from whale_envs.errors import UsageError

_OURS = {"split": "weight is what is trained on", "k": "samples of the recipe", "seed": "seed of the recipe"}
"""Fields of an evaluation that a weight run decides otherwise."""


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """What a file says."""

    agent: EvalPlan
    recipe: Recipe
    steps: int


def read_plan(path: Path) -> WeightPlan:
    """The plan in a TOML file.

    Raises:
        UsageError: it cannot be read, or says what cannot be.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    if unknown := sorted(content.keys() - {"steps", "agent", "recipe"}):
        raise UsageError(f"{path}: unknown {', '.join(unknown)}; valid: steps, [agent], [recipe]")
    steps, agent, recipe = content.get("steps"), content.get("agent", {}), content.get("recipe", {})
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise UsageError(f"{path}: steps must be a whole number from 1, got {steps!r}")
    if not isinstance(agent, dict) or not isinstance(recipe, dict):
        raise UsageError(f"{path}: [agent] and [recipe] are tables")
    known = {field.name for field in fields(EvalPlan)} - _OURS.keys()
    for name in agent:
        if name not in known:
            hint = f": {_OURS[name]}" if name in _OURS else f"; valid: {', '.join(sorted(known))}"
            raise UsageError(f"{path}: [agent] has no {name!r}{hint}")
    for name in ("domain", "model"):
        if name not in agent:
            raise UsageError(f"{path}: [agent] lacks {name!r}")
    try:
        ours = recipe_of(recipe)
        plan = EvalPlan(**agent, split="weight", k=ours.samples, seed=ours.seed)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    return WeightPlan(plan, ours, steps)


async def run(
    plan: WeightPlan, folder: Path, *, report: Callable[[str, dict[str, Any]], None] | None = None
) -> None:
    """Steps until `plan.steps` are finished, those of earlier launches included.

    Args:
        plan: what to train, and how.
        folder: of the run.
        report: called with ("explain", what to expect) first and with ("step", metrics) after each step.

    Raises:
        UsageError: plan, model or folder cannot be used, or nothing can be learned.
        InfrastructureError: rollouts are missing or something cannot be written; can be resumed.
    """
    report = report or _silent
    recipe = plan.recipe
    base = _base(plan.agent.model)
    examples = planned_examples(plan.agent)
    async with AsyncExitStack() as stack:
        trainer = RsftTrainer(base, recipe)
        agent = await open_agent(plan.agent, None, stack)
        backend = agent.backend if isinstance(agent, Agent) else None
        if (
            not isinstance(agent, Agent)
            or not isinstance(backend, FolderBackend)
            or not isinstance(backend, Reloadable)
        ):
            raise UsageError(f"{plan.agent.model!r} cannot take new weights; local/PATH and vllm/PATH can")
        resources = await open_resources(plan.agent, stack)
        task = Task(
            plan.agent.domain,
            examples,
            plan.agent.profile,
            plan.agent.max_tokens,
            plan.agent.token_budget,
            resources,
        )
        report("explain", explain(recipe, task, trainer))
        store = _open_store(folder, plan, task, agent)
        stack.enter_context(store)
        ledger = stack.enter_context(Ledger(folder / "ledger.sqlite"))
        phase = Phase(
            recipe,
            examples.ids,
            Player(task, agent, store, ledger, recipe, plan.agent.concurrency),
            trainer,
            Checkpoints(folder / "checkpoints", recipe.keep_last),
            backend,
            folder / "metrics.jsonl",
        )
        await phase.begin(base)
        while phase.now.state.step < plan.steps:
            report("step", await phase.step())


def _base(model: str) -> Path:
    kind, _, name = model.partition("/")
    if kind not in ("local", "vllm"):
        raise UsageError(f"{model!r} has no weights here to train; local/PATH and vllm/PATH have")
    return model_folder(kind, name)


def _open_store(folder: Path, plan: WeightPlan, task: Task, agent: Agent) -> RunStore:
    settings = resolve(plan.agent, task, agent) | {"kind": "weight", "recipe": asdict(plan.recipe)}
    settings["base_id"] = settings.pop("weights_id")  # that of the rollouts changes from step to step
    if not (folder / "run.toml").exists():
        return RunStore.create(folder, settings, agent.source)
    store = RunStore.open(folder)
    check_same(store.settings, settings, folder)
    return store


def _silent(_kind: str, _told: dict[str, Any]) -> None:
    """The report of a caller who wants none."""
