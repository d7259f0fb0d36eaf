"""Chats as the Messages API takes them, and its replies as everything else here takes them.

    system, messages = to_messages(request.messages, memory)
    generation = to_generation(message, written, memory)

On the way there: system messages go together into the `system` blocks, tool calls become `tool_use`
blocks and tool messages `tool_result` blocks; neighbours of one role are merged, so that all results of
one turn stand in one message; texts without a visible character are left out, as the API refuses them.

On the way back: texts are joined, thinking is the reasoning, and tool calls are found wherever they
stand, their arguments exactly as they were sampled.

The API wants the thinking that led to a tool call back, signed and unchanged, with the call's result.
A harness neither sees nor sends it, so `ThinkingMemory` keeps the blocks of a reply by the ids of its
tool calls, which the API never gives twice. They go back whole where the harness sends text and calls as
they were; otherwise their thinking goes before what the harness made of the rest. Thinking without a
tool call is not sent again; nobody asks for it.

Not covered: images, documents, citations, tools that the server runs itself.
"""

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from whale_bench.models.base import FinishReason, Generation, Message, Usage
from whale_bench.text import scrub, scrub_all
from whale_envs.errors import ModelError
from whale_envs.text import split_thinking

Block = dict[str, Any]

REMEMBERED = 4096
"""Replies whose blocks are kept: many times more than there are rollouts in flight."""

_FINISH: dict[str, FinishReason] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",  # what fitted was sampled
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
"""The API's words for a reply's end; all others ("end_turn", "stop_sequence", "pause_turn") are "stop"."""

_MOST_TOKENS = 2**53


class _Reply(msgspec.Struct, frozen=True):
    text: str
    calls: tuple[dict[str, Any], ...]
    blocks: tuple[Block, ...]


class ThinkingMemory:
    """Blocks of the latest replies with tool calls, by the calls' ids."""

    def __init__(self, most: int = REMEMBERED) -> None:
        self._most = most
        self._replies: OrderedDict[tuple[str, ...], _Reply | None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._replies)

    def keep(self, text: str, calls: tuple[dict[str, Any], ...], blocks: tuple[Block, ...]) -> None:
        ids, reply = _ids(calls), _Reply(text, calls, blocks)
        if not any(ids):
            return
        # A server that gives an id twice would have one rollout's thinking end up in another.
        clash = ids in self._replies and self._replies[ids] != reply
        self._replies[ids] = None if clash else reply
        self._replies.move_to_end(ids)
        if len(self._replies) > self._most:
            self._replies.popitem(last=False)

    def blocks(self, message: Message) -> list[Block]:
        """The blocks of an assistant's message."""
        known = self._replies.get(_ids(message.tool_calls)) if message.tool_calls else None
        if known is not None and (known.text, known.calls) == (message.content, message.tool_calls):
            return list(known.blocks)
        thinking = [block for block in known.blocks if _is_thinking(block)] if known else []
        return [*thinking, *_text_block(message.content), *map(_tool_use, message.tool_calls)]


BEGIN = "Begin."
"""What the user says before a chat that begins with a reply, which the API takes of nobody."""


def to_messages(chat: Iterable[Message], memory: ThinkingMemory) -> tuple[list[Block], list[Block]]:
    """(system blocks, messages) of a chat.

    Raises:
        ModelError: "chat_template": the chat says nothing.
    """
    system: list[Block] = []
    messages: list[Block] = []
    for message in chat:
        if message.role == "system":
            system += _text_block(message.content)
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _user_blocks(message) if role == "user" else memory.blocks(message)
        if blocks and messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        elif blocks:
            messages.append({"role": role, "content": blocks})
    if not messages:
        raise ModelError("chat_template", "no message but the system's has any text")
    if messages[0]["role"] == "assistant":  # as under h0 of Chess Puzzles from the second turn on
        messages.insert(0, {"role": "user", "content": _text_block(BEGIN)})
    for turn in messages:
        if turn["role"] == "user":  # the API wants results before the text of the same turn
            turn["content"].sort(key=lambda block: block["type"] == "text")
    return system, messages


def to_tools(tools: Iterable[Mapping[str, Any]]) -> list[Block]:
    """Tool schemas from OpenAI's shape."""
    found = []
    for tool in tools:
        function = tool.get("function", tool)
        schema = function.get("parameters") or {"type": "object", "properties": {}}
        words = {"description": function["description"]} if function.get("description") else {}
        found.append({"name": function.get("name", ""), **words, "input_schema": schema})
    return found


def to_generation(message: Any, written: Mapping[int, str], memory: ThinkingMemory) -> Generation:
    """The turn in an API message.

    Args:
        message: the SDK's.
        written: the sampled JSON of tool inputs by the number of their block, as far as it was streamed.
        memory: where a reply with tool calls is kept.
    """
    blocks = [block.to_dict() for block in message.content]
    said, reasoning, calls = [], [], []
    for number, block in enumerate(blocks):
        if block["type"] == "text":
            said.append(block["text"])
        elif block["type"] == "thinking":
            reasoning.append(block["thinking"])
        elif block["type"] == "tool_use":
            arguments = written.get(number) or json.dumps(block["input"], ensure_ascii=False)
            function = {"name": block["name"], "arguments": arguments}
            calls.append(scrub_all({"id": block["id"], "type": "function", "function": function}))
    raw = scrub("".join(said))
    thinking, text = split_thinking(raw)
    kept = [block for block in blocks if block["type"] != "text" or block["text"].strip()]
    memory.keep(text, tuple(calls), tuple(kept))
    thoughts = scrub("\n".join(filter(None, (*reasoning, thinking))))
    finish = message.stop_reason
    return Generation(
        text=text,
        raw_text=f"<think>{thoughts}</think>{text}" if thoughts else raw,
        reasoning=thoughts,
        finish_reason=_FINISH.get(finish, "stop") if isinstance(finish, str) else "stop",
        tool_calls=tuple(calls),
        usage=to_usage(message),
    )


def to_usage(message: Any) -> Usage:
    """Tokens by kind; the prompt's are those read anew, written to the cache and read from it."""
    usage = getattr(message, "usage", None)
    fresh, write, read, sampled = (
        _count(getattr(usage, name, None))
        for name in (
            *("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"),
            "output_tokens",
        )
    )
    prompt = None if fresh is None else fresh + (write or 0) + (read or 0)
    return Usage(prompt, sampled, cache_read_tokens=read, cache_write_tokens=write)


def lose(lost: Usage, usage: Usage) -> Usage:
    """What was lost so far and a failed attempt."""
    return Usage(
        cache_read_tokens=_plus(lost.cache_read_tokens, usage.cache_read_tokens),
        cache_write_tokens=_plus(lost.cache_write_tokens, usage.cache_write_tokens),
        lost_prompt_tokens=lost.lost_prompt_tokens + (usage.prompt_tokens or 0),
        lost_sampled_tokens=lost.lost_sampled_tokens + (usage.sampled_tokens or 0),
    )


def sum_up(usage: Usage, lost: Usage) -> Usage:
    """The last attempt's tokens, with those lost before it; cache counts are of all attempts."""
    return msgspec.structs.replace(
        lost,
        prompt_tokens=usage.prompt_tokens,
        sampled_tokens=usage.sampled_tokens,
        cache_read_tokens=_plus(lost.cache_read_tokens, usage.cache_read_tokens),
        cache_write_tokens=_plus(lost.cache_write_tokens, usage.cache_write_tokens),
    )


def _user_blocks(message: Message) -> list[Block]:
    if message.role != "tool":
        return _text_block(message.content)
    result: Block = {"type": "tool_result", "tool_use_id": message.tool_call_id}
    return [{**result, "content": message.content} if message.content.strip() else result]


def _text_block(text: str) -> list[Block]:
    return [{"type": "text", "text": text}] if text.strip() else []


def _tool_use(call: Mapping[str, Any]) -> Block:
    found = call.get("function")
    function: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    given = function.get("arguments") or "{}"
    try:
        value = json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        value = given
    arguments = value if isinstance(value, dict) else {"arguments": value}
    return {
        "type": "tool_use",
        "id": call.get("id") or "",
        "name": function.get("name") or "",
        "input": arguments,
    }


def _is_thinking(block: Block) -> bool:
    return block["type"] in ("thinking", "redacted_thinking")


def _ids(calls: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(str(call.get("id") or "") for call in calls)


def _count(value: Any) -> int | None:
    """A count of tokens; None for what can be none."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST_TOKENS:
        return None
    return value


def _plus(a: int | None, b: int | None) -> int | None:
    return b if a is None else a + (b or 0)
