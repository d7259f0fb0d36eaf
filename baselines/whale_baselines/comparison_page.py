"""One page that shows recipes side by side: score against cumulative rollouts, and the table.

    write_comparison([Path("runs/demo-whale")], Path("runs/demo-whale/page.html"))

Below the drawing (`chart.py`) stands every number that it shows, and the cross-play of each run that has one.

Not covered: search candidates, see `search/lineage.py`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from whale_baselines.chart import STYLES, Curve, chart
from whale_baselines.comparing import Row, compare_runs, intervals_of, run_folders
from whale_baselines.crossplay import matrix_of
from whale_baselines.crossplay_page import heat_map, style
from whale_baselines.curves import CrossPlay, budget_curve, spent
from whale_baselines.history import History, Point
from whale_baselines.page import document, text
from whale_bench.statistics import Score
from whale_bench.store import RunStore
from whale_bench.view.page import write_page


class Evaluated(NamedTuple):
    """An evaluation on dev."""

    recipe: str
    seed: int
    phase: str
    point: Point


def write_comparison(places: Sequence[Path], out: Path) -> Path:
    """Writes the page; returns where.

    Raises:
        UsageError: there is no run in one of the places, or the page cannot be written.
    """
    rows = compare_runs(run_folders(places))
    histories = [
        (number, seed, History(Path(folder), readonly=True))
        for number, row in enumerate(rows)
        for seed, folder in zip(row.seeds, row.folders, strict=True)
    ]
    curves = [Curve(number, seed, budget_curve(history, "dev")) for number, seed, history in histories]
    matrices = [
        (f"{row.recipe}, seed {seed}", matrix)
        for row in rows
        for seed, folder in zip(row.seeds, row.folders, strict=True)
        if (matrix := matrix_of(Path(folder))) is not None
    ]
    evaluations = [
        Evaluated(rows[number].recipe, seed, phase_of(history, point), point)
        for number, seed, history in histories
        for point in history.points
        if point.split == "dev"
    ]
    settings = RunStore.open(Path(rows[0].folders[0])).settings
    title = f"{settings['model']} on {settings['domain']}" if "model" in settings else "the simulated learner"
    write_page(comparison_page(rows, curves, title, matrices, evaluations).encode(), out)
    return out


def phase_of(history: History, point: Point) -> str:
    """The phase that an evaluation came in or after, for people."""
    if not point.moves:
        return "start"
    made = history.moves[point.moves - 1]
    return f"{'weight' if made.kind == 'train' else 'search'} {made.cycle}, move {made.number}"


def comparison_page(
    rows: Sequence[Row],
    curves: Sequence[Curve],
    title: str,
    matrices: Sequence[tuple[str, CrossPlay]],
    evaluations: Sequence[Evaluated],
) -> str:
    """The page; with the cross-plays of the runs that have one, each by its run's name."""
    body = "\n".join([*_body(rows, curves, title), *_heat_maps(matrices), *_every_evaluation(evaluations)])
    return document(f"Comparison: {title}", ", ".join(row.recipe for row in rows), body, style=style())


def _body(rows: Sequence[Row], curves: Sequence[Curve], title: str) -> Iterator[str]:
    yield f'<div class="heading"><h1>Comparison: {text(title)}</h1></div>'
    if any(row.simulated for row in rows):
        yield '<p class="note">Simulated: no model has played, and no ranking takes these runs.</p>'
    yield "<h2>Score on dev against rollouts</h2>"
    yield '<div class="scroll drawing" tabindex="0" role="region" aria-label="Drawing of the curves">'
    yield chart(curves, [row.recipe for row in rows])
    yield "</div>"
    if any(len(row.seeds) > 1 for row in rows):
        yield '<p class="note">Thick: the mean over the seeds, as far as all went. Thin: each seed.</p>'
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
        f'<p class="note">95% intervals: {intervals_of(rows)}. The score on dev is the best of several on '
        "the same examples, so it is too high; that on test is not.</p>"
    )
    yield '<div class="scroll" tabindex="0" role="region" aria-label="Selected on dev"><table><thead><tr>'
    yield '<th scope="col">Recipe</th>'
    for name in ("Seeds", "Dev", "Test", "Rollouts outside test"):
        yield f'<th scope="col" class="number">{name}</th>'
    yield "</tr></thead><tbody>"
    for row in rows:
        cells = (len(row.seeds), _score(row.dev), _score(row.selected_on_dev), f"{row.budget:,.0f}")
        numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
        yield f'<tr><th scope="row">{text(row.recipe)}</th>{numbers}</tr>'
    yield "</tbody></table></div>"


def _every_evaluation(evaluations: Sequence[Evaluated]) -> Iterator[str]:
    metrics = sorted({name for one in evaluations for name in one.point.metrics})
    yield "<h2>Every evaluation on dev</h2>"
    yield f"<details><summary>{len(evaluations)} evaluations, with behaviour by phase</summary>"
    yield '<div class="scroll" tabindex="0" role="region" aria-label="Every evaluation"><table><thead><tr>'
    yield '<th scope="col">Recipe</th>'
    yield '<th scope="col" class="number">Seed</th><th scope="col">Phase, cycle</th>'
    for name in ("Rollouts", "Score", *(name.replace("_", " ") for name in metrics)):
        yield f'<th scope="col" class="number">{text(name)}</th>'
    yield "</tr></thead><tbody>"
    for recipe, seed, phase, point in evaluations:
        told = (f"{point.metrics[name]:.3g}" if name in point.metrics else "–" for name in metrics)
        cells = (f"{spent(point):,}", _score(point.score), *told)
        numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
        yield f'<tr><td>{text(recipe)}</td><td class="number">{seed}</td><td>{phase}</td>{numbers}</tr>'
    yield "</tbody></table></div></details>"


def _heat_maps(matrices: Sequence[tuple[str, CrossPlay]]) -> Iterator[str]:
    for name, matrix in matrices:
        yield f"<h2>Cross-play on dev: {text(name)}</h2>"
        yield from heat_map(matrix, name)


def _score(score: Score | None) -> str:
    return "none" if score is None else f"{score.mean:.1%} [{score.low:.1%}, {score.high:.1%}]"
