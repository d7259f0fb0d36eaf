"""Runs a recipe in a folder, or goes on with it: opens store, ledger and operators, then the one loop.

    asyncio.run(run_recipe(load_recipe("simulated/whale"), Path("runs/whale"), operators=simulated_operators))

    runs/whale/
        run.toml            the resolved recipe; `fixture = true` for a simulation
        history.jsonl       every move and evaluation (history.py)
        harnesses/          sources of accepted harnesses
        ledger.sqlite       the account
        summary.json        written at the end

Not covered: the operators, which `operators` opens.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from whale_baselines.alternate import Evaluator, HarnessOperator, Report, WeightOperator, alternate
from whale_baselines.curves import outcome_of, phase_lengths
from whale_baselines.history import Harness, History, Pair
from whale_baselines.recipes import RunRecipe, recipe_from_tables
from whale_bench.ledger import Ledger
from whale_bench.store import RunStore
from whale_envs import __version__
from whale_envs.errors import UsageError

KIND = "recipe"
"""In run.toml, of runs that were made here."""


@dataclass(frozen=True, slots=True)
class Operators:
    """What the loop needs of a recipe."""

    trainer: WeightOperator | None
    search: HarnessOperator | None
    evaluator: Evaluator
    weights_id: str
    """Of the weights that the run begins with."""
    h0: Harness


OpenOperators = Callable[[RunRecipe, Path, Ledger], AbstractAsyncContextManager[Operators]]
"""Opens the operators of a recipe in a run's folder; closes what it opened."""


async def run_recipe(
    recipe: RunRecipe, folder: Path, *, operators: OpenOperators, report: Report | None = None
) -> None:
    """The whole run; where the folder holds it already, what is left of it.

    Raises:
        UsageError: the folder holds another run, or the recipe cannot be run.
        InfrastructureError: something is down; the same call goes on.
    """
    settings = _settings(recipe)
    if (folder / "run.toml").exists():
        store = RunStore.open(folder)
        found = recipe_of_run(store.settings, folder)
        if found.recipe_id != recipe.recipe_id:
            raise UsageError(f"{folder} holds a run of {found.name} with other settings than {recipe.name}")
    else:
        store = RunStore.create(folder, settings, None)
    with store, Ledger(folder / "ledger.sqlite") as ledger:
        history = History(folder)
        async with operators(recipe, folder, ledger) as opened:
            history.begin(Pair(opened.weights_id, opened.h0.harness_id), recipe.recipe_id)
            history.keep_harness(opened.h0)
            await alternate(
                opened.trainer,
                opened.search,
                recipe.plan_schedule(),
                ledger,
                evaluator=opened.evaluator,
                history=history,
                every=recipe.dev.every(),
                report=report,
            )
        store.write_summary(
            {
                "recipe": recipe.name,
                "domain": recipe.domain,
                "fixture": recipe.simulated,
                "outcome": outcome_of(history),
                "phases": [phase._asdict() for phase in phase_lengths(history.moves)],
            }
        )


def recipe_of_run(settings: dict[str, Any], folder: Path) -> RunRecipe:
    """The recipe that a run's settings hold.

    Raises:
        UsageError: they hold none.
    """
    if settings.get("kind") != KIND:
        raise UsageError(f"{folder} holds no run of a recipe")
    return recipe_from_tables(settings["name"], settings["tables"])


def _settings(recipe: RunRecipe) -> dict[str, Any]:
    tables = asdict(recipe)
    name = tables.pop("name")
    return {
        "kind": KIND,
        "name": name,
        "domain": recipe.domain,
        "fixture": recipe.simulated,
        "seed": recipe.recipe.seed,
        "recipe_id": recipe.recipe_id,
        "versions": {"whale-envs": __version__},
        "tables": _without_none(tables),
    }


def _without_none(value: Any) -> Any:
    """As TOML can hold it."""
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return list(value) if isinstance(value, tuple) else value
