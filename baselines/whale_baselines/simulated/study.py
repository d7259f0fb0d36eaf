"""A run of the simulated learner without a folder, for studying schedules over many seeds.

    found = study(load_recipe("simulated/whale"), seed=0)
    found.best, found.final                             # true scores on test; no sampling noise

The same moves with the same draws as `alternate` makes with the simulated operators, but nothing is
written, charged or evaluated by sampling.

Not covered: selection on dev.
"""

from dataclasses import dataclass

from whale_baselines.plan import per_incoming, per_step
from whale_baselines.recipes import RunRecipe
from whale_baselines.schedule import Entry
from whale_baselines.simulated.operators import rng_of
from whale_baselines.simulated.world import World, propose, score, train, truth


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What came of a run, as only a simulation can know it."""

    final: float
    """True score on test of the last agent."""
    best: float
    """Best true score on test after any phase."""
    entries: tuple[Entry, ...]
    truths: tuple[float, ...]
    """True score on test after each phase."""
    adopted: int
    """Search phases that ended with another harness than they began with."""
    lucky: int
    """Those of them whose harness is truly worse than the incoming one, under the same weights."""


def study(recipe: RunRecipe, seed: int) -> Study:
    """One run. Pure."""
    recipe = recipe.with_seed(seed)
    schedule, world = recipe.plan_schedule(), World.draw(seed)
    weights, harness = world.weights, world.harness
    entries, truths = list[Entry](), list[float]()
    phase = adopted = lucky = 0
    incoming, top = harness, 0.0
    move = schedule.next(entries)
    while move is not None:
        if move.kind == "train":
            rng = rng_of("step", seed, 1 + sum(entry.kind == "train" for entry in entries))
            weights, signal = train(
                world, weights, harness, rng, prompts=recipe.recipe.prompts, samples=recipe.recipe.samples
            )
            rollouts = per_step(recipe)
        else:
            if move.number == 1:
                phase, incoming, top = phase + 1, harness, -1.0
            rng = rng_of("iteration", seed, phase, move.number)
            count = recipe.search.slots
            candidates = [harness] if move.number == 1 else [propose(harness, rng) for _ in range(count)]
            for candidate in candidates:
                drawn = score(world, weights, candidate, rng, split="harness", samples=1)
                if (found := float(drawn.mean())) > top:
                    harness, top = candidate, found
            signal, rollouts = top, len(candidates) * per_incoming(recipe)
        entries.append(Entry(**move._asdict(), signal=signal, rollouts=rollouts))
        following = schedule.next(entries)
        if following is None or following.number == 1:
            truths.append(truth(world, weights, harness))
            if move.kind == "search" and harness is not incoming:
                adopted += 1
                lucky += truths[-1] < truth(world, weights, incoming)
        move = following
    return Study(
        final=truths[-1],
        best=max(truths),
        entries=tuple(entries),
        truths=tuple(truths),
        adopted=adopted,
        lucky=lucky,
    )
