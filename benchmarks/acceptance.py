"""What the acceptance rules accept and cost, on simulated harnesses whose true success is known.

    python benchmarks/acceptance.py                    # the table of docs/harness_search.md
    python benchmarks/acceptance.py --repeats 200      # quicker, coarser

A harness is a chance of success for each of 256 examples, drawn from Beta(a, b) with mean `p`. All
candidates of a phase have the incoming harness's chances ("equal"), or one of them, at a random place,
has 5 points more on average. With a margin of 2 points all have 2 points more than the incoming one, which
is no better by the margin, and the special one 10. A phase has 5 iterations of 3 candidates. Counted:
phases that accept anything that is no better than what it replaces (false), phases that accept the better
one and end with it (power), and rollouts. The "optimism" is the mean score by which a rule believes its
accepted harness better than the incoming one, less what it is.
"""

import argparse
import math
from typing import NamedTuple

import numpy as np
from whale_baselines.search.acceptance import PairedRule, PaperRule, Rule, Tried

EXAMPLES, ITERATIONS, SLOTS = 256, 5, 3
MARGIN = 0.02
SPREAD = 2.0
"""a + b of the Beta distribution: 2 is a broad one, as of puzzles of all ratings."""


class Outcome(NamedTuple):
    false: bool
    found: bool
    rollouts: int
    optimism: float


class Harness:
    """Chances of success, and samples drawn from them as they are asked for."""

    def __init__(self, name: str, chances: "np.ndarray", random: "np.random.Generator") -> None:
        self.name, self.chances, self.random = name, chances, random
        self.rows: list[list[bool]] = []

    def sample(self, count: int) -> None:
        while len(self.rows) < count:
            self.rows.append((self.random.random(len(self.chances)) < self.chances).tolist())

    @property
    def tried(self) -> Tried:
        return Tried(self.name, self.rows, 1.0)


def better(chances: "np.ndarray", by: float) -> "np.ndarray":
    """The same examples, on average `by` easier, by a shift of the log odds."""
    odds = np.log(chances / (1 - chances))
    low, high = 0.0, 10.0
    for _ in range(50):
        middle = (low + high) / 2
        shifted = 1 / (1 + np.exp(-odds - middle))
        low, high = (middle, high) if shifted.mean() < chances.mean() + by else (low, middle)
    return shifted


def phase(rule: Rule, p: float, gain: float, margin: float, random: "np.random.Generator") -> Outcome:
    chances = np.clip(random.beta(SPREAD * p, SPREAD * (1 - p), EXAMPLES), 1e-6, 1 - 1e-6)
    special = int(random.integers(ITERATIONS * SLOTS)) if gain else -1
    usual = better(chances, margin) if margin else chances
    first = incumbent = Harness("incoming", chances, random)
    everyone, false = [incumbent], False
    for iteration in range(ITERATIONS):
        numbers = range(iteration * SLOTS, (iteration + 1) * SLOTS)
        made = [Harness(str(n), better(chances, gain) if n == special else usual, random) for n in numbers]
        everyone += made
        named = {one.name: one for one in (incumbent, *made)}
        for one in named.values():
            one.sample(1)
        while True:
            ruling = rule.rule(incumbent.tried, [one.tried for one in made], before=iteration * SLOTS)
            if not ruling.wanted:
                break
            for name, count in ruling.wanted.items():
                named[name].sample(count)
        after = named[ruling.accepted]
        worth = incumbent.chances.mean() + margin + 1e-9
        false |= after is not incumbent and bool(after.chances.mean() <= worth)
        incumbent = after
    shared = min(len(incumbent.rows), len(first.rows))
    believed = float(np.mean(incumbent.rows[:shared]) - np.mean(first.rows[:shared]))
    truth = float(incumbent.chances.mean() - first.chances.mean())
    rollouts = sum(len(one.rows) for one in everyone) * EXAMPLES
    return Outcome(false, incumbent.name == str(special), rollouts, believed - truth)


def row(name: str, rule: Rule, p: float, gain: float, *, margin: float = 0.0, repeats: int, seed: int) -> str:
    random = np.random.default_rng(seed)
    found = [phase(rule, p, gain, margin, random) for _ in range(repeats)]
    false = sum(one.false for one in found) / repeats
    error = math.sqrt(max(false * (1 - false), 1 / repeats) / repeats)
    power = f"{sum(one.found for one in found) / repeats:.1%}" if gain else "-"
    rollouts = sum(one.rollouts for one in found) / repeats
    optimism = 100 * sum(one.optimism for one in found) / repeats
    usual = f"all {100 * margin:g} points better" if margin else "all equal"
    case = f"one is {100 * gain:g} points better" if gain else usual
    return (
        f"| {name} | {p:.0%} | {case} | {false:.1%} ± {error:.1%} | {power} | {rollouts:,.0f} "
        f"| {optimism:+.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rules = {
        "`paper`": PaperRule(),
        "`paired`": PairedRule(),
        "`paired`, 32 samples": PairedRule(most_samples=32),
    }
    print("| Rule | p | Candidates | False accepts | Power | Rollouts | Optimism, points |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for p in (0.1, 0.4):
        for gain in (0.0, 0.05):
            for name, rule in rules.items():
                print(row(name, rule, p, gain, repeats=asked.repeats, seed=asked.seed), flush=True)
    careful = PairedRule(margin=MARGIN)
    for p in (0.1, 0.4):
        for gain in (0.0, 0.1):
            name = "`paired`, margin 2 points"
            found = row(name, careful, p, gain, margin=MARGIN, repeats=asked.repeats, seed=asked.seed)
            print(found, flush=True)


if __name__ == "__main__":
    main()
