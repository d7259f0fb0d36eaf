"""The problems: embedded tiers `mini` and `small`, synthetic, and `full` from the Hugging Face hub.

    load_examples("mini", "test")                     # 60 problems, no network
    generate_examples("largest_of_three", 500, seed=1)    # as many fresh ones as you like

Mini and small are our own generator's (`families.py`), 30 families in three bands, and synthetic:
they are no stand-in for AIME. Every family is in every split; a hash of the parameters decides the
split, so that the splits are disjoint, and disjoint from whatever `generate_examples` gives for
another split. Mini is a subset of small and keeps its splits. `load_family_disjoint` is the other
way to split the same problems: there no family is in two splits.

    tier    weight  harness  dev  test   source
    mini       120       60   60    60   30 families: 4, 2, 2 and 2 of each
    small    3,632      456  776   392   easy families 256, 24, 64 and 16 each; others 72, 12, 12 and 12
    full   ~16,879      256  256    60   DAPO-Math-17k; test is AIME 2024 and 2025

The weight split of full is what is left of DAPO after de-duplication, and is checked within bounds
only (see `hub.py` for the count).

Not covered: other datasets; problems whose answer is no integer.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files

import msgspec

from whale_envs.core import SPLITS, Example, ExampleSet, content_id
from whale_envs.errors import DataError, UnknownNameError
from whale_envs.math_python.families import (
    BANDS,
    Family,
    Generated,
    Params,
    all_families,
    generate,
    get_family,
)

DOMAIN = "math_python"
SPLIT_SEED = 42
"""The published seed of the split (reference §4.2)."""
DATA_FILE = "synthetic_problems.jsonl"

EASY_QUOTA: Mapping[str, int] = {"weight": 256, "harness": 24, "dev": 64, "test": 16}
"""Problems of small by split, for each family of the easy band: recipes train on one of these."""
OTHER_QUOTA: Mapping[str, int] = {"weight": 72, "harness": 12, "dev": 12, "test": 12}
MINI_QUOTA: Mapping[str, int] = {"weight": 4, "harness": 2, "dev": 2, "test": 2}

SIZES: Mapping[str, Mapping[str, int]] = {
    "mini": {"weight": 120, "harness": 60, "dev": 60, "test": 60},
    "small": {"weight": 3_632, "harness": 456, "dev": 776, "test": 392},
    "full": {"weight": 16_879, "harness": 256, "dev": 256, "test": 60},
}
"""Examples by tier and split; full/weight is the expected number, see `FULL_WEIGHT_BOUNDS`."""

FULL_WEIGHT_BOUNDS = (16_000, 17_405)


@dataclass(frozen=True, slots=True, kw_only=True)
class MathProblem(Example):
    """One problem. `gold` is the answer as a string, in DAPO and AIME as here an integer."""

    problem: str
    """The statement, without any instruction about how to answer."""
    family: str = ""
    """The generator's family; empty for real problems."""
    band: str = ""
    """easy, medium or hard; empty for real problems."""
    synthetic: bool = True
    """True where our generator made it."""
    gold: str = field(repr=False)


class Row(msgspec.Struct, frozen=True):
    """A line of the embedded file."""

    family: str
    params: Params
    problem: str
    answer: str
    small: str
    """Its split in small."""
    mini: str = ""
    """Its split in mini; empty where it is not in mini."""


def make_problem(problem: str, answer: str, *, dataset: str, source: str = "") -> MathProblem:
    """A real problem.

    Raises:
        DataError: problem or answer is empty.
    """
    problem, answer = problem.strip(), answer.strip()
    if not problem or not answer:
        raise DataError(f"{dataset} {source}: lacks problem or answer: {problem!r:.60}, {answer!r:.60}")
    return MathProblem(
        id=content_id(DOMAIN, problem),
        problem=problem,
        synthetic=False,
        groups=(("dataset", dataset),),
        gold=answer,
        source=source,
    )


def synthetic_problem(family: Family, params: Params, problem: str, answer: str) -> MathProblem:
    """A problem of our generator."""
    return MathProblem(
        id=content_id(DOMAIN, problem),
        problem=problem,
        family=family.name,
        band=family.band,
        synthetic=True,
        groups=(("dataset", "synthetic"), ("band", family.band), ("family", family.name)),
        gold=answer,
        source=f"synthetic: {family.name}{params}",
    )


@lru_cache(maxsize=16)
def load_examples(tier: str, split: str) -> ExampleSet[MathProblem]:
    """The problems of a tier's split, in fixed order.

    Raises:
        UnknownNameError: no such tier or split.
        DataError, InfrastructureError: the full tier cannot be had (see `hub.py`).
    """
    _check_names(tier, split)
    if tier == "full":
        from whale_envs.math_python.hub import load_full

        problems: Sequence[MathProblem] = load_full(split)
    else:
        problems = [_problem(row) for row in embedded_rows() if _split(row, tier) == split]
    low = high = SIZES[tier][split]
    if (tier, split) == ("full", "weight"):
        low, high = FULL_WEIGHT_BOUNDS
    if not low <= len(problems) <= high:
        raise DataError(f"{DOMAIN}/{tier}/{split} holds {len(problems)} problems, not the documented {low}")
    return ExampleSet(problems, name=f"{DOMAIN}/{tier}/{split}")


def load_family_disjoint(tier: str, split: str) -> ExampleSet[MathProblem]:
    """The embedded problems of the families that belong to a split, from all of the tier's splits.

    A second partition of the same problems, for asking whether something carries over to families
    never seen. Do not mix it with the splits of `load_examples`: they overlap.

    Raises:
        UnknownNameError: no such split, or no embedded tier of that name.
    """
    _check_names(tier, split)
    if tier == "full":
        raise UnknownNameError(f"tier of {DOMAIN} with families", tier, ["mini", "small"])
    chosen = {name for name, of in family_splits().items() if of == split}
    problems = [_problem(row) for row in embedded_rows() if row.family in chosen and _split(row, tier)]
    return ExampleSet(problems, name=f"{DOMAIN}/{tier}/families-{split}")


def family_splits() -> Mapping[str, str]:
    """Each family's split in the family-disjoint partition: of each band 2 test, 1 dev, 1 harness."""
    splits: dict[str, str] = {}
    for band in BANDS:
        names = [family.name for family in all_families().values() if family.band == band]
        names.sort(key=lambda name: hashlib.sha256(f"{SPLIT_SEED}:{name}".encode()).hexdigest())
        order = ["test", "test", "dev", "harness"] + ["weight"] * len(names)
        splits.update(zip(names, order, strict=False))
    return splits


def generate_examples(
    family: str, count: int, seed: int, *, split: str = "weight"
) -> ExampleSet[MathProblem]:
    """`count` distinct problems of one family, deterministic by seed, all belonging to `split`.

    They are disjoint from every other split, the embedded ones included, whatever the seed.

    Raises:
        UnknownNameError: no such family or split.
        DataError: the family has fewer distinct problems.
    """
    made = [_generated(problem) for problem in generate(family, count, seed, split=split)]
    return ExampleSet(made, name=f"{DOMAIN}/{family}/{split}/seed-{seed}")


def embedded_rows() -> tuple[Row, ...]:
    """The lines of the embedded file."""
    path = files("whale_envs") / "data" / DOMAIN / DATA_FILE
    return tuple(msgspec.json.decode(line, type=Row) for line in path.read_bytes().splitlines())


def _check_names(tier: str, split: str) -> None:
    if tier not in SIZES:
        raise UnknownNameError(f"tier of {DOMAIN}", tier, SIZES)
    if split not in SPLITS:
        raise UnknownNameError("split", split, SPLITS)


def _split(row: Row, tier: str) -> str:
    return row.mini if tier == "mini" else row.small


def _problem(row: Row) -> MathProblem:
    return synthetic_problem(get_family(row.family), row.params, row.problem, row.answer)


def _generated(problem: Generated) -> MathProblem:
    return synthetic_problem(get_family(problem.family), problem.params, problem.text, str(problem.answer))
