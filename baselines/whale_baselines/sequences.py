"""From verified rollouts to what a model is trained on: rows of ids and labels, minibatches, micro-batches.

    admitted = admit(rollouts)                          # verified ones, with exactly what was sampled
    for minibatch in minibatches(admitted.rows, 64, seed=7, step=0):
        for micro in micro_batches(minibatch.rows, budget=8192):
            ...                                         # loss: summed NLL / minibatch.tokens

A row holds the ids of a prompt and what the model sampled after it, and labels that are -100 but on
sampled tokens (the end-of-turn token, too, when it was sampled). Where a harness or a chat template
rewrites the context a rollout becomes several rows, and `Admitted.broken` says of how many rollouts
that is true. Nothing is encoded again.

Micro-batches follow from a budget of tokens, padding included. Rows of like length stand together and
a micro-batch is closed before a row would make its padding 5%: the bound holds for any lengths.

Not covered: packing several rows into one without padding, which needs attention kernels for it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from whale_bench.records import Rollout, TrainingSequence, training_sequences
from whale_envs.errors import UsageError
from whale_envs.seeding import derive_seed

IGNORED = -100
"""Label of a token that is not trained on; what torch's and TRL's losses leave out."""

MOST_PADDING = 0.05
"""Share of a micro-batch's tokens that padding stays below."""


class Row(msgspec.Struct, frozen=True):
    """One training sequence: `len(labels) == len(ids)`, and `labels[i]` is `ids[i]` or -100."""

    ids: tuple[int, ...]
    labels: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Tokens that are trained on; the first of a row has nothing before it to follow from."""
        return sum(label != IGNORED for label in self.labels[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """What a step trains on, and counts over all its rollouts."""

    rows: tuple[Row, ...]
    """Ordered by the rollouts' keys, whichever finished first."""
    rollouts: int
    """All of the step."""
    accepted: int
    """Verified and not cut off: those that the rows come from."""
    cut_off: int
    """Verified, but ended by a cap or in the middle of a reply: a stump is no example to follow."""
    examples: int
    """Different examples among the accepted."""
    broken: int
    """Rollouts, accepted or not, whose context was rewritten, so that they are several rows."""
    sampled: int
    """Sampled tokens of the accepted."""
    env_seconds: float
    """Of all rollouts, in the environment's steps: tools and verification."""

    @property
    def tokens(self) -> int:
        """Tokens that are trained on."""
        return sum(row.tokens for row in self.rows)


@dataclass(frozen=True, slots=True)
class Minibatch:
    """The rows of one optimizer step."""

    rows: tuple[Row, ...]
    tokens: int
    """Trained tokens over all rows, whichever process or micro-batch they go to; what the loss divides by."""


def admit(rollouts: Iterable[Rollout]) -> Admitted:
    """The rows of the rollouts whose reward is above 0.5 and which came to their own end.

    Raises:
        UsageError: a rollout lacks the ids that were sampled, so that nothing can be trained on.
    """
    ordered = sorted(rollouts, key=lambda rollout: rollout.key)
    sequences = [(rollout, _sequences(rollout)) for rollout in ordered]
    good = [(rollout, rows) for rollout, rows in sequences if is_accepted(rollout)]
    return Admitted(
        rows=tuple(to_row(sequence) for _, several in good for sequence in several),
        rollouts=len(ordered),
        accepted=len(good),
        cut_off=sum(rollout.verdict.correct and rollout.truncated for rollout in ordered),
        examples=len({rollout.example_id for rollout, _ in good}),
        broken=sum(len(several) > 1 for _, several in sequences),
        sampled=sum(sum(sequence.mask) for _, several in good for sequence in several),
        env_seconds=math.fsum(rollout.env_seconds for rollout in ordered),
    )


def is_accepted(rollout: Rollout) -> bool:
    """Whether a rollout is trained on."""
    return rollout.verdict.correct and not rollout.truncated


def to_row(sequence: TrainingSequence) -> Row:
    """The sequence with labels in place of its mask."""
    labels = (id_ if sampled else IGNORED for id_, sampled in zip(sequence.ids, sequence.mask, strict=True))
    return Row(sequence.ids, tuple(labels))


def minibatches(rows: Sequence[Row], size: int, *, seed: int, step: int, epoch: int = 0) -> list[Minibatch]:
    """All rows once, shuffled by a hash of (seed, step, epoch), in groups of `size`, the last one smaller.

    A group in which nothing is trained on is left out.
    """
    order = sorted(range(len(rows)), key=lambda i: derive_seed("weight/rows", seed, step, epoch, i))
    groups = [tuple(rows[i] for i in order[at : at + size]) for at in range(0, len(order), size)]
    found = [Minibatch(group, sum(row.tokens for row in group)) for group in groups]
    return [minibatch for minibatch in found if minibatch.tokens]


def micro_batches(rows: Sequence[Row], budget: int) -> list[tuple[Row, ...]]:
    """The rows in groups that fit `budget` tokens and are padded by less than 5%, longest first.

    A row longer than the budget stands alone.
    """
    groups: list[list[Row]] = []
    held = 0
    """Tokens of the last group, without padding."""
    for row in sorted(rows, key=lambda row: len(row.ids), reverse=True):
        if groups:
            size = (len(groups[-1]) + 1) * len(groups[-1][0].ids)
            padding = size - held - len(row.ids)
            if size <= budget and padding < MOST_PADDING * size:
                groups[-1].append(row)
                held += len(row.ids)
                continue
        groups.append([row])
        held = len(row.ids)
    return [tuple(group) for group in groups]


def share(groups: Sequence[tuple[Row, ...]], process: int, processes: int) -> list[tuple[Row, ...]]:
    """The micro-batches of one of several processes: as many for each, as their collective calls need.

    Where they do not divide, the last ones repeat a row without its labels, which adds nothing.
    """
    short = -len(groups) % processes
    last = groups[-1][-1]
    blank = (Row(last.ids, (IGNORED,) * len(last.ids)),)
    return [*groups, *[blank] * short][process::processes]


def padding_share(groups: Iterable[Sequence[Row]]) -> float:
    """Padding among all tokens of these micro-batches, a fraction."""
    lengths = [[len(row.ids) for row in group] for group in groups]
    size = sum(len(group) * max(group) for group in lengths)
    return 1 - sum(map(sum, lengths)) / size if size else 0.0


def _sequences(rollout: Rollout) -> list[TrainingSequence]:
    try:
        return training_sequences(rollout)
    except ValueError as error:
        raise UsageError(
            f"{error}: train on a model folder (local/PATH, vllm/PATH) or give openai/NAME a --tokenizer"
        ) from error
