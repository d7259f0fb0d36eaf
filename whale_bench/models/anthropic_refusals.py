"""Reads what the Messages API refuses a request with, as the SDK raises it.

    answer = answer_of(error)                # an `Answer`, whose body is the API's words
    room_of("… exceed context limit: 9 + 5 > 10")     # 1

Not covered: what is asked instead, see `anthropic_api.py`.
"""

import re
from typing import Any

from whale_bench.models.http_retry import retry_after
from whale_bench.models.server import Answer

_TOO_LONG = ("prompt is too long", "exceed context limit", "context window", "context length")
_SHAPE = ("messages.", "messages:", "tool_use", "tool_result", "roles must alternate")

_STATUS = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "overloaded_error": 529,
}
"""HTTP status of an error that comes within a stream, whose own status was 200; all others are 500."""


def answer_of(error: Any) -> Answer:
    """The SDK's error for an answer that is one, or for an error within a stream."""
    status, headers = error.status_code, error.response.headers
    if status < 400:
        status = _STATUS.get(str(error.type), 500)
    words = " ".join(str(error.api_message or error.message).split())[:300]
    final = headers.get("x-should-retry") == "false"
    return Answer(status, words.encode("utf-8", "replace"), retry_after(headers), final)


def is_too_long(status: int, words: str) -> bool:
    """Whether prompt and `max_tokens` do not fit into the model's context."""
    return status == 413 or any(sign in words for sign in _TOO_LONG)


def is_of_chat(words: str) -> bool:
    """Whether the chat itself is refused: an answer without its call, a call without its answer."""
    return any(sign in words for sign in _SHAPE)


def room_of(words: str) -> int | None:
    """Tokens that a prompt leaves, where a refusal says so."""
    told = re.search(r"(\d+) \+ \d+ > (\d+)", words)
    return int(told[2]) - int(told[1]) if told else None
