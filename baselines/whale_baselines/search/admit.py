"""Whether a candidate may be scored: what it is checked for before that, and what counts as its fault.

    problem = await contract_problem(path, "chess_puzzles", scored)
    agent = await open_harness(plan, backend, path, stack)

A candidate is loaded, tried with scripted replies and asked twice for the same answers
(`check_harness`), then opened as an evaluation opens a harness file, then played a little with the real
model. In a scored rollout a fault of its own code gives no reward, as anywhere, and fails it as a whole:
a harness that breaks on some examples is no harness to go on from.

Not covered: what a harness file could do to this machine, see `whale_bench.harness`.
"""

import asyncio
import re
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from whale_bench.engine import Agent
from whale_bench.evaluation import open_agent
from whale_bench.harness.answers import holds_answers
from whale_bench.harness.check import check_harness
from whale_bench.harness.host import shipped_harnesses
from whale_bench.models import Backend
from whale_bench.plan import EvalPlan
from whale_bench.records import Rollout
from whale_envs.core import Example

FAULTS = frozenset({"harness_error", "harness_timeout", "provenance"})
"""Stop conditions that are the harness's own doing."""

_ARCHIVED = re.compile(r"/[^\n:]*/harnesses/(h\d+)/harness\.py")


async def contract_problem(path: Path, domain: str, scored: Sequence[Example]) -> str:
    """What breaks the contract in a harness file; empty where nothing was found.

    Args:
        path: the file.
        domain: of the search.
        scored: examples whose texts and answers it may not hold. That it does is said in one sentence that
            tells nothing else, for it reaches whoever proposed the file.
    """
    if findings := await check_harness(path, (domain,), scored=()):
        return "; ".join(finding.message for finding in findings)[:2000]
    source = await asyncio.to_thread(path.read_text, encoding="utf-8", errors="replace")
    held = await asyncio.to_thread(holds_answers, source, scored)
    return "it holds texts or solutions of examples that are scored" if held else ""


async def open_harness(plan: EvalPlan, backend: Backend, path: Path, stack: AsyncExitStack) -> Agent:
    """The plan's agent with the harness of a file, open until `stack` closes; a shipped h0 in process.

    Raises:
        UsageError: the harness cannot be used with this domain or model.
    """
    source = await asyncio.to_thread(path.read_text, encoding="utf-8")
    shipped = source == shipped_harnesses().get(plan.domain)
    agent = await open_agent(replace(plan, harness=None if shipped else str(path)), backend, stack)
    assert isinstance(agent, Agent)
    return agent


def short_paths(reason: str) -> str:
    """A reason without the folders of this machine: a harness in the archive is h3/harness.py."""
    return _ARCHIVED.sub(r"\1/harness.py", reason)


def fault_of(record: Rollout) -> str:
    """What the harness did wrong in a rollout; empty where it did nothing."""
    if record.stop_condition not in FAULTS:
        return ""
    return f"{record.stop_condition}: {record.error}"[:2000]
