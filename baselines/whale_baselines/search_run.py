"""A run of the harness operator alone from a file: so many iterations, then `dev` before and after.

    iterations = 6                 # the first scores the harness that it begins with
    [agent]                        # what `whale-bench eval` takes, but for split, n, k and seed
    domain = "chess_puzzles"
    model = "local/smollm2"
    max_tokens = 16
    [search]                       # what differs from the paper's, see search/recipe.py
    proposer = "mutate"
    examples = 64
    [proposer]                     # the proposer's own settings, if it has any

    asyncio.run(run(read_plan(Path("search.toml")), Path("runs/search")))

The run's folder is that of an evaluation (run.toml, harness.py, rollouts, ledger), with `archive/` beside
it, `accepted.py`, and summary.json about `dev`. Where it is there already, the run goes on.

Not covered: schedules in which weights are trained, too.
"""

import importlib
import math
import tomllib
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from whale_baselines.play import Jobs, jobs_of
from whale_baselines.search.admit import open_harness
from whale_baselines.search.archive import Archive
from whale_baselines.search.proposal import Proposer
from whale_baselines.search.recipe import SearchRecipe, search_recipe_of
from whale_baselines.search.search import HarnessSearch
from whale_bench.engine import Agent, Task
from whale_bench.evaluation import open_agent, open_resources, planned_examples
from whale_bench.ledger import Ledger
from whale_bench.models import Backend
from whale_bench.plan import EvalPlan, check_same, resolve
from whale_bench.statistics import Difference, Score, mean_at_k, paired
from whale_bench.store import RunStore
from whale_envs import load_examples
from whale_envs.errors import InfrastructureError, UsageError

_OURS = {
    "split": "candidates are scored on harness",
    "n": "`examples` of [search]",
    "k": "`dev_samples` of [search]",
    "seed": "`seed` of [search]",
}
"""Fields of an evaluation that a search decides otherwise."""


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """What a file says."""

    agent: EvalPlan
    recipe: SearchRecipe
    iterations: int
    proposer: dict[str, Any]
    """Settings of the proposer."""


class Evaluated(msgspec.Struct, frozen=True, kw_only=True):
    """What summary.json holds."""

    kind: str = "harness"
    k: int
    before: Score
    """mean@k on `dev` of the harness that the run began with."""
    after: Score
    """Of the accepted one."""
    difference: Difference
    accepted: str
    """`harness_id`."""


def is_search(file: Path) -> bool:
    """Whether a file is a plan of this kind; one that cannot be read is not."""
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return "search" in content and "recipe" not in content


def read_plan(path: Path) -> SearchPlan:
    """The plan in a TOML file.

    Raises:
        UsageError: it cannot be read, or says what cannot be.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    valid = ("iterations", "agent", "search", "proposer")
    if unknown := sorted(content.keys() - set(valid)):
        raise UsageError(
            f"{path}: unknown {', '.join(unknown)}; valid: iterations, [agent], [search], [proposer]"
        )
    iterations, agent = content.get("iterations"), content.get("agent", {})
    search, proposer = content.get("search", {}), content.get("proposer", {})
    if not isinstance(iterations, int) or isinstance(iterations, bool) or iterations < 1:
        raise UsageError(f"{path}: iterations must be a whole number from 1, got {iterations!r}")
    if not all(isinstance(table, dict) for table in (agent, search, proposer)):
        raise UsageError(f"{path}: [agent], [search] and [proposer] are tables")
    known = {field.name for field in fields(EvalPlan)} - _OURS.keys()
    for name in agent:
        if name not in known:
            hint = f": {_OURS[name]}" if name in _OURS else f"; valid: {', '.join(sorted(known))}"
            raise UsageError(f"{path}: [agent] has no {name!r}{hint}")
    for name in ("domain", "model"):
        if name not in agent:
            raise UsageError(f"{path}: [agent] lacks {name!r}")
    try:
        recipe = search_recipe_of(search)
        plan = EvalPlan(**agent, split="harness", n=recipe.examples, k=recipe.dev_samples, seed=recipe.seed)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    return SearchPlan(plan, recipe, iterations, proposer)


def explain(plan: SearchPlan) -> dict[str, Any]:
    """What a run will take at most, in rollouts."""
    recipe = plan.recipe
    candidates = (plan.iterations - 1) * recipe.slots
    looks = 1 if recipe.rule == "paper" else recipe.most_samples
    return {
        "iterations": plan.iterations,
        "candidates": candidates,
        "rollouts for scores, at least": (1 + candidates) * recipe.examples,
        "rollouts for scores, at most": (1 + candidates) * recipe.examples * looks,
        "smoke rollouts": candidates * recipe.smoke,
        "samples of each dev example, twice": recipe.dev_samples,
    }


async def run(
    plan: SearchPlan,
    folder: Path,
    *,
    backend: Backend | None = None,
    proposer: Proposer | None = None,
    report: Callable[[str, dict[str, Any]], None] | None = None,
) -> Evaluated:
    """Iterations until `plan.iterations` are finished, those of earlier launches included; then `dev`.

    Args:
        plan: what to search, and how.
        folder: of the run.
        backend: use this loaded backend; it is left open.
        proposer: use this one in place of the recipe's.
        report: called with ("explain", what to expect) first and with ("iteration", metrics) after each.

    Raises:
        UsageError: plan, model, proposer or folder cannot be used.
        InfrastructureError: rollouts are missing or something cannot be written; can be resumed.
    """
    report = report or _silent
    report("explain", explain(plan))
    recipe, examples = plan.recipe, planned_examples(plan.agent)
    dev_plan = replace(plan.agent, split="dev", n=recipe.dev_examples)
    dev_examples = planned_examples(dev_plan)
    proposer = proposer or load_proposer(plan)
    async with AsyncExitStack() as stack:
        agent = await open_agent(plan.agent, backend, stack)
        if not isinstance(agent, Agent):
            raise UsageError(f"{plan.agent.model!r} is a whole agent: there is no harness to search")
        resources = await open_resources(plan.agent, stack)
        limits = (plan.agent.profile, plan.agent.max_tokens, plan.agent.token_budget, resources)
        task, dev = (Task(plan.agent.domain, some, *limits) for some in (examples, dev_examples))
        store = await _open_store(folder, plan, task, agent)
        stack.enter_context(store)
        ledger = stack.enter_context(Ledger(folder / "ledger.sqlite"))
        archive = stack.enter_context(Archive(folder / "archive"))
        jobs = Jobs(store, ledger, recipe.seed, plan.agent.concurrency)
        search = HarnessSearch(recipe, plan.agent, task, agent.backend, jobs, archive, proposer)
        await search.begin(agent.source, agent.weights_id)
        while search.iterations < plan.iterations:
            report("iteration", await search.iterate())
        write_accepted(folder, search.accepted.source)
        place = archive.folder / "harnesses" / search.accepted.name / "harness.py"
        best = await open_harness(plan.agent, agent.backend, place, stack)
        done = await jobs.play(_dev_jobs(agent, dev, recipe) | _dev_jobs(best, dev, recipe))
        before, after = (
            [done[key].verdict.reward for key in _dev_jobs(one, dev, recipe)] for one in (agent, best)
        )
        found = _evaluated(before, after, recipe.dev_samples, best.harness_id)
        store.write_summary(found)
        return found


def load_proposer(plan: SearchPlan) -> Proposer:
    """The proposer that a recipe names.

    Raises:
        UsageError: there is none of that name, or its settings cannot be.
    """
    try:
        registry = importlib.import_module("whale_baselines.proposers.registry")
        worked = importlib.import_module("whale_baselines.proposers.worked")
    except ModuleNotFoundError as error:
        raise UsageError(f"there is no proposer {plan.recipe.proposer!r} here: {error}") from error
    settings, agent = dict(plan.proposer), plan.agent
    if plan.recipe.proposer == "mutate":  # it shows solved examples, of the weight split alone
        shown = load_examples(agent.domain, agent.tier, "weight")
        settings["examples"] = worked.worked_examples(
            agent.domain, shown, tier=agent.tier, seed=plan.recipe.seed
        )
    made: Proposer = registry.open_proposer(plan.recipe.proposer, **settings)
    return made


def write_accepted(folder: Path, source: str) -> None:
    """Writes accepted.py, whole or not at all.

    Raises:
        InfrastructureError: it cannot be written.
    """
    temporary = folder / ".half-written-accepted.py"
    try:
        temporary.write_text(source, encoding="utf-8", newline="")
        temporary.replace(folder / "accepted.py")
    except OSError as error:
        raise InfrastructureError(f"{folder}: cannot be written: {error}") from error


def _dev_jobs(agent: Agent, dev: Task, recipe: SearchRecipe) -> dict[str, Any]:
    return dict(jobs_of("dev", agent, dev, dev.examples.ids, range(recipe.dev_samples)))


def _evaluated(before: Sequence[float], after: Sequence[float], k: int, accepted: str) -> Evaluated:
    groups = [[row[i : i + k] for i in range(0, len(row), k)] for row in (before, after)]
    means = [[math.fsum(group) / k for group in row] for row in groups]
    return Evaluated(
        k=k,
        before=mean_at_k(groups[0]),
        after=mean_at_k(groups[1]),
        difference=paired(means[0], means[1]),
        accepted=accepted,
    )


async def _open_store(folder: Path, plan: SearchPlan, task: Task, agent: Agent) -> RunStore:
    settings = resolve(plan.agent, task, agent) | {"kind": "harness", "search": _plain(plan.recipe)}
    settings["proposer"] = plan.proposer
    settings["base_harness_id"] = settings.pop("harness_id")  # that of the rollouts changes
    if not (folder / "run.toml").exists():
        await agent.probe()  # before there is a folder
        return RunStore.create(folder, settings, agent.source)
    store = RunStore.open(folder)
    check_same(store.settings, settings, folder)
    for name in ("base_harness_id", "search", "proposer"):
        if store.settings.get(name) != settings[name]:
            raise UsageError(
                f"{folder} cannot be gone on with: its {name} is {store.settings.get(name)!r}, "
                f"now it is {settings[name]!r}"
            )
    return store


def _plain(recipe: SearchRecipe) -> dict[str, Any]:
    """As TOML can hold it, which has no None."""
    return {name: value for name, value in asdict(recipe).items() if value is not None}


def _silent(_kind: str, _told: dict[str, Any]) -> None:
    """The report of a caller who wants none."""
