"""A run of the simulated learner without a folder, for studying schedules over many seeds.

    found = study(load_recipe("simulated/whale"), seed=0)
    found.dev, found.selected_on_dev                    # of the agent that dev likes best, on dev and on test
    found.best_on_test                                  # the paper's number: chosen on test, so too high

The moves, draws and evaluations are those that `alternate` makes with the simulated operators, and so are
the two numbers on test; only nothing is written or charged.

Not covered: agents of real models.
"""

from dataclasses import dataclass

from whale_baselines.alternate import due_after
from whale_baselines.history import Pair, harness_of
from whale_baselines.plan import per_incoming, per_step
from whale_baselines.recipes import RunRecipe
from whale_baselines.schedule import Entry
from whale_baselines.simulated.operators import evaluated, rng_of, source_of, weights_id_of
from whale_baselines.simulated.world import Harness, Weights, World, propose, score, train, truth


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What came of a run. Scores are of sampled rollouts, as a run has them, unless they are called true."""

    dev: float
    """Of the agent that dev likes best, on dev: it was chosen on it, so it is too high."""
    selected_on_dev: float
    """Of the same agent, on test."""
    best_on_test: float
    """Best score on test of all evaluations, of whatever agent."""
    entries: tuple[Entry, ...]
    truths: tuple[float, ...]
    """True score on test after each phase: what infinitely many rollouts would have."""
    adopted: int
    """Search phases that ended with another harness than they began with."""
    lucky: int
    """Those of them whose harness is truly worse than the incoming one, under the same weights."""


class _Scores:
    """Scores of the agents at the points where a run evaluates, each agent once."""

    def __init__(self, world: World, samples: int, seed: int) -> None:
        self.world, self.samples, self.seed = world, samples, seed
        self.dev: dict[Pair, float] = {}
        self.test: dict[Pair, float] = {}

    def add(self, weights: Weights, harness: Harness) -> None:
        pair = Pair(weights_id_of(weights), harness_of(source_of(harness)).harness_id)
        for split, scores in (("dev", self.dev), ("test", self.test)):
            if pair not in scores:
                found = evaluated(
                    self.world, weights, harness, pair, split, samples=self.samples, seed=self.seed
                )
                scores[pair] = found.mean

    @property
    def selected(self) -> Pair:
        return max(self.dev, key=lambda pair: self.dev[pair])  # of equal ones the first


def study(recipe: RunRecipe, seed: int) -> Study:
    """One run. Pure."""
    recipe = recipe.with_seed(seed)
    schedule, world = recipe.plan_schedule(), World.draw(seed)
    weights, harness = world.weights, world.harness
    entries, truths = list[Entry](), list[float]()
    scores = _Scores(world, recipe.dev.samples, seed)
    scores.add(weights, harness)
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
        if due_after(entries, following, recipe.dev.every()):
            scores.add(weights, harness)
        if following is None or following.number == 1:
            truths.append(truth(world, weights, harness))
            if move.kind == "search" and harness is not incoming:
                adopted += 1
                lucky += truths[-1] < truth(world, weights, incoming)
        move = following
    return Study(
        dev=scores.dev[scores.selected],
        selected_on_dev=scores.test[scores.selected],
        best_on_test=max(scores.test.values()),
        entries=tuple(entries),
        truths=tuple(truths),
        adopted=adopted,
        lucky=lucky,
    )
