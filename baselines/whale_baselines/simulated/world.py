"""A small stochastic model of weights and a harness whose success depends on how they fit together.

    world = World.draw(seed=0)
    weights, harness = world.weights, world.harness             # where every method begins
    weights, reward = train(world, weights, harness, rng, prompts=256, samples=8)
    score(world, weights, propose(harness, rng), rng, split="harness", samples=1)

A harness opens mechanisms (a tool, a retry, a check), each from 0 to 1, and may carry defects. The
weights have a general skill and, for each mechanism, the skill to use it. The log-odds of solving an
example are

    bias + general + sum over mechanisms of open * (worth * skill - cost) - defects - difficulty

so a mechanism that the weights cannot use is only a cost, and a skill without its mechanism is worth
nothing. Training is rejection sampling: it learns from rollouts that sometimes succeed, by the share of
them, and raises the skills whose mechanisms are open; those of closed ones fade. Search knows nothing of
all this: it changes a mechanism or two at random, now and then breaks something, and sees scores of
single rollouts on a fixed set of examples.

No schedule is named in here. What a schedule does to a run comes of these rules and of sampling noise.

Not covered: tokens, time, transfer between domains, several harnesses at once.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from whale_envs.seeding import derive_seed

Array = npt.NDArray[np.float64]

# Chosen so that the paper's qualitative findings come out at its budgets; they measure nothing.
MECHANISMS = 6
"""Of a harness."""
EXAMPLES = {"weight": 18_944, "harness": 256, "dev": 256, "test": 700}
"""By split; SearchQA's, with a whole number of steps in an epoch."""
BIAS = -2.2
"""Log-odds of an example of middling difficulty, before anything is learned or opened."""
SPREAD = 2.0
"""Standard deviation of the examples' difficulty, in log-odds."""
GENERAL = 0.4
"""What the general skill adds to the log-odds when it is complete."""
LEARN, LEARN_GENERAL = 0.8, 0.15
"""Share of what is left to learn that a step learns when every example's rewards are mixed evenly; of a
mechanism, when it is open."""
FADE = 0.1
"""Share of a closed mechanism's skill that a step loses when all its rollouts are accepted."""
TOUCHES = 0.3
"""Chance that a candidate changes a second mechanism."""
BREAKS, DEFECT = 0.85, 0.5
"""Chance that a candidate has a defect of its own, and its mean size; it is rid of part of the old ones."""


class Weights(NamedTuple):
    """What is trained."""

    general: float
    skills: tuple[float, ...]


class Harness(NamedTuple):
    """What is searched."""

    mechanisms: tuple[float, ...]
    defects: float = 0.0


@dataclass(frozen=True, slots=True)
class World:
    """What neither operator knows. `worth`, `cost`: (mechanisms,); `difficulty`: (examples,) by split."""

    worth: Array
    cost: Array
    difficulty: dict[str, Array]
    weights: Weights
    harness: Harness

    @classmethod
    def draw(cls, seed: int) -> "World":
        """The world of a seed; the same for every method."""
        rng = np.random.default_rng(derive_seed("simulated/world", seed))
        return cls(
            worth=rng.lognormal(0.1, 0.4, MECHANISMS),
            cost=rng.uniform(0.05, 0.3, MECHANISMS),
            difficulty={split: rng.normal(0.0, SPREAD, count) for split, count in EXAMPLES.items()},
            weights=Weights(0.0, tuple(rng.beta(2.0, 5.0, MECHANISMS).tolist())),
            harness=Harness(tuple((rng.uniform(0.0, 1.0, MECHANISMS) ** 3).tolist())),
        )


def log_odds(world: World, weights: Weights, harness: Harness) -> float:
    """Of an example of middling difficulty."""
    opened, skills = np.array(harness.mechanisms), np.array(weights.skills)
    used = float(opened @ (world.worth * skills - world.cost))
    return BIAS + GENERAL * weights.general + used - harness.defects


def chances(world: World, weights: Weights, harness: Harness, split: str) -> Array:
    """Chance of success on each example of a split."""
    return 1.0 / (1.0 + np.exp(world.difficulty[split] - log_odds(world, weights, harness)))


def truth(world: World, weights: Weights, harness: Harness, split: str = "test") -> float:
    """The score that infinitely many rollouts would have."""
    return float(chances(world, weights, harness, split).mean())


def score(
    world: World, weights: Weights, harness: Harness, rng: np.random.Generator, *, split: str, samples: int
) -> Array:
    """Mean reward of `samples` rollouts on each example of a split."""
    return rng.binomial(samples, chances(world, weights, harness, split)) / samples


def train(
    world: World,
    weights: Weights,
    harness: Harness,
    rng: np.random.Generator,
    *,
    prompts: int,
    samples: int,
) -> tuple[Weights, float]:
    """The weights after a step, and the mean reward of its rollouts. Pure but for `rng`."""
    drawn = rng.choice(world.difficulty["weight"], prompts)
    chance = 1.0 / (1.0 + np.exp(drawn - log_odds(world, weights, harness)))
    rewards = rng.binomial(samples, chance) / samples
    accepted = float(rewards.mean())
    mixed = 4.0 * float((rewards * (1.0 - rewards)).mean())  # nothing is learned from all or none
    opened, skills = np.array(harness.mechanisms), np.array(weights.skills)
    skills = skills + LEARN * mixed * opened * (1.0 - skills) - FADE * accepted * (1.0 - opened) * skills
    general = weights.general + LEARN_GENERAL * mixed * (1.0 - weights.general)
    return Weights(general, tuple(skills.tolist())), accepted


def propose(harness: Harness, rng: np.random.Generator) -> Harness:
    """A candidate: a mechanism or two of its parent changed, and perhaps something broken or mended."""
    opened = list(harness.mechanisms)
    for _ in range(1 + (rng.random() < TOUCHES)):
        at = int(rng.integers(MECHANISMS))
        opened[at] = min(1.0, max(0.0, opened[at] + rng.uniform(-0.5, 0.8)))
    defects = harness.defects
    if rng.random() < BREAKS:
        defects = defects * rng.random() + rng.exponential(DEFECT)
    return Harness(tuple(opened), defects)
