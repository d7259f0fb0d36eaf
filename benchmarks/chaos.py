"""Rollouts through a server that misbehaves, beside the same rollouts without faults.

    python benchmarks/chaos.py [--rollouts 5000] [--share 0.05] [--stall 30]

Of the requests `--share` each meet a connection reset, 429 with `Retry-After`, 500, garbage, and a stall.
The two runs have to be equal: every rollout, every settled charge, no attempt executed in vain.
"""

import argparse
import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from whale_bench import EvalPlan, evaluate
from whale_bench.ledger import Ledger
from whale_bench.store import RunStore

CONCURRENCY = 64
K = 8


def evaluated(folder: Path, rollouts: int, *options: str) -> float:
    """Runs against a server with these options; returns seconds."""
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("faulty_server.py")), *options],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        plan = EvalPlan(
            domain="chess_puzzles",
            model="openai/stub",
            tier="small",
            split="weight",
            n=rollouts // K,
            k=K,
            base_url=server.stdout.readline().strip(),
            concurrency=CONCURRENCY,
            max_tokens=64,
        )
        began = time.perf_counter()
        summary = asyncio.run(evaluate(plan, folder))
    finally:
        server.kill()
    print(f"{folder.name}: {summary.rollouts} rollouts, {len(summary.missing)} missing", summary.warnings)
    return time.perf_counter() - began


def contents(folder: Path) -> tuple[dict, dict, int]:
    """(rollouts by key, settled charges by key, rollouts executed), without times."""
    rows = {
        row.key: msgspec.structs.replace(row, seconds=0.0, env_seconds=0.0)
        for row in RunStore.open(folder).rollouts()
    }
    with Ledger(folder / "ledger.sqlite", readonly=True) as ledger:
        ledger.audit()
        settled = [event for event in ledger.events() if event.kind == "settle"]
        executed = ledger.executed()["weight"].rollouts
    charges = {event.key: msgspec.json.decode(event.charge) | {"seconds": 0.0} for event in settled}
    assert len(charges) == len(settled)
    return rows, charges, executed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=5000)
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--stall", type=float, default=30.0)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        calm = evaluated(folder / "calm", args.rollouts)
        chaos = evaluated(
            folder / "chaos", args.rollouts, "--share", str(args.share), "--stall", str(args.stall)
        )
        (rows, charges, executed), whole = contents(folder / "chaos"), contents(folder / "calm")
    finally:
        shutil.rmtree(folder)
    print(f"without faults {calm:.1f} s, with faults {chaos:.1f} s")
    print(f"rollouts equal: {rows == whole[0]}; settled charges equal: {charges == whole[1]}")
    print(f"charged {len(charges)}, executed {executed}")


if __name__ == "__main__":
    main()
