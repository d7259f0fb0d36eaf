"""Canaries: what a harness must not be able to give, measured rather than read off its text.

    finding = await parrot_canary(source, "chess_puzzles", load_examples("chess_puzzles", "mini", "dev"))
    finding = permuted_gold(rollouts, examples)         # None where nothing sings

The *parrot canary* (Chess Puzzles and Math): models that copy what stands in their context
(`parrots.py`) may not do better under a harness than the best of them does under h0, neither on all
examples nor on those that none of them gets right there. One that does was told, or was asked again
until it said what the harness knew. SearchQA has none, because there the
context is meant to hold the answer.

The *permuted-gold canary*: responses are judged against the answers of other examples. Each may be right
for as many as the commonest answer is the answer of, and not for more: such a response says many answers
at once, or the verifier was got around.

`holds_answers` reads a harness's text for answers. All three are pure but for the rollouts they play, so
that search and leaderboard can use them alike.

Not covered: hints too weak for the number of examples; the message says what was counted.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from whale_bench.harness.answers import holds_answers
from whale_bench.harness.findings import Finding
from whale_bench.harness.parrots import ANY, MARKED, PARROTS, Replies
from whale_envs import ExampleSet, FinalResponse, get_domain, parse_action
from whale_envs.core import Example, Profile
from whale_envs.seeding import derive_rng

if TYPE_CHECKING:
    from whale_bench.harness.host import HarnessHost
    from whale_bench.records import Rollout

__all__ = ["Finding", "holds_answers", "parrot_canary", "parrot_hits", "permuted_gold"]

REPEATED = 1.5
"""How much more often than under h0 a random parrot may be right, where good moves are shown twice."""

LUCK = 0.15
"""Share of the examples that no parrot gets right under h0 which one may get right by luck."""

CHANCE = 1e-4
"""Least probability, under no hint or leak, of what is counted; below it the canary sings."""


async def parrot_canary(
    source: str,
    domain: str,
    examples: Sequence[Any],
    *,
    name: str = "candidate.py",
    seed: int = 0,
    unsafe: bool = False,
    reference: Mapping[str, frozenset[str]] | None = None,
) -> Finding | None:
    """Whether a parrot does better under this harness than the best one under h0.

    Args:
        source: of the harness.
        domain: where; a domain without parrots has no finding.
        examples: to play, one rollout each for every parrot; some 64 show a plain hint.
        name: what findings call the file.
        seed: of the rollouts.
        unsafe: run it even where it cannot be confined.
        reference: `parrot_hits` of h0 on these examples, where the caller has it.

    Raises:
        HarnessFileError: the source cannot be loaded.
    """
    from whale_bench.harness.host import load_harness, load_harness_source

    get_domain(domain)
    if domain not in PARROTS:
        return None
    if reference is None:
        reference = await parrot_hits(load_harness(domain), domain, examples, seed=seed, marked=True)
    async with load_harness_source(domain, source, name, unsafe=unsafe) as harness:
        hits = await parrot_hits(harness, domain, examples, seed=seed)
    hard = {example.id for example in examples}.difference(*reference.values())
    best = max(reference, key=lambda parrot: len(reference[parrot]))
    for parrot, right in hits.items():
        usual = ANY if parrot == ANY else best  # the order of what is shown does nothing for a random one
        known, slack = len(reference[usual]), REPEATED if parrot == ANY else 1.0
        for count, of, chance, which in (
            (len(right), len(examples), slack * (known + 1) / (len(examples) + 2), ""),
            (len(right & hard), len(hard), LUCK, " that no parrot gets right under h0"),
        ):
            if _tail(count, of, chance) < CHANCE / len(hits):
                return Finding(
                    domain,
                    f"{name}:1: the parrot {parrot!r} is right on {count} of {of} examples{which}, under h0 "
                    f"{usual!r} on {known} of {len(examples)}: the harness tells the model what to say",
                )
    return None


async def parrot_hits(
    harness: "HarnessHost", domain: str, examples: Sequence[Any], *, seed: int = 0, marked: bool = False
) -> dict[str, frozenset[str]]:
    """By parrot, the ids of the examples on which it is right: in Chess Puzzles with its first move.

    `marked` adds the chess parrots that go by the observation's marks.
    """
    replies = {**PARROTS[domain], **(MARKED if marked and domain == "chess_puzzles" else {})}
    found = await asyncio.gather(
        *(_hits(harness, domain, examples, reply, seed) for reply in replies.values())
    )
    return dict(zip(replies, found, strict=True))


async def _hits(
    harness: "HarnessHost", domain: str, examples: Sequence[Any], replies: Replies, seed: int
) -> frozenset[str]:
    from whale_bench.engine import Agent, Task, rollout
    from whale_bench.models.scripted import ScriptedModel

    served = examples if isinstance(examples, ExampleSet) else ExampleSet(examples, name="the given examples")
    task, agent = Task(domain, served), Agent(ScriptedModel(replies), harness)
    played = await asyncio.gather(
        *(
            rollout(task, agent, example, sample=0, seed=seed, key=f"canary:{example.id}:0")
            for example in served
        )
    )
    right = (row for row in played if row.verdict.correct or row.metrics.get("correct_moves", 0) >= 1)
    return frozenset(row.example_id for row in right)


def permuted_gold(
    rollouts: "Sequence[Rollout]",
    examples: Sequence[Example],
    *,
    name: str = "harness",
    profile: Profile = "standard",
    seed: int = 0,
) -> Finding | None:
    """Whether responses are right for the answers of other examples more often than chance explains.

    Args:
        rollouts: of these examples, of one domain, in any number.
        examples: whose answers are shuffled; at least two.
        name: what the finding calls the harness.
        profile: by which responses are judged.
        seed: of the shuffle.
    """
    if not rollouts or len(examples) < 2:
        return None
    domain = rollouts[0].domain
    verify = get_domain(domain).module.verify
    by_id = {example.id: example for example in examples}
    rng = derive_rng("permuted-gold", seed, domain)
    right = 0
    for row in rollouts:
        other = rng.choice(examples)
        while other.id == row.example_id:
            other = rng.choice(examples)
        right += verify(other, _response(row), profile=profile).correct
    chance = _commonest(list(by_id.values()))
    if _tail(right, len(rollouts), chance) >= CHANCE:
        return None
    return Finding(
        domain,
        f"{name}:1: {right} of {len(rollouts)} responses are right for the answer of another example, where "
        f"one answer to each would be for {chance:.1%} at most: they say more than one, or the answer leaks",
    )


def _response(row: "Rollout") -> Any:
    """What the verifier reads: the final response, or the moves."""
    actions = [step.action for step in row.steps if step.action is not None]
    if row.domain == "chess_puzzles":
        return actions
    finals = [action for action in actions[-1:] if isinstance(parse_action(action), FinalResponse)]
    return finals[0] if finals else ""


def _commonest(examples: Sequence[Any]) -> float:
    """Share of the examples that the commonest answer is right for."""
    counts: Counter[str] = Counter()
    for example in examples:
        lines = [" ".join(example.gold)] if hasattr(example, "fen") else example.gold
        forms = [lines] if isinstance(lines, str) else lines
        counts.update({form.casefold().strip() for form in forms})
    return counts.most_common(1)[0][1] / len(examples)


def _tail(hits: int, of: int, chance: float) -> float:
    """Probability of that many hits or more, at random."""
    chance = min(chance, 1.0)
    return math.fsum(math.comb(of, k) * chance**k * (1 - chance) ** (of - k) for k in range(hits, of + 1))
