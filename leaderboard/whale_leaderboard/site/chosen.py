"""Chooses the test rollouts that an entry's page replays, as the lines of a bundle go by.

    shown = chosen(content.lines(MOST_ROLLOUT))

The replays are of the same examples for every entry of a tier, those with the smallest hashes of their ids,
with all 8 samples, and of the first solved and the first failed example, by the same order, where these show
none. A verified bundle has its test rollouts by example and sample, so that of most examples no more is
decoded than one id, and no more than the lines of these few are kept.

Not covered: what a page makes of them, see `contents.py`.
"""

import hashlib
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import msgspec

from whale_envs.core import Verdict
from whale_leaderboard.layout import K

EXAMPLES = 3
"""Examples with replays, the same for every entry of a tier."""

SAMPLE_NOTE = (
    f"those of the {EXAMPLES} test examples with the smallest hashes of their ids, the same for every entry "
    "of this tier, and of the first solved and the first failed one where these show none"
)
_LONGEST = 2**20
"""Bytes of a rollout's line above which it is not in a page."""


class _Id(msgspec.Struct):
    example_id: str


class _Judged(msgspec.Struct):
    verdict: Verdict


class _Example(NamedTuple):
    """An example's rollouts."""

    rank: bytes
    """Hash of its id."""
    place: int
    """Of the example in the file."""
    solved: int
    lines: list[bytes]


def chosen(lines: Iterator[bytes]) -> list[bytes]:
    """The lines of the rollouts that are shown, in the order of the file.

    Args:
        lines: all of test.jsonl; a multiple of 8.

    Raises:
        DecodeError: one is no rollout.
    """
    decode_id, decode = msgspec.json.Decoder(_Id).decode, msgspec.json.Decoder(_Judged).decode
    first: list[_Example] = []
    solved: _Example | None = None
    failed: _Example | None = None
    for place, samples in enumerate(iter(lambda: tuple(islice(lines, K)), ())):
        rank = hashlib.sha256(decode_id(samples[0]).example_id.encode()).digest()
        kept = (*first, solved, failed)
        if len(first) == EXAMPLES and all(one is not None and one.rank < rank for one in kept):
            continue
        right = sum(decode(line).verdict.correct for line in samples)
        one = _Example(rank, place, right, [line for line in samples if len(line) <= _LONGEST])
        first = sorted([*first, one])[:EXAMPLES]
        if right > 0 and (solved is None or rank < solved.rank):
            solved = one
        if right < K and (failed is None or rank < failed.rank):
            failed = one
    shown = list(first)
    if solved and not any(one.solved > 0 for one in shown):
        shown.append(solved)
    if failed and not any(one.solved < K for one in shown):
        shown.append(failed)
    return [line for one in sorted(shown, key=lambda one: one.place) for line in one.lines]
