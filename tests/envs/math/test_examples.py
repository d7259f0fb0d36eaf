"""The embedded tiers: sizes, splits, honesty of the label, and the builder's bytes."""

import re
from collections import Counter
from importlib.resources import files
from pathlib import Path
from random import Random

import pytest

from whale_envs import SPLITS, DataError, UnknownNameError
from whale_envs.math_python import (
    SIZES,
    build_data,
    generate_examples,
    load_examples,
    load_family_disjoint,
    make_problem,
)
from whale_envs.math_python.examples import (
    DATA_FILE,
    EASY_QUOTA,
    MINI_QUOTA,
    OTHER_QUOTA,
    embedded_rows,
    family_splits,
)
from whale_envs.math_python.families import all_families, split_of

FAMILIES = all_families()
TIERS = ("mini", "small")


@pytest.mark.parametrize(("tier", "split"), [(tier, split) for tier in TIERS for split in SPLITS])
def test_sizes_are_as_documented_and_every_family_is_there(tier: str, split: str) -> None:
    problems = load_examples(tier, split)
    assert len(problems) == SIZES[tier][split]
    counts = Counter(problem.family for problem in problems)
    for name, family in FAMILIES.items():
        quota = MINI_QUOTA if tier == "mini" else EASY_QUOTA if family.band == "easy" else OTHER_QUOTA
        assert counts[name] == quota[split]


def test_totals() -> None:
    assert sum(SIZES["mini"].values()) == 300
    assert sum(SIZES["small"].values()) == 5_256
    size = len((files("whale_envs") / "data" / "math_python" / DATA_FILE).read_bytes())
    assert size < 2_000_000


def test_a_recipe_on_one_easy_family_has_enough_to_train_and_select_on() -> None:
    for split, least in (("weight", 256), ("dev", 64)):
        counts = Counter(p.family for p in load_examples("small", split) if p.band == "easy")
        assert min(counts.values()) >= least


def test_splits_share_no_problem_by_id_text_or_parameters() -> None:
    for tier in TIERS:
        held: dict[object, str] = {}
        for split in SPLITS:
            for problem in load_examples(tier, split):
                text = re.sub(r"\W+", " ", problem.problem.lower()).strip()
                for key in (problem.id, text):
                    assert key not in held, problem
                    held[key] = split
        rows = [row for row in embedded_rows() if tier == "small" or row.mini]
        parameters: dict[object, str] = {}
        for row in rows:
            split = row.small if tier == "small" else row.mini
            key = (row.family, FAMILIES[row.family].canonical(row.params))
            assert parameters.setdefault(key, split) == split
            assert split_of(row.family, row.params) == split


def test_numbers_alone_part_problems_of_a_family_from_those_of_other_splits() -> None:
    """No near-duplicates: the same numbers in another order or wording stay in one split."""
    held: dict[object, str] = {}
    for row in embedded_rows():
        numbers = tuple(sorted(re.findall(r"\d+", row.problem)))
        if row.family in ("next_in_sequence", "modular_recurrence", "remainder_pair", "lattice_paths"):
            continue  # there the order of the numbers is the problem
        if row.family in ("power_remainder", "power_tower", "base_conversion", "continued_fraction"):
            continue
        assert held.setdefault((row.family, numbers), row.small) == row.small, row


def test_mini_is_a_subset_of_small_and_keeps_its_splits() -> None:
    for split in SPLITS:
        assert set(load_examples("mini", split).ids) <= set(load_examples("small", split).ids)


def test_answers_of_mini_and_of_a_sample_of_small_are_computed_again() -> None:
    rows = embedded_rows()
    chosen = [row for row in rows if row.mini] + Random("again").sample(rows, 800)
    for row in chosen:
        family = FAMILIES[row.family]
        assert str(family.formula(row.params)) == str(family.brute(row.params)) == row.answer
        shown = family.show(row.params)
        assert row.problem in {text.format(*shown) for text in family.texts}
        assert 0 <= int(row.answer) <= 999


def test_the_builder_gives_the_same_bytes(tmp_path: Path) -> None:
    assert build_data.build(tmp_path / DATA_FILE) == 5_256
    embedded = (files("whale_envs") / "data" / "math_python" / DATA_FILE).read_bytes()
    assert (tmp_path / DATA_FILE).read_bytes() == embedded


def test_everything_embedded_is_labelled_synthetic() -> None:
    for tier in TIERS:
        for split in SPLITS:
            for problem in load_examples(tier, split):
                assert problem.synthetic
                assert ("dataset", "synthetic") in problem.groups
                assert ("band", problem.band) in problem.groups
                assert ("family", problem.family) in problem.groups
                assert problem.source.startswith("synthetic: ")
    real = make_problem("What is it?", "5", dataset="aime_2024")
    assert not real.synthetic
    assert real.groups == (("dataset", "aime_2024"),)


def test_a_printed_problem_shows_neither_gold_nor_source() -> None:
    problem = make_problem("What is it?", "GOLD_7391", dataset="test", source="SOURCE_7391")
    assert "7391" not in repr(problem)


def test_family_disjoint_splits_partition_the_families() -> None:
    assert set(family_splits()) == set(FAMILIES)
    for tier in TIERS:
        of = {split: {p.family for p in load_family_disjoint(tier, split)} for split in SPLITS}
        assert sum(map(len, of.values())) == len(FAMILIES)
        assert set().union(*of.values()) == set(FAMILIES)
        for split in SPLITS:
            assert {FAMILIES[name].band for name in of[split]} == {"easy", "medium", "hard"}
        assert sum(len(load_family_disjoint(tier, split)) for split in SPLITS) == sum(SIZES[tier].values())
    with pytest.raises(UnknownNameError, match="with families"):
        load_family_disjoint("full", "test")


def test_fresh_problems_never_touch_another_split() -> None:
    embedded = {p.id: split for split in SPLITS for p in load_examples("small", split)}
    fresh = generate_examples("largest_of_three", 2_000, seed=11)
    assert len(fresh) == 2_000
    assert fresh.name == "math_python/largest_of_three/weight/seed-11"
    assert {embedded.get(p.id, "weight") for p in fresh} == {"weight"}
    tested = generate_examples("largest_of_three", 100, seed=11, split="test")
    assert not set(tested.ids) & set(fresh.ids)


def test_ids_are_content_hashes_and_orders_are_fixed() -> None:
    problems = load_examples("mini", "dev")
    assert problems.ids == load_examples("mini", "dev").ids
    assert all(re.fullmatch(r"math_python-[0-9a-f]{16}", p.id) for p in problems)
    assert len({p.family for p in problems[:20]}) > 8  # families are mixed


def test_unknown_names_and_empty_problems_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="tier"):
        load_examples("large", "test")
    with pytest.raises(UnknownNameError, match="split"):
        load_examples("mini", "train")
    with pytest.raises(DataError, match="lacks problem or answer"):
        make_problem(" ", "5", dataset="x")
    with pytest.raises(DataError, match="lacks problem or answer"):
        make_problem("What?", "", dataset="x")
