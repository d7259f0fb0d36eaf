"""The Python tool against a fresh `python -c`, in the same run.

    python benchmarks/sandbox.py [--seconds 4]

calls/s: as many callers as give the most (four per core), each waiting for its result. median: one
caller. CPU: of all processes, per call, as the kernel counts it. The two are measured in turns, so that
a busy machine slows both.
"""

import argparse
import asyncio
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from whale_envs.sandbox import Limits, Sandbox
from whale_envs.sandbox.doctor import describe

CORES = 2
CALLERS = 4 * CORES
PROGRAMS = {
    "print(2+2)": "4\n",
    "import sympy\nprint(sympy.Integer(2)+2)": "4\n",
    "from sympy import *\nx = symbols('x')\nprint(solve(x**2 - 5*x + 6))": "[2, 3]\n",
}
Call = Callable[[str], Awaitable[str]]


async def fresh(code: str) -> str:
    """What most harnesses do: a new interpreter, nothing confined."""
    command = [sys.executable, "-I", "-c", code]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    out, _ = await process.communicate()
    return out.decode()


async def rate(
    call: Call, code: str, right: str, callers: int, seconds: float
) -> tuple[int, float, list[float]]:
    """(calls, seconds, seconds of each call)."""
    took: list[float] = []
    began = time.perf_counter()

    async def caller() -> None:
        while (start := time.perf_counter()) - began < seconds:
            assert await call(code) == right
            took.append(time.perf_counter() - start)

    await asyncio.gather(*(caller() for _ in range(callers)))
    return len(took), time.perf_counter() - began, took


def cpu_of(processes: list[int]) -> float:
    """CPU seconds of those processes and the children they have waited for."""
    total = 0
    for number in processes:
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
        total += sum(int(fields[i]) for i in (11, 12, 13, 14))
    return total / 100


def family(process: int) -> list[int]:
    """A process and the two below it: keeper, supervisor, template."""
    found = [process]
    for _ in range(2):
        command = ["ps", "--ppid", str(found[-1]), "-o", "pid=", "--sort=pid"]
        found.append(int(subprocess.check_output(command).split()[0]))
    return found


async def main(seconds: float) -> None:
    async with Sandbox(limits=Limits()) as sandbox:
        print(describe(sandbox), end="\n\n")

        async def ours(code: str) -> str:
            return (await sandbox.run(code, timeout_s=20)).text

        assert sandbox._server is not None
        warm = family(sandbox._server._process.pid)
        for code, right in PROGRAMS.items():
            await rate(ours, code, right, 1, 0.3)
            many, one, cpu, peer, peer_one = [], [], [], [], []
            for _ in range(3):  # in turns
                before = cpu_of(warm) + sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
                count, wall, _ = await rate(ours, code, right, CALLERS, seconds / 3)
                cpu.append(
                    (cpu_of(warm) + sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) - before) / count
                )
                many.append(count / wall)
                count, wall, _ = await rate(fresh, code, right, CORES, seconds / 3)
                peer.append(count / wall)
                one += (await rate(ours, code, right, 1, seconds / 6))[2]
                peer_one += (await rate(fresh, code, right, 1, seconds / 6))[2]
            best, worst = statistics.median(many), statistics.median(peer)
            print(code.replace("\n", "; "))
            print(
                f"  sandbox    {best:7.1f} calls/s   median {1e3 * statistics.median(one):7.2f} ms   ", end=""
            )
            print(f"CPU {1e3 * statistics.median(cpu):.2f} ms")
            print(f"  python -c  {worst:7.1f} calls/s   median {1e3 * statistics.median(peer_one):7.2f} ms")
            print(f"  ratio      {best / worst:7.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="per measurement")
    asyncio.run(main(parser.parse_args().seconds))
