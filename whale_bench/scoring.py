"""Scores of a run: mean@k with an interval clustered by example, pass@k, behaviour metrics.

    >>> mean_at_k([[1, 1], [0, 1]]).mean
    0.75

mean@k is the mean over examples of the mean over each example's k samples. The k samples of one
example are not k examples: the standard error is that of the example means. A run with missing
rollouts has no score; `lower_bound` counts them as wrong, and is called that.

Not covered: comparisons of two runs, bootstrap intervals.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from whale_bench.store import Outcome
from whale_envs.errors import UsageError

_T_TABLE = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)


class Score(msgspec.Struct, frozen=True):
    """A mean of example means, in [0, 1]."""

    mean: float
    stderr: float
    """Standard error, clustered by example; 0 for one example, whose spread is unknown."""
    low: float
    high: float
    """95% interval within [0, 1], by Student's t over the example means. Where these are all equal it
    would have no width: if all are 0 or all are 1 the exact bound for that many examples stands in,
    otherwise Hoeffding's."""


def mean_at_k(rewards: Sequence[Sequence[float]]) -> Score:
    """The score of `rewards[example][sample]`; every example must have the same k >= 1 samples.

    Raises:
        UsageError: no example, no sample, or unequal numbers of samples.
    """
    counts = {len(samples) for samples in rewards}
    if len(counts) != 1 or 0 in counts:
        raise UsageError(
            f"mean@k needs the same number of samples for every example, got {sorted(counts) or 'none'}"
        )
    means = [math.fsum(samples) / len(samples) for samples in rewards]
    n = len(means)
    mean = math.fsum(means) / n
    stderr = math.sqrt(math.fsum((m - mean) ** 2 for m in means) / (n - 1) / n) if n > 1 else 0.0
    if n == 1:
        low, high = 0.0, 1.0
    elif stderr > 0.0:
        half = t_quantile(n - 1) * stderr
        low, high = mean - half, mean + half
    elif mean in (0.0, 1.0):
        bound = 0.025 ** (1 / n)
        low, high = (0.0, 1.0 - bound) if mean == 0.0 else (bound, 1.0)
    else:
        half = math.sqrt(math.log(40) / (2 * n))
        low, high = mean - half, mean + half
    return Score(mean, stderr, max(0.0, low), min(1.0, high))


def t_quantile(df: int) -> float:
    """97.5% quantile of Student's t with `df` >= 1 degrees of freedom, to three decimals."""
    if df <= len(_T_TABLE):
        return _T_TABLE[df - 1]
    z = 1.959963984540054  # the normal distribution's, corrected by Cornish and Fisher's expansion
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return math.fsum(term / df**power for power, term in enumerate(terms))


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased chance that one of k samples is right, from c right of n (Chen et al. 2021).

    Raises:
        UsageError: k is more than n, or the numbers make no sense.
    """
    if not 0 <= c <= n or not 1 <= k <= n:
        raise UsageError(f"pass@k needs 0 <= c <= n and 1 <= k <= n, got n={n}, c={c}, k={k}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


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
    groups: dict[str, dict[str, float]]
    """Mean reward over finished rollouts by group name and value, e.g. "band" and "easy"."""
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


def summarise(
    outcomes: Iterable[Outcome],
    *,
    keys: Mapping[str, tuple[str, int]],
    settings: Mapping[str, object],
    seconds: Mapping[str, float],
    problems: Mapping[str, int],
    warnings: Sequence[str] = (),
) -> Summary:
    """The summary of a run.

    Args:
        outcomes: finished rollouts; those of no expected key are left out.
        keys: every expected rollout, key -> (example id, sample).
        settings: the run's settings, as in run.toml.
        seconds: wall seconds by part.
        problems: infrastructure failures, see `Summary.problems`.
        warnings: the backend's own, see `Summary.warnings`.
    """
    done = {o.key: o for o in outcomes if o.key in keys}
    missing = [key for key in keys if key not in done]
    profile, k = str(settings["profile"]), int(str(settings["k"]))
    other = "paper" if profile == "standard" else "standard"
    by_example: dict[str, list[Outcome]] = defaultdict(list)
    for key, (example_id, _) in keys.items():
        by_example.setdefault(example_id, [])
        if key in done:
            by_example[example_id].append(done[key])
    groups = list(by_example.values())
    rewards = [[o.verdict.reward for o in group] for group in groups]
    others = [[getattr(o.verdict, other) for o in group] for group in groups]
    diverged = sum(reward is None for group in others for reward in group)
    fixture = bool(settings["fixture"])
    return Summary(
        model=str(settings["model"]),
        fixture=fixture,
        domain=str(settings["domain"]),
        tier=str(settings["tier"]),
        split=str(settings["split"]),
        profile=profile,
        judge=str(settings["judge"]) if settings.get("judge") else None,
        examples=len(groups),
        k=k,
        rollouts=len(done),
        complete=not missing,
        missing=missing,
        score=None if missing else mean_at_k(rewards),
        lower_bound=math.fsum(math.fsum(group) / k for group in rewards) / len(groups),
        other_profile=other,
        other_score=None if missing or diverged else mean_at_k(others),
        diverged=diverged,
        pass_at_k={} if missing else _pass_rates(groups, k),
        groups=_group_means(done.values()),
        metrics=_metric_means(done.values()),
        stop_conditions=dict(Counter(o.stop_condition for o in done.values()).most_common()),
        truncated=sum(o.truncated for o in done.values()) / len(done) if done else 0.0,
        metered=all(o.metered for o in done.values()),
        prompt_tokens=_total(o.prompt_tokens for o in done.values()),
        sampled_tokens=_total(o.sampled_tokens for o in done.values()),
        seconds=dict(seconds),
        problems=dict(problems),
        warnings=[*warnings, *_no_judgement(done.values())]
        + (_same_samples(groups, settings) if not fixture and "agent_id" not in settings else []),
    )


def _pass_rates(groups: Sequence[Sequence[Outcome]], k: int) -> dict[str, float]:
    rates = {}
    for at in sorted({1, k // 2, k} - {0}):
        chances = [pass_at_k(k, sum(o.verdict.correct for o in group), at) for group in groups]
        rates[str(at)] = math.fsum(chances) / len(chances)
    return rates


def _group_means(outcomes: Iterable[Outcome]) -> dict[str, dict[str, float]]:
    rewards: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for outcome in outcomes:
        for name, value in outcome.groups:
            rewards[name][value].append(outcome.verdict.reward)
    return {
        name: {value: math.fsum(found) / len(found) for value, found in sorted(values.items())}
        for name, values in rewards.items()
    }


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
