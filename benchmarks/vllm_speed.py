"""Sampled tokens per second of vLLM in this process against transformers, with the same prompts.

    python benchmarks/vllm_speed.py [--model smollm2] [--concurrency 32] [--max-tokens 64] [--repeats 3]

Each backend in a process of its own, one after the other, loaded once; every repeat sends new prompts:
the openings of chess puzzles, eight samples each as the protocol takes, with its sampling settings.
Prompts are about 480 tokens and count as time, not as tokens. Prints the median of the repeats, and
CPU seconds per thousand tokens, which other work on the machine changes less.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import time

from whale_bench.models import Backend, Message, Request, load_backend
from whale_envs import load_examples, make_env

KINDS = ("local", "vllm")
SAMPLES = 8


def openings(count: int) -> list[str]:
    examples = load_examples("chess_puzzles", split="weight")
    env = make_env("chess_puzzles", examples=examples)
    return [env.reset(options={"example_id": examples[i].id})[0] for i in range(count)]


async def measure(backend: Backend, texts: list[str], max_tokens: int) -> dict[str, float]:
    requests = [
        Request(messages=(Message("user", text),), max_tokens=max_tokens, seed=i)
        for i, text in enumerate(texts)
    ]
    cpu, started = cpu_seconds(), time.perf_counter()
    generations = await asyncio.gather(*(backend.generate(request) for request in requests))
    seconds = time.perf_counter() - started
    tokens = sum(len(g.sampled_ids or ()) for g in generations)
    prompt = sum(len(g.prompt_ids or ()) for g in generations)
    return {
        "tokens": tokens,
        "prompt": prompt,
        "per_s": tokens / seconds,
        "cpu_per_1000": 1000 * (cpu_seconds() - cpu) / tokens,
    }


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def serve(kind: str, args: argparse.Namespace) -> list[dict[str, float]]:
    each = args.concurrency // SAMPLES
    texts = openings(each * (args.repeats + 1))
    async with load_backend(f"{kind}/{args.model}") as backend:
        runs = []
        for i in range(args.repeats + 1):
            batch = texts[i * each : (i + 1) * each] * SAMPLES
            runs.append(await measure(backend, batch, args.max_tokens))
    return runs[1:]  # the first warms up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kind", choices=KINDS, help="one backend, as JSON")
    args = parser.parse_args()
    if args.kind:
        print(json.dumps(asyncio.run(serve(args.kind, args))))
        return
    for kind in KINDS:
        load = os.getloadavg()[0]
        done = subprocess.run(
            [sys.executable, *sys.argv, "--kind", kind], stdout=subprocess.PIPE, text=True, check=True
        )
        runs = json.loads(done.stdout.splitlines()[-1])
        per_s, cpu = (statistics.median(run[key] for run in runs) for key in ("per_s", "cpu_per_1000"))
        print(
            f"{kind}/{args.model}: {per_s:.0f} tokens/s, {cpu:.1f} CPU s per 1,000 tokens "
            f"(median of {args.repeats}; {runs[0]['tokens']:.0f} tokens behind {runs[0]['prompt']:.0f} of "
            f"prompts a repeat; 1-minute load {load:.1f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
