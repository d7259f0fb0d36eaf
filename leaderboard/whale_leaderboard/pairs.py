"""The exact sign-flip test of two entries, as fast as a board of every pair needs it.

    p_value(a.means, b.means)

Means of 8 binary rewards are eighths, so that the sum of their differences under random signs has a
distribution over whole numbers, which is counted out: exact at any number of examples, and a hundredth of the
time of drawing signs. Where a difference is no eighth (a reward between 0 and 1), signs are drawn
(`whale_bench.statistics.sign_flip`).

Not covered: intervals, see `whale_bench.statistics.paired`.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from whale_bench.statistics import differences_of, sign_flip, signings
from whale_leaderboard.layout import K


def p_value(a: Sequence[float], b: Sequence[float]) -> float:
    """Of no mean difference between two entries' example means, two-sided."""
    differences = differences_of(a, b)
    eighths = K * np.array(differences)
    whole = np.rint(eighths)
    if np.any(np.abs(eighths - whole) > 1e-9):
        return sign_flip(differences).value
    return _exact(whole.astype(np.int64))


def _exact(differences: "np.ndarray[Any, Any]") -> float:
    """P(|sum of ± differences| >= |their sum|), every signing alike."""
    observed = abs(int(differences.sum()))
    if not observed:
        return 1.0
    sums, chances = signings(differences)
    # Both tails are alike, and sums stand two apart.
    return min(1.0, 2 * math.fsum(chances[(observed - int(sums[0])) // 2 :].tolist()))
