"""Opens the simulated operators of a recipe.

    await run_recipe(recipe, folder, operators=simulated_operators)

Not covered: any other recipe.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from whale_baselines.history import harness_of
from whale_baselines.recipes import RunRecipe
from whale_baselines.run_recipe import Operators
from whale_baselines.simulated.operators import (
    SimulatedEvaluator,
    SimulatedSearch,
    SimulatedTrainer,
    source_of,
    weights_id_of,
)
from whale_baselines.simulated.world import World
from whale_bench.ledger import Ledger
from whale_envs.errors import UsageError


@asynccontextmanager
async def simulated_operators(recipe: RunRecipe, folder: Path, ledger: Ledger) -> AsyncIterator[Operators]:
    """See `OpenOperators`.

    Raises:
        UsageError: the recipe is of real models.
    """
    check_simulated(recipe)
    seed, world = recipe.recipe.seed, World.draw(recipe.recipe.seed)
    trainer = SimulatedTrainer(
        world, folder, ledger, prompts=recipe.recipe.prompts, samples=recipe.recipe.samples, seed=seed
    )
    search = SimulatedSearch(
        world,
        folder,
        ledger,
        trainer,
        candidates=recipe.search.candidates,
        samples=recipe.search.samples,
        seed=recipe.search.seed,
    )
    evaluator = SimulatedEvaluator(world, folder, ledger, trainer, samples=recipe.dev.samples, seed=seed)
    yield Operators(
        trainer, search, evaluator, weights_id_of(world.weights), harness_of(source_of(world.harness))
    )


def check_simulated(recipe: RunRecipe) -> None:
    """Raises `UsageError` for a recipe of real models."""
    if not recipe.simulated:
        raise UsageError(f"{recipe.name} is no simulated recipe; those begin with simulated/")
