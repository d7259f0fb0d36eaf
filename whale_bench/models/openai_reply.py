"""Reads what OpenAI-compatible servers answer: replies, token ids, log-probabilities, refusals.

    generation = ChatReader().read(body)      # None where the body is no chat completion
    refused(400, b'{"error": …}')             # "context_length", "content_filter", …

Servers differ in every field that is not needed, so all of them are read as far as they can be true:
counts of tokens, finish reasons, text in parts, reasoning beside the text. Token ids (vLLM's
`prompt_token_ids` and `token_ids`) count only together, and log-probabilities only one to one.

Not covered: what is asked instead of a refused request, see `openai.py`; tool calls sent as text.
"""

import json
import re
from typing import Any, Literal

import msgspec

from whale_bench.models.base import FinishReason, Generation, Usage, finite_logprobs
from whale_bench.text import scrub, scrub_all
from whale_envs.text import split_thinking

Refused = Literal["key", "name", "context_length", "content_filter", "chat_template", "setting"]
"""Why a server refused a request."""

_TOO_LONG = (
    *("context_length", "context length", "context window", "context size", "maximum context"),
    *("maximum model length", "max_model_len", "too many tokens", "prompt is too long"),
    *("tokens + `max_new_tokens`", "tokens + max_new_tokens"),
)
_FILTERED = ("content_filter", "content management policy", "content_policy", "responsibleaipolicy")
_TEMPLATE = (
    *("roles must alternate", "after the optional system message", "role not supported"),
    *("roles are supported", "chat template", "jinja exception"),
)
_NO_TEMPLATE = ("no chat template", "provide a chat template", "have a chat template", "template is not set")
"""The server itself lacks a template, which no other messages would mend."""

_UNKNOWN_MODEL = re.compile(
    r"model_not_found|(unknown|invalid|no such|unrecognized|nonexistent) model\b|"
    r"\bmodel\b.{0,160}?(not found|does ?n.t exist|does not exist|"
    r"is not (a )?(valid|available|loaded|served))"
)
"""Some servers say with a 400 that they have no such model."""

FAILED = frozenset({"abort", "aborted", "error", "cancelled", "canceled"})
"""Finish reasons by which a server says that it failed half-way: what came is no reply."""

_OF_TOKENS = re.compile(r"max_(?:completion_|output_|new_)?tokens|(?:completion|output) tokens")
_AT_MOST = re.compile(
    r"(?:at most|maximum|less than or equal to|no (?:more|greater|larger) than|up to|exceed|limit|<=|>|"
    r"\[\d{1,9}\s*,)\D{0,40}(\d{1,18})(?!\d)"
)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")

_MOST_TOKENS = 2**53
_FINISH: dict[str, FinishReason] = {
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}
"""The server's words for a reply's end; all others that are not `FAILED` are "stop"."""


class _Choice(msgspec.Struct):
    message: dict[str, Any]
    finish_reason: Any = None
    token_ids: Any = None
    logprobs: Any = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: Any = None
    prompt_token_ids: Any = None


class TextChoice(msgspec.Struct):
    """A choice of /completions."""

    token_ids: list[int]
    finish_reason: Any = None
    logprobs: Any = None


class TextCompletion(msgspec.Struct):
    """An answer of /completions with token ids."""

    choices: list[TextChoice]


class ChatReader:
    """Reads answers of /chat/completions."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(_Completion)

    def read(self, body: bytes) -> Generation | None:
        """The turn in an answer; None where that is no chat completion, no whole one, or nested too deep."""
        try:
            try:
                completion = self._decoder.decode(body)
            except (msgspec.DecodeError, UnicodeDecodeError):
                # the standard library reads escaped lone surrogates, which scrub replaces
                completion = msgspec.convert(json.loads(body), _Completion)
            if not completion.choices or broke_off(completion.choices[0].finish_reason):
                return None
            return _generation(completion)
        except (ValueError, OverflowError, RecursionError):
            return None


def refused(status: int, body: bytes) -> Refused:
    """What an answer other than 200 is about."""
    if status in (401, 403):
        return "key"
    if status in (404, 405):
        return "name"
    low = message_of(body).lower()
    if status == 400 and _UNKNOWN_MODEL.search(low):
        return "name"
    if status == 413 or any(sign in low for sign in _TOO_LONG):
        return "context_length"
    if any(sign in low for sign in _FILTERED):
        return "content_filter"
    return "chat_template" if of_template(body) else "setting"


def of_template(body: bytes) -> bool:
    """Whether the model's chat template refuses the messages; llama.cpp says so with a 500."""
    low = message_of(body).lower()
    return any(sign in low for sign in _TEMPLATE) and not any(sign in low for sign in _NO_TEMPLATE)


def most_tokens(words: str, sent: int) -> int | None:
    """The most sampled tokens that a refusal allows, where it says so and that is less than was sent.

    >>> most_tokens("max_tokens is too large: 8129. This model supports at most 4096 completion tokens", 8129)
    4096
    """
    if not _OF_TOKENS.search(words):
        return None
    told = (int(found) for found in _AT_MOST.findall(_THOUSANDS.sub("", words)))
    return next((most for most in told if 0 < most < sent), None)


def message_of(body: bytes) -> str:
    """The server's own words, in one line."""
    text = body.decode("utf-8", "replace")
    value: Any
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    error = value.get("error", value) if isinstance(value, dict) else value
    text = (
        f"{error.get('message', error)} {error.get('code') or ''}" if isinstance(error, dict) else str(error)
    )
    return " ".join(text.split())[:300]


def broke_off(word: Any) -> bool:
    """Whether a finish reason says that the server failed."""
    return isinstance(word, str) and word.lower() in FAILED


def finish_of(word: Any) -> FinishReason:
    """The finish reason of a server's word; "stop" for all that is none."""
    return _FINISH.get(word, "stop") if isinstance(word, str) else "stop"


def logprobs_of(found: Any, ids: tuple[int, ...]) -> tuple[float, ...] | None:
    """The log-probabilities of `ids` in either route's shape; None where not one to one, or no numbers."""
    if not isinstance(found, dict):
        return None
    values = found.get("token_logprobs")
    if values is None and isinstance(content := found.get("content"), list):
        values = [part.get("logprob") if isinstance(part, dict) else None for part in content]
    return finite_logprobs(values) if isinstance(values, list) and len(values) == len(ids) else None


def _generation(completion: _Completion) -> Generation:
    choice, usage = completion.choices[0], completion.usage
    message, finish = choice.message, choice.finish_reason
    prompt, sampled = (
        token_count(usage.get(name)) if isinstance(usage, dict) else None
        for name in ("prompt_tokens", "completion_tokens")
    )
    raw = plain_text(message.get("content")) or plain_text(message.get("refusal"))
    reasoning, text = split_thinking(raw)
    if separate := plain_text(message.get("reasoning_content") or message.get("reasoning")):
        reasoning, raw = separate, f"<think>{separate}</think>{raw}"
    calls: Any = message.get("tool_calls")
    calls = [scrub_all(call) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    prompt_ids, sampled_ids = _ids(completion.prompt_token_ids), _ids(choice.token_ids)
    if prompt_ids is None or sampled_ids is None:
        prompt_ids = sampled_ids = None
    else:
        prompt = len(prompt_ids) if prompt is None else prompt
        sampled = len(sampled_ids) if sampled is None else sampled
    return Generation(
        text=text,
        raw_text=raw,
        reasoning=reasoning,
        finish_reason=finish_of(finish),
        tool_calls=tuple(calls),
        prompt_ids=prompt_ids,
        sampled_ids=sampled_ids,
        logprobs=None if sampled_ids is None else logprobs_of(choice.logprobs, sampled_ids),
        usage=Usage(prompt, sampled),
    )


def _ids(value: Any) -> tuple[int, ...] | None:
    """Token ids; None for what can be none."""
    if not isinstance(value, list) or not all(type(i) is int and i >= 0 for i in value):
        return None
    return tuple(value)


def token_count(value: Any) -> int | None:
    """A count of tokens; None for what can be none."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST_TOKENS:
        return None
    return int(value) if value == int(value) else None


def plain_text(content: Any) -> str:
    """The text of a message's content, which may be missing or a list of parts."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(part for part in parts if isinstance(part, str))
    return scrub(content) if isinstance(content, str) else ""
