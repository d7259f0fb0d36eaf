"""`mutate`: candidates from a library of mechanisms, without any model. The free baseline.

    proposer = Mutate(examples=worked_examples("math_python", weight_examples, tier="small"))
    session = await proposer.propose(brief)

A candidate is a parent of the frontier with one mechanism added, varied or dropped, or a crossover of
two parents. Mechanisms that the archive has not seen come first. With `prompt_only` a candidate is the
base with other prompts, examples in the text included. All draws are from `Brief.seed`, and no source is
proposed twice.

Not covered: learning from scores beyond the frontier, which is left to proposers that read.
"""

import time
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from whale_baselines.proposers.library import library, read_plan, write
from whale_baselines.proposers.mechanism import Mechanism, Plan
from whale_baselines.proposers.prompt_edits import edited_prompts
from whale_baselines.proposers.worked import WorkedExample, as_examples
from whale_baselines.search.proposal import Brief, Known, Proposal, Session
from whale_bench.ledger import Charge
from whale_envs.errors import UsageError
from whale_envs.seeding import derive_rng

CROSSOVER = 0.2
"""Share of candidates with two parents, where the frontier has two plans."""

TRIES = 200
"""Draws without a new source after which a session ends."""


class Mutate:
    """See the module's docstring.

    Args:
        examples: worked examples of the weight split, or (question, answer) pairs; without any, the
            mechanisms that show them are left out.
    """

    name = "mutate"

    def __init__(self, examples: Sequence[WorkedExample | Sequence[str]] = ()) -> None:
        self._pool = {one.key: one for one in as_examples(examples)}

    async def propose(self, brief: Brief) -> Session:
        began = time.perf_counter()
        rng = derive_rng("mutate", brief.seed, brief.domain, brief.phase, brief.iteration)
        seen = {known.source for known in brief.known}
        draws = self._prompts(brief, rng) if brief.prompt_only else self._plans(brief, rng)
        proposals: list[Proposal] = []
        for _, proposal in zip(range(TRIES), draws, strict=False):
            if len(proposals) == brief.slots:
                break
            if proposal.source not in seen:
                seen.add(proposal.source)
                proposals.append(proposal)
        short = len(proposals) < brief.slots
        return Session(
            tuple(proposals),
            charge=Charge(seconds=time.perf_counter() - began),
            problem=f"no {brief.slots} new candidates were found in {TRIES} draws" if short else "",
            transcript=tuple(_line(proposal) for proposal in proposals),
        )

    def _plans(self, brief: Brief, rng: Random) -> Iterator[Proposal]:
        """Candidates at random, without end; some may be known."""
        mechanisms = {n: m for n, m in library(brief.domain).items() if self._pool or not m.examples}
        parents = [(one, read_plan(one.source, brief.domain, self._pool)) for one in _parents(brief)]
        tried = {name for known in brief.known for name in known.components}
        while True:
            known, plan = rng.choice(parents)
            others = [(k, p) for k, p in parents if p != plan]
            if others and rng.random() < CROSSOVER:
                other, second = rng.choice(others)
                child = _cross(rng, plan, second)
                change = f"crosses {known.name} with {other.name}"
                why = "What helps two harnesses may help together."
                ids: tuple[str, ...] = (known.harness_id, other.harness_id)
            else:
                child, change, why = self._changed(rng, mechanisms, plan, tried)
                ids = (known.harness_id,)
            tried |= child.keys() - plan.keys()  # so that a session tries different ones
            yield Proposal(
                source=write(brief.domain, child, self._pool),
                hypothesis=why,
                changes=change,
                parents=ids,
                components=tuple(name for name in mechanisms if name in child),
            )

    def _changed(
        self, rng: Random, mechanisms: dict[str, Mechanism], plan: Plan, tried: set[str]
    ) -> tuple[Plan, str, str]:
        """(child, what is different, why that should help): one mechanism added, varied or dropped."""
        absent = [m for name, m in mechanisms.items() if name not in plan]
        present = [m for name, m in mechanisms.items() if name in plan]
        kind = rng.choices(("add", "vary", "drop"), (6, 3, 1))[0] if present else "add"
        if kind == "add" and absent:
            weights = [m.weight * (1 if m.name in tried else 4) for m in absent]
            one = rng.choices(absent, weights)[0]
            params = one.draw(rng, self._pool)
            return {**plan, one.name: params}, f"adds {one.name}: {one.say(params)}", one.why
        one = rng.choice(present)
        if kind == "drop":
            child = {name: params for name, params in plan.items() if name != one.name}
            return child, f"drops {one.name}", f"{one.name} may do more harm than good."
        params = one.vary(rng, plan[one.name], self._pool)
        return {**plan, one.name: params}, f"varies {one.name}: {one.say(params)}", one.why

    def _prompts(self, brief: Brief, rng: Random) -> Iterator[Proposal]:
        """The base with other prompts, without end; some may be known."""
        base = _find(brief, brief.base)
        parents = _parents(brief)
        while True:
            parent = rng.choice(parents)
            source, change, tags = edited_prompts(rng, base.source, parent.source, brief.domain, self._pool)
            yield Proposal(
                source=source,
                hypothesis="The model does what these words say more often than what the parent's said.",
                changes=change,
                parents=(parent.harness_id,),
                components=tags,
            )


def _parents(brief: Brief) -> list[Known]:
    """What may be changed: the frontier, with the accepted harness once more than the others."""
    return [_find(brief, harness_id) for harness_id in (brief.accepted, *brief.frontier)]


def _find(brief: Brief, harness_id: str) -> Known:
    for known in brief.known:
        if known.harness_id == harness_id:
            return known
    raise UsageError(f"a brief names harness {harness_id!r}, which is not among those that it knows")


def _cross(rng: Random, first: Plan, second: Plan) -> Plan:
    """Each mechanism of either parent from one of those that have it, or left out by one that has not."""
    names = sorted(first.keys() | second.keys())
    chosen = {name: rng.choice((first, second)) for name in names}
    return {name: plan[name] for name, plan in chosen.items() if name in plan}


def _line(proposal: Proposal) -> dict[str, Any]:
    return {
        "event": "candidate",
        "changes": proposal.changes,
        "parents": list(proposal.parents),
        "components": list(proposal.components),
    }
