"""Opens the real operators of a recipe: one model, one run folder, one ledger, one queue of rollouts.

    await run_recipe(load_recipe("demo/harness_only"), Path("runs/harness"), operators=real_operators)

What a schedule never does is not opened: without training nothing of torch's training is loaded and any
backend will do, without search there is neither archive nor proposer. A trained model on this machine
is sampled from in the trainer's own memory, where that can be.

Under `accelerate launch` or torchrun the first process does all this, and the others train with it
(`processes.py`).

Not covered: the operators themselves (`weight_operator.py`, `search/operator.py`, `evaluator.py`).
"""

import hashlib
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from whale_baselines.checkpoint import Checkpoints
from whale_baselines.evaluator import RunEvaluator
from whale_baselines.explain import explain
from whale_baselines.filters import filtered
from whale_baselines.history import Harness, Pair, harness_of
from whale_baselines.play import Jobs, Player, Progress
from whale_baselines.processes import Leading, follow, leading
from whale_baselines.proposers.registry import open_proposer
from whale_baselines.proposers.worked import worked_examples
from whale_baselines.recipes import RunRecipe
from whale_baselines.rsft import RsftTrainer
from whale_baselines.rsft_loop import Phase
from whale_baselines.run_recipe import Operators
from whale_baselines.search.archive import Archive
from whale_baselines.search.operator import SearchOperator
from whale_baselines.search.proposal import Proposer
from whale_baselines.search.search import HarnessSearch
from whale_baselines.search.sources import clean
from whale_baselines.serving import Agents, Serving
from whale_baselines.settings import TEST_SAMPLES
from whale_baselines.trainer import Trainer
from whale_baselines.weight_operator import PhaseOperator, open_weight_operator
from whale_bench.engine import Agent, Task
from whale_bench.evaluation import open_agent, open_resources
from whale_bench.ledger import Ledger
from whale_bench.models import Backend, load_backend
from whale_bench.models.base import Pausable, Reloadable
from whale_bench.models.folder import model_folder
from whale_bench.plan import EvalPlan, resolve
from whale_bench.store import RunStore
from whale_envs.errors import UsageError

TRAINABLE = "local/PATH and vllm/PATH can be trained, and openai/NAME with `tokenizer`, the model's folder"


@asynccontextmanager
async def real_operators(
    recipe: RunRecipe, *, backend: Backend | None = None, proposer: Proposer | None = None
) -> AsyncIterator["RealRun | None"]:
    """See `OpenOperators`.

    Args:
        recipe: of real models.
        backend: use this loaded backend; it is left open.
        proposer: use this one in place of the recipe's.

    Raises:
        UsageError: something that the recipe names cannot be used.
        InfrastructureError: a server does not answer.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as in models/local.py, before torch is loaded
    schedule, plan = recipe.plan_schedule(), recipe.eval_plan("weight", recipe.recipe.samples)
    base = _base(plan) if schedule.train is not None else None
    examples = {split: filtered(plan.domain, plan.tier, split, recipe.filter) for split in _splits(recipe)}
    if schedule.search is None:
        proposer = None
    elif proposer is None:
        proposer = _proposer(recipe)
    async with AsyncExitStack() as stack:
        trainer = None if base is None else RsftTrainer(base, recipe.recipe)
        if trainer is not None and not trainer.is_first:
            follow(trainer)
            yield None
            return
        together = None if trainer is None else stack.enter_context(leading(trainer))
        served = backend
        if served is None:
            served = await stack.enter_async_context(_backend(plan, trainer, together))
        resources = await open_resources(plan, stack)
        limits = (plan.profile, plan.max_tokens, plan.token_budget, resources)
        tasks = {split: Task(plan.domain, found, *limits) for split, found in examples.items()}
        async with AsyncExitStack() as briefly:
            agent = await open_agent(plan, served, briefly)
            assert isinstance(agent, Agent)
            await agent.probe(next(iter(tasks.values())))
            settings = _settings(plan, tasks, agent)
            source, bounds = clean(agent.source), agent.harness.settings
        explanation: Mapping[str, Any] = {}
        if trainer is not None:
            shared = getattr(served, "shares", False)
            resting = isinstance(served, Pausable) and trainer.accelerators > 0
            explanation = explain(
                recipe.recipe, tasks["weight"], bounds, trainer, shared=shared, resting=resting
            )
        yield RealRun(
            recipe, plan, stack, served, tasks, source, base, together, proposer, settings, explanation
        )


@dataclass(slots=True)
class RealRun:
    """Implements `Opened`."""

    recipe: RunRecipe
    plan: EvalPlan
    stack: AsyncExitStack
    backend: Backend
    tasks: Mapping[str, Task]
    """By split."""
    source: str
    """Of h0."""
    base: Path | None
    """Folder of the weights to train; None trains nothing."""
    trainer: Trainer | None
    proposer: Proposer | None
    """None searches nothing."""
    settings: Mapping[str, Any]
    explanation: Mapping[str, Any]

    async def operators(self, store: RunStore, ledger: Ledger, progress: Progress) -> Operators:
        """See `Opened.operators`.

        Raises:
            UsageError: checkpoints or archive are another run's or damaged, or the disk is too small.
            InfrastructureError: the backend does not serve what the newest checkpoint holds.
        """
        jobs = Jobs(store, ledger, self.recipe.recipe.seed, self.plan.concurrency, progress)
        agents = Agents(self.plan, store.folder)
        self.stack.push_async_callback(agents.aclose)
        h0 = harness_of(self.source)
        # Each of these three settles what a kill has left of its own in the ledger, and the last one closes
        # whatever else is open there.
        trainer = await self._trainer(store, ledger, jobs, agents)
        search = self._search(store, jobs)
        jobs.begin()
        phase = None if trainer is None else trainer.phase
        weights_id = self.backend.weights_id if trainer is None else trainer.base_id
        evaluator = RunEvaluator(
            store.folder,
            {split: self.tasks[split] for split in ("dev", "test") if split in self.tasks},
            jobs,
            Serving(self.backend, store.folder / "weights", phase, self.base),
            agents,
            {"dev": self.recipe.dev.samples, "test": TEST_SAMPLES},
            Pair(weights_id, h0.harness_id),
            self.recipe.dev.keep,
        )
        return Operators(trainer, search, evaluator, weights_id, h0)

    async def _trainer(
        self, store: RunStore, ledger: Ledger, jobs: Jobs, agents: Agents
    ) -> PhaseOperator | None:
        if self.trainer is None or self.base is None:
            return None
        recipe, task, backend = self.recipe.recipe, self.tasks["weight"], self.backend
        if not isinstance(backend, Reloadable):
            raise UsageError(f"{backend.name!r} cannot take new weights; {TRAINABLE}")
        player = Player(task, None, store, ledger, recipe, self.plan.concurrency, jobs)
        checkpoints = Checkpoints(store.folder / "checkpoints", recipe.keep_last)
        metrics = store.folder / "metrics.jsonl"
        phase = Phase(recipe, task.examples.ids, player, self.trainer, checkpoints, backend, metrics, ledger)

        async def use_harness(harness: Harness) -> None:
            player.agent = await agents.of(harness, backend)

        return await open_weight_operator(phase, self.base, use_harness)

    def _search(self, store: RunStore, jobs: Jobs) -> SearchOperator | None:
        if self.proposer is None:
            return None
        archive = Archive(store.folder / "archive")
        settings, task = self.recipe.search, self.tasks["harness"]
        task = replace(task, examples=task.examples[: settings.examples])
        search = HarnessSearch(settings, self.plan, task, self.backend, jobs, archive, self.proposer)
        search.settle_sessions()
        return SearchOperator(search)


def _splits(recipe: RunRecipe) -> tuple[str, ...]:
    """Those that a run looks at; test only where it is evaluated."""
    return ("weight", "harness", "dev", *(() if recipe.dev.test == "none" else ("test",)))


def _base(plan: EvalPlan) -> Path:
    """The folder of the weights to train."""
    kind, _, name = plan.model.partition("/")
    if kind == "openai" and plan.tokenizer is not None:
        return model_folder("tokenizer =", plan.tokenizer)
    if kind not in ("local", "vllm"):
        raise UsageError(f"{plan.model!r} has no weights here to train; {TRAINABLE}")
    there = Path(plan.directory or ".") / name
    return model_folder(kind, str(there) if there.is_dir() else name)


def _backend(plan: EvalPlan, trainer: RsftTrainer | None, together: Leading | RsftTrainer | None) -> Backend:
    """What serves: on the trainer's own weights where that can be; `together` is one of all processes."""
    kind, _, name = plan.model.partition("/")
    command = trainer.recipe.server_command if trainer is not None else ""
    if command and (kind != "openai" or plan.base_url is None):
        raise UsageError(f"server_command goes with openai/NAME and base_url, got {plan.model!r}")
    if trainer is not None and kind == "local" and trainer.shareable:
        from whale_bench.models.shared import SharedBackend

        return SharedBackend.of(trainer.model, str(_base(plan)) if name != "smollm2" else name)
    if trainer is not None and kind == "vllm":
        from whale_bench.models.vllm_backend import VllmBackend

        folder = str(_base(plan)) if name != "smollm2" else name
        return VllmBackend.load(folder, beside=trainer.held_bytes)
    if together is not None and kind == "openai" and plan.tokenizer is not None:
        if command:
            from whale_bench.models.openai_restart import RestartedServer

            return RestartedServer(
                name, plan.tokenizer, command, logprobs=together.logprobs, base_url=plan.base_url
            )
        from whale_bench.models.openai_reload import ReloadedServer

        return ReloadedServer(name, plan.tokenizer, logprobs=together.logprobs, base_url=plan.base_url)
    return load_backend(
        plan.model, base_url=plan.base_url, tokenizer=plan.tokenizer, directory=plan.directory
    )


def _proposer(recipe: RunRecipe) -> Proposer:
    """The proposer that a recipe names.

    Raises:
        UsageError: there is none of that name, or its settings cannot be.
    """
    settings, agent = dict(recipe.proposer), recipe.eval_plan("weight", 1)
    if recipe.search.proposer == "mutate":  # it shows solved examples, of the weight split alone
        shown = filtered(agent.domain, agent.tier, "weight", recipe.filter)
        settings["examples"] = worked_examples(agent.domain, shown, tier=agent.tier, seed=recipe.search.seed)
    return open_proposer(recipe.search.proposer, **settings)


def _settings(plan: EvalPlan, tasks: Mapping[str, Task], agent: Agent) -> dict[str, Any]:
    settings = resolve(plan, tasks["weight"], agent)
    del settings["weights_id"], settings["harness_id"]  # those of the rollouts change
    ids = [id_ for task in tasks.values() for id_ in task.examples.ids]
    settings["examples_id"] = f"sha256:{hashlib.sha256(chr(10).join(ids).encode()).hexdigest()}"
    return settings
