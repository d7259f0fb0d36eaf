"""Our own generator of problems with one integer answer from 0 to 999, in families.

    for problem in generate("largest_of_three", 100, seed=1, split="weight"):
        print(problem.text, problem.answer)

Everything that comes out of here is synthetic: it is no stand-in for AIME or any competition. A
family draws parameters, states them in English and computes the answer twice, by methods that share
no code; a disagreement stops the generator. Problems are distinct by their parameters, and the
parameters alone, brought to the family's canonical order, decide by hash which split a problem
belongs to. So two calls with different seeds may share problems, but never across splits, and a
recipe can ask for any number of fresh training problems without touching a test problem.

Bands: `easy` is in reach of a model of 135M parameters, `medium` needs a short calculation, `hard`
needs about ten lines of Python.

Not covered: the embedded files (`build_data.py`), and answers that are no integers.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, TypeAlias

from whale_envs.core import SPLITS
from whale_envs.errors import DataError, UnknownNameError, UsageError
from whale_envs.seeding import derive_rng

Params: TypeAlias = tuple[int, ...]

BANDS = ("easy", "medium", "hard")
LARGEST_ANSWER = 999
SPLIT_SHARES: Mapping[str, int] = {"weight": 70, "harness": 8, "dev": 12, "test": 10}
"""Percent of each family's problems that belong to a split."""

_NAMESPACE = "math_python/family"
_PATIENCE = 2_000
"""Draws in a row without a new problem after which a family counts as exhausted."""


def _as_text(params: Params) -> tuple[str, ...]:
    return tuple(map(str, params))


def _as_drawn(params: Params) -> Params:
    return params


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of problem."""

    name: str
    band: str
    draw: Callable[[Random], Params]
    """Parameters; those whose answer is out of range are passed over."""
    texts: tuple[str, ...]
    """Ways of stating it, with a slot for each string of `show`; a text may stand twice to weigh more."""
    formula: Callable[[Params], int]
    """The answer by a closed form or a good algorithm."""
    brute: Callable[[Params], int]
    """The answer by trying or simulating, for the check."""
    show: Callable[[Params], tuple[str, ...]] = _as_text
    canonical: Callable[[Params], Params] = _as_drawn
    """One form of parameters that make the same problem, such as three numbers in any order."""
    least: int = 0
    """Smallest answer that is asked for; 1 keeps out questions whose answer is often 0."""


class Generated(NamedTuple):
    """A problem as it comes from its family."""

    family: str
    band: str
    params: Params
    text: str
    answer: int


def get_family(name: str) -> Family:
    """The family of that name.

    Raises:
        UnknownNameError: there is none.
    """
    families = all_families()
    if name not in families:
        raise UnknownNameError("family of math_python", name, families)
    return families[name]


def all_families() -> Mapping[str, Family]:
    """Every family by name, the easy ones first."""
    from whale_envs.math_python import families_easy, families_hard, families_medium, families_number

    modules = (families_easy, families_medium, families_hard, families_number)
    return {family.name: family for module in modules for family in module.FAMILIES}


def split_of(family: str, params: Params) -> str:
    """The split that a problem belongs to, whatever the seed it was drawn with."""
    key = ",".join(map(str, get_family(family).canonical(params)))
    point = int.from_bytes(hashlib.sha256(f"{_NAMESPACE}:{family}:{key}".encode()).digest()[:8], "big") % 100
    for split, share in SPLIT_SHARES.items():
        point -= share
        if point < 0:
            return split
    raise AssertionError("the shares do not add up to 100")


def generate(family: str, count: int, seed: int, *, split: str | None = None) -> Iterator[Generated]:
    """`count` distinct problems of a family, the same for the same seed.

    Args:
        family: its name.
        count: how many; a smaller count gives the beginning of the same list.
        seed: any integer.
        split: only problems that belong to this split; None for all.

    Raises:
        UnknownNameError: no such family or split.
        UsageError: count is negative.
        DataError: the two methods disagree, or the family has fewer distinct problems.
    """
    if split is not None and split not in SPLITS:
        raise UnknownNameError("split", split, SPLITS)
    if count < 0:
        raise UsageError(f"count must be at least 0, got {count}")
    return _generate(get_family(family), count, seed, split)


def _generate(family: Family, count: int, seed: int, split: str | None) -> Iterator[Generated]:
    seen: set[Params] = set()
    found = attempt = fruitless = 0
    while found < count:
        rng = derive_rng(_NAMESPACE, seed, family.name, attempt)
        attempt += 1
        params = family.draw(rng)
        if params in seen or (split is not None and split_of(family.name, params) != split):
            fruitless += 1
        else:
            seen.add(params)
            problem = compute(family, params, rng)
            if problem is not None:
                found, fruitless = found + 1, 0
                yield problem
                continue
            fruitless += 1
        if fruitless > _PATIENCE:
            raise DataError(
                f"family {family.name} has no more than {found} problems in split {split or 'any'}"
            )


def compute(family: Family, params: Params, rng: Random) -> Generated | None:
    """The problem on these parameters, or None where its answer is out of range.

    Raises:
        DataError: the two methods disagree.
    """
    answer = family.formula(params)
    if not family.least <= answer <= LARGEST_ANSWER:
        return None
    check = family.brute(params)
    if answer != check:
        raise DataError(
            f"family {family.name}: {params} gives {answer} by formula and {check} by brute force"
        )
    text = rng.choice(family.texts).format(*family.show(params))
    return Generated(family.name, family.band, params, text, answer)
