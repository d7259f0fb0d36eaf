r"""Worked examples: how a task is done, shown with solved examples of the weight split.

    examples = worked_examples("math_python", load_examples("small", "weight"), tier="small", count=16)

Each has the question as the opening shows it and the action that solves it; in SearchQA also a search
and what it found, where the answer stands in that. They are for prompts, so an example whose question
is in another split of the tier is refused: what is searched on or scored on is never shown.

Not covered: examples of several turns in Chess, whose first move is shown alone.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from whale_envs import SPLITS, make_env
from whale_envs.core import ExampleSet
from whale_envs.errors import InfrastructureError, UsageError
from whale_envs.seeding import derive_rng

MOST_CHARS = 2_000
"""Longest question or passage that is shown; longer ones are passed over."""

TRIES = 4
"""Examples looked at for each that is wanted."""

_SMALL_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be by did do does for from had has have how in is it its of on or the to was "
        "were what when where which who whom whose why will with",
    )
)


class WorkedExample(msgspec.Struct, frozen=True):
    """One solved example."""

    question: str
    """As the opening shows it."""
    answer: str
    """The action that solves it."""
    query: str = ""
    """A search for it; empty where there is none."""
    shown: str = ""
    """What the environment showed for `query`, as it shows it."""

    @property
    def key(self) -> str:
        """Names the example in a header: a short hash of its question."""
        return hashlib.sha256(self.question.encode()).hexdigest()[:8]


def as_examples(given: Iterable[WorkedExample | Sequence[str]]) -> tuple[WorkedExample, ...]:
    """Examples from themselves or from (question, answer) pairs.

    Raises:
        UsageError: one is neither.
    """
    found = []
    for one in given:
        if isinstance(one, WorkedExample):
            found.append(one)
        elif not isinstance(one, str) and len(one) == 2 and all(isinstance(text, str) for text in one):
            found.append(WorkedExample(one[0], one[1]))
        else:
            raise UsageError(f"a worked example is a (question, answer) pair, got {one!r:.80}")
    return tuple(found)


def worked_examples(
    domain: str, examples: ExampleSet[Any], *, tier: str, count: int = 16, seed: int = 0
) -> tuple[WorkedExample, ...]:
    """At most `count` solved examples, drawn from `examples` by seed.

    Args:
        domain: of the examples.
        examples: of the weight split, or chosen from it.
        tier: whose other splits they must not be in.
        count: how many; fewer where too few are short enough.
        seed: of the draw.

    Raises:
        UsageError: an example is in another split of the tier.
    """
    for split in SPLITS[1:]:
        held_out = make_env(domain, tier=tier, split=split).examples.ids
        if shared := set(held_out).intersection(examples.ids):
            raise UsageError(
                f"worked examples are of the weight split, but {min(shared)!r} of {examples.name} "
                f"is in {domain}/{tier}/{split}"
            )
    order = list(examples.ids)
    derive_rng("worked", seed, domain).shuffle(order)
    searched = domain == "search_qa"
    env = make_env(domain, examples=examples, **({"tier": tier} if searched else {}))
    first: list[WorkedExample] = []
    rest: list[WorkedExample] = []  # those whose search does not find the answer
    for example_id in order[: count * TRIES]:
        if len(first) >= count:
            break
        opening, _ = env.reset(options={"example_id": example_id})
        one = WorkedExample(opening, env.oracle_action())
        if searched:
            one = _with_search(env, one)
        if len(one.question) <= MOST_CHARS and len(one.shown) <= MOST_CHARS:
            (rest if searched and not one.query else first).append(one)
    env.close()
    return tuple([*first, *rest][:count])


def keywords(question: str) -> str:
    """The words of a question that a search needs, in their order."""
    words = re.findall(r"\w[\w'’.-]*\w|\w", question)
    return " ".join(word for word in words if word.lower() not in _SMALL_WORDS) or question


def _with_search(env: Any, one: WorkedExample) -> WorkedExample:
    """`one` with a search, if that finds its answer; without any, if not."""
    query = keywords(one.question)
    call = msgspec.json.encode({"tool": "search", "arguments": {"query": query}}).decode()
    try:
        observation, *_ = env.step(call)
    except InfrastructureError:  # no search to be had: the example is shown without
        return one
    answer = re.sub(r"</?answer>", "", one.answer)
    if answer.casefold() not in observation.casefold():
        return one
    return msgspec.structs.replace(one, query=query, shown=observation)
