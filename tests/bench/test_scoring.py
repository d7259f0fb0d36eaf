"""mean@k and its interval, pass@k, and what a missing rollout does to a score."""

import math
import tracemalloc
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from bench_fakes import outcome
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_bench import Summary, mean_at_k, pass_at_k
from whale_bench.keys import Keys, Marks
from whale_bench.scoring import Groups, summarise
from whale_bench.statistics import t_quantile
from whale_bench.store import Outcome
from whale_bench.tally import Sum, tallied
from whale_envs import UsageError, Verdict

RUN = {
    "model": "openai/m", "domain": "d", "tier": "mini", "split": "test", "profile": "standard", "k": 8,
    "fixture": False, "temperature": 1.0,
}  # fmt: skip


def summary(rewards: Mapping[str, list[float | None]], **changes: Any) -> Summary:
    """The summary of rewards[example][sample]; None is a missing rollout."""
    k = len(next(iter(rewards.values())))
    keys = {f"test:{e}:{s}": (e, s) for e in rewards for s in range(k)}
    rows = [
        outcome(f"test:{e}:{s}", r) for e, rs in rewards.items() for s, r in enumerate(rs) if r is not None
    ]
    return of(rows, keys, {**RUN, "k": k, **changes})


def of(
    rows: list[Outcome],
    keys: Mapping[str, tuple[str, int]],
    run: Mapping[str, Any],
    groups: Groups = MappingProxyType({}),
) -> Summary:
    planned = Keys.of("test", dict.fromkeys(example_id for example_id, _ in keys.values()), run["k"])
    assert dict(planned) == keys
    tally = tallied(rows, planned, run["profile"])
    return summarise(tally, groups=groups, settings=run, seconds={}, problems={})


def right(n: int, of: int = 8) -> list[float | None]:
    return [1.0] * n + [0.0] * (of - n)


def test_o28_mean_and_standard_error_are_clustered_by_example() -> None:
    found = summary({"a": right(8), "b": right(8), "c": right(0), "d": right(4)})
    assert found.score is not None
    assert found.score.mean == 0.625
    assert found.score.stderr == pytest.approx(0.2394, abs=5e-5)
    assert (found.score.low, t_quantile(3)) == (0.0, 3.1824)  # 0.625 - 3.18 * 0.239, clipped
    assert found.score.high == 1.0  # clipped


@pytest.mark.parametrize(("df", "t"), [(1, 12.706), (5, 2.571), (11, 2.201), (30, 2.042), (95, 1.985)])
def test_the_quantile_of_student_is_right_to_three_decimals(df: int, t: float) -> None:
    assert t_quantile(df) == pytest.approx(t, abs=6e-4)


@pytest.mark.parametrize("rewards", [[[1, 0]] * 4, [[0]] * 3, [[1, 1]] * 40, [[0.5]]])
def test_an_interval_always_has_a_width(rewards: list[list[float]]) -> None:
    score = mean_at_k(rewards)
    assert score.low <= score.mean <= score.high
    assert score.high - score.low > 0.05


def test_o28_an_incomplete_run_has_no_score_but_a_lower_bound() -> None:
    found = summary({"a": right(4), "b": [1.0, 1.0, *[None] * 6]})
    assert (found.score, found.other_score, found.pass_at_k) == (None, None, {})
    assert not found.complete
    assert found.lower_bound == 0.375
    assert found.missing == [f"test:b:{s}" for s in range(2, 8)]
    assert found.rollouts == 10


def test_o27_a_server_failure_is_missing_and_a_model_failure_is_wrong() -> None:
    failed = summary({str(i): [r] for i, r in enumerate([*right(6, 8), None, None])})
    assert (failed.score, failed.complete, len(failed.missing)) == (None, False, 2)
    wrong = summary({str(i): [r] for i, r in enumerate(right(6, 10))})
    assert wrong.score is not None
    assert wrong.score.mean == 0.6


def test_o29_pass_at_k_is_the_unbiased_estimate() -> None:
    assert pass_at_k(8, 2, 4) == pytest.approx(0.7857, abs=5e-5)
    assert pass_at_k(8, 0, 8) == 0.0
    assert pass_at_k(8, 1, 8) == 1.0
    assert pass_at_k(8, 3, 1) == pytest.approx(3 / 8)
    assert pass_at_k(1, 1, 1) == 1.0


@pytest.mark.parametrize(("n", "c", "k"), [(2, 0, 5), (2, 2, 5), (8, 9, 4), (8, -1, 4), (8, 2, 0), (0, 0, 1)])
def test_o29_pass_at_k_beyond_its_numbers_is_an_error(n: int, c: int, k: int) -> None:
    with pytest.raises(UsageError, match=f"n={n}, c={c}, k={k}"):
        pass_at_k(n, c, k)


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
def test_pass_at_k_equals_counting_all_subsets(numbers: tuple[int, int, int]) -> None:
    from itertools import combinations

    n, c, k = numbers
    draws = list(combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))


@pytest.mark.parametrize(("rewards", "low", "high"), [([[0, 0]] * 4, 0.0, 0.602), ([[1, 1]] * 4, 0.398, 1.0)])
def test_an_interval_at_an_edge_has_the_exact_bounds_width(
    rewards: list[list[float]], low: float, high: float
) -> None:
    score = mean_at_k(rewards)
    assert (score.low, score.high) == (pytest.approx(low, abs=1e-3), pytest.approx(high, abs=1e-3))


def test_one_example_says_nothing_about_the_spread() -> None:
    score = mean_at_k([[1, 0, 1, 0]])
    assert (score.mean, score.stderr, score.low, score.high) == (0.5, 0.0, 0.0, 1.0)


@pytest.mark.parametrize("rewards", [[], [[]], [[1], [1, 0]], [[1], []]])
def test_ragged_or_no_samples_have_no_mean(rewards: list[list[float]]) -> None:
    with pytest.raises(UsageError, match="same number of samples"):
        mean_at_k(rewards)


@given(
    st.integers(1, 8).flatmap(
        lambda k: st.lists(st.lists(st.floats(0, 1), min_size=k, max_size=k), min_size=1, max_size=20)
    )
)
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
def test_the_mean_lies_in_its_interval_and_the_interval_in_the_unit(rewards: list[list[float]]) -> None:
    score = mean_at_k(rewards)
    assert 0.0 <= score.low <= score.mean <= score.high <= 1.0
    assert score.stderr >= 0.0
    assert math.isclose(score.mean, sum(map(sum, rewards)) / sum(map(len, rewards)), abs_tol=1e-12)


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0, None]), min_size=4, max_size=4), min_size=1, max_size=6))
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
def test_a_missing_rollout_is_never_averaged_away(rewards: list[list[float | None]]) -> None:
    found = summary({str(i): row for i, row in enumerate(rewards)})
    missing = sum(row.count(None) for row in rewards)
    assert len(found.missing) == missing
    assert found.complete == (found.score is not None) == (missing == 0)
    assert found.lower_bound == pytest.approx(
        sum(r or 0.0 for row in rewards for r in row) / 4 / len(rewards)
    )


def test_rollouts_that_were_not_asked_for_do_not_count() -> None:
    rows = [outcome("test:a:0", 0.0), outcome("test:z:0", 1.0), outcome("test:a:9", 1.0)]
    found = of(rows, {"test:a:0": ("a", 0)}, {**RUN, "k": 1})
    assert (found.lower_bound, found.rollouts) == (0.0, 1)


def test_o29_equal_samples_at_a_temperature_are_warned_of() -> None:
    rows = [outcome(f"test:a:{s}", 1.0, texts=7) for s in range(8)]
    keys = {row.key: (row.example_id, row.sample) for row in rows}
    assert "identical" in of(rows, keys, RUN).warnings[0]
    assert not of(rows, keys, {**RUN, "temperature": 0.0}).warnings
    assert not of([*rows[1:], outcome("test:a:0", 1.0, texts=8)], keys, RUN).warnings
    assert not of(rows, keys, {**RUN, "fixture": True}).warnings


def test_one_sample_cannot_be_identical() -> None:
    assert not summary({"a": [1.0], "b": [0.0]}).warnings


@pytest.mark.parametrize(("k", "shown"), [(1, ["1"]), (2, ["1", "2"]), (8, ["1", "4", "8"])])
def test_pass_rates_are_shown_for_one_half_and_all(k: int, shown: list[str]) -> None:
    found = summary({"a": right(1, k), "b": right(0, k)})
    assert list(found.pass_at_k) == shown
    assert found.pass_at_k[str(k)] == 0.5


def test_a_diverged_rollout_leaves_the_other_profile_without_a_score() -> None:
    rows = [outcome("test:a:0", 1.0, verdict=Verdict(1.0, "solved", standard=1.0, paper=None))]
    found = of(rows, {"test:a:0": ("a", 0)}, {**RUN, "k": 1})
    assert (found.other_profile, found.other_score, found.diverged) == ("paper", None, 1)
    assert found.score is not None


def test_tokens_are_not_reported_where_one_rollout_does_not_say() -> None:
    rows = [outcome("test:a:0", 1.0), outcome("test:b:0", 1.0, sampled_tokens=None)]
    found = of(rows, {"test:a:0": ("a", 0), "test:b:0": ("b", 0)}, {**RUN, "k": 1})
    assert (found.prompt_tokens, found.sampled_tokens) == (2, None)


def test_every_group_has_its_examples_and_an_interval() -> None:
    rewards = {"a": [1.0, 1.0], "b": [0.0, 1.0], "c": [0.0, 0.0]}
    rows = [outcome(f"test:{e}:{s}", r) for e, rs in rewards.items() for s, r in enumerate(rs)]
    keys = {row.key: (row.example_id, row.sample) for row in rows}
    groups = {
        "a": (("theme", "fork"), ("theme", "pin")),
        "b": (("theme", "fork"), ("theme", "fork")),
        "c": (("theme", "pin"), ("dataset", "nq")),
    }
    found = of(rows, keys, {**RUN, "k": 2}, groups).groups
    assert {name: list(values) for name, values in found.items()} == {
        "theme": ["fork", "pin"],
        "dataset": ["nq"],
    }
    fork, pin, nq = found["theme"]["fork"], found["theme"]["pin"], found["dataset"]["nq"]
    assert fork.score == mean_at_k([[1.0, 1.0], [0.0, 1.0]])
    assert (fork.examples, pin.examples, nq.examples) == (2, 2, 1)
    assert nq.score is not None
    assert (nq.score.low, nq.score.high) == (0.0, 1.0)


def test_o28_a_group_with_a_missing_rollout_has_no_score_but_a_lower_bound() -> None:
    rows = [outcome("test:a:0", 1.0), outcome("test:a:1", 1.0), outcome("test:b:0", 1.0)]
    keys = {f"test:{e}:{s}": (e, s) for e in "abc" for s in range(2)}
    groups = {"a": (("band", "easy"),), "b": (("band", "hard"),), "c": (("band", "hard"),)}
    found = of(rows, keys, {**RUN, "k": 2}, groups).groups["band"]
    assert found["easy"].score is not None
    assert found["easy"].missing == 0
    hard = found["hard"]
    assert (hard.examples, hard.missing, hard.score, hard.lower_bound) == (2, 3, None, 0.25)


NAMES = st.text(st.sampled_from("ab:0-é"), max_size=4)


@given(st.lists(NAMES, unique=True, max_size=5), st.integers(1, 12), NAMES, st.lists(st.integers(0, 70)))
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
def test_keys_are_those_of_the_plan_in_order_and_no_others(
    examples: list[str], k: int, other: str, marked: list[int]
) -> None:
    keys, plain = Keys.of("dev", examples, k), {f"dev:{e}:{s}": (e, s) for e in examples for s in range(k)}
    assert (list(keys.items()), len(keys)) == (list(plain.items()), len(plain))
    strange = (other, f"dev:{other}", "dev:a:00", "dev:a:-1", f"dev:a:{k}", "test:a:0", "dev:a:0 ", "dev:a:٠")
    for key in strange:
        assert keys.get(key) == plain.get(key)
    chosen = [f"dev:{e}:{number % 13}" for number in marked for e in [*examples, other]]
    marks = Marks(keys, chosen)
    assert {key for key in [*plain, *chosen, *strange] if key in marks} == set(chosen) & plain.keys()


@given(
    st.lists(st.one_of(st.floats(-1e9, 1e9), st.integers(0, 9), st.sampled_from([0.1, 1 / 3, 5e-324, 1e300])))
)
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
def test_a_sum_is_rounded_once_whatever_the_order(values: list[float]) -> None:
    found = Sum()
    for value in values:
        found.add(value)
    assert (found.total, found.count) == (math.fsum(values), len(values))


@given(st.permutations([(e, s) for e in "abc" for s in range(4)]), st.integers(0, 12))
@settings(max_examples=50, deadline=None, derandomize=True, database=None)
def test_a_summary_does_not_depend_on_the_order_nor_on_repetitions(
    order: list[tuple[str, int]], repeated: int
) -> None:
    keys = {f"test:{e}:{s}": (e, s) for e in "abc" for s in range(4)}

    def row(example: str, sample: int) -> Outcome:
        reward = float((sample + ord(example)) % 2)
        metrics = {"turns": sample, "f1": sample / 7}
        return outcome(f"test:{example}:{sample}", reward, metrics=metrics, stop_condition=str(reward))

    shuffled = [row(*one) for one in [*order, *order[:repeated]]]
    assert of(shuffled, keys, {**RUN, "k": 4}) == of(
        [row(*one) for one in sorted(order)], keys, {**RUN, "k": 4}
    )


def test_a_rollout_takes_a_few_bytes_once_it_is_counted() -> None:
    """Made one after the other, as a run's lines are read: what is kept is what grows."""
    keys = Keys.of("test", [f"e{number}" for number in range(10)], 500)
    rows = (outcome(key, float(place % 2), texts=place) for place, key in enumerate(keys))
    tracemalloc.start()
    tally, settled = tallied(rows, keys, "standard"), Marks(keys, keys)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (tally.rollouts, list(tally.missing()), "test:e3:499" in settled) == (5_000, [], True)
    assert kept < 24 * len(keys) + 10_000


def test_no_finished_rollout_at_all_is_a_summary_too() -> None:
    found = summary({"a": [None, None]})
    assert (found.score, found.lower_bound, found.rollouts, found.metrics) == (None, 0.0, 0, {})
