"""Any OpenAI-compatible chat server, or several of one model: vLLM, llama.cpp, a hosted API.

    OpenAIBackend("NAME", base_url="http://127.0.0.1:8000/v1")     # else OPENAI_BASE_URL
    OpenAIBackend("NAME", base_url=("http://a:8000/v1", "http://b:8000/v1"))

The key is OPENAI_API_KEY, if set and if the address holds no user name, which goes instead of it.

Failures that pass are retried, see `servers.py`, and then raise `InfrastructureError`. A refused key,
model, address or request raises `UsageError`, which stops the run; once a server has answered, it has
changed its mind and `InfrastructureError` is raised. A prompt too long for the model, a content filter
and a chat template that does not take the messages end the rollout (`ModelError`), and so does a chat that is
refused for any other reason by a server that still takes one word with the same settings (`probing.py`).

A server that refuses one of the settings it need not know (`OPTIONAL`) is asked again without it,
and `warnings` says so. One that refuses `max_tokens` is told the same as `max_completion_tokens`;
one that names the most it allows is asked for no more from then on, and `warnings` says so.
One that finds prompt and `max_tokens` together too long is asked again without, which leaves it the
rest of its context: less than was asked for. Token counts that cannot be true are unknown.

Token ids and log-probabilities are asked for as vLLM takes it (`return_token_ids`) and dropped when the
server refuses or ignores that. Prompts built from token ids go another way, see `openai_tokens.py`.

`probe` asks every server for one word with the run's settings, which is no rollout and in no ledger.

Not covered: native tool calls sent as text.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec

from whale_bench.models import probing
from whale_bench.models.base import Backend, Generation, Request
from whale_bench.models.http_retry import Patience
from whale_bench.models.http_servers import HttpServers
from whale_bench.models.openai_reply import ChatReader, message_of, most_tokens, of_template, refused
from whale_bench.models.server import Refusal, Server
from whale_envs.errors import InfrastructureError, ModelError, UsageError

PATIENCE = Patience()

OPTIONAL = ("top_k", "seed", "top_p")
"""Settings that a server may refuse without changing what is asked."""

_EXTRAS = ("stop", "return_token_ids", "logprobs", "stop_token_ids")
"""Settings that only add to the answer: not worth a warning."""

_UNKNOWN = ("unsupported", "not supported", "unrecognized", "unknown", "unexpected", "not permitted")
_CHOSEN = (
    ("chat_template", "chat_template_kwargs", "--chat-template-kwargs"),
    ("temperature", "temperature", "--temperature"),
    ("max_tokens", "max_tokens", "--max-tokens"),
    ("max_completion_tokens", "max_completion_tokens", "--max-tokens"),
    ("tool", "tools", "TOOL_MODE of the harness"),
)
"""Of settings that change what is asked: a word in refusals, its name, and what sets it."""

_UNNAMED = "the request"

_MAY_BE_THE_CHATS = (400, 422)
"""Statuses by which a server refuses a request for what it says."""


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
        self._most: int | None = None
        """Sampled tokens that the server allows, where it has said so."""
        self._suspicions = probing.Suspicions(self._probe)
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
        if self._most is not None:
            told.append(f"the server allows no more than {self._most} sampled tokens a turn")
        return told + self._servers.warnings()

    def seconds(self) -> dict[str, float]:
        """Of "held back": waiting for overloaded servers, summed over requests; none where nothing did."""
        held = self._servers.held_back_s
        return {"held back": held} if held else {}

    async def probe(self, like: Request | None = None) -> None:
        """Asks every server once; see `Backend.probe`.

        Raises:
            UsageError: a server takes the key, the model's name or a setting for wrong, or is none.
            InfrastructureError: no server answers.
        """

        async def ask(server: Server) -> None:
            try:
                await self._probe(probing.probe_of(like), server)
            except ModelError as error:
                if error.reason == "chat_template" and like is not None and like.tools:
                    raise UsageError(
                        f"{server.address} takes no native tools (TOOL_MODE of the harness): {error.detail}"
                    ) from error
                raise

        await probing.probe_each(ask, self._servers, self.address_from)

    async def generate(self, request: Request) -> Generation:
        return await self._ask(request)

    async def _probe(self, request: Request, server: Server) -> Generation:
        """One question to one server, with few attempts."""
        return await self._ask(request, only=server)

    async def _ask(self, request: Request, *, only: Server | None = None) -> Generation:
        """The reply to a request; `only` where it is a probe of that server."""
        if not self._servers.is_open:
            raise UsageError(f"{self.name} is used inside `async with backend:` only")
        asked = request

        def read(body: bytes) -> Generation | None:
            if only is not None and body.lstrip()[:1] == b"<":
                raise UsageError(
                    f"{only.address} answers with a web page, so it is no such server "
                    f"({self.address_from}; most end in /v1)"
                )
            return self._read(body)

        while True:
            payload = self._payload(request)
            if only is not None and "stop" not in self.dropped:
                payload["stop"] = probing.STOPS
            found = await self._servers.post(
                self.route,
                msgspec.json.encode(payload),
                read,
                max_tokens=request.max_tokens,
                only=only,
                attempts=None if only is None else probing.ATTEMPTS,
            )
            if isinstance(found, Generation):
                self._suspicions.took(request.tools)
                return found
            try:
                # asked again at once, with less: each time for another reason
                request = self._without_refused(request, payload, found)
            except InfrastructureError as error:
                if only is not None or found.status not in _MAY_BE_THE_CHATS:
                    raise
                server = next(s for s in self._servers.all if s.address == found.address)
                if await self._suspicions.cleared(asked, server):
                    raise ModelError("chat_template", message_of(found.body)) from error
                raise

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
            settings[self._limit] = min(request.max_tokens, self._most or request.max_tokens)
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
                f"{answer.address} has no model {self._model!r} ({self.named_by}), or is no such server "
                f"({self.address_from}; most end in /v1) {words}"
            )
        if why == "context_length":
            return self._shorter(request, low)
        if why in ("content_filter", "chat_template"):
            raise ModelError(why, message_of(answer.body))
        if self._adapts(low, payload):
            return request
        raise error(f"{answer.address} refused {self._named(low, payload)} {words}")

    def _adapts(self, low: str, payload: Mapping[str, Any]) -> bool:
        """Whether something is sent otherwise, or not at all, from now on."""
        for name in (*OPTIONAL, *_EXTRAS):
            if name in low and name in payload:
                self._drop(name)
                return True
        sent = payload.get("max_tokens", payload.get("max_completion_tokens"))
        if sent is not None and (most := most_tokens(low, sent)) is not None:
            self._most = most if self._most is None else min(self._most, most)
            return True
        unknown = "max_tokens" in low and any(sign in low for sign in _UNKNOWN)
        if "max_tokens" in payload and (unknown or "max_completion_tokens" in low):
            self._limit = "max_completion_tokens"
            return True
        for name in ("stop", "return_token_ids"):
            # perhaps it does not say what it minds
            if name in payload and self._has_ids is None and self._named(low, payload) == _UNNAMED:
                self._drop(name)
                return True
        return False

    def _named(self, low: str, payload: Mapping[str, Any]) -> str:
        """What a server refused, as far as its words tell, and who chose it."""
        for sign, name, option in _CHOSEN:
            if name in payload and sign in low:
                told = "native tools" if name == "tools" else f"{name} = {payload[name]!r}"
                return f"{told} ({option if self.named_by == '--model' else self.named_by})"
        return _UNNAMED

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
