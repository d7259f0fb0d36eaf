"""Opens the simulated operators of a recipe.

    await run_recipe(recipe, folder, operators=simulated_operators)

Not covered: any other recipe.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from whale_baselines.history import harness_of
from whale_baselines.play import Progress, no_progress
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
from whale_bench.store import RunStore
from whale_envs.errors import UsageError


class Simulation:
    """Implements `Opened`."""

    source = None

    def __init__(self, recipe: RunRecipe) -> None:
        self.recipe = recipe
        self.settings: Mapping[str, Any] = {}
        self.explanation: Mapping[str, Any] = {}

    async def operators(
        self, store: RunStore, ledger: Ledger, _progress: Progress = no_progress
    ) -> Operators:
        """See `Opened.operators`; there is no progress within a move."""
        recipe, folder = self.recipe, store.folder
        seed, world = recipe.recipe.seed, World.draw(recipe.recipe.seed)
        trainer = SimulatedTrainer(
            world, folder, ledger, prompts=recipe.recipe.prompts, samples=recipe.recipe.samples, seed=seed
        )
        search = SimulatedSearch(
            world, folder, ledger, trainer, candidates=recipe.search.slots, samples=1, seed=recipe.search.seed
        )
        evaluator = SimulatedEvaluator(world, folder, ledger, trainer, samples=recipe.dev.samples, seed=seed)
        start, h0 = weights_id_of(world.weights), harness_of(source_of(world.harness))
        return Operators(trainer, search, evaluator, start, h0)


@asynccontextmanager
async def simulated_operators(recipe: RunRecipe) -> AsyncIterator[Simulation]:
    """See `OpenOperators`.

    Raises:
        UsageError: the recipe is of real models.
    """
    check_simulated(recipe)
    yield Simulation(recipe)


def check_simulated(recipe: RunRecipe) -> None:
    """Raises `UsageError` for a recipe of real models."""
    if not recipe.simulated:
        raise UsageError(f"{recipe.name} is no simulated recipe; those begin with simulated/")
