"""A real chat server on the loopback, scripted by one function; for tests of the client."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from whale_bench.models.probing import ONE_WORD

Script = Callable[[dict[str, Any], int], Any]
"""(request's payload, number of the request from 0) -> text, a body as dict, bytes, an `Answer`, HANG_UP,
SILENCE, `Trickle` or `Stream`."""


class Answer:
    """An answer other than 200."""

    def __init__(self, status: int, body: Any = "", headers: Mapping[str, str] = {}) -> None:
        self.status, self.headers = status, headers
        self.body = body if isinstance(body, bytes) else json.dumps({"error": {"message": body}}).encode()


HANG_UP = Answer(0)
SILENCE = Answer(0)
"""No byte, as long as the server lives."""


class Trickle:
    """A reply of one byte at a time."""

    def __init__(self, text: str, every: float) -> None:
        self.body, self.every = json.dumps(completion(text)).encode(), every


class Stream:
    """Server-sent chunks, as objects or raw lines; `usage` comes last, if it was asked for."""

    def __init__(self, *chunks: Any, usage: Any = None, breaks: bool = False) -> None:
        self.chunks, self.usage, self.breaks = chunks, usage, breaks


def delta(finish: Any = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def completion(message: Any, finish: Any = "stop", usage: Any = None) -> dict[str, Any]:
    message = {"role": "assistant", "content": message} if isinstance(message, str | None) else message
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage}


def is_probe(payload: dict[str, Any]) -> bool:
    """Whether a request is what a run, or a proxy, asks before the first rollout."""
    word = [{"role": m.role, "content": m.content} for m in ONE_WORD]
    return payload == {} or payload.get("messages") == word


class Server:
    def __init__(self, script: Script, probe: Script) -> None:
        self.script, self.probe = script, probe
        self.probes: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.most_at_once = self._now = 0
        self.url = ""
        self.closing = asyncio.Event()
        self.before: Callable[[dict[str, Any]], Awaitable[None]] | None = None
        """Awaited before each answer."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        try:
            payload = await request.json()
            if is_probe(payload):
                self.probes.append(payload)
                found = self.probe(payload, len(self.probes) - 1)
            else:
                number = len(self.requests)
                self.requests.append(payload)
                self.headers.append(request.headers)
                if self.before is not None:
                    await self.before(payload)
                found = self.script(payload, number)
        finally:
            self._now -= 1
        if found is HANG_UP:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if found is SILENCE:
            await self.closing.wait()
            return web.Response()
        if isinstance(found, Trickle):
            return await self._trickle(request, found)
        if isinstance(found, Stream):
            return await self._stream(request, payload, found)
        if isinstance(found, Answer):
            return web.Response(status=found.status, body=found.body, headers=found.headers)
        if isinstance(found, bytes):
            return web.Response(body=found)
        if isinstance(found, str):
            found = completion(found, usage={"prompt_tokens": 10, "completion_tokens": 2})
        return web.Response(body=json.dumps(found).encode())

    async def _stream(
        self, request: web.Request, payload: dict[str, Any], found: Stream
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        chunks = list(found.chunks)
        if found.usage and payload.get("stream_options", {}).get("include_usage"):
            chunks.append({"choices": [], "usage": found.usage})
        for chunk in chunks:
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        if found.breaks:
            assert request.transport is not None
            request.transport.abort()
            return response
        await response.write(b"data: [DONE]\n\n")
        return response

    async def models(self, request: web.Request) -> web.Response:
        self.headers.append(request.headers)
        return web.json_response({"object": "list", "data": [{"id": "m"}], "path": request.path})

    async def _trickle(self, request: web.Request, found: Trickle) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            for byte in found.body:
                await response.write(bytes([byte]))
                await asyncio.sleep(found.every)
        except ConnectionError:  # the client has had enough
            pass
        return response


@asynccontextmanager
async def serve(
    script: Script, *, probe: Script = lambda p, n: "yes", port: int = 0
) -> AsyncIterator[Server]:
    """The server, with `url`, while the context lasts; `probe` answers what comes before a run."""
    server = Server(script, probe)
    app = web.Application()
    for route in ("/v1/chat/completions", "/v1/completions"):
        app.router.add_post(route, server.answer)
    app.router.add_get("/v1/models", server.models)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield server
    finally:
        server.closing.set()
        await runner.cleanup()
