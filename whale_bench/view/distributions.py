"""Histograms of a run's rollouts, and its groups with their intervals, as a page shows them.

    histograms(outcomes, k=8), groups_of(outcomes, k=8, shown_by=("band",))

Not covered: the rest of an overview, see `data.py`.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from whale_bench.scoring import Summary
from whale_bench.statistics import Score, mean_at_k
from whale_bench.store import Outcome

BINS = 12
"""Most bars of a histogram."""


class Bin(msgspec.Struct, frozen=True):
    """A bar: how many values are in [low, high]."""

    label: str
    count: int


class Histogram(msgspec.Struct, frozen=True):
    title: str
    unit: str
    """What is counted, e.g. "examples"."""
    bins: list[Bin]
    note: str = ""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """The examples that share a value, e.g. "band" and "easy"."""

    name: str
    value: str
    main: bool
    """Whether tables in the terminal show it too."""
    examples: int
    rollouts: int
    mean: float
    """Mean reward over finished rollouts."""
    low: float | None
    high: float | None
    """95% interval clustered by example; None while one of its examples lacks rollouts."""


def histograms(outcomes: Sequence[Outcome], k: int) -> list[Histogram]:
    solved: Counter[str] = Counter()
    for outcome in outcomes:
        solved[outcome.example_id] += outcome.verdict.correct
    per_example = Counter(solved.values())
    tokens = [o.sampled_tokens for o in outcomes if o.sampled_tokens is not None]
    unknown = len(outcomes) - len(tokens)
    return [
        Histogram(
            f"Solved rollouts of {k}, per example",
            "examples",
            _counted(range(k + 1), per_example) if k < BINS else _binned(list(solved.values()), whole=True),
        ),
        Histogram("Turns", "rollouts", _binned([o.model_calls for o in outcomes], whole=True)),
        Histogram(
            "Sampled tokens",
            "rollouts",
            _binned(tokens, whole=True),
            f"{unknown:,} rollouts without a count" if unknown else "",
        ),
        Histogram("Seconds", "rollouts", _binned([o.seconds for o in outcomes], whole=False)),
        ended_by(Counter(o.stop_condition for o in outcomes)),
    ]


def ended_by(counts: Mapping[str, int]) -> Histogram:
    return Histogram("Ended by", "rollouts", [Bin(*pair) for pair in Counter(counts).most_common()])


def _counted(values: Iterable[int], counts: Mapping[int, int]) -> list[Bin]:
    return [Bin(str(value), counts.get(value, 0)) for value in values]


def _binned(values: Sequence[float], *, whole: bool) -> list[Bin]:
    """Bars of one round width from the least to the greatest value; whole numbers share no bar in part."""
    if not values:
        return []
    low, high = min(values), max(values)
    if whole and high - low < BINS:
        return _counted(range(int(low), int(high) + 1), Counter(int(value) for value in values))
    width = _round_width((high - low) / (BINS - 1) or high or 1.0)
    if whole:
        width = max(1.0, width)
    first = math.floor(low / width)
    found = Counter(math.floor(value / width) - first for value in values)
    bins = []
    for number in range(max(found) + 1):
        start, end = (first + number) * width, (first + number + 1) * width
        label = f"{start:,.0f}–{end - 1:,.0f}" if whole else f"{start:.4g}–{end:.4g}"
        bins.append(Bin(label, found[number]))
    return bins


def _round_width(least: float) -> float:
    """The smallest of 1, 2, 5, 10, … (or 0.5, 0.2, …) that is no less than `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * step for step in (1, 2, 5, 10) if power * step >= least * (1 - 1e-9))


def groups_of(outcomes: Iterable[Outcome], k: int, shown_by: Sequence[str]) -> list[Group]:
    """All groups, those that tables show first, then by name and value."""
    rewards: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for outcome in outcomes:
        for pair in dict.fromkeys(outcome.groups):
            rewards[pair][outcome.example_id].append(outcome.verdict.reward)
    found = []
    for name, value in _in_order(rewards, shown_by):
        examples = list(rewards[name, value].values())
        flat = [reward for samples in examples for reward in samples]
        score: Score | None = None
        if all(len(samples) == k for samples in examples):
            score = mean_at_k(examples)
        found.append(
            Group(
                name=name,
                value=value,
                main=name in shown_by,
                examples=len(examples),
                rollouts=len(flat),
                mean=math.fsum(flat) / len(flat),
                low=score.low if score else None,
                high=score.high if score else None,
            )
        )
    return found


def stored_groups(summary: Summary, shown_by: Sequence[str]) -> list[Group]:
    """The groups of which summary.json has a score; in the order of `groups_of`."""
    scored = {
        (name, value): (group, group.score)
        for name, values in summary.groups.items()
        for value, group in values.items()
        if group.score is not None
    }
    return [
        Group(
            name=name,
            value=value,
            main=name in shown_by,
            examples=group.examples,
            rollouts=group.examples * summary.k,
            mean=score.mean,
            low=score.low,
            high=score.high,
        )
        for name, value in _in_order(scored, shown_by)
        for group, score in [scored[name, value]]
    ]


def _in_order(pairs: Iterable[tuple[str, str]], shown_by: Sequence[str]) -> list[tuple[str, str]]:
    order = {name: number for number, name in enumerate(shown_by)}
    return sorted(pairs, key=lambda pair: (order.get(pair[0], len(order)), *pair))
