"""Compares a replayed rollout with the recorded one: the first difference, in words.

    why = first_difference(now, then, searched=False)

Wall time is left out, and the text of a harness's failure, which names its file. Token counts may be higher
in the record where the model failed, for attempts that came to nothing are not replayed.

What the model gave back is played as it is recorded, so a difference in it is something that no backend
gives, such as a reply apart from a text that already says it. Its token ids, log-probabilities and reasons
to stop are the author's word.

Not covered: what the model was sent, which its recorded backend compares (`recorded.py`).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from whale_bench.records import Rollout, Segment
from whale_leaderboard.recorded import HARNESS_FAILED, MODEL_FAILED, text_differs

_ALONE = (
    "segments",
    "steps",
    "verdict",
    "seconds",
    "env_seconds",
    "error",
    "metrics",
    "prompt_tokens",
    "sampled_tokens",
)
"""Fields that are compared in their own way."""

_SHOWN = ("retrieval_accuracy", "extraction_accuracy")
"""Metrics over passages as they were, which a recorded result has only as they were shown."""


def first_difference(now: Rollout, then: Rollout, *, searched: bool) -> str:
    """How a rollout differs from the recorded one; empty where it does not.

    Args:
        now: the replayed one.
        then: the recorded one.
        searched: whether results of searches were taken as recorded.
    """
    return next(_differences(now, then, searched), "")


def failed_otherwise(now: Rollout, then: Rollout) -> bool:
    """Whether a harness failed then, without a reward, and does not fail so now, up to there all the same."""
    if then.stop_condition not in HARNESS_FAILED or then.verdict.reward:
        return False
    same = now.stop_condition == then.stop_condition and len(now.steps) == len(then.steps)
    return not same and next(_steps(now, then), "") == ""


def _differences(now: Rollout, then: Rollout, searched: bool) -> Iterator[str]:
    yield from _steps(now, then)
    if len(now.steps) != len(then.steps) or len(now.segments) != len(then.segments):
        yield (
            f"it ends ({now.stop_condition}) after {len(now.segments)} calls and {len(now.steps)} steps, "
            f"{len(then.segments)} and {len(then.steps)} are recorded"
        )
    yield from _each("call", now.segments, then.segments, Segment.__struct_fields__)
    if now.verdict != then.verdict:
        yield f"its verdict is {now.verdict}, {then.verdict} is recorded"
    for name in Rollout.__struct_fields__:
        if name not in _ALONE and getattr(now, name) != getattr(then, name):
            yield text_differs(name, getattr(now, name), getattr(then, name))
    if now.error != then.error and then.stop_condition not in HARNESS_FAILED:
        yield text_differs("error", now.error, then.error)
    left_out = _SHOWN if searched else ()
    metrics = [{k: v for k, v in row.metrics.items() if k not in left_out} for row in (now, then)]
    if metrics[0] != metrics[1]:
        yield f"its metrics are {metrics[0]}, {metrics[1]} are recorded"
    yield from _tokens(now, then)


def _steps(now: Rollout, then: Rollout) -> Iterator[str]:
    return _each("step", now.steps, then.steps, ("action", "observation", "event", "feedback"))


def _each(what: str, now: Sequence[Any], then: Sequence[Any], names: Iterable[str]) -> Iterator[str]:
    """What of these fields differs between things of equal place, as far as both sides have them."""
    for number, pair in enumerate(zip(now, then, strict=False), start=1):
        for name in names:
            mine, recorded = (getattr(one, name) for one in pair)
            if mine != recorded:
                yield f"{what} {number}: {text_differs(name, mine, recorded)}"


def _tokens(now: Rollout, then: Rollout) -> Iterator[str]:
    for name in ("prompt_tokens", "sampled_tokens"):
        mine, recorded = getattr(now, name), getattr(then, name)
        lost = then.stop_condition in MODEL_FAILED and None not in (mine, recorded) and recorded > mine
        if mine != recorded and not lost:
            yield f"its {name} are {mine}, {recorded} are recorded"
