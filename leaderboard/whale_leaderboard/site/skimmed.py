"""Goes once through the test rollouts of a bundle: an outcome of each, and the few that are replayed.

    test = Skimmed()
    test.read(content.lines(MOST_ROLLOUT))
    test.outcomes, test.chosen()

The replays are of the same examples for every entry of a tier, those with the smallest hashes of their ids,
with all 8 samples, and of the first solved and the first failed example, by the same order, where these show
none. A bundle has its test rollouts by example, so that no more than the lines of these few have to be kept.

Not covered: what a page makes of them, see `contents.py`.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from whale_bench.outcomes import Outcome, OutcomeReader, SkimmedLine
from whale_leaderboard.layout import K

EXAMPLES = 3
"""Examples with replays, the same for every entry of a tier."""

SAMPLE_NOTE = (
    f"those of the {EXAMPLES} test examples with the smallest hashes of their ids, the same for every entry "
    "of this tier, and of the first solved and the first failed one where these show none"
)
_LONGEST = 2**20
"""Bytes of a rollout's line above which it is not in a page."""


class _Example(NamedTuple):
    """An example's rollouts."""

    rank: bytes
    """Hash of its id."""
    place: int
    """Of its first rollout in the file."""
    solved: int
    lines: list[bytes]
    """Those that are not too long."""


class Skimmed:
    """The test rollouts of a bundle, as far as pages need them."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self._first: list[_Example] = []
        """The `EXAMPLES` with the smallest hashes."""
        self._solved: _Example | None = None
        self._failed: _Example | None = None
        """Those with the smallest hashes that have a solved rollout, and a failed one."""

    def read(self, lines: Iterable[bytes]) -> None:
        """Takes every line of a file.

        Raises:
            DecodeError: one is no rollout.
        """
        decode, reader = msgspec.json.Decoder(SkimmedLine).decode, OutcomeReader()
        example, begin = "", 0
        short: list[bytes] = []
        for line in lines:
            outcome = reader.outcome(decode(line))
            if outcome.example_id != example:
                self._offer(example, begin, short)
                example, begin, short = outcome.example_id, len(self.outcomes), []
            self.outcomes.append(outcome)
            if len(short) < K and len(line) <= _LONGEST:
                short.append(line)
        self._offer(example, begin, short)

    def chosen(self) -> Iterator[bytes]:
        """Lines of the rollouts that are replayed, in the order of the file."""
        shown = list(self._first)
        if self._solved and not any(one.solved > 0 for one in shown):
            shown.append(self._solved)
        if self._failed and not any(one.solved < K for one in shown):
            shown.append(self._failed)
        for one in sorted(shown, key=lambda one: one.place):
            yield from one.lines

    def _offer(self, id_: str, place: int, lines: list[bytes]) -> None:
        """Keeps an example whose rollouts are the last ones, if it may be shown."""
        if place == len(self.outcomes):
            return
        solved = sum(outcome.verdict.correct for outcome in self.outcomes[place:])
        one = _Example(hashlib.sha256(id_.encode()).digest(), place, solved, lines)
        self._first = sorted([*self._first, one], key=lambda other: other.rank)[:EXAMPLES]
        if one.solved > 0 and (self._solved is None or one.rank < self._solved.rank):
            self._solved = one
        if one.solved < K and (self._failed is None or one.rank < self._failed.rank):
            self._failed = one
