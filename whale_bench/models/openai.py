"""Any OpenAI-compatible chat server: vLLM, llama.cpp, a hosted API.

    OpenAIBackend("NAME", base_url="http://127.0.0.1:8000/v1")     # else OPENAI_BASE_URL

The key is OPENAI_API_KEY, if set and if the address holds no user name, which goes instead of it.

Connection errors, time-outs (see the constants), 408, 409, 429, 5xx and answers that are no chat
completion are retried with exponential back-off (`Retry-After` is honoured) and then raise
`InfrastructureError`. A refused key, model, address or request raises `UsageError`, which stops the
run; once the server has answered, it has changed its mind and `InfrastructureError` is raised. A
prompt too long for the model, a content filter and a chat template that does not take the messages
end the rollout (`ModelError`).

A server that refuses one of the settings it need not know (`OPTIONAL`) is asked again without it,
and `warnings` says so. One that refuses `max_tokens` is told the same as `max_completion_tokens`.
One that finds prompt and `max_tokens` together too long is asked again without, which leaves it the
rest of its context: less than was asked for. Token counts that cannot be true are unknown.

Not covered: token ids and logprobs from vLLM, several servers, native tool calls sent as text.
"""

import asyncio
import json
import os
import random
import time
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec

from whale_bench.models.base import Backend, FinishReason, Generation, Request, Usage
from whale_bench.text import scrub, scrub_all
from whale_envs.errors import InfrastructureError, ModelError, UsageError
from whale_envs.text import split_thinking

ATTEMPTS = 5
BACKOFF_SECONDS = 0.5
"""Wait before the second attempt; doubles with each further one, with up to a quarter of jitter."""

MOST_WAIT_SECONDS = 60.0
SILENCE_SECONDS = 600.0
"""A server that sends no byte for so long has timed out; most send none before a reply is whole."""

ANSWER_SECONDS = 1800.0
"""The longest that one attempt lasts, however its bytes trickle."""

PATIENCE_SECONDS = 900.0
"""No attempt begins later after the first than this: a server that hangs is asked twice, in 20
minutes, and none holds a rollout up for more than 45."""

OPTIONAL = ("top_k", "seed", "top_p")
"""Settings that a server may refuse without changing what is asked."""

_RETRIED = {408, 409, 425, 429}
_TOO_LONG = ("context_length", "context length", "context window", "maximum context", "too many tokens")
_UNKNOWN = ("unsupported", "not supported", "unrecognized", "unknown", "unexpected", "not permitted")
_TEMPLATE = (
    *("roles must alternate", "after the optional system message", "role not supported"),
    *("roles are supported", "chat template", "jinja exception"),
)
_NO_TEMPLATE = ("no chat template", "provide a chat template", "have a chat template", "template is not set")
"""The server itself lacks a template, which no other messages would mend."""

_MOST_TOKENS = 2**53
_FINISH: dict[str, FinishReason] = {
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
}
"""The server's words for a reply's end; all others are "stop"."""


class _Choice(msgspec.Struct):
    message: dict[str, Any]
    finish_reason: Any = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: Any = None


class OpenAIBackend(Backend):
    """See the module's docstring.

    Args:
        model: name of the model on the server.
        base_url: address up to and with the version, as OpenAI's clients take it.
        backoff_seconds: see `BACKOFF_SECONDS`.

    Attributes:
        base_url: the address in use, without user name and password.
        dropped: the settings that the server refused.

    Raises:
        UsageError: the address is no http(s) URL.
    """

    def __init__(
        self, model: str, *, base_url: str | None = None, backoff_seconds: float = BACKOFF_SECONDS
    ) -> None:
        source = "--base-url" if base_url else "OPENAI_BASE_URL"
        url = base_url or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
        if not is_address(url):
            raise UsageError(f"{source} must be an address such as http://127.0.0.1:8000/v1, got {url!r}")
        self.name = f"openai/{model}"
        self.weights_id = f"remote:{model}"
        self.dropped: set[str] = set()
        self._model, self._url, self._backoff = model, url.rstrip("/"), backoff_seconds
        parts = urlsplit(self._url)
        self._user, _, host = parts.netloc.rpartition("@")
        self.base_url = parts._replace(netloc=host).geturl()
        self._limit = "max_tokens"
        self._decoder = msgspec.json.Decoder(_Completion)
        self._session: Any = None
        self._failures: tuple[type[Exception], ...] = ()
        self._answered = False

    async def __aenter__(self) -> Self:
        import aiohttp  # a model client: loaded when it is used

        headers = {"Content-Type": "application/json"}
        key = os.environ.get("OPENAI_API_KEY", "").strip()
        if key and not self._user:
            headers["Authorization"] = f"Bearer {key}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),  # the engine bounds what is in flight
            headers=headers,
            timeout=aiohttp.ClientTimeout(ANSWER_SECONDS, sock_connect=10, sock_read=SILENCE_SECONDS),
        )
        self._failures = (aiohttp.ClientError, asyncio.TimeoutError, ConnectionError)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()

    def warnings(self) -> list[str]:
        return [f"the server refused {name}, so it was not sent" for name in sorted(self.dropped)]

    async def generate(self, request: Request) -> Generation:
        problem = "no attempt was made"
        attempt, began = 0, time.monotonic()
        while attempt < ATTEMPTS and time.monotonic() - began < PATIENCE_SECONDS:
            payload = self._payload(request)
            try:
                status, body, wait = await self._post(payload)
            except self._failures as error:
                status, body, wait = 0, b"", None
                problem = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            if status == 200:
                generation = self._read(body)
                if generation is not None:
                    return generation
                problem = f"an answer that is no chat completion: {body[:200]!r}"
            elif status in _RETRIED or (status >= 500 and not _of_template(body)):
                problem = f"HTTP {status}: {_message(body)}"
            elif status:
                request = self._without_refused(request, payload, status, body)
                continue  # asked again at once, without a setting: at most once for each
            attempt += 1
            if attempt < ATTEMPTS:
                await asyncio.sleep(self._pause(attempt) if wait is None else min(wait, MOST_WAIT_SECONDS))
        raise InfrastructureError(f"{self.base_url} failed {attempt} times; last: {problem}")

    async def _post(self, payload: dict[str, Any]) -> tuple[int, bytes, float | None]:
        if self._session is None:
            raise UsageError(f"{self.name} is used inside `async with backend:` only")
        data = msgspec.json.encode(payload)
        async with self._session.post(f"{self._url}/chat/completions", data=data) as response:
            body = await response.read()
            if response.status == 200:
                return 200, body, None
            return response.status, body, _seconds(response.headers.get("Retry-After"))

    def _payload(self, request: Request) -> dict[str, Any]:
        sampling = request.sampling
        payload: dict[str, Any] = {
            "model": self._model,
            "messages": request.messages,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": request.seed & 0x7FFF_FFFF,  # some servers take 32 bits only
        }
        if sampling.top_k:
            payload["top_k"] = sampling.top_k
        if request.max_tokens is not None:
            payload[self._limit] = request.max_tokens
        if request.tools:
            payload["tools"] = request.tools
        for name in self.dropped:
            payload.pop(name, None)
        return payload

    def _without_refused(
        self, request: Request, payload: dict[str, Any], status: int, body: bytes
    ) -> Request:
        """What to ask instead of a refused request; raises where asking again is no use."""
        message = _message(body)
        low = message.lower()
        refused: type[Exception] = InfrastructureError if self._answered else UsageError
        if status in (401, 403):
            raise refused(f"{self.base_url} refused the key in OPENAI_API_KEY (HTTP {status}): {message}")
        if status == 404:
            raise refused(f"{self.base_url} has no model {self._model!r}, or is no such server: {message}")
        if any(sign in low for sign in _TOO_LONG):
            if request.max_tokens is None:
                raise ModelError("context_length", message)
            return msgspec.structs.replace(request, max_tokens=None)
        if "content_filter" in low or "content management policy" in low:
            raise ModelError("content_filter", message)
        if _of_template(body):
            raise ModelError("chat_template", message)
        for name in OPTIONAL:
            if name in low and name in payload:
                self.dropped.add(name)
                return request
        unknown = "max_tokens" in low and any(sign in low for sign in _UNKNOWN)
        if "max_tokens" in payload and (unknown or "max_completion_tokens" in low):
            self._limit = "max_completion_tokens"
            return request
        raise refused(f"{self.base_url} refused the request (HTTP {status}): {message}")

    def _read(self, body: bytes) -> Generation | None:
        """The turn in an answer; None where that is no chat completion, or one nested too deep."""
        try:
            try:
                completion = self._decoder.decode(body)
            except (msgspec.DecodeError, UnicodeDecodeError):
                # the standard library reads escaped lone surrogates, which scrub replaces
                completion = msgspec.convert(json.loads(body), _Completion)
            if not completion.choices:
                return None
            self._answered = True
            return _generation(completion)
        except (ValueError, RecursionError):
            return None

    def _pause(self, attempt: int) -> float:
        spread = 1 + random.random() / 4
        return min(self._backoff * 2.0 ** (attempt - 1) * spread, MOST_WAIT_SECONDS)


def _generation(completion: _Completion) -> Generation:
    choice, usage = completion.choices[0], completion.usage
    message, finish = choice.message, choice.finish_reason
    prompt, sampled = (
        _count(usage.get(name)) if isinstance(usage, dict) else None
        for name in ("prompt_tokens", "completion_tokens")
    )
    raw = _text(message.get("content"))
    reasoning, text = split_thinking(raw)
    if separate := _text(message.get("reasoning_content") or message.get("reasoning")):
        reasoning, raw = separate, f"<think>{separate}</think>{raw}"
    if finish == "content_filter":
        raise ModelError("content_filter", text[:200])
    calls: Any = message.get("tool_calls")
    calls = [scrub_all(call) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    return Generation(
        text=text,
        raw_text=raw,
        reasoning=reasoning,
        finish_reason=_FINISH.get(finish, "stop") if isinstance(finish, str) else "stop",
        tool_calls=tuple(calls),
        usage=Usage(prompt, sampled),
    )


def _count(value: Any) -> int | None:
    """A count of tokens; None for what can be none."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST_TOKENS:
        return None
    return int(value) if value == int(value) else None


def _text(content: Any) -> str:
    """The text of a message's content, which may be missing or a list of parts."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(part for part in parts if isinstance(part, str))
    return scrub(content) if isinstance(content, str) else ""


def _message(body: bytes) -> str:
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


def _of_template(body: bytes) -> bool:
    """Whether the model's chat template refuses the messages; llama.cpp says so with a 500."""
    low = _message(body).lower()
    return any(sign in low for sign in _TEMPLATE) and not any(sign in low for sign in _NO_TEMPLATE)


def _seconds(header: str | None) -> float | None:
    try:
        return max(0.0, float(header)) if header is not None else None
    except ValueError:  # a date: fall back to our own back-off
        return None


def is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        return False
