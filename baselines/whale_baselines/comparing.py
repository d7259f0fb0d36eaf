"""Runs of recipes side by side: seeds of one recipe are one row, with an interval.

    rows = compare_runs(run_folders([Path("runs/whale"), Path("runs/stagewise")]))
    rows[0].selected_on_dev, rows[0].interval_over

With one seed the interval is that over examples, and says nothing about another seed. With several it is over
seeds and examples, see `over_seeds`.

Not covered: tests of significance between two runs, see `whale-bench compare`.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Literal

import msgspec

from whale_baselines.curves import outcome_of, phase_lengths
from whale_baselines.history import FILE, History
from whale_baselines.recipes import RunRecipe
from whale_baselines.run_recipe import recipe_of_run
from whale_bench.statistics import Score, score_of, t_quantile
from whale_bench.store import RunStore
from whale_envs.errors import UsageError


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A recipe over its seeds."""

    recipe: str
    simulated: bool
    seeds: tuple[int, ...]
    interval_over: Literal["examples", "seeds and examples"]
    """What the intervals of the scores are over."""
    folders: tuple[str, ...]
    budget: float
    """Rollouts charged outside test, mean over the seeds."""
    dev: Score | None
    """Of the selected agents, on dev: chosen on it, so it is too high."""
    selected_on_dev: Score | None
    """On test; None where a run has not tested what dev selects."""
    best_on_test: Score | None
    median_steps: float | None
    """Of a weight phase, over all phases of all seeds; None without any."""
    median_iterations: float | None


def run_folders(places: Sequence[Path]) -> list[Path]:
    """The runs in these folders: a folder that is one, or those that it or folders of seeds in it hold.

    Raises:
        UsageError: there is none in one of them.
    """
    found = []
    for place in places:
        below = (path.parent for depth in ("*", "*/*") for path in place.glob(f"{depth}/{FILE}"))
        inside = [place] if (place / FILE).exists() else sorted(below)
        if not inside:
            raise UsageError(f"{place} holds no run of a recipe")
        found += inside
    return found


def compare_runs(folders: Sequence[Path]) -> list[Row]:
    """A row for each recipe, in the order in which they first come.

    Raises:
        UsageError: a seed of a recipe stands twice, or runs of one name had different settings.
    """
    groups: dict[str, list[tuple[RunRecipe, Path, History]]] = {}
    for folder in folders:
        recipe = recipe_of_run(RunStore.open(folder).settings, folder)
        groups.setdefault(recipe.name, []).append((recipe, folder, History(folder, readonly=True)))
    return [_row(name, runs) for name, runs in groups.items()]


def intervals_of(rows: Sequence[Row]) -> str:
    """What the intervals of these rows are over, for people."""
    if len({row.interval_over for row in rows}) > 1:
        return "over examples where there is one seed, over seeds and examples where there are several"
    return f"over {rows[0].interval_over}"


def _row(name: str, runs: Sequence[tuple[RunRecipe, Path, History]]) -> Row:
    seeds = tuple(recipe.recipe.seed for recipe, _, _ in runs)
    if len(set(seeds)) < len(seeds):
        raise UsageError(
            f"{name} with one seed stands twice: {', '.join(str(folder) for _, folder, _ in runs)}"
        )
    if len({recipe.with_seed(0).recipe_id for recipe, _, _ in runs}) > 1:
        raise UsageError(f"runs of {name} differ in more than the seed: they are no seeds of one recipe")
    outcomes = [outcome_of(history) for _, _, history in runs]
    found = [outcome for outcome in outcomes if outcome is not None]
    lengths = [phase for _, _, history in runs for phase in phase_lengths(history.moves)]
    by_kind = {kind: [phase.moves for phase in lengths if phase.kind == kind] for kind in ("train", "search")}
    return Row(
        recipe=name,
        simulated=runs[0][0].simulated,
        seeds=seeds,
        interval_over="examples" if len(runs) == 1 else "seeds and examples",
        folders=tuple(str(folder) for _, folder, _ in runs),
        budget=sum(outcome.budget for outcome in found) / max(1, len(found)),
        dev=_of_all([outcome.selected.score for outcome in outcomes if outcome], len(runs)),
        selected_on_dev=_of_all([outcome.selected_on_dev for outcome in outcomes if outcome], len(runs)),
        best_on_test=_of_all([outcome.best_on_test for outcome in outcomes if outcome], len(runs)),
        median_steps=median(by_kind["train"]) if by_kind["train"] else None,
        median_iterations=median(by_kind["search"]) if by_kind["search"] else None,
    )


def over_seeds(scores: Sequence[Score]) -> Score:
    """The mean of several seeds' scores on the same examples, with an interval over seeds and examples.

    Either side of the interval is the root of two squares: of Student's over the seeds' means, which is
    nothing where they agree, and of the mean of that over each seed's examples. Scores on the same examples
    are correlated, nobody knows how much, and the error of a mean is never more than the mean of the errors:
    so it covers at least 95%.
    """
    if len(scores) == 1:
        return scores[0]
    seeds = score_of([score.mean for score in scores])
    mean, half = seeds.mean, t_quantile(len(scores) - 1) * seeds.stderr
    below = math.hypot(half, fmean(score.mean - score.low for score in scores))
    above = math.hypot(half, fmean(score.high - score.mean for score in scores))
    stderr = math.hypot(seeds.stderr, fmean(score.stderr for score in scores))
    return Score(mean, stderr, max(0.0, mean - below), min(1.0, mean + above))


def _of_all(scores: Sequence[Score | None], runs: int) -> Score | None:
    """Over all seeds, or None: a mean of those that are there would be another number."""
    there = [score for score in scores if score is not None]
    return over_seeds(there) if there and len(there) == runs else None
