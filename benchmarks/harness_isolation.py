"""What isolation adds to a hook call, against the same harness in process.

    python benchmarks/harness_isolation.py                  # 4,000 calls of each kind
    python benchmarks/harness_isolation.py --calls 400      # quick

The harness is the h0 of Chess Puzzles, once as it ships, in process, and once as a foreign file, in a
confined worker. Calls alternate between asking for messages and reading a reply. Printed are wall time
per call, one after another (median and 95th percentile) and with many rollouts waiting at once (mean),
and CPU per call of the host and of the worker; then how long a worker takes to start.
"""

import argparse
import asyncio
import resource
import statistics
import time
from collections.abc import Awaitable, Callable

from whale_bench.harness.base import Reply, View
from whale_bench.harness.host import HarnessHost, InProcessHarness, ProcessHarness, shipped_harnesses
from whale_envs import make_env

SOURCE = shipped_harnesses()["chess_puzzles"]


def view_of(turns: int) -> View:
    env = make_env("chess_puzzles", split="dev")
    opening, _ = env.reset(options={"example_id": env.examples[0].id})
    return View("chess_puzzles", opening, opening, (), env.max_turns, seed=turns)


def reply_of(number: int) -> Reply | None:
    return Reply("I would play <move>e2e4</move>") if number % 2 else None


async def one_by_one(harness: HarnessHost, calls: int) -> list[float]:
    view, took = view_of(0), []
    for number in range(calls):
        began = time.perf_counter()
        await harness.call(view, reply_of(number))
        took.append(time.perf_counter() - began)
    return took


async def together(harness: HarnessHost, calls: int, rollouts: int) -> float:
    views = [view_of(number) for number in range(rollouts)]

    async def play(view: View) -> None:
        for number in range(calls // rollouts):
            await harness.call(view, reply_of(number))

    began = time.perf_counter()
    await asyncio.gather(*map(play, views))
    return (time.perf_counter() - began) / (calls // rollouts * rollouts)


async def measure(name: str, harness: HarnessHost, calls: int, rollouts: int) -> None:
    await one_by_one(harness, calls // 10)
    took = sorted(await one_by_one(harness, calls))
    cpu, _ = await with_cpu(lambda: one_by_one(harness, calls))
    many_cpu, mean = await with_cpu(lambda: together(harness, calls, rollouts))
    print(
        f"{name:<12}one by one: {statistics.median(took) * 1e3:.3f} ms median, "
        f"{took[int(len(took) * 0.95)] * 1e3:.3f} ms p95, {cpu / calls * 1e3:.3f} ms CPU of the host; "
        f"{rollouts} at once: {mean * 1e3:.3f} ms, {many_cpu / calls * 1e3:.3f} ms CPU"
    )


async def with_cpu(work: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """(CPU seconds of this process, what `work` returned where it is a number)."""
    before = time.process_time()
    result = await work()
    return time.process_time() - before, result if isinstance(result, float) else 0.0


async def main(calls: int, rollouts: int) -> None:
    await measure("in process", InProcessHarness(SOURCE, "h0"), calls, rollouts)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    async with ProcessHarness("h0.py", source=SOURCE) as harness:
        await measure("worker", harness, calls, rollouts)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    starts = []
    for number in range(5):
        began = time.perf_counter()
        async with ProcessHarness(f"h0-{number}.py", source=SOURCE):
            starts.append(time.perf_counter() - began)
    rest = resource.getrusage(resource.RUSAGE_CHILDREN)
    start_cpu = (rest.ru_utime + rest.ru_stime - after.ru_utime - after.ru_stime) / len(starts)
    asked = calls // 10 + 3 * calls
    print(f"worker's own CPU: {max(0.0, spent - start_cpu) / asked * 1e3:.3f} ms a call")
    print(f"start of a worker: {statistics.median(starts):.2f} s median, {start_cpu:.2f} s CPU")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=4000)
    parser.add_argument("--rollouts", type=int, default=64)
    given = parser.parse_args()
    asyncio.run(main(given.calls, given.rollouts))
