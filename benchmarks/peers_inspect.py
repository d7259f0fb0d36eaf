"""Two-turn rollouts by inspect_ai against the same zero-latency server, beside ours in the same run.

    pip install inspect_ai
    python benchmarks/peers_inspect.py [--rollouts 1000] [--repeats 3]

inspect_ai runs as many samples at concurrency 64, each two model calls with prompts of the same length
through a model provider that posts with aiohttp, as ours does. Its default writes a log with every event as
it goes; its fast mode leaves out the display, real-time logging, model events and samples. Ours keeps the
ledger and every trajectory. Prints the median of the repeats.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
from inspect_ai import Task, eval  # noqa: A004
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageUser, ModelAPI, ModelOutput, get_model, modelapi
from inspect_ai.scorer import match
from inspect_ai.solver import Generate, TaskState, solver
from orchestration import CONCURRENCY, full_path, measure

FAST = {
    "log_samples": False,
    "log_realtime": False,
    "log_model_api": False,
    "log_images": False,
    "display": "none",
}


@modelapi(name="stub")
class Stub(ModelAPI):
    """The server of the benchmark, asked with aiohttp."""

    session = None

    async def generate(self, input, tools, tool_choice, config):  # noqa: A002, ARG002
        if self.session is None:
            self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        messages = [{"role": message.role, "content": message.text} for message in input]
        body = {"model": "stub", "messages": messages, "temperature": 1.0}
        async with self.session.post(f"{self.base_url}/chat/completions", json=body) as response:
            answer = await response.json()
        return ModelOutput.from_content("stub", answer["choices"][0]["message"]["content"])

    def max_connections(self):
        return CONCURRENCY

    async def aclose(self):
        if self.session is not None:
            await self.session.close()


@solver
def two_turns():
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        state = await generate(state)
        state.messages.append(ChatMessageUser(content="That move is not legal. " + "y" * 700))
        return await generate(state)

    return solve


def peer(url: str, rollouts: int, **options) -> tuple[float, float]:
    """(rollouts per second, CPU milliseconds per rollout)."""
    samples = [Sample(input="x" * 800, target="a1a2", id=number) for number in range(rollouts)]
    task = Task(dataset=samples, solver=two_turns(), scorer=match())
    wall, cpu = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        [log] = eval(
            task,
            model=get_model("stub/stub", base_url=url, memoize=False),  # its connections are of one loop
            max_samples=CONCURRENCY,
            max_connections=CONCURRENCY,
            log_dir=folder,
            **options,
        )
    assert log.status == "success", log.error.message
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return rollouts / wall, 1000 * cpu / rollouts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    command = [sys.executable, str(Path(__file__).with_name("stub_server.py"))]
    stub = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = stub.stdout.readline().strip()
        jobs = {
            "ours": lambda: measure(full_path, url, args.rollouts, CONCURRENCY),
            "inspect_ai, fast": lambda: peer(url, args.rollouts, **FAST),
            "inspect_ai, default": lambda: peer(url, args.rollouts, display="none"),
        }
        results = {name: [] for name in jobs}
        for _ in range(args.repeats):
            for name, job in jobs.items():
                results[name].append(job())
    finally:
        stub.kill()
    print(f"median of {args.repeats}, {args.rollouts} rollouts of two turns each")
    print(f"{'':20}{'rollouts/s':>12}{'CPU ms each':>14}")
    for name, pairs in results.items():
        rate, cpu = (statistics.median(values) for values in zip(*pairs, strict=True))
        print(f"{name:20}{rate:12.0f}{cpu:14.2f}")


if __name__ == "__main__":
    main()
