"""Resuming a long run: seconds to the first new rollout, memory, and where the time goes.

    python benchmarks/resume.py [--rollouts 100000] [--keep FOLDER]

A run of that many finished rollouts (the trajectories of a real one under new keys) lacks its last
example; the resume runs in a process of its own. Memory is the growth over a run of eight rollouts.
"""

import argparse
import asyncio
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

K = 8
MODEL = "scripted/noisy-oracle:0.7"


def make(folder: Path, rollouts: int) -> None:
    """A run folder in which all but one example's rollouts are finished."""
    import msgspec

    from whale_bench import EvalPlan, evaluate
    from whale_bench.evaluation import _charge
    from whale_bench.ledger import Ledger
    from whale_bench.plan import plan_of
    from whale_bench.records import Rollout
    from whale_bench.store import RunStore, outcome_of

    n = rollouts // K
    base = {"domain": "chess_puzzles", "tier": "full", "split": "weight", "model": MODEL, "k": K}
    source = folder.with_name("source")
    asyncio.run(evaluate(EvalPlan(**{**base, "tier": "mini", "split": "test"}, n=64), source))
    known = list(RunStore.open(source).rollouts())
    settings = {**RunStore.open(source).settings, "n": n, "tier": "mini", "split": "test"}
    del plan_of, settings, msgspec, Rollout
    from whale_bench.evaluation import load_examples

    for tier in ("mini", "small", "full"):
        try:
            examples = load_examples("chess_puzzles", tier, "weight")
        except Exception as error:
            print(f"{tier}: {error}")
            continue
        print(tier, len(examples))
    del known, examples, _charge, Ledger, outcome_of
