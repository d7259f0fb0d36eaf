"""The generator: two methods that agree, distinct problems, splits that never meet."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from whale_envs import SPLITS, DataError, UnknownNameError, UsageError
from whale_envs.math_python import families
from whale_envs.math_python.families import (
    BANDS,
    SPLIT_SHARES,
    Family,
    all_families,
    compute,
    generate,
    get_family,
    split_of,
)

FAMILIES = all_families()


def test_there_are_thirty_families_in_three_bands() -> None:
    assert Counter(family.band for family in FAMILIES.values()) == {"easy": 8, "medium": 9, "hard": 13}
    assert set(BANDS) == {family.band for family in FAMILIES.values()}
    assert next(iter(FAMILIES)) == "one_digit_sum"
    assert sum(SPLIT_SHARES.values()) == 100
    assert set(SPLIT_SHARES) == set(SPLITS)


@pytest.mark.parametrize("name", FAMILIES)
def test_both_methods_agree_and_problems_are_distinct(name: str) -> None:
    family, made = FAMILIES[name], list(generate(name, 60, seed=3))
    for problem in made:
        assert family.formula(problem.params) == family.brute(problem.params) == problem.answer
        assert family.least <= problem.answer <= 999
        assert problem.text.count("{") == problem.text.count("}")
        assert problem.text[0].isupper()
        assert problem.text[-1] in ".?)"
        assert not problem.text.isspace()
    assert len({problem.params for problem in made}) == len({problem.text for problem in made}) == 60
    assert len({problem.answer for problem in made}) > 5


@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_seed_gives_the_same_problems_and_a_smaller_count_their_beginning(name: str) -> None:
    assert list(generate(name, 20, 5)) == list(generate(name, 20, 5))
    assert list(generate(name, 20, 5))[:7] == list(generate(name, 7, 5))
    assert list(generate(name, 20, 5)) != list(generate(name, 20, 6))


@pytest.mark.parametrize("name", FAMILIES)
def test_splits_are_disjoint_whatever_the_seed(name: str) -> None:
    canonical = FAMILIES[name].canonical
    held: dict[tuple[int, ...], str] = {}
    for seed, split in enumerate(SPLITS):
        for problem in generate(name, 40, seed, split=split):
            assert split_of(name, problem.params) == split
            assert held.setdefault(canonical(problem.params), split) == split


def test_the_order_of_numbers_does_not_change_the_split() -> None:
    rng = Random("order")
    for _ in range(300):
        numbers = rng.sample(range(10, 100), 3)
        splits = {split_of("largest_of_three", tuple(rng.sample(numbers, 3))) for _ in range(4)}
        assert len(splits) == 1


def test_a_recipe_can_ask_one_family_for_thousands_of_distinct_problems() -> None:
    made = list(generate("largest_of_three", 5_000, 1, split="weight"))
    assert len({problem.text for problem in made}) == 5_000
    for name in FAMILIES:
        assert len(list(generate(name, 300, 2, split="weight"))) == 300


def test_the_measured_wording_is_kept() -> None:
    texts = [problem.text for problem in generate("largest_of_three", 100, 0)]
    assert sum(text.startswith("Which is largest: ") and text.count(",") == 2 for text in texts) > 40


def test_a_disagreement_stops_the_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(get_family("units_digit"), brute=lambda params: 11)
    with pytest.raises(DataError, match=r"units_digit: \(123,\) gives 3 by formula and 11 by brute force"):
        compute(wrong, (123,), Random(0))


def test_an_exhausted_family_says_how_many_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Family(
        name="coin",
        band="easy",
        draw=lambda rng: (rng.randint(0, 1),),
        texts=("What is {0}?",),
        formula=lambda params: params[0],
        brute=lambda params: params[0],
    )
    monkeypatch.setattr(families, "all_families", lambda: {"coin": small})
    assert len(list(generate("coin", 2, 0))) == 2
    with pytest.raises(DataError, match="family coin has no more than 2 problems in split any"):
        list(generate("coin", 3, 0))


def test_answers_out_of_range_are_passed_over() -> None:
    assert compute(get_family("two_step_arithmetic"), (39, 39, 0), Random(0)) is None
    assert compute(get_family("coin_change"), (31, 10, 20, 30), Random(0)) is None


def test_bad_requests_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="largest_of_three"):
        generate("largest_of_thre", 1, 0)
    with pytest.raises(UnknownNameError, match="split"):
        generate("largest_of_three", 1, 0, split="train")
    with pytest.raises(UsageError, match="at least 0"):
        generate("largest_of_three", -1, 0)
    assert list(generate("largest_of_three", 0, 0)) == []


@pytest.mark.parametrize(
    ("name", "params", "answer"),
    [  # known values, from elsewhere than our two methods
        ("one_digit_sum", (7, 5), 12),
        ("small_difference", (12, 5), 7),
        ("largest_of_three", (31, 87, 52), 87),
        ("gcd_of_two", (84, 36), 12),
        ("divisor_count", (360,), 24),
        ("arithmetic_series", (1, 1, 10), 55),
        ("power_remainder", (2, 10, 1000), 24),
        ("base_conversion", (2, 1, 0, 1, 0), 10),
        ("remainder_pair", (3, 2, 5, 3), 8),
        ("linear_pairs", (1, 1, 10), 11),
        ("multiples_count", (3, 5, 15), 7),
        ("coin_change", (100, 1, 5, 10, 25, 50), 292),
        ("lattice_paths", (2, 2, 1, 1, 2, 0), 1),
        ("digit_sum_multiples", (100, 3, 9), 10),
        ("lattice_triangle", (3, 0, 0, 3), 1),
        ("urn_expectation", (1, 1), 5),
        ("bounded_partitions", (7, 3, 7), 4),
        ("sum_of_gcds", (12,), 40),
        ("multiplicative_order", (10, 7), 6),
        ("modular_recurrence", (0, 1, 1, 1, 10, 1000), 55),
        ("frobenius_three", (6, 9, 20), 43),
        ("power_tower", (7, 7, 7, 1000), 343),
        ("continued_fraction", (3, 7, 16), 355 + 113 - 1 + 1),
    ],
)
def test_known_values(name: str, params: tuple[int, ...], answer: int) -> None:
    family = FAMILIES[name]
    assert family.formula(params) == family.brute(params) == answer
