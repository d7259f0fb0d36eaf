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
chat that the API does not take end the rollout (`ModelError`), and so do a refusal (finish reason
"content_filter") and a chat that is refused for any other reason by a server that still takes one word with
the same settings (`probing.py`).

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

from whale_bench.models import probing
from whale_bench.models.anthropic_messages import (
    ThinkingMemory,
    lose,
    sum_up,
    to_generation,
    to_messages,
    to_tools,
    to_usage,
)
from whale_bench.models.anthropic_refusals import answer_of, is_of_chat, is_too_long, room_of
from whale_bench.models.base import (
    Backend,
    CostlyRefusalError,
    Generation,
    Request,
    Sampling,
    UnansweredError,
    Usage,
)
from whale_bench.models.http_retry import Patience
from whale_bench.models.openai import is_address
from whale_bench.models.openai_reply import most_tokens
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
        self._suspicions = probing.Suspicions(self._probe)
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

    async def probe(self, like: Request | None = None) -> None:
        """Asks once for a word, which is no rollout and in no ledger; see `Backend.probe`.

        Raises:
            UsageError: the key, the model's name, the address or a setting is wrong.
            InfrastructureError: the server does not answer.
        """
        asked = probing.probe_of(like)
        await probing.probe_each(lambda server: self._probe(asked, server), self._servers, self.address_from)

    async def generate(self, request: Request) -> Generation:
        return await self._answer(request)

    async def _probe(self, request: Request, _server: Server) -> Generation:
        return await self._answer(request, is_probe=True)

    async def _answer(self, request: Request, *, is_probe: bool = False) -> Generation:
        if self._client is None:
            raise UsageError(f"{self.name} is used inside `async with backend:` only")
        lost, asked = Usage(), request

        async def send(_server: Server, _stalls: int) -> Generation | Answer | Broken:
            nonlocal lost
            found, spent = await self._attempt(payload)
            lost = lose(lost, spent)
            return found

        try:
            while True:
                payload = self._payload(request)
                found = await self._servers.ask(send, attempts=probing.ATTEMPTS if is_probe else None)
                if isinstance(found, Generation):
                    self._suspicions.took(request.tools)
                    return msgspec.structs.replace(found, usage=sum_up(found.usage, lost))
                try:
                    # asked again at once, with less: each time for another reason
                    request = self._without_refused(request, payload, found)
                except InfrastructureError as error:
                    cleared = self._suspicions.cleared
                    if is_probe or found.status != 400 or not await cleared(asked, self._servers.all[0]):
                        raise
                    raise ModelError("chat_template", found.body.decode()) from error
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
                refused = answer_of(error)
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
        if is_too_long(status, low):
            left = room_of(low)
            if left is None or not 0 < left < payload["max_tokens"]:
                raise ModelError("context_length", words)
            return msgspec.structs.replace(request, max_tokens=left)
        if (most := most_tokens(low, payload["max_tokens"])) is not None:
            self._most = most
            return request
        for name in OPTIONAL:
            # by what this request held, for others in flight may have been refused before it
            sent = name in payload.get("extra_body", ()) or name in payload["messages"][-1]["content"][-1]
            if sent and re.search(rf"\b{name}\b", low):
                self.dropped.add(name)
                return request
        if is_of_chat(low):
            raise ModelError("chat_template", words)
        raise refused(f"{self.base_url} refused the request (HTTP {status}): {words}")
