"""Score against spent rollouts: a step curve that never says more than was measured.

    curve = Curve([Point(2_048, 0.10), Point(4_096, 0.25)])
    curve.score_at(4_000)                               # 0.10: the second point was not there yet
    curve.rollouts_to(0.2), curve.area(10_000)

A point is an agent that was evaluated once so many rollouts had been charged, the evaluation's own
included where it counts (`dev` does). Between points nothing was measured, so the curve keeps the last
best value: never a line between two points, never a value before its point. Before the first point there
is no score, and the area counts 0 there.

Not covered: intervals of a point's score, which its evaluation has.
"""

import math
from collections.abc import Sequence

import msgspec

from whale_envs.errors import UsageError


class Point(msgspec.Struct, frozen=True, order=True):
    """An evaluated agent."""

    rollouts: int
    """Charged when its score was known."""
    score: float
    """mean@k, a fraction."""
    weights_id: str = ""
    harness_id: str = ""


class Curve:
    """The best score known at each budget.

    Args:
        points: in any order.

    Raises:
        UsageError: a point has negative rollouts, or a score outside [0, 1].
    """

    def __init__(self, points: Sequence[Point]) -> None:
        for point in points:
            if point.rollouts < 0 or not 0.0 <= point.score <= 1.0:
                raise UsageError(
                    f"a point needs rollouts from 0 and a score from 0 to 1, got {point.rollouts} "
                    f"and {point.score}"
                )
        self.points = tuple(sorted(points, key=lambda p: (p.rollouts, -p.score)))
        self.steps: tuple[Point, ...] = _rises(self.points)
        """Points that were better than all before them."""

    def score_at(self, rollouts: int) -> float | None:
        """The best score known after so many rollouts; None before the first point."""
        known = [step.score for step in self.steps if step.rollouts <= rollouts]
        return known[-1] if known else None

    def rollouts_to(self, score: float) -> int | None:
        """Rollouts after which a score of at least this was known; None if it never was."""
        return next((step.rollouts for step in self.steps if step.score >= score), None)

    def rollouts_to_best(self) -> int | None:
        """Rollouts to the best score, the first time; None without a point."""
        return self.steps[-1].rollouts if self.steps else None

    def area(self, budget: int) -> float:
        """Mean over [0, budget] of the best known score, 0 before the first point.

        Raises:
            UsageError: the budget is not positive.
        """
        if budget <= 0:
            raise UsageError(f"an area needs a budget of at least 1 rollout, got {budget}")
        inside = [step for step in self.steps if step.rollouts < budget]
        ends = [step.rollouts for step in (*inside[1:], Point(budget, 0.0))] if inside else []
        parts = [step.score * (end - step.rollouts) for step, end in zip(inside, ends, strict=True)]
        return math.fsum(parts) / budget


def _rises(points: Sequence[Point]) -> tuple[Point, ...]:
    found: list[Point] = []
    for point in points:
        if not found or point.score > found[-1].score:
            found.append(point)
    return tuple(found)
