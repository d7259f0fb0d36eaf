"""The summary of a run: scores with intervals, by group too, behaviour metrics, what is missing.

    summary = summarise(outcomes, keys=keys, groups=groups, settings=settings, seconds={}, problems={})

mean@k is the mean over examples of the mean over each example's k samples. A run with missing
rollouts has no score, nor has a group of examples with one; `lower_bound` counts them as wrong, and
is called that.

Not covered: the formulas, see `statistics.py`; two runs, see `compare.py`.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from whale_bench.statistics import Score, bootstrapped, mean_at_k, pass_at_k
from whale_bench.store import Outcome

__all__ = ["Group", "Groups", "Summary", "summarise"]

Groups = Mapping[str, Sequence[tuple[str, str]]]
"""Of each example, by its id, the (name, value) pairs to report by."""


_ScoreOf = Callable[[Sequence[Sequence[float]]], Score]


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """The examples of one group, e.g. of one dataset, theme, rating band or family."""

    examples: int
    missing: int
    """Rollouts of these examples that never finished."""
    score: Score | None
    """mean@k of these examples; None while one of their rollouts is missing."""
    lower_bound: float
    """mean@k with missing rollouts counted as wrong."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What summary.json holds. Accuracies are fractions."""

    model: str
    fixture: bool
    """True for scripted models, which are no entry of any ranking."""
    domain: str
    tier: str
    split: str
    profile: str
    judge: str | None = None
    """The model whose judgement the score is of; None where it is exact match or the domain's own rule."""
    examples: int
    k: int
    rollouts: int
    """Finished ones."""
    complete: bool
    missing: list[str]
    """Keys of rollouts that never finished; they have no score."""
    score: Score | None
    """mean@k under the run's profile; None while rollouts are missing."""
    lower_bound: float
    """mean@k with missing rollouts counted as wrong."""
    other_profile: str
    other_score: Score | None
    """mean@k under the other profile; None while rollouts are missing or diverged."""
    diverged: int
    """Rollouts whose other profile would have gone another way."""
    pass_at_k: dict[str, float]
    """By k, mean over examples; empty while rollouts are missing."""
    groups: dict[str, dict[str, Group]]
    """By group name and value, e.g. "band" and "easy"; an example may be in several of one name."""
    metrics: dict[str, float]
    """Mean over finished rollouts of each behaviour metric."""
    stop_conditions: dict[str, int]
    truncated: float
    """Share of finished rollouts that a cap ended or cut."""
    metered: bool = True
    """Whether the model's calls are known; False where an own agent used no proxy, in any rollout."""
    prompt_tokens: int | None
    sampled_tokens: int | None
    """Sums over finished rollouts; None where the server does not say."""
    seconds: dict[str, float]
    """Wall seconds by part, summed over launches."""
    problems: dict[str, int]
    """Infrastructure failures of this launch and how many rollouts each left missing."""
    warnings: list[str]
    """Why the score may not be what it seems, a sentence each."""
    interval: str = "t"
    """"t" or "bootstrap": how all intervals here are reached; summary.json has Student's."""


def summarise(
    outcomes: Iterable[Outcome],
    *,
    keys: Mapping[str, tuple[str, int]],
    groups: Groups,
    settings: Mapping[str, object],
    seconds: Mapping[str, float],
    problems: Mapping[str, int],
    warnings: Sequence[str] = (),
    bootstrap: bool = False,
) -> Summary:
    """The summary of a run.

    Args:
        outcomes: finished rollouts; those of no expected key are left out.
        keys: every expected rollout, key -> (example id, sample).
        groups: of each example; those not named are in none.
        settings: the run's settings, as in run.toml.
        seconds: wall seconds by part.
        problems: infrastructure failures, see `Summary.problems`.
        warnings: the backend's own, see `Summary.warnings`.
        bootstrap: intervals by resampling examples, in place of Student's t.
    """
    score_of = _bootstrap_score if bootstrap else mean_at_k
    done = {o.key: o for o in outcomes if o.key in keys}
    missing = [key for key in keys if key not in done]
    profile, k = str(settings["profile"]), int(str(settings["k"]))
    other = "paper" if profile == "standard" else "standard"
    by_example: dict[str, list[Outcome]] = {example_id: [] for example_id, _ in keys.values()}
    for key, (example_id, _) in keys.items():
        if key in done:
            by_example[example_id].append(done[key])
    samples = list(by_example.values())
    rewards = {name: [o.verdict.reward for o in found] for name, found in by_example.items()}
    others = [[getattr(o.verdict, other) for o in found] for found in samples]
    diverged = sum(reward is None for found in others for reward in found)
    fixture = bool(settings["fixture"])
    return Summary(
        model=str(settings["model"]),
        fixture=fixture,
        domain=str(settings["domain"]),
        tier=str(settings["tier"]),
        split=str(settings["split"]),
        profile=profile,
        judge=str(settings["judge"]) if settings.get("judge") else None,
        examples=len(samples),
        k=k,
        rollouts=len(done),
        complete=not missing,
        missing=missing,
        score=None if missing else score_of(list(rewards.values())),
        lower_bound=_lower_bound(list(rewards.values()), k),
        other_profile=other,
        other_score=None if missing or diverged else score_of(others),
        diverged=diverged,
        pass_at_k={} if missing else _pass_rates(samples, k),
        groups=_group_scores(rewards, groups, k, score_of),
        metrics=_metric_means(done.values()),
        stop_conditions=dict(Counter(o.stop_condition for o in done.values()).most_common()),
        truncated=sum(o.truncated for o in done.values()) / len(done) if done else 0.0,
        metered=all(o.metered for o in done.values()),
        prompt_tokens=_total(o.prompt_tokens for o in done.values()),
        sampled_tokens=_total(o.sampled_tokens for o in done.values()),
        seconds=dict(seconds),
        problems=dict(problems),
        interval="bootstrap" if bootstrap else "t",
        warnings=[*warnings, *_no_judgement(done.values())]
        + (_same_samples(samples, settings) if not fixture and "agent_id" not in settings else []),
    )


def _bootstrap_score(rewards: Sequence[Sequence[float]]) -> Score:
    means = [math.fsum(found) / len(found) for found in rewards]
    return bootstrapped(mean_at_k(rewards), means)


def _pass_rates(groups: Sequence[Sequence[Outcome]], k: int) -> dict[str, float]:
    rates = {}
    for at in sorted({1, k // 2, k} - {0}):
        chances = [pass_at_k(k, sum(o.verdict.correct for o in group), at) for group in groups]
        rates[str(at)] = math.fsum(chances) / len(chances)
    return rates


def _lower_bound(rewards: Sequence[Sequence[float]], k: int) -> float:
    return math.fsum(math.fsum(found) / k for found in rewards) / len(rewards)


def _group_scores(
    rewards: Mapping[str, Sequence[float]], groups: Groups, k: int, score_of: _ScoreOf
) -> dict[str, dict[str, Group]]:
    """Of every group, by the finished rewards of its examples."""
    members: dict[str, dict[str, list[Sequence[float]]]] = defaultdict(lambda: defaultdict(list))
    for example_id, found in rewards.items():
        for name, value in dict.fromkeys(groups.get(example_id, ())):
            members[name][value].append(found)
    return {
        name: {value: _group(found, k, score_of) for value, found in sorted(values.items())}
        for name, values in members.items()
    }


def _group(rewards: Sequence[Sequence[float]], k: int, score_of: _ScoreOf) -> Group:
    missing = sum(k - len(found) for found in rewards)
    return Group(
        examples=len(rewards),
        missing=missing,
        score=None if missing else score_of(rewards),
        lower_bound=_lower_bound(rewards, k),
    )


def _metric_means(outcomes: Iterable[Outcome]) -> dict[str, float]:
    values: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        for name, value in outcome.metrics.items():
            values[name].append(value)
    return {name: math.fsum(found) / len(found) for name, found in values.items()}


def _total(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else sum(c for c in known if c is not None)


def _no_judgement(outcomes: Iterable[Outcome]) -> list[str]:
    """Whether the judge was silent, so that the score is not what its label says."""
    asked = [o.metrics["judge_fallback"] for o in outcomes if "judge_fallback" in o.metrics]
    if not any(asked):
        return []
    return [
        f"the judge gave no verdict on {sum(asked):.0f} of {len(asked)} answers; exact match stands for them"
    ]


def _same_samples(groups: Sequence[Sequence[Outcome]], settings: Mapping[str, object]) -> list[str]:
    """Samples that should differ and do not: one seed for all collapses k samples into one."""
    several = [group for group in groups if len(group) > 1]
    same = [group for group in several if len({o.texts for o in group}) == 1]
    if several and len(same) == len(several) and float(str(settings["temperature"])) > 0:
        return [
            f"all samples of each example are identical at temperature {settings['temperature']}: "
            "the server may ignore the seed or the sampling settings"
        ]
    return []
