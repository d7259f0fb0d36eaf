"""Any OpenAI-compatible chat server, or several of one model: vLLM, llama.cpp, a hosted API.

    OpenAIBackend("NAME", base_url="http://127.0.0.1:8000/v1")     # else OPENAI_BASE_URL
    OpenAIBackend("NAME", base_url=("http://a:8000/v1", "http://b:8000/v1"))

The key is OPENAI_API_KEY, if set and if the address holds no user name, which goes instead of it.

Failures that pass are retried, see `servers.py`, and then raise `InfrastructureError`. A refused key,
model, address or request raises `UsageError`, which stops the run; once a server has answered, it has
changed its mind and `InfrastructureError` is raised. A prompt too long for the model, a content filter
and a chat template that does not take the messages end the rollout (`ModelError`).

A server that refuses one of the settings it need not know (`OPTIONAL`) is asked again without it,
and `warnings` says so. One that refuses `max_tokens` is told the same as `max_completion_tokens`.
One that finds prompt and `max_tokens` together too long is asked again without, which leaves it the
rest of its context: less than was asked for. Token counts that cannot be true are unknown.

Token ids and log-probabilities are asked for as vLLM takes it (`return_token_ids`) and dropped when the
server refuses or ignores that. Prompts built from token ids go another way, see `openai_tokens.py`.

`probe` asks every server for one short reply, which is no rollout and in no ledger.

Not covered: native tool calls sent as text.
"""

import asyncio
import os
from collections.abc import Sequence
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec

from whale_bench.models.base import Backend, Generation, Message, Request
from whale_bench.models.http_retry import Patience
from whale_bench.models.http_servers import HttpServers
from whale_bench.models.openai_reply import ChatReader, message_of, of_template, refused
from whale_bench.models.server import Refusal, Server
from whale_envs.errors import InfrastructureError, ModelError, UsageError

PATIENCE = Patience()

OPTIONAL = ("top_k", "seed", "top_p")
"""Settings that a server may refuse without changing what is asked."""

_EXTRAS = ("return_token_ids", "logprobs", "stop_token_ids")
"""Settings that only add to the answer: not worth a warning."""

_UNKNOWN = ("unsupported", "not supported", "unrecognized", "unknown", "unexpected", "not permitted")
_PROBE = Request((Message("user", "Hi"),), max_tokens=16)
_PROBE_ATTEMPTS = 3


class OpenAIBackend(Backend):
    """See the module's docstring.

    Args:
        model: name of the model on the server.
        base_url: address, or several, up to and with the version, as OpenAI's clients take it.
        patience: how long to wait for what.

    Attributes:
        base_url: the addresses in use, without user name and password.
        dropped: the settings that the server refused or ignored.

    Raises:
        UsageError: an address is no http(s) URL.
    """

    route = "/chat/completions"

    def __init__(
        self, model: str, *, base_url: str | Sequence[str] | None = None, patience: Patience = PATIENCE
    ) -> None:
        self.name = f"openai/{model}"
        self.weights_id = f"remote:{model}"
        self.dropped: set[str] = set()
        urls = [base_url] if isinstance(base_url, str) else list(base_url or ())
        if not any(urls):
            told = os.environ.get("OPENAI_BASE_URL")
            urls = [told or "https://api.openai.com/v1"]
            self.address_from = "OPENAI_BASE_URL" if told else self.address_from
        for url in urls:
            if not is_address(url):
                raise UsageError(
                    f"{self.address_from} must be an address such as http://127.0.0.1:8000/v1, got {url!r}"
                )
        self._servers = HttpServers(urls, patience, lasting=of_template)
        self.base_url = self._servers.addresses
        self._model, self._limit = model, "max_tokens"
        self._reader = ChatReader()
        self._has_ids: bool | None = None
        """Whether the server gives token ids; None until it has answered."""

    async def __aenter__(self) -> Self:
        await self._servers.open(os.environ.get("OPENAI_API_KEY", "").strip())
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._servers.close()

    def warnings(self) -> list[str]:
        refused = sorted(self.dropped.difference(_EXTRAS))
        told = [f"the server refused {name}, so it was not sent" for name in refused]
        return told + self._servers.warnings()

    def seconds(self) -> dict[str, float]:
        """Of "held back": waiting for overloaded servers, summed over requests; none where nothing did."""
        held = self._servers.held_back_s
        return {"held back": held} if held else {}

    async def probe(self) -> None:
        """Asks every server once.

        Raises:
            UsageError: a server takes the key, the model's name or the settings for wrong.
            InfrastructureError: no server answers.
        """
        asked = (self._ask(_PROBE, only=server, attempts=_PROBE_ATTEMPTS) for server in self._servers.all)
        found = await asyncio.gather(*asked, return_exceptions=True)
        down = [error for error in found if isinstance(error, InfrastructureError)]
        for error in found:
            if isinstance(error, BaseException) and not isinstance(error, InfrastructureError | ModelError):
                raise error
        if len(down) == len(found):
            told = "; ".join(map(str, down))
            raise InfrastructureError(f"{told} (is {self.address_from} right, and does the server run?)")

    async def generate(self, request: Request) -> Generation:
        return await self._ask(request)

    async def _ask(
        self, request: Request, *, only: Server | None = None, attempts: int | None = None
    ) -> Generation:
        if not self._servers.is_open:
            raise UsageError(f"{self.name} is used inside `async with backend:` only")
        while True:
            payload = self._payload(request)
            found = await self._servers.post(
                self.route,
                msgspec.json.encode(payload),
                self._read,
                max_tokens=request.max_tokens,
                only=only,
                attempts=attempts,
            )
            if isinstance(found, Generation):
                return found
            # asked again at once, without a setting: at most once for each
            request = self._without_refused(request, payload, found)

    def _payload(self, request: Request) -> dict[str, Any]:
        payload = {"model": self._model, "messages": request.messages, **self._settings(request)}
        if request.tools:
            payload["tools"] = request.tools
        if request.sampling.chat_template_kwargs:
            payload["chat_template_kwargs"] = dict(request.sampling.chat_template_kwargs)
        if self._has_ids is not False:
            payload["return_token_ids"] = True
        if self._has_ids:
            payload["logprobs"] = True
        for name in self.dropped:
            payload.pop(name, None)
        return payload

    def _settings(self, request: Request) -> dict[str, Any]:
        sampling = request.sampling
        settings: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": request.seed & 0x7FFF_FFFF,  # some servers take 32 bits only
        }
        if sampling.top_k:
            settings["top_k"] = sampling.top_k
        if request.max_tokens is not None:
            settings[self._limit] = request.max_tokens
        return settings

    def _read(self, body: bytes) -> Generation | None:
        generation = self._reader.read(body)
        if generation is not None and self._has_ids is None:
            self._has_ids = generation.sampled_ids is not None
        return generation

    def _without_refused(self, request: Request, payload: dict[str, Any], answer: Refusal) -> Request:
        """What to ask instead of a refused request; raises where asking again is no use."""
        why = refused(answer.status, answer.body)
        words, low = f"(HTTP {answer.status}): {message_of(answer.body)}", message_of(answer.body).lower()
        error: type[Exception] = InfrastructureError if answer.settled else UsageError
        if why == "key":
            raise error(f"{answer.address} refused the key in OPENAI_API_KEY {words}")
        if why == "name":
            raise error(
                f"{answer.address} has no model {self._model!r} (--model), or is no such server "
                f"({self.address_from}; most end in /v1) {words}"
            )
        if why == "context_length":
            return self._shorter(request, low)
        if why in ("content_filter", "chat_template"):
            raise ModelError(why, message_of(answer.body))
        for name in (*OPTIONAL, *_EXTRAS):
            if name in low and name in payload:
                self._drop(name)
                return request
        unknown = "max_tokens" in low and any(sign in low for sign in _UNKNOWN)
        if "max_tokens" in payload and (unknown or "max_completion_tokens" in low):
            self._limit = "max_completion_tokens"
            return request
        if self._has_ids is None and "return_token_ids" in payload:  # perhaps it does not say what it minds
            self._drop("return_token_ids")
            return request
        raise error(f"{answer.address} refused the request {words}")

    def _shorter(self, request: Request, words: str) -> Request:
        """What to ask instead of a request that does not fit into the model's context."""
        if request.max_tokens is None:
            raise ModelError("context_length", words)
        return msgspec.structs.replace(request, max_tokens=None)

    def _drop(self, name: str) -> None:
        self.dropped.add(name)
        if name == "return_token_ids":
            self._has_ids = False


def is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        return False
