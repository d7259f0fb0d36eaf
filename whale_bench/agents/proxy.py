"""A metering proxy: an OpenAI-compatible server on the loopback, before the one that --base-url names.

    async with Proxy("http://127.0.0.1:8000/v1") as proxy:
        proxy.open_rollout("key", meter)     # calls with this key, to proxy.url, are counted by this meter

It serves chat/completions, streamed or whole, and models. Requests and answers go through as they are,
errors with their status; only a stream is asked for its usage, and the chunk that holds it is kept back
from an agent that did not ask. The server's own key is OPENAI_API_KEY of this process, and never seen by
the agent. What can be laid to the server (no connection, 408, 409, 429, 5xx, a stream that breaks or
holds an error, "abort" or "error" as a finish reason) is noted in the rollout's meter, and so is a refused
key, address or name of a model: a `UsageError`, or, where the server had taken the same before, an
`InfrastructureError`. `probe` finds a wrong key or address before the first rollout; which models an
agent will name, nobody knows then.

Not covered: other endpoints, retries (the agent's choice), limits on what an agent may spend.
"""

import asyncio
import os
import secrets
from typing import Any, Self
from urllib.parse import urlsplit

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, TCPConnector, web

from whale_bench.agents.metering import Call, Meter, read_json
from whale_bench.models.http_retry import Patience
from whale_bench.models.openai import is_address
from whale_bench.models.openai_reply import message_of, refused
from whale_bench.models.server import Server
from whale_envs.errors import InfrastructureError, UsageError

SILENCE_SECONDS = 600.0
"""A server that sends no byte for so long has failed."""

_MOST_BODY = 2**26
_PASSED = ("Content-Type", "Retry-After", "x-request-id")
_SERVERS_FAULT = {408, 409, 425, 429}
_AWAY = {502, 503, 504}
"""What stands before the server answers so while that is down."""

_PROBE = b"{}"
"""A request that no model answers: a server refuses it, but a wrong key or address it refuses otherwise."""

_PROBES = 3
_PATIENCE = Patience()


class Proxy:
    """See the module's docstring.

    Attributes:
        url: the address to give to agents, once it is open.
        ambiguous: whether a call could not be told to be of one rollout.

    Raises:
        UsageError: the upstream address is no http(s) URL.
    """

    def __init__(self, upstream: str, *, patience: Patience = _PATIENCE) -> None:
        if not is_address(upstream):
            raise UsageError(
                f"--base-url must be an address such as http://127.0.0.1:8000/v1, got {upstream!r}"
            )
        self.url = ""
        self.ambiguous = False
        self._upstream, self._address = upstream.rstrip("/"), Server.at(upstream).address
        self._patience = patience
        self._served: set[str] = set()
        """Models that have answered."""
        self._rollouts: dict[str, Meter] = {}
        self._processes: dict[str, list[Meter]] = {}
        self._runner: web.AppRunner | None = None
        self._session: ClientSession | None = None

    async def __aenter__(self) -> Self:
        key = os.environ.get("OPENAI_API_KEY", "").strip()
        has_user = "@" in urlsplit(self._upstream).netloc  # which goes in place of a key
        self._session = ClientSession(
            connector=TCPConnector(limit=0),
            headers={"Authorization": f"Bearer {key}"} if key and not has_user else {},
            timeout=ClientTimeout(None, sock_connect=10, sock_read=SILENCE_SECONDS),
        )
        app = web.Application(client_max_size=_MOST_BODY)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models{rest:.*}", self._models)
        app.router.add_route("*", "/{rest:.*}", self._unknown)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._session is not None
        assert self._runner is not None
        await self._runner.cleanup()
        await self._session.close()

    async def probe(self) -> None:
        """Asks the server, for no reply, whether it is one and takes the key.

        Raises:
            UsageError: key or address are wrong.
            InfrastructureError: nothing answers.
        """
        problem = ""
        for attempt in range(1, _PROBES + 1):
            try:
                status, data = await self._get_or_post("/chat/completions", _PROBE)
            except (ClientError, TimeoutError, OSError) as error:
                problem = f"{type(error).__name__}: {error}"
            else:
                if status not in _AWAY:
                    break
                problem = f"HTTP {status}: {message_of(data)}"
            if attempt < _PROBES:
                await asyncio.sleep(self._patience.pause(attempt))
        else:
            raise InfrastructureError(
                f"{self._address} failed {_PROBES} times; last: {problem} "
                "(is --base-url right, and does the server run?)"
            )
        words = f"(HTTP {status}): {message_of(data)}"
        if refused(status, data) == "key":
            raise UsageError(f"{self._address} refused the key in OPENAI_API_KEY {words}")
        strange = status == 200 and not isinstance(read_json(data), dict)
        if status in (404, 405):  # it may be about the model, which was not named
            strange = (await self._get_or_post("/models", None))[0] != 200
        if strange:
            raise UsageError(
                f"{self._address} is no OpenAI-compatible server (--base-url; most end in /v1) {words}"
            )

    def new_process(self) -> str:
        """A key for a process; it stands for the rollout that plays there, while that is but one."""
        key = secrets.token_urlsafe(24)
        self._processes[key] = []
        return key

    def open_rollout(self, process: str, meter: Meter) -> str:
        """A key for a rollout that begins in a process."""
        key = secrets.token_urlsafe(24)
        self._rollouts[key] = meter
        self._processes[process].append(meter)
        return key

    def close_rollout(self, process: str, key: str) -> None:
        """Neither key stands for this rollout any more."""
        self._processes[process].remove(self._rollouts.pop(key))

    # --- requests -----------------------------------------------------------------------------

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        meter = self._meter(request)
        if isinstance(meter, web.Response):
            return meter
        body = await request.read()
        payload = read_json(body)
        if not isinstance(payload, dict):
            return _refusal(400, "the body is no JSON object")
        try:
            call = meter.begin(payload)
        except RecursionError:
            return _refusal(400, "the body is nested too deep")
        try:
            if payload.get("stream") is True:
                return await self._streamed(request, payload, call)
            async with self._post(body) as answer:
                data = await answer.read()
                self._settle(call, answer.status, data)
                return _passed_on(answer, data)
        except (ClientError, TimeoutError, OSError) as error:
            problem = f"the server behind the proxy failed: {type(error).__name__}: {error}"
            call.fail(problem)
            return _refusal(502, problem)
        except Exception as error:
            call.break_off(f"the proxy cannot read a call or its answer: {type(error).__name__}: {error}")
            raise
        finally:
            call.fail()  # nothing where it has ended; a cancelled one ends here

    async def _streamed(
        self, request: web.Request, payload: dict[str, Any], call: Call
    ) -> web.StreamResponse:
        import msgspec

        given = payload.get("stream_options")
        options = given if isinstance(given, dict) else {}
        counted = {**payload, "stream_options": {**options, "include_usage": True}}
        answer = await self._post(msgspec.json.encode(counted))
        try:
            if answer.status in (400, 422) and given is None:
                data = await answer.read()
                if b"stream_options" in data or b"include_usage" in data:
                    answer = await self._post(msgspec.json.encode(payload))  # it cannot count streams
            if answer.status != 200:
                data = await answer.read()
                self._settle(call, answer.status, data)
                return _passed_on(answer, data)
            self._take(call)
            return await _relay(request, answer, call, keep_usage=options.get("include_usage") is True)
        finally:
            answer.close()

    async def _models(self, request: web.Request) -> web.StreamResponse:
        if _key(request) not in self._rollouts.keys() | self._processes.keys():
            return _refusal(401, "this key is none of this run's")
        assert self._session is not None
        try:
            async with self._session.get(f"{self._upstream}/models{request.match_info['rest']}") as answer:
                return _passed_on(answer, await answer.read())
        except (ClientError, TimeoutError, OSError) as error:
            return _refusal(502, f"the server behind the proxy failed: {type(error).__name__}: {error}")

    async def _unknown(self, request: web.Request) -> web.StreamResponse:
        return _refusal(404, f"this proxy serves chat/completions and models, not {request.path}")

    async def _get_or_post(self, route: str, body: bytes | None) -> tuple[int, bytes]:
        """(status, body) of a GET, or with a body of a POST."""
        assert self._session is not None
        headers = {} if body is None else {"Content-Type": "application/json"}
        async with self._session.request(
            "GET" if body is None else "POST", f"{self._upstream}{route}", data=body, headers=headers
        ) as answer:
            return answer.status, await answer.read()

    def _take(self, call: Call) -> None:
        self._served.add(call.model)
        call.take()

    def _settle(self, call: Call, status: int, data: bytes) -> None:
        """Notes in the meter what an answer that came whole was."""
        if status == 200:
            self._take(call)
            call.answer(data)
            return
        words, settled = f"(HTTP {status}): {message_of(data)}", call.model in self._served
        error: type[UsageError | InfrastructureError] = InfrastructureError if settled else UsageError
        why = refused(status, data)
        if status in _SERVERS_FAULT or status >= 500:
            call.fail(f"the server behind the proxy answered HTTP {status}: {message_of(data)}")
        elif why == "key":
            call.refuse(error(f"the server behind the proxy refused the key in OPENAI_API_KEY {words}"))
        elif why == "name":
            call.refuse(
                error(
                    f"the server behind the proxy, {self._address}, has no model {call.model!r}, which the "
                    f"agent asked for, or is no such server (--base-url; most end in /v1) {words}"
                )
            )
        else:
            call.fail()

    def _post(self, body: bytes) -> Any:
        assert self._session is not None
        headers = {"Content-Type": "application/json"}
        return self._session.post(f"{self._upstream}/chat/completions", data=body, headers=headers)

    def _meter(self, request: web.Request) -> Meter | web.Response:
        """Who pays."""
        key = _key(request)
        if key in self._rollouts:
            return self._rollouts[key]
        meters = self._processes.get(key)
        if meters is None:
            return _refusal(401, "this key is none of this run's, or its rollout has ended")
        if len(meters) == 1:
            return meters[0]
        self.ambiguous = self.ambiguous or len(meters) > 1
        return _refusal(403, "this key stands for one rollout, and not one is in flight in its process")


async def _relay(
    request: web.Request, answer: ClientResponse, call: Call, *, keep_usage: bool
) -> web.StreamResponse:
    """Passes a stream on line by line, reads it, and goes on reading where the agent has left early."""
    response = web.StreamResponse(
        headers={"Content-Type": answer.headers.get("Content-Type", "text/event-stream")}
    )
    await response.prepare(request)
    rest, dropped, left = b"", False, False
    try:
        async for data in answer.content.iter_any():
            *lines, rest = (rest + data).split(b"\n")
            kept = []
            for line in lines:
                if dropped and not line.strip():
                    dropped = False  # the empty line that ends the chunk
                    continue
                dropped = _read_line(line, call) and not keep_usage
                kept += [] if dropped else [line + b"\n"]
            if not left and kept:
                try:
                    await response.write(b"".join(kept))
                except (ConnectionError, asyncio.CancelledError):
                    left = True
            if left and not call.finish_reason:
                break  # the agent gave the answer up: so do we
    except (ClientError, TimeoutError, OSError) as error:
        call.break_off(f"the server behind the proxy broke a stream off: {type(error).__name__}: {error}")
        if request.transport is not None:
            request.transport.abort()
        return response
    call.end(given_up=left)
    if not left:
        await response.write(rest)
    return response


def _read_line(line: bytes, call: Call) -> bool:
    """Takes in a line of a stream; whether it holds nothing but the usage."""
    field, _, value = line.partition(b":")
    if field.strip() != b"data":
        return False
    if value.strip() == b"[DONE]":
        call.end(given_up=False)  # before the agent sees it, and ends the rollout
        return False
    return call.read_chunk(read_json(value))


def _passed_on(answer: ClientResponse, data: bytes) -> web.Response:
    headers = {name: answer.headers[name] for name in _PASSED if name in answer.headers}
    return web.Response(status=answer.status, body=data, headers=headers)


def _refusal(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "whale_proxy"}}, status=status)


def _key(request: web.Request) -> str:
    return request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
