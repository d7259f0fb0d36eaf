"""Canaries on an entry: models that copy what they are shown, and responses judged by other answers.

    for finding in canaries(entry, seconds=600.0): ...

The parrots of `whale_bench.harness.canaries` play test examples that the bundle's digest chooses under the
entry's harness, in a process of its own, and under h0: one that does better under the entry's was told. The
entry's own responses are judged against the answers of other test examples. Both refuse the entry; each sings
by chance once in ten thousand entries.

Not covered: own agents, whose harness is in no bundle; h0 as it ships.
"""

import asyncio
import hashlib
from collections.abc import Iterator
from functools import cache

import msgspec

from whale_bench.harness.canaries import parrot_canary, parrot_hits, permuted_gold
from whale_bench.harness.host import load_harness, shipped_harnesses
from whale_bench.harness.parrots import PARROTS
from whale_bench.records import Rollout
from whale_envs import ExampleSet
from whale_envs.errors import HarnessFileError
from whale_leaderboard.layout import MOST_HARNESS, MOST_ROLLOUT, TEST
from whale_leaderboard.report import Finding
from whale_leaderboard.rows import read_plain
from whale_leaderboard.runs import Say
from whale_leaderboard.wellformed import Entry

EXAMPLES = 64
"""Test examples that the parrots play."""

MOST_RESPONSES = 1_024
"""Test rollouts that are judged by other answers, evenly over the split."""

_LONGEST = 2**20
"""Bytes of a rollout's line above which its response is left out."""


def canaries(entry: Entry, *, seconds: float, say: Say = lambda _what, _count: None) -> Iterator[Finding]:
    """What the canaries say of an entry that is well-formed.

    Args:
        entry: read.
        seconds: most wall time that the parrots may take.
        say: told how far it is.
    """
    found = permuted_gold(_responses(entry), list(entry.examples), profile=entry.manifest.profile, name=TEST)
    if found is not None:
        yield _finding("permuted_gold", TEST, found.message)
    manifest = entry.manifest
    if manifest.own_agent or manifest.domain not in PARROTS:
        return
    name = f"harnesses/{manifest.harness_id.removeprefix('sha256:')}.py"
    source = entry.bundle.read(name, MOST_HARNESS).decode("utf-8", "replace")
    if source == shipped_harnesses()[manifest.domain]:
        return
    say("parrots", 0)
    yield from asyncio.run(_parrots(entry, name, source, seconds))


async def _parrots(entry: Entry, name: str, source: str, seconds: float) -> list[Finding]:
    domain = entry.manifest.domain
    chosen = _chosen(entry.digest, tuple(entry.examples.ids))
    examples = ExampleSet([e for e in entry.examples if e.id in chosen], name=entry.examples.name)
    try:
        async with asyncio.timeout(seconds):
            reference = await parrot_hits(load_harness(domain), domain, examples)
            found = await parrot_canary(source, domain, examples, name="harness.py", reference=reference)
    except TimeoutError:
        return [_finding("time", name, f"the parrots did not end within {seconds:g} s")]
    except HarnessFileError as error:
        return [_finding("harness", name, f"cannot be loaded: {error}")]
    return [] if found is None else [_finding("parrot", name, found.message)]


@cache
def _chosen(digest: str, ids: tuple[str, ...]) -> frozenset[str]:
    """Examples that nobody could choose a harness for."""
    return frozenset(
        sorted(ids, key=lambda id_: hashlib.sha256(f"{digest}:{id_}".encode()).digest())[:EXAMPLES]
    )


def _responses(entry: Entry) -> list[Rollout]:
    """Test rollouts without what the model was shown and said, which is large and not judged."""
    every = -(-len(entry.tested) // MOST_RESPONSES)
    return [
        msgspec.structs.replace(read_plain(line), segments=())
        for number, line in entry.bundle.lines(TEST, MOST_ROLLOUT)
        if number % every == 0 and len(line) <= _LONGEST
    ]


def _finding(code: str, place: str, message: str) -> Finding:
    return Finding(level=2, code=code, place=place, message=message, refuses=True)
