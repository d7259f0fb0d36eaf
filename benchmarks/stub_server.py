"""A chat server that costs nothing: every request gets one fixed completion at once.

    python benchmarks/stub_server.py            # prints its address, serves until killed

The reply names a move that is never legal, so every chess rollout takes exactly two turns (one
retry, then the end). It is a raw asyncio protocol, so that what a benchmark measures is the client.
"""

import asyncio
import json
import sys

from framing import Requests

_REPLY = {
    "id": "stub",
    "object": "chat.completion",
    "model": "stub",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "<move>a1a1</move>"},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 800, "completion_tokens": 8, "total_tokens": 808},
}
_BODY = json.dumps(_REPLY).encode()
_RESPONSE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
    + str(len(_BODY)).encode()
    + b"\r\n\r\n"
    + _BODY
)

_LATENCY = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
"""Seconds before each answer."""


class Stub(Requests):
    """Answers each request alike."""

    def handle(self, body):  # noqa: ARG002 (every one gets the same)
        if _LATENCY:
            asyncio.get_running_loop().call_later(_LATENCY, self.answer)
        else:
            self.answer()

    def answer(self):
        if not self.transport.is_closing():
            self.transport.write(_RESPONSE)


async def main():
    server = await asyncio.get_running_loop().create_server(Stub, "127.0.0.1", 0, backlog=4096)
    port = server.sockets[0].getsockname()[1]
    sys.stdout.write(f"http://127.0.0.1:{port}/v1\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
