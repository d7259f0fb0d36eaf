"""Draws score against cumulative rollouts as an SVG: steps, never lines between points.

    figure = draw([Series("WHALE", curve, charged=61_440, score=score)])
    figure.svg, figure.most

The drawing is made when the site is built, so that it is there without a script, prints, and takes the page's
colours; every mark has words of its own. It is our own because a page here may hold no style of an element
and load nothing (`templates.py`): what plotting libraries write (matplotlib's and pygal's SVG, Vega, Plotly)
carries inline styles or a script of megabytes, and dwarfs two axes and a step.

Not covered: what changes as a reader moves along the axis (`static/site.js`).
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from whale_bench.statistics import Score
from whale_bench.view.hidden import plain
from whale_leaderboard.curve import Curve

MOST_SERIES = 12
"""Drawn in one figure; more cannot be told apart."""

WIDTH, HEIGHT = 760, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 34, 14, 46


class Series(NamedTuple):
    """One entry in a figure."""

    name: str
    curve: Curve
    """Of dev scores."""
    charged: int
    """Rollouts behind its headline."""
    score: Score
    """The headline."""


class Figure(NamedTuple):
    """A drawing and its axis."""

    svg: Any
    """Markup."""
    most: int
    """Rollouts at the right end."""
    left: float
    width: float
    """Where the axis begins and how long it is, in units of the drawing."""
    shown: int
    """Series in it."""

    @property
    def budgets(self) -> tuple[int, ...]:
        """Where a table reads every series."""
        return (self.most // 4, self.most // 2, self.most)

    @property
    def step(self) -> int:
        """Rollouts by which the line moves."""
        return max(1, self.most // 400)


def draw(series: Sequence[Series], title: str) -> Figure:
    """The figure of the first `MOST_SERIES` of these."""
    from markupsafe import Markup

    series = [one._replace(name=plain(one.name)) for one in series[:MOST_SERIES]]
    axes = _Axes(
        _ceiling(max([1, *(s.charged for s in series)])),
        _top([s.score.high for s in series] + [p.score for s in series for p in s.curve.points]),
    )
    # Numbers and our own words go in as they are; format() escapes what entries say.
    parts = [
        Markup('<svg class="chart" viewBox="0 0 {} {}" role="group" aria-label="{}">').format(
            WIDTH, HEIGHT, plain(title)
        ),
        *axes.grid(),
        *(mark for number, one in enumerate(series, start=1) for mark in _marks(axes, number, one)),
        Markup('<line class="cursor" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/></svg>').format(
            _n(axes.x(axes.most)), _TOP, HEIGHT - _BOTTOM
        ),
    ]
    return Figure(Markup("\n").join(parts), axes.most, _LEFT, WIDTH - _LEFT - _RIGHT, len(series))


class _Axes(NamedTuple):
    most: int
    top: float

    def x(self, rollouts: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * rollouts / self.most

    def y(self, score: float) -> float:
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * score / self.top

    def grid(self) -> list[Any]:
        """Lines, numbers and names of both axes."""
        from markupsafe import Markup

        left, right, low = _LEFT, WIDTH - _RIGHT, HEIGHT - _BOTTOM
        parts = []
        for number in range(5):
            score, rollouts = self.top * number / 4, self.most * number / 4
            y, x = _n(self.y(score)), _n(self.x(rollouts))
            parts += [
                Markup('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(left, right, y, y),
                Markup('<text x="{}" y="{}" text-anchor="end">{:.3g}</text>').format(
                    left - 8, _n(self.y(score) + 4), score
                ),
                Markup('<text x="{}" y="{}" text-anchor="middle">{:,.0f}</text>').format(
                    x, low + 18, rollouts
                ),
            ]
        name = Markup('<text x="{}" y="{}" text-anchor="{}" class="axis-name">{}</text>')
        return [*parts, name.format((left + right) / 2, HEIGHT - 6, "middle", "cumulative rollouts, charged")]


def _marks(axes: _Axes, number: int, one: Series) -> list[Any]:
    """A series: its step, its points, its headline with the interval."""
    from markupsafe import Markup

    steps = one.curve.steps
    marks = [Markup('<g class="series s{}" data-series="{}">').format((number - 1) % 6, number)]
    if steps:
        path = f"M{_n(axes.x(steps[0].rollouts))} {_n(axes.y(steps[0].score))}"
        for step in steps[1:]:
            path += f"H{_n(axes.x(step.rollouts))}V{_n(axes.y(step.score))}"
        marks.append(
            Markup('<path d="{}H{}"/>').format(path, _n(axes.x(max(one.charged, steps[-1].rollouts))))
        )
    dot = Markup('<circle cx="{}" cy="{}" r="3.5"><title>{}: {:,} rollouts, dev {:.3f}</title></circle>')
    marks += [
        dot.format(_n(axes.x(p.rollouts)), _n(axes.y(p.score)), one.name, p.rollouts, p.score)
        for p in one.curve.points
    ]
    x, y = axes.x(one.charged), axes.y(one.score.mean)
    marks.append(
        Markup(
            '<g class="headline" role="img" aria-label="{0}"><title>{0}</title>'
            '<line x1="{1}" x2="{1}" y1="{2}" y2="{3}"/><path d="M{1} {4}l6 6l-6 6l-6 -6z"/></g>'
            '<text x="{5}" y="{6}" class="tag" aria-hidden="true">{7}</text></g>'
        ).format(
            f"{number}. {one.name}: {one.charged:,} rollouts, test {one.score.mean:.3f}, "
            f"95% {one.score.low:.3f} to {one.score.high:.3f}",
            _n(x),
            _n(axes.y(one.score.low)),
            _n(axes.y(one.score.high)),
            _n(y - 6),
            _n(x + 10),
            _n(y + 4),
            number,
        )
    )
    return marks


def _ceiling(value: float) -> int:
    """The smallest 1, 2, 4, 6 or 8 times a power of ten that is no less.

    >>> _ceiling(61_440), _ceiling(1), _ceiling(8_001)
    (80000, 100, 10000)
    """
    value = max(value, 100)
    power: int = 10 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 6, 8, 10) if step * power >= value)


def _top(scores: Sequence[float]) -> float:
    most = max([0.04, *scores])
    return next(top for top in (0.04, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0) if top >= min(most, 1.0))


def _n(value: float) -> str:
    """A coordinate, the same on every machine."""
    return f"{value:.1f}"
