"""Whole rollouts in a bundle: read strictly, counted again, and boiled down to a record.

    row = read_rollout(line)
    record = charged_of(row, "test", digest_of(line))

Not covered: whether what a rollout says happened did happen, see `replay.py`.
"""

import hashlib
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from whale_bench.charging import charge_of
from whale_bench.ledger import Charge
from whale_bench.models.base import Message
from whale_bench.outcomes import outcome_of
from whale_bench.records import Rollout, Segment, Step
from whale_envs.core import Verdict
from whale_leaderboard.layout import Charged
from whale_leaderboard.naming import doubled

MOST_CHARS = 256
"""Characters that one token may stand for, before its count cannot be true."""

_SLACK = 1.0
"""Seconds by which a part may be longer than the whole, for clocks are read one after the other."""

_A_CALL = 1
"""Tokens' worth of characters around the name and the arguments of a tool call."""
MOST_WEIGHT = 2**26
"""Bytes of memory that the content of one rollout may take."""
_LIGHT = 2**20
"""Bytes of a line that cannot weigh so much."""
_SIZES = {b"{": 208, b"[": 80, b",": 40, b":": 60, b'"': 25}
"""Most bytes of memory for which each of these stands: an object, a list, an item, a pair, half a string."""

_Id = Annotated[str, Meta(min_length=1, max_length=512)]
_Word = Annotated[str, Meta(max_length=200)]
_Count = Annotated[int, Meta(ge=0, le=2**53)]
_Share = Annotated[float, Meta(ge=0.0, le=1.0)]
_Seconds = Annotated[float, Meta(ge=0.0, le=1e9)]
_Metrics = Annotated[dict[Annotated[str, Meta(max_length=64)], float], Meta(max_length=32)]


def _strict(kind: type[msgspec.Struct], **types: Any) -> Any:
    """`kind` without unknown fields, and with narrower types for some of its fields."""
    fields: list[Any] = []
    for field in msgspec.structs.fields(kind):
        if field.name in types:
            given = (field.name, types[field.name])
            fields.append(given if field.default is msgspec.NODEFAULT else (*given, field.default))
    return msgspec.defstruct(
        f"Strict{kind.__name__}", fields, bases=(kind,), frozen=True, kw_only=True, forbid_unknown_fields=True
    )


_Message: Any = _strict(Message)
_Step: Any = _strict(Step)
_Verdict: Any = _strict(Verdict, reward=_Share, standard=_Share | None, paper=_Share | None)
_Segment: Any = _strict(
    Segment,
    messages=tuple[_Message, ...],
    prompt_tokens=_Count | None,
    sampled_tokens=_Count | None,
    lost_prompt_tokens=_Count,
    lost_sampled_tokens=_Count,
)
_Rollout = _strict(
    Rollout,
    key=_Id,
    example_id=_Id,
    sample=_Count,
    harness_id=_Id,
    weights_id=_Id,
    segments=tuple[_Segment, ...],
    steps=tuple[_Step, ...],
    verdict=_Verdict,
    prompt_tokens=_Count | None,
    sampled_tokens=_Count | None,
    tool_calls=_Count,
    stop_condition=_Word,
    metrics=_Metrics,
    seconds=_Seconds,
    env_seconds=_Seconds,
)
_decode = msgspec.json.Decoder(_Rollout).decode
_decode_plain = msgspec.json.Decoder(Rollout).decode
_encode = msgspec.json.Encoder().encode


def read_rollout(line: bytes) -> Rollout:
    """The rollout of a line.

    Raises:
        ValueError: it holds none, an unknown field, a name twice, or a value that cannot be.
    """
    if len(line) > _LIGHT and (weight := _weight(line)) > MOST_WEIGHT:
        raise ValueError(f"would take {weight:,} bytes of memory, at most {MOST_WEIGHT:,} are allowed")
    try:
        row: Rollout = _decode(line)
        # As our encoder writes it no name stands twice; only what is written otherwise is looked through.
        as_written = _encode(_decode_plain(line)) == line
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"is no rollout: {error}") from error
    if not as_written and (name := doubled(line)) is not None:
        raise ValueError(f"has the name {name!r:.80} twice in one object")
    if row.env_seconds > row.seconds + _SLACK:
        said = f"{row.env_seconds:g} s in its environment, {row.seconds:g} s in all"
        raise ValueError(f"has an env_seconds that cannot be: {said}")
    return row


def _weight(line: bytes) -> int:
    """Bytes that a line may take once it is decoded, no less than it does: three of it can be an object."""
    return len(line) + sum(size * line.count(mark) for mark, size in _SIZES.items())


def read_plain(line: bytes) -> Rollout:
    """The rollout of a line that `read_rollout` has read before, of the engine's own types."""
    return _decode_plain(line)


def digest_of(line: bytes) -> str:
    """SHA-256 of a line without its end, in hex."""
    return hashlib.sha256(line).hexdigest()


def charged_of(row: Rollout, purpose: str, digest: str) -> Charged:
    """The record of a rollout."""
    return Charged(
        key=row.key,
        purpose=purpose,
        example_id=row.example_id,
        sample=row.sample,
        weights_id=row.weights_id,
        harness_id=row.harness_id,
        prompt_tokens=row.prompt_tokens,
        sampled_tokens=row.sampled_tokens,
        model_calls=len(row.segments),
        reward=row.verdict.reward,
        reason=row.verdict.reason,
        digest=digest,
    )


def difference(row: Rollout, record: Charged, charge: Charge) -> str:
    """How a rollout differs from its record or its charge, in words; empty where it does not."""
    again = charged_of(row, record.purpose, record.digest)
    for name in Charged.__struct_fields__:
        if getattr(again, name) != getattr(record, name):
            return f"its {name} is {getattr(again, name)!r}, its record has {getattr(record, name)!r}"
    due = charge_of(outcome_of(row))
    for name in Charge.__struct_fields__:
        if getattr(due, name) != getattr(charge, name):
            return f"its {name} is {getattr(due, name)!r}, the ledger charged {getattr(charge, name)!r}"
    return ""


def impossible_tokens(row: Rollout, *, per_turn: int | None, budget: int | None) -> str:
    """What cannot be true of a rollout's token counts, in words; empty where they can.

    Args:
        row: the rollout.
        per_turn: most sampled tokens of a turn.
        budget: most of a rollout.
    """
    total = 0
    for number, segment in enumerate(row.segments, start=1):
        count = segment.sampled_tokens
        for ids, said in ((segment.sampled_ids, count), (segment.prompt_ids, segment.prompt_tokens)):
            if ids is not None and said is not None and len(ids) != said:
                return f"call {number} has {len(ids)} token ids and says {said} tokens"
        if count is None:
            continue
        total += count
        written = len(segment.text) + sum(len(str(call.get("function", ""))) for call in segment.tool_calls)
        if written > MOST_CHARS * (count + _A_CALL * len(segment.tool_calls)):
            return f"call {number} samples {written:,} characters with {count} tokens"
        if per_turn is not None and count > per_turn:
            return f"call {number} samples {count} tokens, at most {per_turn} were allowed"
    if budget is not None and total > budget and row.stop_condition != "assistant_token_budget":
        return f"{total} tokens are sampled, at most {budget} were allowed"
    lost = sum(segment.lost_sampled_tokens for segment in row.segments)
    if row.sampled_tokens is not None and row.sampled_tokens < total + lost:
        return f"{total + lost} tokens are sampled in its calls, {row.sampled_tokens} in all"
    return ""
