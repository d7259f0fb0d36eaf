"""Resuming a long run: seconds to the first new rollout, and memory beside that of a short run.

    python benchmarks/resume.py [--rollouts 100000] [--folder FOLDER]

Makes a run of that many rollouts that lacks the last eight, and resumes it in a process of its own, whose
start and imports count. With --folder the run is kept there; a copy of it is resumed. Peak memory is the
process's; --tree measures another checkout.
"""

import argparse
import asyncio
import hashlib
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tomli_w

EXAMPLES, LAST = 5_000, 8


def make(folder: Path, rollouts: int) -> None:
    """A run of which the last eight rollouts are missing: real trajectories, over and over."""
    import msgspec

    from whale_bench import EvalPlan, evaluate
    from whale_bench.evaluation import charge_of
    from whale_bench.ledger import Ledger
    from whale_bench.store import RunStore, outcome_of, settings_id
    from whale_envs import load_examples

    examples = min(EXAMPLES, rollouts)
    plan = EvalPlan(
        domain="chess_puzzles", model="scripted/random", tier="small", split="weight", n=64, k=4
    )  # fmt: skip
    asyncio.run(evaluate(plan, folder))
    known = list(RunStore.open(folder).rollouts())
    settings = RunStore.open(folder).settings | {"n": examples, "k": rollouts // examples}
    ids = load_examples("chess_puzzles", "small", "weight")[:examples].ids
    settings["examples_id"] = f"sha256:{hashlib.sha256(chr(10).join(ids).encode()).hexdigest()}"
    settings["settings_id"] = settings_id(settings)
    for path in folder.glob("*"):
        if path.name != "harness.py":
            path.unlink()
    (folder / "run.toml").write_text(tomli_w.dumps(settings))
    keys = [(example, sample) for example in ids for sample in range(rollouts // examples)]
    with (
        Ledger(folder / "ledger.sqlite") as ledger,
        (folder / "rollouts-0000.jsonl").open("wb") as part,
    ):
        ledger._db.execute("BEGIN")
        for number, (example, sample) in enumerate(keys[:-LAST]):
            row = msgspec.structs.replace(
                known[number % len(known)],
                key=f"weight:{example}:{sample}",
                example_id=example,
                sample=sample,
            )
            part.write(msgspec.json.encode(row) + b"\n")
            attempt = ledger.reserve(row.key, "weight")
            ledger.settle(row.key, attempt, charge_of(outcome_of(row)))
        ledger._db.execute("COMMIT")


def child(folder: Path, began: float) -> None:
    """Resumes; prints seconds to the first new rollout, to the end, and peak memory in MB."""
    from whale_bench import evaluate

    first: list[float] = []
    begun: list[int] = []

    def report(finished: int, _total: int, _mean: float | None) -> None:
        begun.append(finished)
        if finished > begun[0] and not first:
            first.append(time.time() - began)

    asyncio.run(evaluate(None, folder, report=report))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(first[0], time.time() - began, time.process_time(), peak)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--tree", type=Path, help="Measure the package of this folder instead.")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, args.began)
        return
    scratch = Path(tempfile.mkdtemp())
    try:
        print(f"{'rollouts':>10}{'first new':>12}{'finished':>12}{'CPU':>10}{'peak MB':>10}")
        for rollouts in (1_000, args.rollouts):
            folder = (args.folder or scratch) / str(rollouts)
            if not folder.exists():
                make(folder, rollouts)
            copy = scratch / "copy"
            shutil.copytree(folder, copy)
            command = [sys.executable, __file__, "--child", str(copy), "--began", str(time.time())]
            tree = {"PYTHONPATH": str(args.tree)} if args.tree else {}
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | tree)
            shutil.rmtree(copy)
            first, end, cpu, peak = map(float, done.stdout.split())
            print(f"{rollouts:10,}{first:11.2f}s{end:11.2f}s{cpu:9.2f}s{peak:10.0f}")
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
