"""A rollout without its content: what scoring needs of each, small in memory.

    outcome_of(rollout)                          # of a record that was just made
    reader = OutcomeReader()
    reader.outcome(decoder.decode(line))         # of a line: Decoder(SkimmedLine)

A long run repeats a few verdicts, metrics and groups over and over; one `OutcomeReader` holds each once. Who
reads every line and keeps none needs no outcome: a `SkimmedLine` says the same.

Not covered: reading files, see `store.py`.
"""

import sys
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import msgspec

from whale_bench.records import Rollout
from whale_envs.core import Verdict

_MOST_SHARED = 10_000
"""Most values of one kind that are remembered; then all are forgotten."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A rollout without its content: what scoring needs, small in memory."""

    key: str
    example_id: str
    sample: int
    verdict: Verdict
    stop_condition: str
    truncated: bool
    metrics: dict[str, float]
    groups: tuple[tuple[str, str], ...]
    model_calls: int
    tool_calls: int
    metered: bool = True
    prompt_tokens: int | None
    sampled_tokens: int | None
    known_prompt_tokens: int | None = None
    known_sampled_tokens: int | None = None
    seconds: float
    texts: int
    """Hash of the sampled texts, to tell equal samples within one process."""


class SkimmedSegment(msgspec.Struct, gc=False):
    """The one field of a segment that an outcome needs."""

    text: str


class SkimmedLine(msgspec.Struct, kw_only=True, gc=False):
    """The fields of a rollout's line that an outcome needs; the others are skipped, not built."""

    key: str
    domain: str
    example_id: str
    sample: int
    seed: int
    harness_id: str
    weights_id: str
    segments: tuple[SkimmedSegment, ...]
    verdict: Verdict
    stop_condition: str
    truncated: bool
    metered: bool = True
    metrics: dict[str, float] = {}
    groups: tuple[tuple[str, str], ...] = ()
    prompt_tokens: int | None = None
    sampled_tokens: int | None = None
    known_prompt_tokens: int | None = None
    known_sampled_tokens: int | None = None
    tool_calls: int = 0
    seconds: float = 0.0

    @property
    def texts(self) -> int:
        """As of an `Outcome`."""
        return _texts(self)


class OutcomeReader:
    """Makes outcomes of lines; equal parts of them are one object."""

    def __init__(self) -> None:
        self._example, self._verdict, self._metrics, self._groups = (_sharer() for _ in range(4))

    def outcome(self, line: SkimmedLine) -> Outcome:
        metrics = line.metrics
        return Outcome(
            key=line.key,
            example_id=self._example(line.example_id, line.example_id),
            sample=line.sample,
            verdict=self._verdict(line.verdict, line.verdict),
            stop_condition=sys.intern(line.stop_condition),
            truncated=line.truncated,
            metrics=self._metrics((*metrics, *metrics.values()), metrics),
            groups=self._groups(line.groups, line.groups),
            model_calls=len(line.segments),
            tool_calls=line.tool_calls,
            metered=line.metered,
            prompt_tokens=line.prompt_tokens,
            sampled_tokens=line.sampled_tokens,
            known_prompt_tokens=line.known_prompt_tokens,
            known_sampled_tokens=line.known_sampled_tokens,
            seconds=line.seconds,
            texts=_texts(line),
        )


def outcome_of(rollout: Rollout | SkimmedLine) -> Outcome:
    """The outcome of one rollout; of many lines, see `OutcomeReader`."""
    shared = dict(zip(_SHARED, _shared(rollout), strict=True))
    return Outcome(**shared, model_calls=len(rollout.segments), texts=_texts(rollout))


_SHARED = tuple(name for name in Outcome.__struct_fields__ if name in Rollout.__struct_fields__)
_shared = attrgetter(*_SHARED)


def _texts(rollout: Rollout | SkimmedLine) -> int:
    return hash(tuple([segment.text for segment in rollout.segments]))


def _sharer() -> Callable[[Any, Any], Any]:
    """A function of (key, value) that gives the first value it was given for that key."""
    known: dict[Any, Any] = {}
    share = known.setdefault

    def shared(key: Any, value: Any) -> Any:
        if len(known) > _MOST_SHARED:
            known.clear()
        return share(key, value)

    return shared
