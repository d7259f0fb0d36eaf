"""What scoring keeps of a run's rollouts: two numbers of each, and sums, however many there are.

    tally = Tally(keys, "standard")
    tally.add(outcome)                          # once each, in any order
    tally.mean, "test:a:0" in tally
    tally.rewards()                             # of the finished rollouts, by example

Sums are exact, so that a run that was resumed comes to the same numbers as one that was not.

Not covered: scores and intervals, see `scoring.py`.
"""

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction

from whale_bench.keys import Keys
from whale_bench.outcomes import Outcome, SkimmedLine

_MISSING = math.nan
_SAME, _DIFFERENT = 1, 2
"""What is known of the sampled texts of an example that has some."""


class Sum:
    """An exact sum of finite numbers, most of them whole."""

    __slots__ = ("_parts", "_whole", "count")

    def __init__(self) -> None:
        self.count = 0
        self._whole, self._parts = 0, Fraction()

    def add(self, value: float) -> None:
        self.count += 1
        whole = int(value)
        if whole == value:
            self._whole += whole
        else:
            self._parts += Fraction(value)

    @property
    def total(self) -> float:
        """Rounded once, as `math.fsum` does."""
        return float(self._whole + self._parts) if self._parts else float(self._whole)

    @property
    def mean(self) -> float:
        return self.total / self.count


class Tally:
    """The finished rollouts of a run.

    Args:
        keys: of all its rollouts.
        profile: whose reward a rollout has; the other profile's is kept beside it.
    """

    def __init__(self, keys: Keys, profile: str) -> None:
        self.keys = keys
        self.other = "paper" if profile == "standard" else "standard"
        """The other profile."""
        self.rollouts = 0
        self.diverged = 0
        """Rollouts whose reward under the other profile is unknown."""
        self.truncated = 0
        self.metered = True
        self.prompt_tokens: int | None = 0
        self.sampled_tokens: int | None = 0
        """Sums; None where one rollout's are unknown."""
        self.stop_conditions: Counter[str] = Counter()
        self.metrics: dict[str, Sum] = {}
        self.solved = array("L", [0]) * len(keys.examples)
        """Finished rollouts that solved it, of each example."""
        self._sum = Sum()
        self._rewards = array("d", [_MISSING]) * len(keys)
        self._others = array("d", [_MISSING]) * len(keys)
        self._texts = array("q", [0]) * len(keys.examples)
        """Hash of the first sampled texts of an example."""
        self._alike = bytearray(len(keys.examples))

    def add(self, outcome: Outcome | SkimmedLine) -> bool:
        """Counts a rollout; False of one of another run, or that was counted before, which is left out."""
        place = self.keys.place(outcome.key)
        if place is None or not math.isnan(self._rewards[place]):
            return False
        verdict, example = outcome.verdict, place // self.keys.k
        self.rollouts += 1
        self._rewards[place] = verdict.reward
        self._sum.add(verdict.reward)
        self.solved[example] += verdict.correct
        other: float | None = getattr(verdict, self.other)
        if other is None:
            self.diverged += 1
        else:
            self._others[place] = other
        self.truncated += outcome.truncated
        self.metered = self.metered and outcome.metered
        self.prompt_tokens = _plus(self.prompt_tokens, outcome.prompt_tokens)
        self.sampled_tokens = _plus(self.sampled_tokens, outcome.sampled_tokens)
        self.stop_conditions[outcome.stop_condition] += 1
        metrics = self.metrics
        for name, value in outcome.metrics.items():
            if name not in metrics:
                metrics[name] = Sum()
            metrics[name].add(value)
        alike = self._alike[example]
        if not alike:
            self._texts[example], self._alike[example] = outcome.texts, _SAME
        elif alike == _SAME and self._texts[example] != outcome.texts:
            self._alike[example] = _DIFFERENT
        return True

    def __contains__(self, key: str) -> bool:
        place = self.keys.place(key)
        return place is not None and not math.isnan(self._rewards[place])

    @property
    def mean(self) -> float | None:
        """The mean reward of the finished rollouts; None without any."""
        return self._sum.mean if self.rollouts else None

    def missing(self) -> Iterator[str]:
        """Keys of the rollouts that are not there; of those added meanwhile, only what it has come to."""
        return (key for key, reward in zip(self.keys, self._rewards, strict=True) if math.isnan(reward))

    def rewards(self) -> list[list[float]]:
        """Of the finished rollouts of each example, in the order of the keys."""
        return self._by_example(self._rewards)

    def others(self) -> list[list[float]]:
        """Likewise under the other profile, as far as it can be told."""
        return self._by_example(self._others)

    def repeats_itself(self) -> bool:
        """Whether each example with two rollouts or more has equal texts in all of them."""
        several = [alike for alike, found in zip(self._alike, self.rewards(), strict=True) if len(found) > 1]
        return bool(several) and all(alike == _SAME for alike in several)

    def _by_example(self, values: "array[float]") -> list[list[float]]:
        k = self.keys.k
        rows = (values[at : at + k] for at in range(0, len(values), k))
        return [[value for value in row if not math.isnan(value)] for row in rows]


def tallied(outcomes: Iterable[Outcome], keys: Keys, profile: str) -> Tally:
    tally = Tally(keys, profile)
    for outcome in outcomes:
        tally.add(outcome)
    return tally


def _plus(total: int | None, count: int | None) -> int | None:
    return None if total is None or count is None else total + count
