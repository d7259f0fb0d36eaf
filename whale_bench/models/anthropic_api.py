"""The Messages API, through Anthropic's own SDK.

    AnthropicBackend("NAME")                   # at base_url, else ANTHROPIC_BASE_URL, else Anthropic's

The key is ANTHROPIC_API_KEY; a server of one's own needs none, and one whose address holds a user name
gets that instead. How chats and replies are carried over, and thinking between the turns of a tool
exchange, is in `anthropic_messages.py`.

Every reply is streamed, as the API asks for long ones. What is retried, how patiently, and how much an
overloaded server (429, 529) is asked at a time is as for `openai/NAME` (`servers.py`), and not the SDK's;
a stream that breaks off or reports an error, and an answer that is no message, are attempts without an
answer. In the end `UnansweredError` (infrastructure) is raised. Tokens that a failed attempt reported are
counted as lost, whatever the next one comes to. A refused key, model, address or request raises
`UsageError` until the first answer, and is infrastructure after it. A prompt too long for the model and a
chat that the API does not take end the rollout (`ModelError`), and so does a refusal (finish reason
"content_filter").

Sampling settings are sent only where they differ from the API's defaults (temperature 1, top_p 1, no
top_k). Newer models refuse some, or some together: one that is refused is left out from then on, and
`warnings` says so. The API requires `max_tokens`: `DEFAULT_TOKENS` stands in for none, and a model that
allows less is asked for what it allows. The end of the system prompt and of the chat are marked for the
prompt cache, so that the next turn, and the next sample of the same prompt, reads what is common.

Not covered: seeds (the API has none, so a run cannot be repeated), the thinking settings (the model's
default stands), batches, other clouds.
"""

import asyncio
import importlib.util
import os
import re
from typing import Any, Self

import msgspec

from whale_bench.models.anthropic_messages import (
    ThinkingMemory,
    to_generation,
    to_messages,
    to_tools,
    to_usage,
)
from whale_bench.models.base import (
    Backend,
    CostlyRefusalError,
    Generation,
    Message,
    Request,
    Sampling,
    UnansweredError,
    Usage,
)
from whale_bench.models.http_retry import Patience, retry_after
from whale_bench.models.openai import is_address
from whale_bench.models.server import Answer, Broken, Refusal, Server
from whale_bench.models.servers import Servers
from whale_envs.errors import InfrastructureError, ModelError, UsageError

ANTHROPIC_URL = "https://api.anthropic.com"
"""Where requests go without a base_url and ANTHROPIC_BASE_URL."""

DEFAULT_TOKENS = 32_000
"""Most sampled tokens of a reply where the request names no number."""

OPTIONAL = ("top_k", "top_p", "temperature", "cache_control")
"""What a server may refuse and is then not sent; of two that it refuses together, the first."""

PATIENCE = Patience()
"""Of the stalls it bounds silence alone: every reply is streamed, so one that is at work says so."""

_PROBE_ATTEMPTS = 3
_TOO_LONG = ("prompt is too long", "exceed context limit", "context window", "context length")
_SHAPE = ("messages.", "messages:", "tool_use", "tool_result", "roles must alternate")
"""The chat itself is refused: an answer without its call, a call without its answer."""

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


class AnthropicBackend(Backend):
    """See the module's docstring.

    Args:
        model: name of the model.
        base_url: address without the version; one that ends in /v1 is the same.
        patience: how long to wait for what.

    Attributes:
        base_url: the address in use, without user name and password.
        dropped: the settings that the server refused.

    Raises:
        UsageError: the SDK or the key is missing, or the address is no http(s) URL.
    """

    def __init__(self, model: str, *, base_url: str | None = None, patience: Patience = PATIENCE) -> None:
        if importlib.util.find_spec("anthropic") is None:
            raise UsageError('anthropic is missing: pip install "whale-envs[anthropic]"')
        told = os.environ.get("ANTHROPIC_BASE_URL")
        url = base_url or told or ANTHROPIC_URL
        if told and not base_url:
            self.address_from = "ANTHROPIC_BASE_URL"
        if not is_address(url):
            raise UsageError(f"{self.address_from} must be an address such as {ANTHROPIC_URL}, got {url!r}")
        url = url.rstrip("/").removesuffix("/v1")
        key = os.environ.get("ANTHROPIC_API_KEY", "").strip()
        if url == ANTHROPIC_URL and not key:
            raise UsageError(f"ANTHROPIC_API_KEY is not set, and {url} answers nobody without a key")
        self.name = f"anthropic/{model}"
        self.weights_id = f"remote:{model}"
        self.dropped: set[str] = set()
        self._servers = Servers([url], patience, lasting=lambda _: False)
        self.base_url = self._servers.addresses
        self._model, self._url, self._patience = model, url, patience
        self._key = "" if self._servers.all[0].has_user else key
        self._most: int | None = None  # sampled tokens that the server allows
        self._memory = ThinkingMemory()
        self._client: Any = None
        self._errors: tuple[type[Exception], ...] = ()

    async def __aenter__(self) -> Self:
        import anthropic  # a model client: loaded when it is used
        import httpx2

        self._client = anthropic.AsyncAnthropic(
            # without a key of ours the SDK would look for others on this machine
            api_key=self._key or "none",
            default_headers=None if self._key else {"Authorization": anthropic.Omit()},  # type: ignore[dict-item]
            base_url=self._url,
            timeout=httpx2.Timeout(self._patience.silence_s, connect=10),
            max_retries=0,  # they are counted here
        )
        self._status_error: type[Exception] = anthropic.APIStatusError
        self._timeouts = (anthropic.APITimeoutError, TimeoutError)
        self._unreached = (httpx2.ConnectError, httpx2.ConnectTimeout)
        self._errors = (anthropic.AnthropicError, httpx2.HTTPError, httpx2.StreamError, TimeoutError, OSError)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.close()

    def warnings(self) -> list[str]:
        found = [f"the server refused {name}, so it was not sent" for name in sorted(self.dropped)]
        if self._most is not None:
            found.append(f"the server allows no more than {self._most} sampled tokens a turn")
        return found + self._servers.warnings()

    def seconds(self) -> dict[str, float]:
        """As of `OpenAIBackend`."""
        held = self._servers.held_back_s
        return {"held back": held} if held else {}

    async def probe(self) -> None:
        """Asks once for a reply of a token, which is no rollout and in no ledger.

        Raises:
            UsageError: the key, the model's name or the address is wrong.
            InfrastructureError: the server does not answer.
        """
        try:
            await self._answer(
                Request(messages=(Message("user", "Hi"),), max_tokens=1), attempts=_PROBE_ATTEMPTS
            )
        except ModelError:
            pass
        except UnansweredError as error:
            raise InfrastructureError(
                f"{error} (is {self.address_from} right, and does the server run?)"
            ) from error

    async def generate(self, request: Request) -> Generation:
        return await self._answer(request)

    async def _answer(self, request: Request, *, attempts: int | None = None) -> Generation:
        if self._client is None:
            raise UsageError(f"{self.name} is used inside `async with backend:` only")
        lost = Usage()

        async def send(_server: Server, _stalls: int) -> Generation | Answer | Broken:
            nonlocal lost
            found, spent = await self._attempt(payload)
            lost = _lose(lost, spent)
            return found

        try:
            while True:
                payload = self._payload(request)
                found = await self._servers.ask(send, attempts=attempts)
                if isinstance(found, Generation):
                    return msgspec.structs.replace(found, usage=_sum(found.usage, lost))
                # asked again at once, with less: each time for another reason
                request = self._without_refused(request, payload, found)
        except ModelError as error:
            if lost == Usage():
                raise
            refusal = CostlyRefusalError(error.reason, error.detail)
            refusal.usage = lost
            raise refusal from error
        except InfrastructureError as error:
            failure = UnansweredError(str(error))
            failure.usage = lost
            raise failure from error

    async def _attempt(self, payload: dict[str, Any]) -> tuple[Generation | Answer | Broken, Usage]:
        """One attempt, and what it cost where it came to nothing."""
        message: Any = None
        written: dict[int, str] = {}
        timed_out, unconnected, status = False, False, 0
        try:
            async with (
                asyncio.timeout(self._patience.answer_s),
                self._client.messages.stream(**payload) as stream,
            ):
                async for event in stream:
                    if event.type == "message_start":
                        message = stream.current_message_snapshot
                    elif event.type == "content_block_delta" and event.delta.type == "input_json_delta":
                        written[event.index] = written.get(event.index, "") + event.delta.partial_json
            if message is not None and message.stop_reason is not None:
                return to_generation(message, written, self._memory), Usage()
            problem = "the stream ended before the message" if message else "an answer that is no message"
        except self._errors as error:
            unconnected = isinstance(error.__cause__, self._unreached)
            timed_out = isinstance(error, self._timeouts) and not unconnected
            problem = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            if isinstance(error, self._status_error):
                refused = _refused(error)
                status, words = refused.status, refused.body.decode()
                if message is None:
                    return refused, Usage()
                if status < 500 and status not in (
                    408,
                    409,
                    429,
                ):  # whatever was sampled, it refuses the rest
                    return refused, to_usage(message)
                problem = f"HTTP {status}: {words}"
        except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
            # the SDK checks no types: a malformed event fails wherever it is used
            problem = f"an answer that is no message: {type(error).__name__}: {error}"
        words = " ".join(problem.split())[:300]
        return Broken(words, timed_out, status, unconnected), to_usage(message)

    def check_sampling(self, sampling: Sampling) -> None:
        if not 0 <= sampling.temperature <= 1:
            raise UsageError(f"{self.name} takes a temperature from 0 to 1, got {sampling.temperature:g}")

    def _payload(self, request: Request) -> dict[str, Any]:
        sampling = request.sampling
        self.check_sampling(sampling)
        system, messages = to_messages(request.messages, self._memory)
        if "cache_control" not in self.dropped:
            for blocks in filter(None, (system, messages[-1]["content"])):
                blocks[-1] = {**blocks[-1], "cache_control": {"type": "ephemeral"}}
        tokens = DEFAULT_TOKENS if request.max_tokens is None else request.max_tokens
        payload: dict[str, Any] = {
            "model": self._model,
            "max_tokens": min(tokens, self._most or tokens),
            "messages": messages,
        }
        if system:
            payload["system"] = system
        if request.tools:
            payload["tools"] = to_tools(request.tools)
        asked = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
        defaults = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
        extra = {n: v for n, v in asked.items() if v != defaults[n] and n not in self.dropped}
        return {**payload, "extra_body": extra} if extra else payload  # the SDK has no names for these

    def _without_refused(self, request: Request, payload: dict[str, Any], found: Refusal) -> Request:
        """What to ask instead of a refused request; raises where asking again is no use."""
        status, words = found.status, found.body.decode()
        low = words.lower()
        refused: type[Exception] = InfrastructureError if found.settled else UsageError
        if status in (401, 403):
            raise refused(f"{self.base_url} refused the key in ANTHROPIC_API_KEY (HTTP {status}): {words}")
        if status == 404:
            raise refused(
                f"{self.base_url} has no model {self._model!r}, or is no such server "
                f"({self.address_from}): {words}"
            )
        if status == 413 or any(sign in low for sign in _TOO_LONG):
            left = _room(low)
            if left is None or not 0 < left < payload["max_tokens"]:
                raise ModelError("context_length", words)
            return msgspec.structs.replace(request, max_tokens=left)
        most = re.search(r"max_tokens\D{0,20}(\d+) > (\d+)", low)
        if most and 0 < int(most[2]) < payload["max_tokens"]:
            self._most = int(most[2])
            return request
        for name in OPTIONAL:
            # by what this request held, for others in flight may have been refused before it
            sent = name in payload.get("extra_body", ()) or name in payload["messages"][-1]["content"][-1]
            if sent and re.search(rf"\b{name}\b", low):
                self.dropped.add(name)
                return request
        if any(sign in low for sign in _SHAPE):
            raise ModelError("chat_template", words)
        raise refused(f"{self.base_url} refused the request (HTTP {status}): {words}")


def _refused(error: Any) -> Answer:
    """The SDK's error for an answer that is one, or for an error within a stream; the body is its words."""
    status, headers = error.status_code, error.response.headers
    if status < 400:
        status = _STATUS.get(str(error.type), 500)
    words = " ".join(str(error.api_message or error.message).split())[:300]
    final = headers.get("x-should-retry") == "false"
    return Answer(status, words.encode("utf-8", "replace"), retry_after(headers), final)


def _room(words: str) -> int | None:
    """Tokens that a prompt leaves: "input length and `max_tokens` exceed context limit: 9 + 5 > 10"."""
    told = re.search(r"(\d+) \+ \d+ > (\d+)", words)
    return int(told[2]) - int(told[1]) if told else None


def _lose(lost: Usage, usage: Usage) -> Usage:
    """What was lost so far and a failed attempt."""
    return Usage(
        cache_read_tokens=_plus(lost.cache_read_tokens, usage.cache_read_tokens),
        cache_write_tokens=_plus(lost.cache_write_tokens, usage.cache_write_tokens),
        lost_prompt_tokens=lost.lost_prompt_tokens + (usage.prompt_tokens or 0),
        lost_sampled_tokens=lost.lost_sampled_tokens + (usage.sampled_tokens or 0),
    )


def _sum(usage: Usage, lost: Usage) -> Usage:
    """The last attempt's tokens, with those lost before it; cache counts are of all attempts."""
    return msgspec.structs.replace(
        lost,
        prompt_tokens=usage.prompt_tokens,
        sampled_tokens=usage.sampled_tokens,
        cache_read_tokens=_plus(lost.cache_read_tokens, usage.cache_read_tokens),
        cache_write_tokens=_plus(lost.cache_write_tokens, usage.cache_write_tokens),
    )


def _plus(a: int | None, b: int | None) -> int | None:
    return b if a is None else a + (b or 0)
