"""Paired comparisons, bootstrap intervals and p-values against slow references, and at their edges."""

import math
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_bench.statistics import (
    Difference,
    bootstrapped,
    differences_of,
    paired,
    score_of,
    sign_flip,
    t_quantile,
)
from whale_envs import UsageError

eighths = st.integers(0, 8).map(lambda c: c / 8)
pairs = st.lists(st.tuples(eighths, eighths), min_size=1, max_size=9)


@given(pairs)
@settings(max_examples=200)
def test_a_paired_difference_is_the_textbook_one(rows: list[tuple[float, float]]) -> None:
    a, b = [x for x, _ in rows], [y for _, y in rows]
    found = paired(a, b)
    values = np.array(b) - np.array(a)
    assert found.examples == len(rows)
    assert found.mean == pytest.approx(float(values.mean()))
    assert -1.0 <= found.low <= found.mean <= found.high <= 1.0
    if len(rows) > 1 and values.std() > 0:
        stderr = float(values.std(ddof=1)) / math.sqrt(len(rows))
        half = t_quantile(len(rows) - 1) * stderr
        assert found.stderr == pytest.approx(stderr)
        assert found.low == pytest.approx(max(-1.0, found.mean - half))
        assert found.high == pytest.approx(min(1.0, found.mean + half))
    else:
        assert found.stderr == 0.0


@given(pairs)
@settings(max_examples=100)
def test_a_comparison_turned_round_has_the_other_sign(rows: list[tuple[float, float]]) -> None:
    a, b = [x for x, _ in rows], [y for _, y in rows]
    there, back = paired(a, b), paired(b, a)
    assert (there.mean, there.low, there.high) == pytest.approx((-back.mean, -back.high, -back.low))
    assert sign_flip(differences_of(a, b)) == sign_flip(differences_of(b, a))


@given(pairs)
@settings(max_examples=150)
def test_a_small_p_value_equals_counting_every_signing(rows: list[tuple[float, float]]) -> None:
    values = [y - x for x, y in rows]
    observed = abs(sum(values))
    signed = [
        abs(sum(s * v for s, v in zip(signs, values, strict=True)))
        for signs in product((1, -1), repeat=len(values))
    ]
    expected = sum(total >= observed - 1e-9 for total in signed) / len(signed)
    found = sign_flip(values)
    assert found.exact
    assert found.value == pytest.approx(expected)


@pytest.mark.parametrize("equal", [True, False], ids=["eighths", "any size"])
def test_a_drawn_p_value_agrees_with_the_normal_approximation(equal: bool) -> None:
    random = np.random.default_rng(5)
    values = random.integers(-8, 9, 400) / 8 + 0.05 * (not equal) * random.random(400) + 0.04
    found = sign_flip([float(v) for v in values])
    z = abs(float(values.sum())) / math.sqrt(float((values**2).sum()))
    assert not found.exact
    assert found.value == pytest.approx(math.erfc(z / math.sqrt(2)), rel=0.1)


def test_a_drawn_p_value_is_seeded_and_never_nought() -> None:
    values = [0.5] * 300
    assert sign_flip(values, seed=1) == sign_flip(values, seed=1)
    assert sign_flip(values).value == pytest.approx(1e-5, rel=1e-3)
    mixed = [0.5, -0.25] * 40
    assert sign_flip(mixed, seed=1) != sign_flip(mixed, seed=2)
    assert sign_flip(mixed, seed=1).value == pytest.approx(sign_flip(mixed, seed=2).value, abs=0.01)


def test_many_examples_without_a_difference_are_still_counted_exactly() -> None:
    assert sign_flip([0.0] * 5_000 + [1.0] * 10) == sign_flip([1.0] * 10)


# --- the edges ------------------------------------------------------------------------------------


def edges(found: Difference) -> Sequence[float]:
    return (found.mean, found.stderr, found.low, found.high)


def test_no_difference_anywhere_is_p_1_and_an_interval_round_0() -> None:
    others = 1 - 0.025 ** (1 / 10)
    assert edges(paired([0.25] * 10, [0.25] * 10)) == pytest.approx((0.0, 0.0, -others, others))
    assert sign_flip([0.0] * 10).value == 1.0


def test_one_example_says_nothing() -> None:
    assert edges(paired([0.0], [1.0])) == (1.0, 0.0, -1.0, 1.0)
    assert sign_flip([1.0]).value == 1.0


def test_equal_differences_have_an_interval_with_a_width_and_the_exact_p_value() -> None:
    others = 1 - 0.025 ** (1 / 8)
    found = paired([0.0] * 8, [0.5] * 8)
    assert edges(found) == pytest.approx((0.5, 0.0, 0.5 - 1.5 * others, 0.5 + 0.5 * others))
    assert sign_flip([0.5] * 8).value == 2 / 2**8


def test_equal_thirds_are_equal_in_spite_of_rounding() -> None:
    found = score_of([1 / 3] * 7)
    assert found.stderr == 0.0
    assert found.high - found.low > 0.1


@pytest.mark.parametrize(("a", "b"), [([0.5], []), ([], [0.5]), ([0.1, 0.2], [0.1])])
def test_unequal_numbers_of_examples_are_no_pairs(a: list[float], b: list[float]) -> None:
    with pytest.raises(UsageError, match=f"got {len(a)} and {len(b)}"):
        paired(a, b)


def test_no_examples_have_no_difference() -> None:
    with pytest.raises(UsageError, match="no examples"):
        paired([], [])


# --- bootstrap ------------------------------------------------------------------------------------


def test_a_bootstrap_interval_is_that_of_plain_resampling() -> None:
    random = np.random.default_rng(3)
    values = [float(v) for v in random.integers(0, 9, 60) / 8]
    plain = np.array([random.choice(values, 60).mean() for _ in range(10_000)])
    found = bootstrapped(score_of(values), values)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(plain, (0.025, 0.975))), abs=0.008)
    assert found.mean == score_of(values).mean


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
@settings(max_examples=30)
def test_a_bootstrap_interval_lies_within_the_values(values: list[float]) -> None:
    found = bootstrapped(score_of(values), values)
    if len(set(values)) > 1:
        assert min(values) - 1e-9 <= found.low <= found.high <= max(values) + 1e-9
    else:
        assert found == score_of(values)


def test_a_bootstrap_interval_is_seeded() -> None:
    values = [0.0, 0.125, 0.5, 1.0, 0.25]
    assert bootstrapped(score_of(values), values, seed=4) == bootstrapped(score_of(values), values, seed=4)


def test_a_bootstrap_of_many_different_values_is_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [i / 999 for i in range(1000)]
    whole = bootstrapped(score_of(values), values)
    monkeypatch.setattr("whale_bench.statistics._CELLS", 100_000)
    assert bootstrapped(score_of(values), values) == whole
    assert whole.high - whole.low == pytest.approx(4 * score_of(values).stderr, rel=0.05)
