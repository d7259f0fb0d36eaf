"""Level 3, reproduced: examples that the bundle's digest chooses, generated anew, and compared.

    found = await reproduce(entry, load_backend("local/PATH"))
    found.p_value >= found.alpha

Of `EXAMPLES` test examples `SAMPLES` rollouts each are played with the entry's harness and sampling and
other seeds. The new mean of each example is compared with its recorded one by the sign-flip test, paired
and two-sided (docs/statistics.md): with p below `ALPHA` the entry is refused. One honest entry in a hundred
is refused so by chance; the interval that is reported says how large a difference would have been seen.

Where the recorded weights have a content hash the backend has to serve those. A judged entry is compared by
its exact-match verdicts. Nothing that the bundle names is contacted: programs run here, searches use the
pinned index.

Not covered: own agents, whose program no bundle holds; indexes that are not here.
"""

import asyncio
import math
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from whale_bench.engine import Agent, Task, rollout
from whale_bench.evaluation import open_resources
from whale_bench.harness.host import load_harness, shipped_harnesses
from whale_bench.models.base import Backend
from whale_bench.plan import EvalPlan
from whale_bench.records import Rollout
from whale_bench.statistics import differences_of, paired, sign_flip
from whale_envs.seeding import derive_seed
from whale_leaderboard.digests import source_digest
from whale_leaderboard.layout import MOST_ROLLOUT, TEST, K, harness_file
from whale_leaderboard.report import Refusal, Reproduction, Say
from whale_leaderboard.rows import read_plain
from whale_leaderboard.wellformed import Entry

EXAMPLES, SAMPLES = 64, 4
ALPHA = 0.01


async def reproduce(entry: Entry, backend: Backend, *, say: Say = lambda _what, _count: None) -> Reproduction:
    """Plays anew and compares.

    Args:
        entry: as level 1 read it.
        backend: open; serves what the entry says it was played with.
        say: told how far it is.

    Raises:
        Refusal: the backend serves other weights, the entry cannot be reproduced here, or it differs.
        InfrastructureError: a rollout could not be played.
    """
    manifest, run = entry.manifest, entry.runs[0]
    if manifest.own_agent:
        raise Refusal(3, "own_agent", TEST, "an own agent's program is in no bundle, so nobody can run it")
    if manifest.weights_id.startswith("sha256:") and backend.weights_id != manifest.weights_id:
        raise Refusal(
            3,
            "weights",
            "manifest.json",
            f"it has {manifest.weights_id}, {backend.name} serves {backend.weights_id}",
        )
    plan = _harmless(run.plan)
    chosen = sorted(entry.examples.ids, key=lambda id_: derive_seed("reproduce", 0, entry.digest, id_))
    chosen = sorted(chosen[:EXAMPLES])
    async with AsyncExitStack() as stack:
        resources = await open_resources(plan, stack)
        if run.settings.get("retriever_id") != getattr(resources.get("retriever"), "retriever_id", None):
            raise Refusal(3, "retriever", "runs/0/run.toml", "the index that it searches is not here")
        harness = await stack.enter_async_context(load_harness(plan.domain, _file(entry)))
        agent = Agent(backend, harness, plan.sampling())
        task = Task(plan.domain, entry.examples, plan.profile, plan.max_tokens, plan.token_budget, resources)
        rows = await _play(task, agent, entry, chosen, say)
    before = [value for id_, value in _recorded(entry).items() if id_ in set(chosen)]
    after = [math.fsum(_reward(row, plan) for row in rows[id_]) / SAMPLES for id_ in _ordered(entry, chosen)]
    difference = paired(before, after)
    found = Reproduction(
        model=backend.name,
        examples=len(chosen),
        samples=SAMPLES,
        recorded=math.fsum(before) / len(before),
        reproduced=math.fsum(after) / len(after),
        low=difference.low,
        high=difference.high,
        p_value=sign_flip(differences_of(before, after)).value,
        alpha=ALPHA,
    )
    if found.p_value < ALPHA:
        raise NotReproducedError(found)
    return found


class NotReproducedError(Refusal):
    """The new rollouts differ from the recorded ones; `found` has by how much."""

    def __init__(self, found: Reproduction) -> None:
        super().__init__(
            3,
            "not_reproduced",
            TEST,
            f"{found.examples} examples had mean {found.recorded:.3f} and have {found.reproduced:.3f} when "
            f"generated anew (p = {found.p_value:.2g}, alpha = {found.alpha:g})",
        )
        self.found = found


def _harmless(plan: EvalPlan) -> EvalPlan:
    """The plan without anything that would contact what a bundle names."""
    return replace(
        plan,
        base_url=None,
        python_url=None,
        unsafe_python=False,
        retriever=None,
        retriever_url=None,
        index=None,
        judge=None,
        judge_url=None,
        harness=None,
        tokenizer=None,
    )


def _file(entry: Entry) -> Any:
    """The harness's file; None where it is the h0 that we ship."""
    harness_id = entry.manifest.harness_id
    if source_digest(shipped_harnesses()[entry.manifest.domain].encode()) == harness_id:
        return None
    return entry.bundle.folder / harness_file(harness_id)


async def _play(
    task: Task, agent: Agent, entry: Entry, chosen: list[str], say: Say
) -> dict[str, list[Rollout]]:
    rows: dict[str, list[Rollout]] = {id_: [] for id_ in chosen}
    queue = iter([(id_, sample) for id_ in chosen for sample in range(SAMPLES)])
    seed = derive_seed("reproduce", 1, entry.digest)

    async def work() -> None:
        for id_, sample in queue:
            example = task.examples.by_id(id_)
            row = await rollout(task, agent, example, sample=sample, seed=seed, key=f"new:{id_}:{sample}")
            rows[id_].append(row)
            say("new rollouts", sum(map(len, rows.values())))
            await asyncio.sleep(0)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(agent.default_concurrency):
                group.create_task(work())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return rows


def _recorded(entry: Entry) -> dict[str, float]:
    """Mean of each test example by the verdicts of its profile, in the split's order."""
    sums: dict[str, float] = dict.fromkeys(entry.examples.ids, 0.0)
    for _, line in entry.bundle.lines(TEST, MOST_ROLLOUT):
        row = read_plain(line)
        sums[row.example_id] += _reward(row, entry.runs[0].plan)
    return {id_: total / K for id_, total in sums.items()}


def _reward(row: Rollout, plan: EvalPlan) -> float:
    """The reward without a judge."""
    exact: float | None = getattr(row.verdict, plan.profile)
    return row.verdict.reward if exact is None else exact


def _ordered(entry: Entry, chosen: list[str]) -> list[str]:
    wanted = set(chosen)
    return [id_ for id_ in entry.examples.ids if id_ in wanted]
