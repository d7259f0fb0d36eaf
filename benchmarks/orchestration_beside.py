"""CPU per rollout of this checkout and of another, in turn, through the full path of `orchestration.py`.

    git worktree add ../before COMMIT
    python benchmarks/orchestration_beside.py ../before [--rollouts 320] [--rounds 6]
    python benchmarks/orchestration_beside.py ../before --concurrency 1024 --latency 0.2 --rollouts 1024

On a machine with other work a rollout costs several times what it costs on a quiet one, and another amount
every minute: only numbers of one run can be compared. Each checkout has a process of its own, which runs
while the other waits; they change places every round. Prints medians.
"""

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

CHILD = """
import asyncio, sys, time
tree, benchmarks, url = sys.argv[1:]
sys.path[:0] = [tree, benchmarks]
import whale_bench, orchestration
assert whale_bench.__file__.startswith(tree), whale_bench.__file__
asyncio.run(orchestration.full_path(url, 64, 8))  # imports and examples
print("ready", flush=True)
for line in sys.stdin:
    rollouts, concurrency = map(int, line.split())
    cpu = time.process_time()
    seconds = asyncio.run(orchestration.full_path(url, rollouts, concurrency))
    print(1000 * (time.process_time() - cpu) / rollouts, rollouts / seconds, flush=True)
"""


def measured(child: subprocess.Popen, rollouts: int, concurrency: int) -> tuple[float, float]:
    """(CPU milliseconds per rollout, rollouts per second)."""
    child.stdin.write(f"{rollouts} {concurrency}\n")
    child.stdin.flush()
    cpu, rate = map(float, child.stdout.readline().split())
    return cpu, rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("other", type=Path, help="Another checkout.")
    parser.add_argument("--rollouts", type=int, default=320)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--latency", type=float, default=0.0, help="Seconds.")
    parser.add_argument("--rounds", type=int, default=6)
    args = parser.parse_args()
    stub = subprocess.Popen(
        [sys.executable, str(HERE / "stub_server.py"), str(args.latency)], stdout=subprocess.PIPE, text=True
    )
    children: dict[str, subprocess.Popen] = {}
    try:
        url = stub.stdout.readline().strip()
        for tree in (str(args.other.resolve()), str(HERE.parent)):
            command = [sys.executable, "-c", CHILD, tree, str(HERE), url]
            children[tree] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            assert children[tree].stdout.readline().strip() == "ready"
        results = {tree: [] for tree in children}
        for number in range(args.rounds):
            for tree in list(children)[:: 1 if number % 2 == 0 else -1]:
                results[tree].append(measured(children[tree], args.rollouts, args.concurrency))
    finally:
        for process in (stub, *children.values()):
            process.kill()
    for tree, pairs in results.items():
        cpu, rate = (statistics.median(values) for values in zip(*pairs, strict=True))
        print(f"{cpu:8.2f} CPU ms a rollout {rate:8.0f} rollouts/s  {tree}")


if __name__ == "__main__":
    main()
