"""Canaries: what a harness must not be able to give, measured rather than read off its text.

    finding = await parrot_canary(source, "chess_puzzles", load_examples("chess_puzzles", "mini", "dev"))
    finding = permuted_gold(rollouts, examples)         # None where nothing sings

The *parrot canary*, first kind (Chess Puzzles and Math): each of the models that copy what stands in their
context (`parrots.py`) is compared with itself under h0. It may not do better, unless what it copies is right
no more often than chance explains (`blind.py`): so moves may be grouped by the marks of their notation, under
any words, and a worked example may say its answer. Under a harness where one does better it was told, or was
asked again until it said what the harness knew. SearchQA has none, because there the context is meant to hold
the answer.

In Chess Puzzles what a harness points to may not follow from the pieces on the board either
(`other_boards.py`): that finds hints that are too weak to be counted.

Second kind (all domains): models that name several answers in an order that says nothing (`listing.py`) may
be right no more often than chance, which is known: where they are, the harness chose. Nor may a harness take
a move from the middle of such a list, see `choice.py`.

A harness without hint or choice makes either sing once in ten thousand times (`CHANCE`, over all parrots
and counts together).

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
from typing import TYPE_CHECKING, Any, NamedTuple

from whale_bench.harness.answers import holds_answers
from whale_bench.harness.blind import by_marks, by_numbers
from whale_bench.harness.dry_run import line_of
from whale_bench.harness.findings import Finding
from whale_bench.harness.listing import LISTS, choices, lister
from whale_bench.harness.other_boards import other_boards
from whale_bench.harness.parrots import PARROTS, Replies, choice
from whale_envs import ExampleSet, FinalResponse, get_domain, parse_action
from whale_envs.core import Example, Profile
from whale_envs.seeding import derive_rng

if TYPE_CHECKING:
    from whale_bench.harness.host import HarnessHost
    from whale_bench.records import Rollout

__all__ = ["Finding", "holds_answers", "parrot_canary", "parrot_hits", "permuted_gold"]

CHANCE = 1e-4
"""Least probability, under no hint, choice or leak, of what a canary counts; below it the canary sings."""


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
    """Whether a parrot does better under this harness than under h0, or a lister better than chance; and in
    Chess Puzzles, whether what the harness points to follows from the board.

    Args:
        source: of the harness.
        domain: where.
        examples: to play, one rollout each for every parrot and lister; some 64 show a plain hint.
        name: what findings call the file.
        seed: of the rollouts.
        unsafe: run it even where it cannot be confined.
        reference: `parrot_hits` of h0 on these examples, where the caller has it.

    Raises:
        HarnessFileError: the source cannot be loaded.
    """
    from whale_bench.harness.host import load_harness, load_harness_source

    get_domain(domain)
    copies = domain in PARROTS
    if copies and reference is None:
        reference = await parrot_hits(load_harness(domain), domain, examples, seed=seed)
    least = CHANCE / (len(PARROTS.get(domain, ())) + len(LISTS))
    async with load_harness_source(domain, source, name, unsafe=unsafe) as harness:
        stage = _Stage(harness, domain, examples, seed, least)
        found = await _copying(stage, reference or {}) if copies else None
        found = found or await _listing(stage)
        if found is None and domain == "chess_puzzles":
            found = await other_boards(harness, examples, seed=seed)
        return found


class _Stage(NamedTuple):
    """Where parrots play, and what is too unlikely there."""

    harness: "HarnessHost"
    domain: str
    examples: Sequence[Any]
    seed: int
    least: float


async def _copying(stage: _Stage, reference: Mapping[str, frozenset[str]]) -> Finding | None:
    """The first parrot that does better than it does under h0, and than chance with what it copies."""
    harness, domain, examples, seed, least = stage
    by_id = {example.id: example for example in examples}
    for parrot, reply in PARROTS[domain].items():
        played = await _play(harness, domain, examples, dict.fromkeys(by_id, reply), seed)
        count, known = len(_right(played)), len(reference[parrot] | _bare(domain, parrot, examples))
        if tail(count, [(known + 1) / (len(examples) + 2)] * len(examples)) >= least:
            continue
        chances = [_blind(row, by_id[row.example_id], examples) for row in played]
        if tail(count, chances) >= least:
            continue
        return Finding(
            domain,
            f"{harness.name}:1: the parrot {parrot!r} is right on {count} of {len(examples)} examples, "
            f"under h0 on {known}, and by chance on {math.fsum(chances):.1f} with what it copies: "
            "the harness tells the model what to say",
        )
    return None


def _bare(domain: str, parrot: str, examples: Sequence[Any]) -> frozenset[str]:
    """Where a parrot is right that is shown the problem and not a word more; of Math, where h0 ends in words
    with numbers and another harness need not.
    """
    if domain != "math_python":
        return frozenset()
    verify = get_domain(domain).module.verify
    said = {one.id: f"\\boxed{{{choice([one.problem], domain, parrot)}}}" for one in examples}
    return frozenset(one.id for one in examples if verify(one, said[one.id], profile="standard").correct)


def _blind(row: "Rollout", example: Any, examples: Sequence[Any]) -> float:
    """Chance that what was copied in this rollout is right."""
    if row.domain == "math_python":
        return by_numbers(example, row.verdict.answer or "", examples)
    return max((by_marks(example, step.action) for step in row.steps if step.action is not None), default=0.0)


async def _listing(stage: _Stage) -> Finding | None:
    harness, domain, examples, seed, least = stage
    place = f"{harness.name}:{line_of(harness.source, 'read')}"
    for which in LISTS:
        listed = {example.id: choices(example, examples, which) for example in examples}
        models = {id_: lister(answers, domain) for id_, answers in listed.items()}
        played = await _play(harness, domain, examples, models, seed)
        refused = next((row for row in played if row.stop_condition == "provenance"), None)
        if refused is not None:
            return Finding(domain, f"{place}: read chooses among answers that a reply lists: {refused.error}")
        chances = [one.chance for one in listed.values()]
        count = len(_right(played))
        if tail(count, chances) < least:
            return Finding(
                domain,
                f"{place}: where a reply names {which} answers in any order, read is right on {count} of "
                f"{len(played)} examples, {math.fsum(chances):.1f} by chance: it chooses among them",
            )
    return None


async def parrot_hits(
    harness: "HarnessHost", domain: str, examples: Sequence[Any], *, seed: int = 0
) -> dict[str, frozenset[str]]:
    """By parrot, the ids of the examples on which it is right: in Chess Puzzles with its first move."""
    replies = PARROTS[domain]
    played = await asyncio.gather(
        *(
            _play(harness, domain, examples, {example.id: reply for example in examples}, seed)
            for reply in replies.values()
        )
    )
    return dict(zip(replies, map(_right, played), strict=True))


async def _play(
    harness: "HarnessHost",
    domain: str,
    examples: Sequence[Any],
    replies: Mapping[str, Replies],
    seed: int,
) -> "list[Rollout]":
    """One rollout of each example; `replies` is a model for each of their ids."""
    from whale_bench.engine import Agent, Task, rollout
    from whale_bench.models.scripted import ScriptedModel

    served = examples if isinstance(examples, ExampleSet) else ExampleSet(examples, name="the given examples")
    task = Task(domain, served)
    return await asyncio.gather(
        *(
            rollout(
                task,
                Agent(ScriptedModel(replies[example.id]), harness),
                example,
                sample=0,
                seed=seed,
                key=f"canary:{example.id}:0",
            )
            for example in served
        )
    )


def _right(played: "Sequence[Rollout]") -> frozenset[str]:
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
    if tail(right, [chance] * len(rollouts)) >= CHANCE:
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


def tail(hits: int, chances: Sequence[float]) -> float:
    """Probability of that many hits or more, where each has a chance of its own."""
    if hits <= 0:
        return 1.0
    exactly = [1.0] + [0.0] * len(chances)
    """By number of hits so far."""
    for done, chance in enumerate(chances):
        one = min(max(chance, 0.0), 1.0)
        for k in range(done + 1, 0, -1):
            exactly[k] = exactly[k] * (1 - one) + exactly[k - 1] * one
        exactly[0] *= 1 - one
    return math.fsum(exactly[hits:])
