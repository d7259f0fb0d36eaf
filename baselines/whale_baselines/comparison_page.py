"""One page that shows recipes side by side: score against cumulative rollouts, and the table.

    write_comparison([Path("runs/demo-whale")], Path("runs/demo-whale/page.html"))

A curve is a stair, as a score holds from its evaluation on; each seed of a recipe has one. The abscissa is
what had been charged outside test. Beside the drawing stands every number that it shows.

Not covered: behaviour metrics, which `history.jsonl` has for every evaluation.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from whale_baselines.comparing import Row, compare_runs, run_folders
from whale_baselines.crossplay import matrix_of
from whale_baselines.crossplay_page import heat_map
from whale_baselines.curves import CrossPlay, CurvePoint, budget_curve
from whale_baselines.history import History
from whale_baselines.page import document, static, text
from whale_bench.statistics import Score
from whale_bench.store import RunStore
from whale_bench.view.page import write_page

WIDTH, HEIGHT, LEFT, BOTTOM = 860, 380, 48, 34
STYLES = 6
"""Styles of lines; a seventh recipe begins again."""


class Curve(NamedTuple):
    """One run's."""

    row: int
    points: list[CurvePoint]


def write_comparison(places: Sequence[Path], out: Path) -> Path:
    """Writes the page; returns where.

    Raises:
        UsageError: there is no run in one of the places, or the page cannot be written.
    """
    rows = compare_runs(run_folders(places))
    curves = [
        Curve(number, budget_curve(History(Path(folder), readonly=True), "dev"))
        for number, row in enumerate(rows)
        for folder in row.folders
    ]
    matrices = [
        (f"{row.recipe}, seed {seed}", matrix)
        for row in rows
        for seed, folder in zip(row.seeds, row.folders, strict=True)
        if (matrix := matrix_of(Path(folder))) is not None
    ]
    settings = RunStore.open(Path(rows[0].folders[0])).settings
    title = f"{settings.get('model', 'the simulated learner')} on {settings['domain']}"
    write_page(comparison_page(rows, curves, title, matrices).encode(), out)
    return out


def comparison_page(
    rows: Sequence[Row], curves: Sequence[Curve], title: str, matrices: Sequence[tuple[str, CrossPlay]] = ()
) -> str:
    """The page; with the cross-plays of the runs that have one, each by its run's name."""
    style = static("whale_baselines", "comparison.css")
    body = "\n".join([*_body(rows, curves, title), *_heat_maps(matrices)])
    return document(f"Comparison: {title}", ", ".join(row.recipe for row in rows), body, style=style)


def _body(rows: Sequence[Row], curves: Sequence[Curve], title: str) -> Iterator[str]:
    simulated = ' <span class="tag">simulated</span>' if any(row.simulated for row in rows) else ""
    yield f'<div class="heading"><h1>Comparison: {text(title)}</h1>{simulated}</div>'
    yield "<h2>Score on dev against rollouts</h2>"
    yield _chart(curves, [row.recipe for row in rows])
    yield '<ul class="legend">'
    for number, row in enumerate(rows):
        line = f'<line x1="0" y1="6" x2="40" y2="6" class="s{number % STYLES}"/>'
        yield (
            f'<li><svg viewBox="0 0 40 12" aria-hidden="true">{line}</svg> {text(row.recipe)}, '
            f"{len(row.seeds)} seed{'' if len(row.seeds) == 1 else 's'}</li>"
        )
    yield "</ul>"
    yield "<h2>Selected on dev</h2>"
    yield (
        '<p class="note">95% intervals: over seeds where there are several, else over examples. The score on '
        "dev is the best of several on the same examples, so it is too high; that on test is not.</p>"
    )
    yield '<div class="scroll" tabindex="0" role="region" aria-label="Selected on dev"><table><thead><tr>'
    for name in ("Recipe", "Seeds", "Dev", "Test", "Rollouts outside test"):
        yield f'<th scope="col">{name}</th>'
    yield "</tr></thead><tbody>"
    for row in rows:
        cells = (len(row.seeds), _score(row.dev), _score(row.selected_on_dev), f"{row.budget:,.0f}")
        numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
        yield f'<tr><th scope="row">{text(row.recipe)}</th>{numbers}</tr>'
    yield "</tbody></table></div>"
    yield "<h2>Every evaluation on dev</h2>"
    yield '<div class="scroll" tabindex="0" role="region" aria-label="Every evaluation"><table><thead><tr>'
    for name in ("Recipe", "Rollouts", "Score"):
        yield f'<th scope="col">{name}</th>'
    yield "</tr></thead><tbody>"
    for curve in curves:
        for point in curve.points:
            name = text(rows[curve.row].recipe)
            yield f"<tr><td>{name}</td><td>{point.rollouts:,}</td><td>{_score(point.score)}</td></tr>"
    yield "</tbody></table></div>"


def _heat_maps(matrices: Sequence[tuple[str, CrossPlay]]) -> Iterator[str]:
    for name, matrix in matrices:
        yield f"<h2>Cross-play on dev: {text(name)}</h2>"
        yield from heat_map(matrix, name)


def _chart(curves: Sequence[Curve], names: Sequence[str]) -> str:
    most = max((point.rollouts for curve in curves for point in curve.points), default=1) or 1
    top = max((point.score.mean for curve in curves for point in curve.points), default=1.0) or 1.0
    top = min(1.0, -(-top * 10 // 1) / 10)  # up to the next tenth

    def x(rollouts: float) -> float:
        return LEFT + (WIDTH - LEFT - 10) * rollouts / most

    def y(mean: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 14) * mean / top

    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="Score on dev against rollouts of {text(", ".join(names))}; the numbers stand below">'
    ]
    for step in range(6):
        mean, rollouts = top * step / 5, most * step / 5
        parts.append(
            f'<line class="axis" x1="{LEFT}" x2="{WIDTH - 10}" y1="{y(mean):.1f}" y2="{y(mean):.1f}"/>'
        )
        parts.append(f'<text x="{LEFT - 6}" y="{y(mean) + 4:.1f}" text-anchor="end">{mean:.0%}</text>')
        anchor = "end" if step == 5 else "middle"
        parts.append(
            f'<text x="{x(rollouts):.1f}" y="{HEIGHT - 12}" text-anchor="{anchor}">{rollouts:,.0f}</text>'
        )
    for curve in curves:
        stairs, height = [], None
        for point in curve.points:
            if height is not None:
                stairs.append(f"{x(point.rollouts):.1f},{height:.1f}")
            height = y(point.score.mean)
            stairs.append(f"{x(point.rollouts):.1f},{height:.1f}")
        parts.append(f'<polyline class="curve s{curve.row % STYLES}" points="{" ".join(stairs)}"/>')
    return "".join([*parts, "</svg>"])


def _score(score: Score | None) -> str:
    return "none" if score is None else f"{score.mean:.1%} [{score.low:.1%}, {score.high:.1%}]"
