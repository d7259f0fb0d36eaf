"""What came of a run: budget curves, the selected agent, phase lengths, the cross-play matrix.

    curve = budget_curve(history, "test")
    score_at(curve, 100_000)                            # the last one that had been reached by then
    selected_on_dev(history), best_on_test(history)

A curve's abscissa is what had been charged outside `test` by then, as the ledger had it; dev is part of
that. Between two evaluations a curve keeps the earlier value, and before the first it has none: it never
shows a score sooner than it was there.

*Selected on dev* is the headline: the evaluation that dev likes best, with its score on test. *Best on
test* is what the paper reports; it is chosen on the examples that it is a score of, so it is too high.

Not covered: drawing.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from whale_baselines.alternate import selected_on_dev
from whale_baselines.history import History, Pair, Point
from whale_baselines.schedule import Entry, Kind
from whale_bench.statistics import Difference, Score, paired, score_of
from whale_envs.errors import UsageError

__all__ = [
    "CrossPlay",
    "CurvePoint",
    "Outcome",
    "PhaseLength",
    "best_on_test",
    "budget_curve",
    "cross_play",
    "outcome_of",
    "phase_lengths",
    "score_at",
    "selected_on_dev",
    "spent",
]


class CurvePoint(NamedTuple):
    """A step of a curve."""

    rollouts: int
    """Charged by then, outside test."""
    score: Score


class PhaseLength(NamedTuple):
    """A phase as it came out."""

    kind: Kind
    cycle: int
    moves: int
    rollouts: int
    signal: float
    """Its last one."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The two numbers of a run. Scores on test; None where test was not evaluated there."""

    selected: Point
    """The evaluation on dev that was best."""
    selected_on_dev: Score | None
    """The headline."""
    best_on_test: Score | None
    """The paper's."""
    budget: int
    """Rollouts charged outside test in all."""
    budget_to_selected: int
    """When the selected agent was there."""


def budget_curve(history: History, split: str) -> list[CurvePoint]:
    """Scores against cumulative rollouts, oldest first."""
    return [CurvePoint(spent(point), point.score) for point in history.points if point.split == split]


def score_at(curve: Sequence[CurvePoint], rollouts: int) -> Score | None:
    """The last score that had been reached with so many rollouts; None before the first."""
    reached = [point.score for point in curve if point.rollouts <= rollouts]
    return reached[-1] if reached else None


def best_on_test(history: History) -> Point | None:
    """The evaluation with the best score on test, of equal ones the first."""
    points = [point for point in history.points if point.split == "test"]
    return max(points, key=lambda point: point.score.mean, default=None)


def outcome_of(history: History) -> Outcome | None:
    """The numbers of a run; None before its first evaluation."""
    selected, best = selected_on_dev(history), best_on_test(history)
    if selected is None:
        return None
    tested = next((p for p in history.points if p.split == "test" and pair_of(p) == pair_of(selected)), None)
    return Outcome(
        selected=selected,
        selected_on_dev=None if tested is None else tested.score,
        best_on_test=None if best is None else best.score,
        budget=max(map(spent, history.points)),
        budget_to_selected=spent(selected),
    )


def phase_lengths(entries: Sequence[Entry]) -> list[PhaseLength]:
    """Every phase so far, the last one perhaps unfinished."""
    phases: dict[tuple[Kind, int], list[Entry]] = {}
    for entry in entries:
        phases.setdefault((entry.kind, entry.cycle), []).append(entry)
    return [
        PhaseLength(kind, cycle, len(made), sum(entry.rollouts for entry in made), made[-1].signal)
        for (kind, cycle), made in phases.items()
    ]


class CrossPlay(msgspec.Struct, frozen=True, kw_only=True):
    """Every saved weights with every accepted harness. Made by `cross_play`."""

    weights: tuple[str, ...]
    """`weights_id`s in the order in which they came."""
    harnesses: tuple[str, ...]
    scores: tuple[tuple[Score, ...], ...]
    """`scores[weights][harness]`."""
    partner: Mapping[str, str]
    """`weights_id` to the `harness_id` that the run had beside it, at last."""
    gap: Difference | None
    """The co-adaptation gap: how much better weights do with their own harness than with the others, mean
    over the weights, paired by example; None where there are no others."""


def cross_play(
    weights: Sequence[str],
    harnesses: Sequence[str],
    means: Sequence[Sequence[Sequence[float]]],
    partner: Mapping[str, str],
) -> CrossPlay:
    """The matrix of `means[weights][harness][example]`, each the mean of an agent's samples.

    Raises:
        UsageError: there are not as many rows and columns, or examples, as they say.
    """
    if len(means) != len(weights) or any(len(row) != len(harnesses) for row in means):
        raise UsageError(
            f"a cross-play of {len(weights)} weights and {len(harnesses)} harnesses needs means of each"
        )
    own, other = [], []
    for weights_id, row in zip(weights, means, strict=True):
        mine = partner.get(weights_id)
        theirs = [cell for harness_id, cell in zip(harnesses, row, strict=True) if harness_id != mine]
        if mine in harnesses and theirs:
            own.append(row[harnesses.index(mine)])
            other.append(_by_example(theirs))
    return CrossPlay(
        weights=tuple(weights),
        harnesses=tuple(harnesses),
        scores=tuple(tuple(score_of(cell) for cell in row) for row in means),
        partner=dict(partner),
        gap=paired(_by_example(other), _by_example(own)) if own else None,
    )


def _by_example(cells: Sequence[Sequence[float]]) -> list[float]:
    """The mean over the cells, example by example."""
    return [math.fsum(values) / len(values) for values in zip(*cells, strict=True)]


def pair_of(point: Point) -> Pair:
    return Pair(point.weights_id, point.harness_id)


def spent(point: Point) -> int:
    """Rollouts charged by then, outside test."""
    return sum(rollouts for purpose, rollouts in point.charged.items() if purpose != "test")
