"""Rollouts per second and CPU per rollout of the whole path, against a zero-latency server.

    python benchmarks/orchestration.py [--rollouts 4000] [--repeats 5]
    python benchmarks/orchestration.py --latency 0.2 --concurrency 1024 --rollouts 8192 --repeats 1

Two-turn chess rollouts under the shipped h0 through `openai/…`, ledger and trajectories on. The stub
runs in a process of its own, whose CPU is not counted. Beside it, in the same run, a bare loop that
only posts the same two requests per rollout and reads the answers. Prints the median of the repeats.

With a latency the full path alone runs: its share of the ideal (concurrency / two latencies), over the
time from the first rollout to the last, and the memory that a rollout in flight takes.
"""

import argparse
import asyncio
import math
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from whale_bench import EvalPlan, evaluate
from whale_bench.models import Message, Request
from whale_bench.models.openai import OpenAIBackend

CONCURRENCY = 64


async def bare_loop(url: str, rollouts: int, concurrency: int) -> None:
    """The same requests with aiohttp alone."""
    import aiohttp
    import msgspec

    prompt = [Message("system", "x" * 170), Message("user", "y" * 1500)]
    body = msgspec.json.encode({"model": "stub", "messages": prompt, "temperature": 1.0})
    queue = iter(range(rollouts))

    async def work(session: aiohttp.ClientSession) -> None:
        for _ in queue:
            for _turn in range(2):
                async with session.post(f"{url}/chat/completions", data=body) as response:
                    await response.json()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(work(session) for _ in range(concurrency)))


async def backend_loop(url: str, rollouts: int, concurrency: int) -> None:
    """The same requests through our backend, without engine, harness, environment and disk."""
    messages = (Message("system", "x" * 170), Message("user", "y" * 1500))
    queue = iter(range(rollouts))

    async def work(backend: OpenAIBackend) -> None:
        for number in queue:
            for turn in range(2):
                await backend.generate(Request(messages=messages, seed=2 * number + turn))

    async with OpenAIBackend("stub", base_url=url) as backend:
        await asyncio.gather(*(work(backend) for _ in range(concurrency)))


async def full_path(url: str, rollouts: int, concurrency: int) -> float:
    """An evaluation as a user runs it."""
    folder = Path(tempfile.mkdtemp())
    try:
        plan = EvalPlan(
            domain="chess_puzzles",
            model="openai/stub",
            tier="small",
            split="weight",
            n=rollouts // 8,
            k=8,
            base_url=url,
            concurrency=concurrency,
        )
        summary = await evaluate(plan, folder / "run")
        assert summary.complete
        assert summary.metrics["turns"] == 2.0
        return summary.seconds["rollouts"]
    finally:
        shutil.rmtree(folder)


def measure(job, url: str, rollouts: int, concurrency: int) -> tuple[float, float]:
    """(rollouts per second, CPU milliseconds per rollout)."""
    wall, cpu = time.perf_counter(), time.process_time()
    asyncio.run(job(url, rollouts, concurrency))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return rollouts / wall, 1000 * cpu / rollouts


def with_latency(url: str, rollouts: int, concurrency: int, latency: float) -> None:
    """Prints throughput beside the ideal, and memory per rollout in flight."""
    asyncio.run(full_path(url, 64, 8))  # imports and examples
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cpu = time.process_time()
    seconds = asyncio.run(full_path(url, rollouts, concurrency))
    cpu = time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ideal = math.ceil(rollouts / concurrency) * 2 * latency
    print(f"{rollouts} rollouts of two turns at concurrency {concurrency}, latency {latency} s")
    print(f"{rollouts / seconds:.0f} rollouts/s, {ideal / seconds:.1%} of the ideal {rollouts / ideal:.0f}/s")
    print(f"{1000 * cpu / rollouts:.2f} CPU ms each, {(peak - before) / concurrency:.0f} kB each in flight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=4000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=CONCURRENCY)
    parser.add_argument("--latency", type=float, default=0.0, help="Seconds.")
    args = parser.parse_args()
    command = [sys.executable, str(Path(__file__).with_name("stub_server.py")), str(args.latency)]
    stub = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = stub.stdout.readline().strip()
        if args.latency:
            with_latency(url, args.rollouts, args.concurrency, args.latency)
            return
        jobs = {"full path": full_path, "backend only": backend_loop, "bare aiohttp": bare_loop}
        results = {name: [] for name in jobs}
        for _ in range(args.repeats):
            for name, job in jobs.items():
                results[name].append(measure(job, url, args.rollouts, args.concurrency))
    finally:
        stub.kill()
    print(f"median of {args.repeats}, {args.rollouts} rollouts of two turns each")
    print(f"{'':14}{'rollouts/s':>12}{'CPU ms each':>14}")
    for name, pairs in results.items():
        rate, cpu = (statistics.median(values) for values in zip(*pairs, strict=True))
        print(f"{name:14}{rate:12.0f}{cpu:14.2f}")


if __name__ == "__main__":
    main()
