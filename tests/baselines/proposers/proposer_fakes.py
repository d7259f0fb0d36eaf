"""What the tests of proposers share: briefs over a small archive, plans at random, harnesses to propose."""

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from whale_baselines.proposers.library import library
from whale_baselines.proposers.mechanism import Plan
from whale_baselines.proposers.worked import WorkedExample
from whale_baselines.search.proposal import Brief, Known

from whale_bench.harness.host import shipped_harnesses

DOMAINS = ("math_python", "search_qa", "chess_puzzles")
TIERS = {"math_python": "mini", "search_qa": "mini", "chess_puzzles": "mini"}


def known(source: str, name: str = "h0", **more: Any) -> Known:
    return Known(harness_id=f"id-{name}", name=name, source=source, status="scored", **{"score": 0.1, **more})


def make_brief(folder: Path, domain: str = "math_python", *others: Known, **more: Any) -> Brief:
    """A brief whose archive holds h0 and `others`, all of them on the frontier unless `more` says."""
    archive, workspace = folder / "archive", folder / "workspace"
    for path in (archive, workspace):
        path.mkdir(exist_ok=True)
    h0 = known(shipped_harnesses()[domain])
    (archive / "README.md").write_text("Sources and scores.\n")
    (archive / "h0.py").write_text(h0.source)
    every = (h0, *others)
    settings = {
        "frontier": tuple(one.harness_id for one in every),
        "accepted": h0.harness_id,
        "base": h0.harness_id,
        "known": every,
        "slots": 3,
        "phase": 1,
        "iteration": 2,
        **more,
    }
    return Brief(domain=domain, archive=archive, workspace=workspace, **settings)


def random_plan(domain: str, seed: int, pool: Mapping[str, WorkedExample]) -> Plan:
    """Any number of mechanisms with parameters, drawn by seed."""
    rng = Random(seed)
    mechanisms = [one for one in library(domain).values() if pool or not one.examples]
    chosen = rng.sample(mechanisms, rng.randint(0, len(mechanisms)))
    return {one.name: one.draw(rng, pool) for one in chosen}


def harness(number: int) -> str:
    """A harness file that a competent proposer might write."""
    return (
        "from whale_bench.harness import BaseHarness\n\n\n"
        "class Harness(BaseHarness):\n"
        f'    USER_PROMPT = "{{observation}}\\n\\nAnswer in \\\\boxed{{}}, way {number}."\n'
        "    MAX_TURNS = 1\n"
    )
