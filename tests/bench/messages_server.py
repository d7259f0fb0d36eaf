"""A real server of the Messages API on the loopback, scripted by one function; for tests of the client.

    python tests/bench/messages_server.py 8001      # one that is often overloaded, until Ctrl-C

It keeps the API's own rules that a client can break: the first message is the user's, roles alternate, no
text is blank, every `tool_use` is answered by a `tool_result` right after it and no other stands alone,
`max_tokens` is there. What breaks one gets the 400 that the API gives.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiohttp import web

from whale_bench.models.probing import ONE_WORD

Script = Callable[[dict[str, Any], int], Any]
"""(request's payload, number of the request from 0) -> text, a `message`, bytes, an `Answer`, HANG_UP,
SILENCE or a `Stream`."""


class Answer:
    """An answer other than 200."""

    def __init__(
        self, status: int, words: Any = "", kind: str = "api_error", headers: Mapping[str, str] = {}
    ) -> None:
        self.status, self.headers = status, headers
        error = {"type": "error", "error": {"type": kind, "message": words}, "request_id": "req_1"}
        self.body = words if isinstance(words, bytes) else json.dumps(error).encode()


HANG_UP = Answer(0)
SILENCE = Answer(0)
"""No byte, as long as the server lives."""


class Stream:
    """Events of one's own, and how the connection ends: properly, or in the middle of things."""

    def __init__(self, events: list[dict[str, Any]], *, abort: bool = False) -> None:
        self.events, self.abort = events, abort


def message(
    *content: Any, stop: str | None = "end_turn", usage: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """A reply; strings are text blocks."""
    blocks = [{"type": "text", "text": block} if isinstance(block, str) else block for block in content]
    used = {"input_tokens": 10, "output_tokens": 2} if usage is None else usage
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": blocks,
            "stop_reason": stop, "stop_sequence": None, "usage": used, **more}  # fmt: skip


def thinking(text: str, signature: str = "sig+/=") -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": signature}


def tool_use(name: str, arguments: dict[str, Any], call_id: str = "toolu_1") -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def events_of(reply: dict[str, Any], *, piece: int = 7) -> list[dict[str, Any]]:
    """A reply as the API streams it: every text, thought and input in pieces."""
    usage = dict(reply["usage"])
    start = {**reply, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    found: list[dict[str, Any]] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, block in enumerate(reply["content"]):
        empty, deltas = _pieces(block, piece)
        found.append({"type": "content_block_start", "index": index, "content_block": empty})
        found += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        found.append({"type": "content_block_stop", "index": index})
    delta = {name: reply.get(name) for name in ("stop_reason", "stop_sequence", "stop_details")}
    output = {"output_tokens": usage.get("output_tokens")}
    found.append({"type": "message_delta", "delta": delta, "usage": output})
    return [*found, {"type": "message_stop"}]


def _pieces(block: dict[str, Any], n: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    def cut(text: str) -> list[str]:
        return [text[at : at + n] for at in range(0, len(text), n)]

    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": t} for t in cut(block["text"])]
    if block["type"] == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": t} for t in cut(block["thinking"])]
        signed = {"type": "signature_delta", "signature": block["signature"]}
        return {**block, "thinking": "", "signature": ""}, [*deltas, signed]
    if block["type"] == "tool_use":
        # "json" is what was sampled, where that is not what a JSON writer would write
        text = block.get("json") or json.dumps(block["input"])
        empty = {name: value for name, value in block.items() if name != "json"}
        deltas = [{"type": "input_json_delta", "partial_json": t} for t in ["", *cut(text)]]
        return {**empty, "input": {}}, deltas
    return block, []


def is_probe(payload: dict[str, Any]) -> bool:
    """Whether a request is what a run asks before it begins."""
    return ONE_WORD[0].content in str(payload["messages"])


class Server:
    def __init__(self, script: Script, probe: Script) -> None:
        self.script, self.probe = script, probe
        self.requests: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.probes = 0
        self.url = ""
        self.closing = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        payload = await request.json()
        broken = fault(payload)
        if is_probe(payload):
            self.probes += 1
            found = self.probe(payload, self.probes - 1)
        else:
            number = len(self.requests)
            self.requests.append(payload)
            self.headers.append(request.headers)
            found = Answer(400, broken, "invalid_request_error") if broken else self.script(payload, number)
        if found is HANG_UP:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if found is SILENCE:
            await self.closing.wait()
            return web.Response()
        if isinstance(found, Answer):
            headers = {"Content-Type": "application/json", **found.headers}
            return web.Response(status=found.status, body=found.body, headers=headers)
        if isinstance(found, bytes):
            return web.Response(body=found, headers={"Content-Type": "text/event-stream"})
        if isinstance(found, str):
            found = message(found)
        if not isinstance(found, Stream):
            found = Stream(events_of(found))
        return await self._stream(request, found)

    async def _stream(self, request: web.Request, found: Stream) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in found.events:
            line = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
            await response.write(line.encode())
        if found.abort:
            await asyncio.sleep(0.05)  # so that the client has what was written
            assert request.transport is not None
            request.transport.abort()
        return response


def fault(payload: dict[str, Any]) -> str:
    """Which of the API's rules a request breaks; empty for none."""
    chat = payload.get("messages") or []
    if not isinstance(payload.get("max_tokens"), int) or payload["max_tokens"] < 1:
        return "max_tokens: Field required"
    if not chat or chat[0]["role"] != "user":
        return "messages: first message must use the user role"
    open_calls: set[str] = set()
    for number, (turn, before) in enumerate(zip(chat, [{"role": ""}, *chat], strict=False)):
        blocks = turn["content"]
        if turn["role"] == before["role"]:
            return "messages: roles must alternate"
        texts = [block["text"] for block in blocks if block["type"] == "text"]
        if not blocks or not all(text.strip() for text in texts):
            return f"messages.{number}: text content blocks must be non-empty"
        answered = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
        if open_calls - answered:
            return f"messages.{number}: `tool_use` ids were found without `tool_result` blocks"
        if answered - open_calls:
            return f"messages.{number}: unexpected `tool_use_id` found in `tool_result` blocks"
        open_calls = {block["id"] for block in blocks if block["type"] == "tool_use"}
    return ""


def busy(_: dict[str, Any], number: int) -> Any:
    """Thinks, and answers wrongly; one request in 9 is refused, one in 11 cut off."""
    if number % 9 == 8:
        return Answer(529, "Overloaded", "overloaded_error", {"retry-after": "0"})
    reply = message(thinking("hm"), r"<move>a1a1</move> <answer>nobody</answer> \boxed{-1}")
    return Stream(events_of(reply)[:5], abort=True) if number % 11 == 10 else reply


@asynccontextmanager
async def serve(
    script: Script, port: int = 0, *, probe: Script = lambda p, n: "yes"
) -> AsyncIterator[Server]:
    """The server, with `url`, while the context lasts; `probe` answers what comes before a run."""
    server = Server(script, probe)
    app = web.Application()
    app.router.add_post("/v1/messages", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        server.closing.set()
        await runner.cleanup()


async def _main(port: int) -> None:
    async with serve(busy, port) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_main(int(sys.argv[1])))
