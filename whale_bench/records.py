"""What a rollout leaves behind: frozen records, one JSON line each.

A `Rollout` is a list of `Segment`s (one for each call of the model, with what was sent and what was
sampled, exactly) and a list of `Step`s (one for each action). `training_sequences` merges segments
into the token sequences that a trainer may use.

    msgspec.json.decode(line, type=Rollout).verdict.reward

Not covered: how records are written and found again, see `store.py`.
"""

from typing import Any

import msgspec

from whale_bench.models.base import Message
from whale_envs.core import Verdict


class Segment(msgspec.Struct, frozen=True, omit_defaults=True):
    """One call of the model."""

    messages: tuple[Message, ...]
    """As sent."""
    text: str
    """The raw sampled text, reasoning included."""
    finish_reason: str = "stop"
    tools: tuple[dict[str, Any], ...] = ()
    """Tool schemas as sent."""
    tool_calls: tuple[dict[str, Any], ...] = ()
    prompt_ids: tuple[int, ...] | None = None
    """The exact prompt; None where the server does not say. A trainer refuses None."""
    sampled_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    """Of `sampled_ids`, one to one."""
    prompt_tokens: int | None = None
    sampled_tokens: int | None = None
    seed: int = 0
    """As sent with the request."""
    cache_read_tokens: int | None = None
    """Of `prompt_tokens`, those from the server's prompt cache; None where it does not say."""
    cache_write_tokens: int | None = None
    lost_prompt_tokens: int = 0
    """Beside `prompt_tokens`: of attempts at this call that failed and were made anew."""
    lost_sampled_tokens: int = 0
    reply: str | None = None
    """The final text that the harness was shown; None where `split_thinking(text)` gives it."""
    reasoning: str | None = None
    """Likewise the reasoning."""


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One action (or nudge, where `action` is None) and what followed."""

    action: str | None
    observation: str
    event: str
    feedback: str
    calls: int | None = None
    """How many of the rollout's segments stood there when this was decided: those since the last step led
    to it. An own agent may make none or several. None in older records, where each step has one."""


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """One agent on one example: the unit of the budget."""

    key: str
    """Unique in its run; also the ledger's."""
    domain: str
    example_id: str
    sample: int
    """0 <= sample < k."""
    seed: int
    harness_id: str
    weights_id: str
    opening: str
    """The first observation."""
    segments: tuple[Segment, ...]
    steps: tuple[Step, ...]
    verdict: Verdict
    stop_condition: str
    """Why it ended: the task's own word, or "max_turns", "assistant_token_budget",
    "context_length", "content_filter", "chat_template", "harness_stop", "harness_error",
    "harness_timeout", "provenance", "agent_error", "agent_timeout"."""
    truncated: bool
    """Ended by a cap on turns, tokens or context, or its last reply was cut off."""
    error: str = ""
    """What the model, the harness or an own agent failed with, for people."""
    metrics: dict[str, float] = {}
    """The domain's behaviour metrics."""
    groups: tuple[tuple[str, str], ...] = ()
    """The example's (name, value) pairs to report by."""
    metered: bool = True
    """Whether the model's calls are known; False for an own agent that used no proxy."""
    prompt_tokens: int | None = None
    """Over all calls, failed attempts included; None where the server does not say."""
    sampled_tokens: int | None = None
    """Likewise; `metrics` has those of the answers alone, which the rollout's budget counts."""
    known_prompt_tokens: int | None = None
    """Where one of the two above is None: the sum over the calls whose size is known, which is charged."""
    known_sampled_tokens: int | None = None
    tool_calls: int = 0
    seconds: float = 0.0
    """Wall time from first to last, waiting included."""
    env_seconds: float = 0.0
    """That part of it which went into the environment's steps: tools and verification."""


class TrainingSequence(msgspec.Struct, frozen=True):
    """Token ids with a mask over the sampled ones: `len(mask) == len(ids)`."""

    ids: tuple[int, ...]
    mask: tuple[bool, ...]
    """True where the model sampled the token."""


def training_sequences(rollout: Rollout) -> list[TrainingSequence]:
    """The rollout's segments as few sequences as their tokens allow.

    A segment whose prompt extends the sequence so far, token for token, goes on with it; otherwise
    (the harness rewrote the context, or the chat template dropped an earlier turn) a new sequence
    begins. Nothing is re-encoded: the sampled ids are exactly those that were sampled.

    Raises:
        ValueError: a segment has no token ids.
    """
    sequences: list[TrainingSequence] = []
    for segment in rollout.segments:
        if segment.prompt_ids is None or segment.sampled_ids is None:
            raise ValueError(
                f"rollout {rollout.key} has a segment without token ids: it cannot be trained on"
            )
        ids, mask = segment.prompt_ids, (False,) * len(segment.prompt_ids)
        last = sequences[-1] if sequences else None
        if last and ids[: len(last.ids)] == last.ids:
            mask = last.mask + (False,) * (len(ids) - len(last.ids))
            sequences.pop()
        ids, mask = ids + segment.sampled_ids, mask + (True,) * len(segment.sampled_ids)
        sequences.append(TrainingSequence(ids, mask))
    return sequences
