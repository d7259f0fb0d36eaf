"""An OpenAI-compatible chat server that misbehaves on purpose, for benchmarks and tests of the client.

    python benchmarks/faulty_server.py --share 0.05 --stall 30     # prints its address, serves until killed

Its text is a function of prompt and seed alone: one of the legal moves of a chess puzzle. Of the requests
`--share` each are answered with a connection reset, 429 with `Retry-After`, 500, garbage, and by no byte
for `--stall` seconds before the reply. Which ones is drawn with `--seed`, apart from prompt and sampling.
"""

import argparse
import asyncio
import json
import random
import sys

from framing import Requests

FAULTS = ("reset", "429", "500", "garbage", "stall")


def reply(payload):
    """The body of a completion."""
    prompt = payload["messages"][-1]["content"]
    _, found, listed = prompt.partition("Legal moves: ")
    moves = [part.split("]")[0] for part in listed.split("[")[1:]] if found else ["a1a1"]
    text = f"I play <move>{moves[payload.get('seed', 0) % len(moves)]}</move> ({payload.get('seed')})"
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": len(prompt) // 4, "completion_tokens": len(text) // 4}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}


def response(status, body, headers=()):
    lines = [f"HTTP/1.1 {status} X", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


class Faulty(Requests):
    """One connection; the settings are shared by all."""

    def __init__(self, args, rng, counts):
        self.args, self.rng, self.counts = args, rng, counts
        self.last = None

    def handle(self, body):
        payload, args, counts = json.loads(body), self.args, self.counts
        counts["requests"] += 1
        if args.answers is not None and counts["requests"] > args.answers:
            self.transport.abort()
            return
        draw = self.rng.random() / args.share if args.share and not is_probe(payload) else len(FAULTS)
        fault = FAULTS[int(draw)] if draw < len(FAULTS) else ""
        if fault == "reset":
            self.transport.abort()
        elif fault == "429":
            self.transport.write(
                response(429, b'{"error": "slow down"}', [f"Retry-After: {args.retry_after}"])
            )
        elif fault == "500":
            self.transport.write(response(500, b'{"error": "out of order"}'))
        elif fault == "garbage":
            self.transport.write(response(200, b'{"choices": [{"mess'))
        elif args.room is not None and counts["now"] >= args.room:
            self.transport.write(response(503, b'{"error": "full"}'))
        else:
            wait = args.stall if fault == "stall" else args.latency
            counts["now"] += 1
            counts["most"] = max(counts["most"], counts["now"])
            answer = response(200, json.dumps(reply(payload)).encode())
            if wait:
                asyncio.get_running_loop().call_later(wait, self.answer, answer)
            else:
                self.answer(answer)

    def answer(self, data):
        self.counts["now"] -= 1
        if not self.transport.is_closing():
            self.transport.write(data)


def is_probe(payload):
    return payload.get("seed") == 0


async def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--share", type=float, default=0.0, help="Of each fault.")
    parser.add_argument("--stall", type=float, default=30.0, help="Seconds.")
    parser.add_argument("--retry-after", type=float, default=1.0, help="Seconds.")
    parser.add_argument("--latency", type=float, default=0.0, help="Seconds.")
    parser.add_argument("--room", type=int, help="Requests at a time; more are answered with 503.")
    parser.add_argument("--answers", type=int, help="After so many requests hang up on all.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng, counts = random.Random(args.seed), {"requests": 0, "now": 0, "most": 0}
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Faulty(args, rng, counts), "127.0.0.1", args.port, backlog=4096)
    sys.stdout.write(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
