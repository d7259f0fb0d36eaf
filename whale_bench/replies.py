"""Between a backend and a rollout: a harness's chat as messages, a reply as clean text and as a segment.

    generation = cleaned(await backend.generate(request))
    segment = segment_of(request, generation)
    reasoning, text = said_in(segment)

Not covered: how a harness reads a reply, see `turns.py`.
"""

import json
from typing import Any

import msgspec

from whale_bench.models.base import Generation, Message, Request, finite_logprobs
from whale_bench.records import Segment
from whale_bench.text import scrub, scrub_all
from whale_envs.errors import HarnessError
from whale_envs.text import split_thinking


def cleaned(generation: Generation) -> Generation:
    """Text that can be written down, with whatever stands in thinking tags taken for reasoning.

    Done here and for every backend, so that harness, provenance rule and environment all see the same
    final text, and a move or an answer in the model's thinking is none.
    """
    thinking, text = split_thinking(scrub(generation.text))
    return msgspec.structs.replace(
        generation,
        text=text,
        raw_text=scrub(generation.raw_text or generation.text),
        reasoning="\n".join(filter(None, (scrub(generation.reasoning), thinking))),
        tool_calls=scrub_all(generation.tool_calls) if generation.tool_calls else (),
    )


def arguments_of(generation: Generation) -> list[str]:
    """The arguments of the tool calls, as sampled, and the texts in them."""
    functions = [call.get("function") for call in generation.tool_calls]
    found = [function.get("arguments") for function in functions if isinstance(function, dict)]
    texts = [value if isinstance(value, str) else str(value) for value in found if value is not None]
    for text in tuple(texts):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue
        texts += [v for v in value.values() if isinstance(v, str)] if isinstance(value, dict) else []
    return texts


def segment_of(request: Request, generation: Generation) -> Segment:
    usage = generation.usage
    thinking, text = split_thinking(generation.raw_text)
    return Segment(
        messages=request.messages,
        tools=request.tools,
        text=generation.raw_text,
        finish_reason=generation.finish_reason,
        tool_calls=generation.tool_calls,
        prompt_ids=generation.prompt_ids,
        sampled_ids=generation.sampled_ids,
        logprobs=finite_logprobs(generation.logprobs),
        prompt_tokens=usage.prompt_tokens,
        sampled_tokens=usage.sampled_tokens,
        seed=request.seed,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        lost_prompt_tokens=usage.lost_prompt_tokens,
        lost_sampled_tokens=usage.lost_sampled_tokens,
        reply=None if text == generation.text else generation.text,
        reasoning=None if thinking == generation.reasoning else generation.reasoning,
    )


def said_in(segment: Segment) -> tuple[str, str]:
    """(reasoning, final text) of a recorded reply, as `segment_of` was given them."""
    thinking, text = split_thinking(segment.text)
    return (
        thinking if segment.reasoning is None else segment.reasoning,
        text if segment.reply is None else segment.reply,
    )


class _Chat(msgspec.Struct):
    """Of a type that is no class, msgspec works out at every call what it asks for."""

    chat: tuple[Message, ...]


def to_messages(chat: list[dict[str, Any]]) -> tuple[Message, ...]:
    try:
        return msgspec.convert({"chat": chat}, _Chat).chat
    except msgspec.ValidationError as error:
        raise HarnessError("harness_error", f"messages: {error}".replace("$.chat", "$")) from error
