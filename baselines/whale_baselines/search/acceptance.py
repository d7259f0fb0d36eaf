"""Which harness a search goes on from: two rules, pure functions of what was scored.

    ruling = PaperRule().rule(incumbent, challengers, before=0)
    ruling.wanted                  # samples that it still needs, by harness_id; or, once it needs none,
    ruling.accepted                # who is the incumbent from now on; `ranking` has who is next

`PaperRule` keeps the highest mean of one rollout for each example; among equals the one with fewer mean
turns; the incumbent unless somebody is strictly better. It has no margin, so that the more candidates
there are, the surer one of them is lucky.

`PairedRule` compares each challenger with the incumbent on the same examples and seeds, first with one
rollout for each example, then with 2, 4, … `most_samples`, those of the incumbent once for all. After
each look a challenger is accepted (its p-value is within what this look may spend), dropped (it is not
promising), or sampled again.

Without a margin the p-value is that of the one-sided sign-flip test of example differences, counted
exactly: if both harnesses solve an example equally often, its difference has either sign with equal
chance. With a margin it is that of a bet: who stakes the same share of a purse on each example's
difference being above the margin gains nothing on average if the mean difference is the margin or less,
however it is spread over the examples, so a purse of 1 is a hundredfold one with a chance of 1% at most.
The bet is averaged over `STAKES` shares. It asks for a larger difference than sign flips do.

The chance that a phase accepts anything which is no better (by more than the margin) is at most
`false_accept`, by the union bound:
a challenger may spend `false_accept / planned / 2`, those beyond the planned ones half of that, and so
on, which sums to `false_accept` for any number of them and any rule for stopping; a challenger's share is
divided over its looks in proportion to their samples. That challengers share the incumbent's rollouts, or
that an incumbent was itself lucky, does not break the bound. Nor does dropping, which only loses power.

Not covered: candidates that are better on the search's examples alone, which `dev` tells.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from whale_baselines.search.recipe import SearchRecipe
from whale_bench.statistics import signings
from whale_envs.errors import UsageError

STAKES = 19
"""Shares of the purse that are bet, evenly spread over all that can be lost."""

PROMISING = 0.3
"""Largest p-value with which a challenger is sampled again after the first look; a half of it after the
second, a third after the third, and so on."""


class Tried(NamedTuple):
    """A harness as far as it was scored."""

    harness_id: str
    solved: Sequence[Sequence[bool]]
    """`solved[sample][example]`, over the same examples in the same order for all harnesses."""
    turns: float
    """Mean turns of a rollout."""

    @property
    def mean(self) -> float:
        """Mean success of the first sample."""
        return sum(self.solved[0]) / len(self.solved[0])


class Ruling(NamedTuple):
    """What a rule says; either it wants samples, or it has accepted."""

    ranking: tuple[str, ...]
    """`harness_id`s of all that may be accepted, best first; the incumbent is the last."""
    wanted: Mapping[str, int]
    """Samples for each example that a harness must have before the next look; empty when it is decided."""
    notes: Mapping[str, str]
    """What became of each challenger, a sentence."""

    @property
    def accepted(self) -> str:
        """`harness_id` of the incumbent from now on; the old one's while samples are wanted."""
        return self.ranking[0]


class Rule(Protocol):
    """How a harness is accepted."""

    def rule(self, incumbent: Tried, challengers: Sequence[Tried], *, before: int) -> Ruling:
        """Compares; asks for samples until it is decided. `before`: challengers of the phase so far.

        Raises:
            UsageError: they were not scored on equally many examples.
        """
        ...


def rule_of(recipe: SearchRecipe) -> Rule:
    """The rule that a recipe names."""
    if recipe.rule == "paper":
        return PaperRule()
    return PairedRule(recipe.false_accept, recipe.margin, recipe.most_samples, recipe.planned)


@dataclass(frozen=True, slots=True)
class PaperRule:
    """Highest single-sample mean; then fewer turns; then who was there first."""

    def rule(self, incumbent: Tried, challengers: Sequence[Tried], *, before: int) -> Ruling:  # noqa: ARG002
        everyone = [incumbent, *challengers]
        wanted = {one.harness_id: 1 for one in everyone if not one.solved}
        if wanted:
            return Ruling((incumbent.harness_id,), wanted, {})
        _check_same(everyone)
        ranked = sorted(everyone, key=lambda one: (-one.mean, one.turns))  # equals in their order
        names = [one.harness_id for one in ranked]
        better = names[: names.index(incumbent.harness_id)]
        notes = {
            one.harness_id: f"{one.mean - incumbent.mean:+.1%} against the incumbent, {one.turns:.2f} turns "
            f"against {incumbent.turns:.2f}"
            for one in challengers
        }
        return Ruling((*better, incumbent.harness_id), {}, notes)


@dataclass(frozen=True, slots=True)
class PairedRule:
    """See the module's docstring."""

    false_accept: float = 0.05
    margin: float = 0.0
    most_samples: int = 8
    planned: int = 15

    def rule(self, incumbent: Tried, challengers: Sequence[Tried], *, before: int) -> Ruling:
        found = _Looks(incumbent)
        for number, challenger in enumerate(challengers, start=before):
            self._look(challenger, self._share(number), found)
        if found.wanted:
            found.wanted = {
                name: count
                for name, count in found.wanted.items()
                if count > len(_of(name, incumbent, challengers).solved)
            }
            return Ruling((incumbent.harness_id,), found.wanted, found.notes)
        passed = sorted(found.passed, key=lambda name: -found.passed[name])
        return Ruling((*passed, incumbent.harness_id), {}, found.notes)

    def _look(self, challenger: Tried, share: float, found: "_Looks") -> None:
        """Goes through the looks from the first, as far as there are samples."""
        incumbent, samples = found.incumbent, 1
        while True:
            there = min(len(challenger.solved), len(incumbent.solved))
            if there < samples:
                found.want(challenger, samples)
                return
            _check_same([incumbent, challenger])
            differences = _differences(incumbent.solved[:samples], challenger.solved[:samples])
            mean = sum(differences) / len(differences) / samples
            p, hope = self._chances(differences, samples)
            what = f"{mean:+.1%} with {samples} each, p = {p:.2g}"
            if p <= self._spend(share, samples):
                found.passed[challenger.harness_id] = mean
                found.notes[challenger.harness_id] = f"better: {what}"
                return
            hopeless = hope > PROMISING / samples.bit_length()
            if hopeless or samples >= self.most_samples:
                word = "not promising" if hopeless else "not shown to be better"
                found.notes[challenger.harness_id] = f"{word}: {what}"
                return
            samples *= 2

    def _chances(self, differences: Sequence[int], samples: int) -> tuple[float, float]:
        """(p-value, about the same without its guarantee, which only tells what is worth more samples)."""
        if not self.margin:
            return (p := sign_flip_above(differences)), p
        above = [difference / samples - self.margin for difference in differences]
        spread = math.sqrt(math.fsum(one * one for one in above))
        return bet_above(differences, samples, self.margin), math.erfc(math.fsum(above) / spread / 2**0.5) / 2

    def _share(self, number: int) -> float:
        """What the phase's challenger of this number, from 0, may spend."""
        halvings = 1 + number // self.planned
        return self.false_accept / self.planned / math.ldexp(1.0, halvings)

    def _spend(self, share: float, samples: int) -> float:
        looks = [1 << power for power in range(self.most_samples.bit_length())]
        return share * samples / sum(looks)


@dataclass(slots=True)
class _Looks:
    """What is known after going through challengers."""

    incumbent: Tried
    wanted: dict[str, int] = field(default_factory=dict)
    passed: dict[str, float] = field(default_factory=dict)
    """By harness_id, by how much it is better."""
    notes: dict[str, str] = field(default_factory=dict)

    def want(self, challenger: Tried, samples: int) -> None:
        for one in (self.incumbent, challenger):
            self.wanted[one.harness_id] = max(samples, self.wanted.get(one.harness_id, 0))


def sign_flip_above(differences: Sequence[int]) -> float:
    """P-value against "no better": the chance of a sum this large if each difference's sign were a coin's.

    >>> sign_flip_above([1, 1, 1, 0, -1])
    0.3125
    """
    sums, chances = signings(differences)
    return min(1.0, float(chances[sums >= sum(differences)].sum()))


def bet_above(differences: Sequence[int], samples: int, margin: float) -> float:
    """P-value against "on average, by the margin at most better".

    Args:
        differences: of each example, over all samples.
        samples: rollouts of each.
        margin: a fraction above 0.

    >>> round(bet_above([1] * 30 + [0] * 70, 1, 0.1), 5), bet_above([1] * 10 + [0] * 90, 1, 0.1)
    (0.00011, 1.0)
    """
    counts = Counter(differences)
    worst = 1 + margin
    purses = [
        math.fsum(n * math.log1p(share * (value / samples - margin)) for value, n in counts.items())
        for share in (number / (STAKES + 1) / worst for number in range(1, STAKES + 1))
    ]
    most = max(purses)
    purse = most + math.log(math.fsum(math.exp(one - most) for one in purses) / STAKES)
    return min(1.0, math.exp(-purse))


def _differences(before: Sequence[Sequence[bool]], after: Sequence[Sequence[bool]]) -> list[int]:
    """Of each example, over all samples."""
    return [sum(b) - sum(a) for a, b in zip(zip(*before, strict=True), zip(*after, strict=True), strict=True)]


def _of(name: str, incumbent: Tried, challengers: Sequence[Tried]) -> Tried:
    return next(one for one in (incumbent, *challengers) if one.harness_id == name)


def _check_same(everyone: Sequence[Tried]) -> None:
    sizes = {len(row) for one in everyone for row in one.solved}
    if len(sizes) != 1 or 0 in sizes:
        raise UsageError(f"a rule compares harnesses on the same examples, got {sorted(sizes)} of them")
