"""Score against rollouts as an SVG: a stair for each run, and the mean of each recipe's seeds.

    chart([Curve(0, 0, points), Curve(0, 1, others)], ["whale"])

A curve is a stair, as a score holds from its evaluation on. The abscissa is what had been charged outside
test. The mean begins where all seeds have a score and ends where the first of them ends. A recipe is told by
the colour of its line and by its dashes.

Not covered: the legend and the numbers, see `comparison_page.py`; colours, see `static/comparison.css`.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from whale_baselines.curves import CurvePoint, score_at
from whale_baselines.page import text

WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM, TOP = 860, 380, 48, 24, 48, 14
STYLES = 6
"""Styles of lines; a seventh recipe begins again."""


class Curve(NamedTuple):
    """One run's."""

    row: int
    """Of the recipes."""
    seed: int
    points: list[CurvePoint]


class _Axes(NamedTuple):
    """From rollouts and scores to places in the drawing."""

    most: int
    """Rollouts at the right edge."""
    top: float
    """Score at the upper edge."""

    def x(self, rollouts: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * rollouts / self.most

    def y(self, mean: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * mean / self.top

    def stair(self, points: Sequence[tuple[int, float]], style: str) -> str:
        corners, height = [], None
        for rollouts, mean in points:
            if height is not None:
                corners.append(f"{self.x(rollouts):.1f},{height:.1f}")
            height = self.y(mean)
            corners.append(f"{self.x(rollouts):.1f},{height:.1f}")
        return f'<polyline class="curve {style}" points="{" ".join(corners)}"/>'

    def grid(self) -> Iterator[str]:
        for mean in (self.top * step / 5 for step in range(6)):
            at = self.y(mean)
            yield f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
            yield f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{mean:.0%}</text>'
        for rollouts in ticks(self.most):
            place = f'x="{self.x(rollouts):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle"'
            yield f"<text {place}>{rollouts:,}</text>"
        yield f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end">rollouts outside test</text>'


def chart(curves: Sequence[Curve], names: Sequence[str]) -> str:
    """The drawing; `names` are the recipes'."""
    points = [point for curve in curves for point in curve.points]
    top = max((point.score.mean for point in points), default=0.0) or 1.0
    most = max((point.rollouts for point in points), default=0) or 1
    axes = _Axes(most, min(1.0, math.ceil(top * 10) / 10))
    by_row: dict[int, list[Curve]] = {}
    for curve in curves:
        by_row.setdefault(curve.row, []).append(curve)
    lines, means = [], []
    for row, some in by_row.items():
        style = f"s{row % STYLES}"
        if len(some) > 1:
            means.append(axes.stair(mean_curve(some), f"{style} mean"))
        for curve in some:
            stair = [(point.rollouts, point.score.mean) for point in curve.points]
            lines.append(axes.stair(stair, f"{style} seed" if len(some) > 1 else style))
    label = f"Score on dev against rollouts of {text(', '.join(names))}; the numbers stand below"
    start = f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
    return "".join([start, *axes.grid(), *lines, *means, "</svg>"])


def mean_curve(curves: Sequence[Curve]) -> list[tuple[int, float]]:
    """(rollouts, mean of the scores that the runs had by then), wherever one of them changes."""
    if not all(curve.points for curve in curves):
        return []
    first = max(curve.points[0].rollouts for curve in curves)
    last = min(curve.points[-1].rollouts for curve in curves)
    steps = {point.rollouts for curve in curves for point in curve.points} | {first}
    found = []
    for rollouts in sorted(step for step in steps if first <= step <= last):
        scores = [score_at(curve.points, rollouts) for curve in curves]
        found.append((rollouts, math.fsum(score.mean for score in scores if score) / len(curves)))
    return found


def ticks(most: int) -> list[int]:
    """Round numbers from 0 to `most`, four to ten of them where there are so many."""
    unit = 10 ** max(0, math.floor(math.log10(most)) - 1)
    step = next(unit * factor for factor in (1, 2, 5, 10, 20, 50) if most / (unit * factor) <= 8)
    return list(range(0, most + 1, step))
