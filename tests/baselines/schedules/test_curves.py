"""Curves and outcomes from histories whose numbers are known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from whale_baselines.curves import (
    best_on_test,
    budget_curve,
    cross_play,
    outcome_of,
    phase_lengths,
    score_at,
    selected_on_dev,
)
from whale_baselines.history import History, Pair, Point
from whale_baselines.schedule import Entry

from whale_bench.statistics import Score, paired
from whale_envs.errors import UsageError


def score(mean):
    return Score(mean, 0.01, mean - 0.02, mean + 0.02)


def history_of(folder, rows):
    """`rows`: (moves, split, weights, score, rollouts charged by purpose)."""
    history = History(folder)
    history.begin(Pair("w0", "h0"), "recipe")
    for moves, split, weights, mean, charged in rows:
        history.add(
            Point(
                moves=moves,
                split=split,
                weights_id=weights,
                harness_id="h0",
                score=score(mean),
                rollouts=1,
                charged=charged,
            )
        )
    return history


ROWS = [
    (0, "dev", "w0", 0.20, {"dev": 10}),
    (0, "test", "w0", 0.21, {"dev": 10, "test": 50}),
    (5, "dev", "w1", 0.60, {"dev": 20, "weight": 100, "test": 50}),
    (5, "test", "w1", 0.50, {"dev": 20, "weight": 100, "test": 100}),
    (9, "dev", "w2", 0.55, {"dev": 30, "weight": 100, "harness": 40, "test": 100}),
    (9, "test", "w2", 0.58, {"dev": 30, "weight": 100, "harness": 40, "test": 150}),
]


def test_the_headline_is_chosen_on_dev_and_the_papers_number_on_test(tmp_path):
    history = history_of(tmp_path, ROWS)
    assert selected_on_dev(history).weights_id == "w1"
    assert best_on_test(history).weights_id == "w2"
    outcome = outcome_of(history)
    assert (outcome.selected_on_dev.mean, outcome.best_on_test.mean) == (0.50, 0.58)
    assert (outcome.budget, outcome.budget_to_selected) == (170, 120)


def test_of_equal_scores_the_earlier_one_is_chosen(tmp_path):
    rows = [(1, "dev", "w1", 0.5, {"dev": 1}), (2, "dev", "w2", 0.5, {"dev": 2})]
    assert selected_on_dev(history_of(tmp_path, rows)).weights_id == "w1"


def test_without_test_there_is_a_selection_and_no_score(tmp_path):
    outcome = outcome_of(history_of(tmp_path, [row for row in ROWS if row[1] == "dev"]))
    assert outcome.selected.weights_id == "w1"
    assert outcome.selected_on_dev is outcome.best_on_test is None
    assert outcome_of(history_of(tmp_path / "..", [])) is None


def test_a_curve_is_against_what_was_charged_outside_test_and_never_early(tmp_path):
    curve = budget_curve(history_of(tmp_path, ROWS), "test")
    assert [(point.rollouts, point.score.mean) for point in curve] == [(10, 0.21), (120, 0.50), (170, 0.58)]
    read = {rollouts: score_at(curve, rollouts) for rollouts in (9, 10, 119, 120, 169, 1_000)}
    assert read[9] is None
    assert [read[at].mean for at in (10, 119, 120, 169, 1_000)] == [0.21, 0.21, 0.50, 0.50, 0.58]


@given(st.lists(st.integers(0, 100), min_size=1, max_size=12), st.integers(0, 1_500))
def test_a_value_read_from_a_curve_had_been_reached(steps, rollouts):
    from itertools import accumulate

    from whale_baselines.curves import CurvePoint

    curve = [CurvePoint(at, score(i / 20)) for i, at in enumerate(accumulate(steps))]
    found = score_at(curve, rollouts)
    reached = [point for point in curve if point.rollouts <= rollouts]
    assert found == (reached[-1].score if reached else None)


def test_phase_lengths_are_those_that_came_out():
    entries = [
        Entry(kind=kind, cycle=cycle, number=number, signal=number / 10, rollouts=8)
        for kind, cycle, moves in (("train", 1, 3), ("search", 1, 2), ("train", 2, 1))
        for number in range(1, moves + 1)
    ]
    assert [(p.kind, p.cycle, p.moves, p.rollouts, p.signal) for p in phase_lengths(entries)] == [
        ("train", 1, 3, 24, 0.3),
        ("search", 1, 2, 16, 0.2),
        ("train", 2, 1, 8, 0.1),
    ]


def test_the_co_adaptation_gap_is_own_less_others_by_example():
    means = [[[0.3, 0.5], [0.2, 0.2]], [[0.4, 0.6], [0.8, 1.0]]]
    table = cross_play(("w0", "w1"), ("h0", "h1"), means, {"w0": "h0", "w1": "h1"})
    assert table.scores[1][0].mean == pytest.approx(0.5)
    by_example = paired([(0.2 + 0.4) / 2, (0.2 + 0.6) / 2], [(0.3 + 0.8) / 2, (0.5 + 1.0) / 2])
    assert table.gap == by_example
    assert table.gap.mean == pytest.approx(0.3)
    assert cross_play(("w0",), ("h0",), [[[0.3]]], {"w0": "h0"}).gap is None
    with pytest.raises(UsageError, match="1 weights and 2 harnesses needs means of each"):
        cross_play(("w0",), ("h0", "h1"), [[[0.3]]], {})
    with pytest.raises(ValueError, match="shorter"):
        cross_play(("w0",), ("h0", "h1", "h2"), [[[0.3], [0.1, 0.2], [0.4]]], {"w0": "h0"})


def test_weights_whose_partner_is_not_played_have_no_gap():
    assert cross_play(("w0",), ("h0", "h1"), [[[0.3], [0.4]]], {"w0": "h9"}).gap is None
