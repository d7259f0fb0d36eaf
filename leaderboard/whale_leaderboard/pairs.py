"""Compares every two entries of a track, as fast as a board of thousands of pairs needs it.

    for a, b, compared in compare_all([report.means for report in reports]): ...

Means of 8 binary rewards are eighths, so that a pair is known by how often each of the 17 possible
differences occurs: its mean and interval, and the exact distribution of the sum under random signs, which is
counted out at any number of examples, a hundredth of the time of drawing signs. Where a mean is no eighth (a
reward between 0 and 1), pairs are compared one by one and signs are drawn.

Not covered: more than two entries at once, see `ranking.py`.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from whale_bench.statistics import (
    Difference,
    chances_of_plus,
    differences_of,
    paired,
    paired_of,
    sign_flip,
)
from whale_leaderboard.layout import K

_VALUES = 2 * K + 1
_DIFFERENCES = [eighths / K for eighths in range(-K, K + 1)]


class Compared(NamedTuple):
    """Two entries on the same examples; the difference is the first's less the second's."""

    difference: Difference
    p_value: float
    """Of no difference, two-sided."""


def compare_all(means: Sequence[Sequence[float]]) -> Iterator[tuple[int, int, Compared]]:
    """(i, j, comparison) of every two entries i < j, by their example means.

    Raises:
        UsageError: they are not of the same examples.
    """
    whole = _eighths(means)
    if whole is None:
        for i, j in combinations(range(len(means)), 2):
            signs = sign_flip(differences_of(means[j], means[i]))
            yield i, j, Compared(paired(means[j], means[i]), signs.value)
        return
    for i, row in enumerate(whole):
        bins = row - whole[i + 1 :] + K + _VALUES * np.arange(len(whole) - i - 1)[:, None]
        counts = np.bincount(bins.ravel(), minlength=_VALUES * len(bins)).reshape(-1, _VALUES)
        for j, found in enumerate(counts.tolist(), start=i + 1):
            yield i, j, _compared(found)


def _eighths(means: Sequence[Sequence[float]]) -> "np.ndarray[tuple[int, int], np.dtype[np.int64]] | None":
    """The means times `K`, an entry a row; None where one is not whole."""
    if len({len(row) for row in means}) != 1:
        return None
    table = K * np.array(means)
    whole = table.astype(np.int64)
    return whole if np.array_equal(whole, table) else None


def _compared(counts: Sequence[int]) -> Compared:
    """Of how often there is each of `_DIFFERENCES`."""
    found = {value: count for value, count in zip(_DIFFERENCES, counts, strict=True) if count}
    return Compared(paired_of(found), _p_value(counts))


def _p_value(counts: Sequence[int]) -> float:
    """P(|sum of ± differences| >= |their sum|), every signing alike."""
    sizes = [minus + plus for minus, plus in zip(counts[K - 1 :: -1], counts[K + 1 :], strict=True)]
    observed = abs(sum(eighths * count for eighths, count in enumerate(counts, start=-K)))
    if not observed:
        return 1.0
    chances = chances_of_plus(sizes)
    # Both tails are alike, and sums stand two apart.
    return min(1.0, 2 * math.fsum(chances[(observed + len(chances) - 1) // 2 :].tolist()))
