"""Scores, intervals and paired comparisons: pure functions of rewards.

    >>> mean_at_k([[1, 1], [0, 1]]).mean
    0.75
    >>> paired([0.0, 0.5, 0.25], [0.5, 1.0, 0.25]).mean
    0.3333333333333333

An example is the unit: the k samples of one example are not k examples, so every interval is one over
example means, and two runs are compared by the differences of their means on the same examples.
docs/statistics.md has the formulas and where they come from.

Not covered: corrections for many comparisons, more than two runs at once.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, repeat
from typing import Any, TypeVar

import msgspec
import numpy as np

from whale_envs.errors import UsageError
from whale_envs.seeding import derive_seed

BOOTSTRAP_DRAWS = 10_000
"""Resamples of a bootstrap interval."""

SIGN_FLIP_DRAWS = 100_000
"""Random signings of a Monte Carlo p-value; the smallest it can be is one in 100,001."""

_EXACT_UP_TO = 20
"""Differences whose 2**n signings are all counted."""

_CELLS = 1_000_000
"""Numbers that a bootstrap holds at once."""

_T_TABLE = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)


class Score(msgspec.Struct, frozen=True):
    """A mean of example means, in [0, 1]."""

    mean: float
    stderr: float
    """Standard error, clustered by example; 0 for one example, whose spread is unknown."""
    low: float
    high: float
    """95% interval within [0, 1], by Student's t over the example means. Where these are all equal it
    would have no width: the exact bound on how many other examples may differ stands in."""


class Difference(msgspec.Struct, frozen=True):
    """The mean over examples of b's mean less a's, in [-1, 1]."""

    examples: int
    mean: float
    stderr: float
    """Standard error of the mean difference; 0 for one example, whose spread is unknown."""
    low: float
    high: float
    """95% interval within [-1, 1]; where all differences are equal, as for `Score`."""


class PValue(msgspec.Struct, frozen=True):
    """Two-sided: the chance of a mean difference this large if each example's sign were a coin's."""

    value: float
    """In (0, 1]."""
    exact: bool
    """True where all signings were counted, False where they were drawn."""


def mean_at_k(rewards: Sequence[Sequence[float]]) -> Score:
    """The score of `rewards[example][sample]`; every example must have the same k >= 1 samples.

    Raises:
        UsageError: no example, no sample, or unequal numbers of samples.
    """
    counts = {len(samples) for samples in rewards}
    if len(counts) != 1 or 0 in counts:
        raise UsageError(
            f"mean@k needs the same number of samples for every example, got {sorted(counts) or 'none'}"
        )
    return score_of([math.fsum(samples) / len(samples) for samples in rewards])


def score_of(means: Sequence[float]) -> Score:
    """The score of example means, each in [0, 1].

    Raises:
        UsageError: there are none.
    """
    return Score(*_estimated(Counter(means), 0.0))


def paired(a: Sequence[float], b: Sequence[float]) -> Difference:
    """How much better b is than a: `a[i]` and `b[i]` are means in [0, 1] of the same example.

    Raises:
        UsageError: no example, or `len(a) != len(b)`.
    """
    return paired_of(Counter(differences_of(a, b)))


def paired_of(differences: Mapping[float, int]) -> Difference:
    """`paired` where only how often there is each difference is at hand.

    Raises:
        UsageError: there are none.
    """
    return Difference(sum(differences.values()), *_estimated(differences, -1.0))


def differences_of(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """`b[i] - a[i]`.

    Raises:
        UsageError: `len(a) != len(b)`.
    """
    if len(a) != len(b):
        raise UsageError(f"a comparison is of the same examples, got {len(a)} and {len(b)}")
    return [after - before for before, after in zip(a, b, strict=True)]


ResultT = TypeVar("ResultT", Score, Difference)


def bootstrapped(result: ResultT, values: Sequence[float], *, seed: int = 0) -> ResultT:
    """`result` with the percentile bootstrap's 95% interval in place of Student's.

    Examples are drawn again with replacement, `BOOTSTRAP_DRAWS` times. Values that are all equal, or
    one alone, draw only themselves: `result` stays as it is.

    Args:
        result: the `Score` or `Difference` of `values`.
        values: example means, or their differences.
        seed: of the draws; equal seeds give equal intervals.
    """
    counts = Counter(values)
    if len(counts) < 2:
        return result
    found = np.concatenate(list(_resampled_means(counts, seed)))
    low, high = np.quantile(found, (0.025, 0.975))
    return msgspec.structs.replace(result, low=float(low), high=float(high))


def sign_flip(differences: Sequence[float], *, seed: int = 0) -> PValue:
    """The sign-flip permutation test of a mean difference of 0, two-sided.

    Up to 20 differences that are not 0 every signing is counted. Beyond, `SIGN_FLIP_DRAWS` are drawn,
    and the observed one counts as one of them, so that the value is never 0. Without a difference, or
    with one example, the value is 1.
    """
    sizes = Counter(round(abs(d), 12) for d in differences if d)
    # A rounding error must not make an equal sum a smaller one.
    observed = abs(math.fsum(differences)) - 1e-9
    if sizes.total() <= _EXACT_UP_TO:
        sums = np.zeros(1)
        for size in sizes.elements():
            sums = np.concatenate([sums + size, sums - size])
        return PValue(float(np.mean(np.abs(sums) >= observed)), exact=True)
    random = np.random.default_rng(derive_seed("sign-flip", seed))
    drawn = np.zeros(SIGN_FLIP_DRAWS)
    for size, n in sorted(sizes.items()):  # n signs of one size: only how many are plus matters
        drawn += size * (2.0 * random.binomial(n, 0.5, SIGN_FLIP_DRAWS) - n)
    as_large = int(np.count_nonzero(np.abs(drawn) >= observed))
    return PValue((as_large + 1) / (SIGN_FLIP_DRAWS + 1), exact=False)


def signings(
    differences: "Sequence[int] | np.ndarray[Any, Any]",
) -> tuple["np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]:
    """(sums, chances): every sum of whole numbers under random signs, ascending, and how likely it is.

    Exact at any number of them, for only how many of one size are plus matters.

    >>> sums, chances = signings([1, 1])
    >>> sums.tolist(), chances.tolist()
    ([-2, 0, 2], [0.25, 0.5, 0.25])
    """
    counts = np.bincount(np.abs(np.asarray(differences, np.int64)))
    plus = chances_of_plus(counts[1:].tolist())
    return 2 * np.arange(len(plus)) - (len(plus) - 1), plus


def chances_of_plus(counts: Iterable[int]) -> "np.ndarray[Any, Any]":
    """Chance of each sum of those numbers that random signs leave positive, from 0 up.

    Args:
        counts: how many numbers there are of the size 1, of 2, and so on.
    """
    plus = np.ones(1)
    for size, n in enumerate(counts, start=1):
        if n:
            plus = np.convolve(plus, _of_plus(size, n))
    return plus


@lru_cache(maxsize=4096)
def _of_plus(size: int, n: int) -> "np.ndarray[Any, Any]":
    """Chance of each sum of those of n numbers of this size that are taken with a plus."""
    chances = np.zeros(size * n + 1)
    chances[::size] = [math.comb(n, k) / 2**n for k in range(n + 1)]
    chances.setflags(write=False)
    return chances


def t_quantile(df: int) -> float:
    """97.5% quantile of Student's t with `df` >= 1 degrees of freedom, to three decimals."""
    if df <= len(_T_TABLE):
        return _T_TABLE[df - 1]
    z = 1.959963984540054  # the normal distribution's, corrected by Cornish and Fisher's expansion
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return math.fsum(term / df**power for power, term in enumerate(terms))


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased chance that one of k samples is right, from c right of n (Chen et al. 2021).

    Raises:
        UsageError: k is more than n, or the numbers make no sense.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise UsageError(f"pass@k needs 0 <= c <= n and 1 <= k <= n, got n={n}, c={c}, k={k}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def _estimated(counts: Mapping[float, int], least: float) -> tuple[float, float, float, float]:
    """(mean, standard error, 95% interval) of values in [least, 1], by how often there is each."""
    n = sum(counts.values())
    if not n:
        raise UsageError("a mean over no examples has no value")
    if len(counts) == 1:  # equal values differ from their rounded mean
        (mean,), stderr = counts, 0.0
    else:
        mean = _total(counts, counts) / n
        squares = [(value - mean) ** 2 for value in counts]
        stderr = math.sqrt(_total(squares, counts) / (n - 1) / n)
    return mean, stderr, *_interval(n, mean, stderr, least)


def _interval(n: int, mean: float, stderr: float, least: float) -> tuple[float, float]:
    """95% interval of a mean of n values in [least, 1]."""
    if n == 1:
        return least, 1.0
    if stderr > 0.0:
        half = t_quantile(n - 1) * stderr
        return max(least, mean - half), min(1.0, mean + half)
    # Had more than `others` of all examples another value, one would have been met but for 2.5%.
    others = 1.0 - 0.025 ** (1 / n)
    return mean - others * (mean - least), mean + others * (1.0 - mean)


def _total(values: Iterable[float], counts: Mapping[float, int]) -> float:
    """Sum of values, each of which stands for as many as its count; rounded once."""
    return math.fsum(chain.from_iterable(map(repeat, values, counts.values())))


def _resampled_means(
    counts: Counter[float], seed: int
) -> Iterator["np.ndarray[tuple[int], np.dtype[np.float64]]"]:
    """Means of resamples: examples of equal value are drawn as one, by how often."""
    random = np.random.default_rng(derive_seed("bootstrap", seed))
    ordered = sorted(counts)
    values, n = np.array(ordered), counts.total()
    shares = np.array([counts[value] / n for value in ordered])
    rows = max(1, _CELLS // len(ordered))
    for begin in range(0, BOOTSTRAP_DRAWS, rows):
        draws = random.multinomial(n, shares, min(rows, BOOTSTRAP_DRAWS - begin))
        yield draws @ values / n
