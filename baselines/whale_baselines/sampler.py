"""Which examples the next training step plays: a position in an endless, shuffled list, and no more.

    state = SamplerState(seed=7)
    batch, state = draw(examples.ids, state, 256)       # in the first phase
    batch, state = draw(examples.ids, state, 256)       # weeks later, in another one, from where it was

Each epoch is a permutation of all examples, by a hash of (seed, epoch, id): it depends on which
examples there are and not on their order. No example returns before all others have had their turn,
however often the run was stopped, resumed or handed to another phase in between. A batch that is
larger than what is left of an epoch goes on into the next one.

Not covered: weights of examples and curricula; every example is drawn equally often.
"""

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from whale_envs.errors import UsageError
from whale_envs.seeding import derive_seed


class SamplerState(msgspec.Struct, frozen=True, kw_only=True):
    """The whole memory of a sampler; part of every checkpoint."""

    seed: int
    epoch: int = 0
    position: int = 0
    """Examples of this epoch that were drawn already, 0 <= position < number of examples."""
    examples_id: str = ""
    """Hash of the ids it draws from; empty before the first draw."""


class Drawn(NamedTuple):
    """One example of a batch. The pair is unique over all batches of a sampler."""

    example_id: str
    epoch: int


class Draw(NamedTuple):
    """A batch, and the state after it."""

    batch: tuple[Drawn, ...]
    state: SamplerState


def draw(ids: Sequence[str], state: SamplerState, n: int) -> Draw:
    """The next `n` examples. Pure: equal arguments give equal batches.

    Raises:
        UsageError: `n` is below 1, there are no examples, or they are not those of the earlier draws.
    """
    if n < 1:
        raise UsageError(f"a prompt batch has at least 1 example, got {n}")
    if not ids:
        raise UsageError("there are no examples to train on")
    examples_id = hash_ids(ids)
    if state.examples_id not in ("", examples_id):
        raise UsageError(
            f"the sampler stands in the middle of other examples: it began with {state.examples_id}, "
            f"these are {examples_id}"
        )
    epoch, position, batch = state.epoch, state.position, list[Drawn]()
    while True:
        rest = permutation(ids, state.seed, epoch)[position : position + n - len(batch)]
        batch += [Drawn(example_id, epoch) for example_id in rest]
        position += len(rest)
        if position == len(ids):
            epoch, position = epoch + 1, 0
        if len(batch) == n:
            break
    after = SamplerState(seed=state.seed, epoch=epoch, position=position, examples_id=examples_id)
    return Draw(tuple(batch), after)


def permutation(ids: Sequence[str], seed: int, epoch: int) -> list[str]:
    """The order of one epoch."""
    return sorted(
        ids, key=lambda example_id: (derive_seed("weight/order", seed, epoch, example_id), example_id)
    )


def hash_ids(ids: Sequence[str]) -> str:
    """Hash of a set of examples, whatever their order.

    Raises:
        UsageError: an id stands twice.
    """
    ordered = sorted(ids)
    for one, next_one in pairwise(ordered):
        if one == next_one:
            raise UsageError(f"example {one!r} stands twice among the examples to train on")
    return f"sha256:{hashlib.sha256(chr(10).join(ordered).encode()).hexdigest()}"
