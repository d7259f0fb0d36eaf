"""The summary of a run: scores with intervals, by group too, behaviour metrics, what is missing.

    summary = summarise(tally, groups=groups, settings=settings, seconds={}, problems={})

mean@k is the mean over examples of the mean over each example's k samples. A run with missing
rollouts has no score, nor has a group of examples with one; `lower_bound` counts them as wrong, and
is called that.

Not covered: the formulas, see `statistics.py`; two runs, see `compare.py`.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import msgspec

from whale_bench.statistics import Score, bootstrapped, mean_at_k, pass_at_k
from whale_bench.tally import Tally

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
    tally: Tally,
    *,
    groups: Groups,
    settings: Mapping[str, object],
    seconds: Mapping[str, float],
    problems: Mapping[str, int],
    warnings: Sequence[str] = (),
    bootstrap: bool = False,
) -> Summary:
    """The summary of a run.

    Args:
        tally: its finished rollouts, under the profile that `settings` name.
        groups: of each example; those not named are in none.
        settings: the run's settings, as in run.toml.
        seconds: wall seconds by part.
        problems: infrastructure failures, see `Summary.problems`.
        warnings: the backend's own, see `Summary.warnings`.
        bootstrap: intervals by resampling examples, in place of Student's t.
    """
    score_of = _bootstrap_score if bootstrap else mean_at_k
    missing, rewards, k = list(tally.missing()), tally.rewards(), tally.keys.k
    fixture = bool(settings["fixture"])
    return Summary(
        model=str(settings["model"]),
        fixture=fixture,
        domain=str(settings["domain"]),
        tier=str(settings["tier"]),
        split=str(settings["split"]),
        profile=str(settings["profile"]),
        judge=str(settings["judge"]) if settings.get("judge") else None,
        examples=len(rewards),
        k=k,
        rollouts=tally.rollouts,
        complete=not missing,
        missing=missing,
        score=None if missing else score_of(rewards),
        lower_bound=_lower_bound(rewards, k),
        other_profile=tally.other,
        other_score=None if missing or tally.diverged else score_of(tally.others()),
        diverged=tally.diverged,
        pass_at_k={} if missing else _pass_rates(tally.solved, k),
        groups=_group_scores(dict(zip(tally.keys.examples, rewards, strict=True)), groups, k, score_of),
        metrics={name: found.mean for name, found in tally.metrics.items()},
        stop_conditions=dict(tally.stop_conditions.most_common()),
        truncated=tally.truncated / tally.rollouts if tally.rollouts else 0.0,
        metered=tally.metered,
        prompt_tokens=tally.prompt_tokens,
        sampled_tokens=tally.sampled_tokens,
        seconds=dict(seconds),
        problems=dict(problems),
        interval="bootstrap" if bootstrap else "t",
        warnings=[*warnings, *_no_judgement(tally)]
        + (_same_samples(tally, settings) if not fixture and "agent_id" not in settings else []),
    )


def _bootstrap_score(rewards: Sequence[Sequence[float]]) -> Score:
    means = [math.fsum(found) / len(found) for found in rewards]
    return bootstrapped(mean_at_k(rewards), means)


def _pass_rates(solved: Sequence[int], k: int) -> dict[str, float]:
    rates = {}
    for at in sorted({1, k // 2, k} - {0}):
        chances = [pass_at_k(k, count, at) for count in solved]
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


def _no_judgement(tally: Tally) -> list[str]:
    """Whether the judge was silent, so that the score is not what its label says."""
    silent = tally.metrics.get("judge_fallback")
    if silent is None or not silent.total:
        return []
    return [
        f"the judge gave no verdict on {silent.total:.0f} of {silent.count} answers; "
        "exact match stands for them"
    ]


def _same_samples(tally: Tally, settings: Mapping[str, object]) -> list[str]:
    """Samples that should differ and do not: one seed for all collapses k samples into one."""
    if tally.repeats_itself() and float(str(settings["temperature"])) > 0:
        return [
            f"all samples of each example are identical at temperature {settings['temperature']}: "
            "the server may ignore the seed or the sampling settings"
        ]
    return []
