"""Rollouts per second and CPU per rollout of the whole path, against a zero-latency server.

    python benchmarks/orchestration.py [--rollouts 4000] [--repeats 5]

Two-turn chess rollouts under the shipped h0 through `openai/…`, ledger and trajectories on. The stub
runs in a process of its own, whose CPU is not counted. Beside it, in the same run, a bare loop that
only posts the same two requests per rollout and reads the answers. Prints the median of the repeats.
"""

import argparse
import asyncio
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


async def bare_loop(url: str, rollouts: int) -> None:
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
        await asyncio.gather(*(work(session) for _ in range(CONCURRENCY)))


async def backend_loop(url: str, rollouts: int) -> None:
    """The same requests through our backend, without engine, harness, environment and disk."""
    messages = (Message("system", "x" * 170), Message("user", "y" * 1500))
    queue = iter(range(rollouts))

    async def work(backend: OpenAIBackend) -> None:
        for number in queue:
            for turn in range(2):
                await backend.generate(Request(messages=messages, seed=2 * number + turn))

    async with OpenAIBackend("stub", base_url=url) as backend:
        await asyncio.gather(*(work(backend) for _ in range(CONCURRENCY)))


async def full_path(url: str, rollouts: int) -> None:
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
            concurrency=CONCURRENCY,
        )
        summary = await evaluate(plan, folder / "run")
        assert summary.complete
        assert summary.metrics["turns"] == 2.0
    finally:
        shutil.rmtree(folder)


def measure(job, url: str, rollouts: int) -> tuple[float, float]:
    """(rollouts per second, CPU milliseconds per rollout)."""
    wall, cpu = time.perf_counter(), time.process_time()
    asyncio.run(job(url, rollouts))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return rollouts / wall, 1000 * cpu / rollouts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=4000)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    stub = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("stub_server.py"))], stdout=subprocess.PIPE, text=True
    )
    try:
        url = stub.stdout.readline().strip()
        jobs = {"full path": full_path, "backend only": backend_loop, "bare aiohttp": bare_loop}
        results = {name: [] for name in jobs}
        for _ in range(args.repeats):
            for name, job in jobs.items():
                results[name].append(measure(job, url, args.rollouts))
    finally:
        stub.kill()
    print(f"median of {args.repeats}, {args.rollouts} rollouts of two turns each")
    print(f"{'':14}{'rollouts/s':>12}{'CPU ms each':>14}")
    for name, pairs in results.items():
        rate, cpu = (statistics.median(values) for values in zip(*pairs, strict=True))
        print(f"{name:14}{rate:12.0f}{cpu:14.2f}")


if __name__ == "__main__":
    main()
