"""A filter by families: strict names, the split's order, and a run that remembers it."""

import asyncio

import pytest

from whale_bench.evaluation import EvalPlan, evaluate
from whale_bench.opening import of_families, planned_examples
from whale_bench.plan import plan_of
from whale_bench.store import RunStore
from whale_envs import load_examples
from whale_envs.errors import UnknownNameError, UsageError


def plan(**changes):
    return EvalPlan(**{"domain": "math_python", "model": "scripted/oracle", "split": "weight", **changes})


def test_only_the_named_families_are_left_in_the_splits_order():
    found = planned_examples(plan(tier="small", families=("largest_of_three",)))
    assert len(found) == 256
    assert {example.family for example in found} == {"largest_of_three"}
    both = planned_examples(plan(families=("units_digit", "largest_of_three")))
    whole = load_examples("math_python", "mini", "weight")
    assert both.ids == tuple(e.id for e in whole if e.family in ("units_digit", "largest_of_three"))
    assert (
        planned_examples(plan(families=("units_digit",), n=2)).ids
        == tuple(e.id for e in whole if e.family == "units_digit")[:2]
    )


def test_weight_and_dev_problems_of_a_family_are_different_ones():
    ids = [
        set(planned_examples(plan(tier="small", split=split, families=("largest_of_three",))).ids)
        for split in ("weight", "dev")
    ]
    assert [len(part) for part in ids] == [256, 64]
    assert not ids[0] & ids[1]


def test_a_family_that_is_none_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'largest_of_three'"):
        planned_examples(plan(families=("largest_of_thre",)))
    with pytest.raises(UsageError, match="chess_puzzles/mini/dev have no families"):
        of_families(load_examples("chess_puzzles", "mini", "dev"), ("largest_of_three",))


@pytest.mark.parametrize("bad", [(), ("units_digit", "units_digit"), ("units_digit", 3), "units_digit"])
def test_a_filter_that_says_nothing_or_twice_the_same_is_refused(bad):
    with pytest.raises(UsageError, match="families"):
        plan(families=bad)


def test_a_filtered_run_is_resumed_as_it_was(tmp_path):
    asyncio.run(evaluate(plan(split="dev", families=("units_digit",), k=1), tmp_path))
    settings = RunStore.open(tmp_path).settings
    assert plan_of(settings, tmp_path).families == ("units_digit",)
    assert asyncio.run(evaluate(None, tmp_path)).examples == settings["n"] == 2
