"""Compares two runs on the examples that both finished: difference, interval, p-value, what flipped.

    comparison = compare(Path("runs/before"), Path("runs/after"))
    comparison.difference.mean      # of the second run's mean@k less the first's

Only examples with all k rollouts in both runs are compared, each by the difference of its two means;
how many are left out is said. While rollouts are missing there is no p-value unless it is asked for
(`incomplete`): the examples that a failing server left out are seldom a random choice. Runs of
different environments, versions of one, or profiles are refused; other differences are warned of.

A run is read once, line by line; four numbers per example and its groups are kept.

Not covered: p-values by group, where some would be small by chance; three runs or more.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from whale_bench.models.base import SAMPLING
from whale_bench.plan import same_retriever
from whale_bench.statistics import (
    Difference,
    PValue,
    ResultT,
    Score,
    bootstrapped,
    differences_of,
    paired,
    score_of,
    sign_flip,
)
from whale_bench.store import RunStore
from whale_envs.errors import UsageError

_MUST_MATCH = ("domain", "env_id", "profile")
"""Settings without which two scores are not of one thing."""

_SHOULD_MATCH = (
    "tier", "split", "k", "judge", "max_tokens", "token_budget", "closed_book", "retriever_id",
    "tokenizer_id", *SAMPLING,
)  # fmt: skip
"""Settings that may differ, but are to be known when a difference is read."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two runs."""

    folder: str
    model: str
    fixture: bool
    harness_id: str
    weights_id: str
    examples: int
    k: int
    missing: int
    """Rollouts that never finished."""
    lower_bound: float
    """mean@k of all its examples, missing rollouts counted as wrong."""
    score: Score
    """mean@k of the examples that are compared."""


class Flip(msgspec.Struct, frozen=True, kw_only=True):
    """An example that one run solves more often than the other."""

    example_id: str
    a_solved: int
    a_k: int
    b_solved: int
    b_k: int

    @property
    def size(self) -> float:
        """By how much b solves it more often, in [-1, 1]."""
        return self.b_solved / self.b_k - self.a_solved / self.a_k


class GroupComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The compared examples of one group."""

    a: Score
    b: Score
    difference: Difference


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Run b beside run a; every difference is b less a."""

    domain: str
    profile: str
    a: Side
    b: Side
    interval: str
    """"t" or "bootstrap": how all intervals here are reached."""
    compared: int
    """Examples complete in both runs."""
    left_out: int
    """Examples of either run that are not compared: incomplete in one, or not in the other."""
    complete: bool
    """Whether neither run has a missing rollout."""
    difference: Difference
    p_value: PValue | None
    """Of no difference, by flipping signs; None for an incomplete run, unless asked for."""
    groups: dict[str, dict[str, GroupComparison]]
    """By group name and value."""
    flips: list[Flip]
    """Largest first; examples solved equally often are left out."""
    warnings: list[str]
    """How the runs differ beside model and harness, a sentence each."""


@dataclass(slots=True)
class _Tally:
    """What is kept of one example of one run."""

    samples: int = 0
    rewards: float = 0.0
    solved: int = 0
    groups: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class _Read:
    """A run, read through."""

    store: RunStore
    tallies: dict[str, _Tally] = field(default_factory=lambda: defaultdict(_Tally))

    def setting(self, name: str) -> Any:
        return self.store.settings.get(name)

    @property
    def k(self) -> int:
        return int(self.setting("k"))

    @property
    def missing(self) -> int:
        return int(self.setting("n")) * self.k - sum(t.samples for t in self.tallies.values())

    def whole(self) -> list[str]:
        """Examples all of whose samples finished."""
        return [name for name, tally in self.tallies.items() if tally.samples == self.k]

    def means(self, examples: Iterable[str]) -> list[float]:
        return [self.tallies[name].rewards / self.k for name in examples]


def compare(
    a: Path, b: Path, *, bootstrap: bool = False, incomplete: bool = False, seed: int = 0
) -> Comparison:
    """Reads two run folders and compares them.

    Args:
        a: the run to compare with.
        b: the run whose difference from it is wanted.
        bootstrap: intervals by resampling examples, in place of Student's t.
        incomplete: give a p-value although rollouts are missing.
        seed: of resamples and of drawn signings.

    Raises:
        UsageError: a folder is no run, or the two cannot be compared.
    """
    stores = RunStore.open(a), RunStore.open(b)
    for name in _MUST_MATCH:
        values = [store.settings.get(name) for store in stores]
        if values[0] != values[1]:
            raise UsageError(
                f"{a} and {b} cannot be compared: their {name} is {values[0]!r} and {values[1]!r}"
            )
    first, second = (_read(store) for store in stores)
    there = set(second.whole())
    compared = [name for name in first.whole() if name in there]
    if not compared:
        raise UsageError(f"{a} and {b} cannot be compared: no example is complete in both")
    intervals = _Intervals(bootstrap, seed)
    before, after = first.means(compared), second.means(compared)
    complete = not first.missing and not second.missing
    return Comparison(
        domain=first.setting("domain"),
        profile=first.setting("profile"),
        a=_side(first, intervals.score(before)),
        b=_side(second, intervals.score(after)),
        interval="bootstrap" if bootstrap else "t",
        compared=len(compared),
        left_out=_examples_of(first, second) - len(compared),
        complete=complete,
        difference=intervals.difference(before, after),
        p_value=sign_flip(differences_of(before, after), seed=seed) if complete or incomplete else None,
        groups=_groups(first, compared, before, after, intervals),
        flips=_flips(first, second, compared),
        warnings=_warnings(first, second, len(compared)),
    )


@dataclass(frozen=True, slots=True)
class _Intervals:
    """Scores and differences with the interval that was asked for."""

    bootstrap: bool
    seed: int

    def score(self, means: Sequence[float]) -> Score:
        return self._with(score_of(means), means)

    def difference(self, before: Sequence[float], after: Sequence[float]) -> Difference:
        return self._with(paired(before, after), differences_of(before, after))

    def _with(self, result: ResultT, values: Sequence[float]) -> ResultT:
        return bootstrapped(result, values, seed=self.seed) if self.bootstrap else result


def _read(store: RunStore) -> _Read:
    run = _Read(store)
    for row in store.outcomes():
        if row.sample >= run.k:
            raise UsageError(f"{store.folder}: rollout {row.key!r} is none of this run's")
        tally = run.tallies[row.example_id]
        tally.samples += 1
        tally.rewards += row.verdict.reward
        tally.solved += row.verdict.correct
        tally.groups = row.groups
    return run


def _side(run: _Read, score: Score) -> Side:
    examples = int(run.setting("n"))
    return Side(
        folder=str(run.store.folder),
        model=run.setting("model"),
        fixture=run.setting("fixture"),
        harness_id=run.setting("harness_id"),
        weights_id=run.setting("weights_id"),
        examples=examples,
        k=run.k,
        missing=run.missing,
        lower_bound=math.fsum(t.rewards for t in run.tallies.values()) / run.k / examples,
        score=score,
    )


def _examples_of(first: _Read, second: _Read) -> int:
    """Examples of either run; of different runs those that neither began are not known apart."""
    if first.setting("examples_id") == second.setting("examples_id"):
        return int(first.setting("n"))
    shared = len(first.tallies.keys() & second.tallies.keys())
    return int(first.setting("n")) + int(second.setting("n")) - shared


def _groups(
    run: _Read,
    compared: Sequence[str],
    before: Sequence[float],
    after: Sequence[float],
    intervals: _Intervals,
) -> dict[str, dict[str, GroupComparison]]:
    members: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, example_id in enumerate(compared):
        for name, value in dict.fromkeys(run.tallies[example_id].groups):
            members[name][value].append(index)

    def of(found: Sequence[int]) -> GroupComparison:
        a, b = [before[i] for i in found], [after[i] for i in found]
        return GroupComparison(
            a=intervals.score(a), b=intervals.score(b), difference=intervals.difference(a, b)
        )

    return {
        name: {value: of(found) for value, found in sorted(values.items())}
        for name, values in members.items()
    }


def _flips(first: _Read, second: _Read, compared: Sequence[str]) -> list[Flip]:
    flips = [
        Flip(
            example_id=name,
            a_solved=first.tallies[name].solved,
            a_k=first.k,
            b_solved=second.tallies[name].solved,
            b_k=second.k,
        )
        for name in compared
    ]
    return sorted((f for f in flips if f.size), key=lambda f: (-abs(f.size), f.example_id))


def _warnings(first: _Read, second: _Read, compared: int) -> list[str]:
    found = []
    for name in _SHOULD_MATCH:
        values = [run.setting(name) for run in (first, second)]
        of_agent = name in SAMPLING and any(run.setting("agent_id") for run in (first, second))
        same = same_retriever(*values) if name == "retriever_id" else values[0] == values[1]
        if not same and not of_agent:
            said = ["not set" if value is None else repr(value) for value in values]
            found.append(f"the runs differ in {name}: {said[0]} and {said[1]}")
    if first.setting("examples_id") != second.setting("examples_id"):
        found.append(
            f"the runs are of different examples, {first.setting('n')} and {second.setting('n')}: "
            f"the {compared} that both finished are compared"
        )
    found += [
        f"{run.store.folder}: {run.missing} rollouts are missing" for run in (first, second) if run.missing
    ]
    if any(run.setting("fixture") for run in (first, second)):
        found.append("a scripted model is a fixture, no entry of any ranking")
    return found
