"""What the test rollouts of a bundle have in common: the summary and the distributions that its page shows.

    behaviour = behaviour_of(settings, plan, outcomes)
    behaviour.summary.metrics, behaviour.histograms

Level 1 counts it from the rollouts that it reads anyway, so that a site can be built from reports without
looking into every rollout again.

Not covered: an entry's score and account, which a report has of its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from whale_bench.outcomes import Outcome, outcome_of
from whale_bench.plan import EvalPlan
from whale_bench.records import Rollout
from whale_bench.scoring import Summary
from whale_bench.view.data import overview_of
from whale_bench.view.distributions import Histogram
from whale_leaderboard.layout import K


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """Of all test rollouts."""

    summary: Summary
    """As a run's summary.json."""
    histograms: list[Histogram]


def small_outcome(row: Rollout) -> Outcome:
    """A rollout's outcome without the answer, which may be long."""
    return replace(outcome_of(row), verdict=replace(row.verdict, answer=None))


def behaviour_of(settings: Mapping[str, Any], plan: EvalPlan, outcomes: Sequence[Outcome]) -> Behaviour:
    """The behaviour of a whole submission.

    Args:
        settings: of its test run.
        plan: that they are of, by which what no check has read is put right.
        outcomes: of all its test rollouts; their metrics are bounded (`rows.py`).
    """
    sure = {**settings, "n": len(outcomes) // K, "temperature": plan.temperature}
    found = overview_of(sure, outcomes, None, folder="", damaged=0)
    return Behaviour(summary=found.summary, histograms=found.histograms)
