"""Canaries on an entry: what its harness can be heard to give away, in every domain.

    for finding in canaries(entry, seconds=600.0): ...

The entry's own responses are judged against the answers of other test examples, and its prompts are searched
for answers that nothing had shown. The parrots of `whale_bench.harness.canaries` play test examples that the
bundle's digest chooses under the entry's harness, in a process of its own, and under h0: one that does better
under the entry's was told; in SearchQA, where the context is meant to hold the answer, only those play that
name several answers. All refuse the entry; each sings by chance once in ten thousand entries.

No rollout is too long to be read: level 1 bounds them, and each is read when it is its turn, so that memory
holds one. What is not done within the given time is a finding, too.

Not covered: own agents, whose harness is in no bundle; h0 as it ships.
"""

import asyncio
import hashlib
import time
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from typing import overload

from whale_bench.harness.canaries import parrot_canary, parrot_hits, permuted_gold
from whale_bench.harness.host import load_harness, shipped_harnesses
from whale_bench.harness.parrots import PARROTS
from whale_bench.harness.whispers import whispered_gold
from whale_bench.records import Rollout
from whale_envs import ExampleSet
from whale_envs.errors import HarnessFileError
from whale_leaderboard.layout import MOST_HARNESS, MOST_ROLLOUT, TEST, harness_file
from whale_leaderboard.report import Finding, Say
from whale_leaderboard.rows import read_plain
from whale_leaderboard.wellformed import Entry

EXAMPLES = 64
"""Test examples that the parrots play."""

MOST_RESPONSES = 1_024
"""Test rollouts that are judged by other answers, and searched for their own, evenly over the split."""


def canaries(entry: Entry, *, seconds: float, say: Say = lambda _what, _count: None) -> Iterator[Finding]:
    """What the canaries say of an entry that is well-formed.

    Args:
        entry: read.
        seconds: most wall time of all together; looked at before each rollout.
        say: told how far it is.
    """
    until = time.monotonic() + seconds
    try:
        yield from _canaries(entry, _Chosen(entry, until), until, say)
    except TimeoutError:
        yield _finding("time", TEST, f"the canaries did not end within {seconds:g} s")


def _canaries(entry: Entry, chosen: "_Chosen", until: float, say: Say) -> Iterator[Finding]:
    """All of them; TimeoutError where it is later than `until`, a time of the monotonic clock."""
    examples, manifest = list(entry.examples), entry.manifest
    found = permuted_gold(chosen, examples, profile=manifest.profile, name=TEST)
    if found is not None:
        yield _finding("permuted_gold", TEST, found.message)
    if manifest.own_agent:
        return
    name = harness_file(manifest.harness_id)
    source = entry.bundle.read(name, MOST_HARNESS).decode("utf-8", "replace")
    if source == shipped_harnesses()[manifest.domain]:
        return
    found = whispered_gold(chosen, examples, name=name, source=source)
    if found is not None:
        yield _finding("whispered_gold", name, found.message)
    say("parrots", 0)
    yield from asyncio.run(_parrots(entry, name, source, until))


async def _parrots(entry: Entry, name: str, source: str, until: float) -> list[Finding]:
    domain = entry.manifest.domain
    chosen = _chosen(entry.digest, tuple(entry.examples.ids))
    examples = ExampleSet([e for e in entry.examples if e.id in chosen], name=entry.examples.name)
    try:
        async with asyncio.timeout(until - time.monotonic()):
            reference = None
            if domain in PARROTS:
                reference = await parrot_hits(load_harness(domain), domain, examples)
            found = await parrot_canary(source, domain, examples, name="harness.py", reference=reference)
    except HarnessFileError as error:
        return [_finding("harness", name, f"cannot be loaded: {error}")]
    return [] if found is None else [_finding("parrot", name, found.message)]


@cache
def _chosen(digest: str, ids: tuple[str, ...]) -> frozenset[str]:
    """Examples that nobody could choose a harness for."""
    return frozenset(
        sorted(ids, key=lambda id_: hashlib.sha256(f"{digest}:{id_}".encode()).digest())[:EXAMPLES]
    )


class _Chosen(Sequence[Rollout]):
    """Some test rollouts, evenly over the split, each read when it is its turn, so that memory holds one.

    Reading them is a TimeoutError from `until` on.
    """

    def __init__(self, entry: Entry, until: float) -> None:
        self._bundle, self._until = entry.bundle, until
        self._every = -(-len(entry.tested) // MOST_RESPONSES)
        self._count = len(entry.tested) // self._every

    def __iter__(self) -> Iterator[Rollout]:
        for number, line in self._bundle.lines(TEST, MOST_ROLLOUT):
            if time.monotonic() > self._until:
                raise TimeoutError
            if number % self._every == 0:
                yield read_plain(line)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Rollout: ...
    @overload
    def __getitem__(self, index: slice) -> list[Rollout]: ...
    def __getitem__(self, index: int | slice) -> Rollout | list[Rollout]:
        places = range(len(self))[index]
        if isinstance(places, range):
            return [self[place] for place in places]
        return next(islice(iter(self), places, None))


def _finding(code: str, place: str, message: str) -> Finding:
    return Finding(level=2, code=code, place=place, message=message, refuses=True)
