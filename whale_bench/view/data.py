"""What a page shows of a run as a whole: scores, distributions, groups, and one row per rollout.

    overview = overview_of(store.settings, outcomes, summary, folder="runs/demo", damaged=0)
    overview.summary.score.mean

Numbers are over all finished rollouts, however few of them a page holds. Which ones it holds is
`choose`: a share of the solved and of the failed ones as in the whole, by a hash of their keys.

Not covered: the content of rollouts (`replay.py`), where they stand on disk (`index.py`).
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from whale_bench.keys import Keys
from whale_bench.scoring import Summary, summarise
from whale_bench.store import Outcome
from whale_bench.tally import tallied
from whale_bench.view.distributions import (
    Group,
    Histogram,
    ended_by,
    groups_of,
    histograms,
    stored_groups,
)
from whale_envs import DOMAINS
from whale_envs.errors import UsageError

HEADLINE_CHARS = 300

_FEN = re.compile(r"^FEN: (\S{15,80}) ([wb]) ", re.MULTILINE)

MISSING_SHOWN = 50
"""Most keys of missing rollouts that a page lists."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout in a table."""

    key: str
    example: str
    sample: int
    reward: float
    stop: str
    truncated: bool
    turns: int
    """Calls of the model."""
    tokens: int | None
    """Sampled ones."""
    seconds: float
    task: str
    """The first observation in a line, see `headline`."""
    answer: str
    said: str
    """The beginning of the last sampled text."""
    groups: list[tuple[str, str]]


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """A run, without its rollouts."""

    folder: str
    settings: dict[str, Any]
    """run.toml."""
    summary: Summary
    missing: int
    """Rollouts that never finished."""
    missing_keys: list[str]
    """The first of their keys, as far as they are known."""
    damaged: int
    """Lines that could not be read and were passed over."""
    histograms: list[Histogram]
    groups: list[Group]


class Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """What stands in for an overview until all rollouts have been read: what summary.json says."""

    folder: str
    settings: dict[str, Any]
    summary: Summary | None
    """None where there is no summary.json."""
    missing: int
    missing_keys: list[str]
    damaged: int = 0
    histograms: list[Histogram]
    groups: list[Group]
    first: int
    """How many rollouts, the first, the tables hold."""


def overview_of(
    settings: Mapping[str, Any],
    outcomes: Sequence[Outcome],
    stored: Summary | None,
    *,
    folder: str,
    damaged: int,
) -> Overview:
    """The overview of a run.

    Args:
        settings: run.toml.
        outcomes: every finished rollout once.
        stored: summary.json; used where it is one of just these rollouts, otherwise scores are computed.
        folder: how the page calls the run's folder.
        damaged: see `Overview`.
    """
    k = int(settings["k"])
    if stored is None or stored.rollouts != len(outcomes) or stored.k != k:
        stored = _summary(settings, outcomes, stored)
    seen = {o.key for o in outcomes}
    keys = [key for key in stored.missing if key not in seen]
    known = [key for key in keys if not key.startswith(_UNKNOWN)]
    shown_by = DOMAINS[stored.domain].shown_by if stored.domain in DOMAINS else ()
    return Overview(
        folder=folder,
        settings=dict(settings),
        summary=msgspec.structs.replace(stored, missing=[]),
        missing=len(keys),
        missing_keys=known[:MISSING_SHOWN],
        damaged=damaged,
        histograms=histograms(outcomes, k),
        # A summary without a gap has the score of every group.
        groups=stored_groups(stored, shown_by) if stored.complete else groups_of(outcomes, k, shown_by),
    )


def beginning_of(
    settings: Mapping[str, Any], stored: Summary | None, *, folder: str, first: int
) -> Beginning:
    """What can be said of a run of which only the first rollouts have been read."""
    shown_by = DOMAINS[stored.domain].shown_by if stored and stored.domain in DOMAINS else ()
    return Beginning(
        folder=folder,
        settings=dict(settings),
        summary=stored and msgspec.structs.replace(stored, missing=[]),
        missing=len(stored.missing) if stored else 0,
        missing_keys=stored.missing[:MISSING_SHOWN] if stored else [],
        histograms=[ended_by(stored.stop_conditions)] if stored else [],
        groups=stored_groups(stored, shown_by) if stored else [],
        first=first,
    )


_UNKNOWN = "not begun "


def _summary(settings: Mapping[str, Any], outcomes: Sequence[Outcome], stored: Summary | None) -> Summary:
    """Scores of a run whose summary.json is missing or older than its rollouts.

    The ids of examples that no rollout has begun are not looked up, for that may need the network.
    """
    k, n, split = int(settings["k"]), int(settings["n"]), str(settings["split"])
    seen = list(dict.fromkeys(o.example_id for o in outcomes))
    unknown = [f"{_UNKNOWN}{number}" for number in range(len(seen), n)]
    prefixes = {f"{split}:{example}": example for example in seen} | {name: name for name in unknown}
    if not prefixes or k < 1:
        raise UsageError("the run's settings ask for no rollout")
    return summarise(
        tallied(outcomes, Keys(prefixes, k), str(settings["profile"])),
        groups={outcome.example_id: outcome.groups for outcome in outcomes},
        settings=settings,
        seconds=stored.seconds if stored else {},
        problems=stored.problems if stored else {},
    )


def headline(opening: str) -> str:
    r"""What an observation asks, in a line of at most `HEADLINE_CHARS`.

    >>> headline("Chess puzzle: …\nFEN: 8/8/8/8/8/4k3/8/4K2R w K - 0 1\n8 . .")
    'White to move: 8/8/8/8/8/4k3/8/4K2R'
    """
    fen = _FEN.search(opening)
    if fen:
        return f"{'White' if fen[2] == 'w' else 'Black'} to move: {fen[1]}"
    line = " ".join(opening[: 2 * HEADLINE_CHARS].split())
    return line if len(line) <= HEADLINE_CHARS else f"{line[: HEADLINE_CHARS - 1]}…"


def choose(outcomes: Iterable[tuple[str, bool]], most: int) -> set[str]:
    """At most `most` keys of (key, solved), the same each time, solved and failed as in the whole.

    >>> sorted(choose([("a", True), ("b", True), ("c", False), ("d", False)], 2))
    ['b', 'd']
    """
    strata: dict[bool, list[str]] = {True: [], False: []}
    for key, solved in outcomes:
        strata[solved].append(key)
    total = sum(map(len, strata.values()))
    if total <= most:
        return {key for keys in strata.values() for key in keys}
    share = round(most * len(strata[True]) / total)
    for solved in (True, False):  # a stratum that exists is seen, however small
        if strata[solved] and most > 1:
            share = max(share, 1) if solved else min(share, most - 1)
    wanted = {True: min(share, len(strata[True])), False: min(most - share, len(strata[False]))}
    return {key for solved, keys in strata.items() for key in sorted(keys, key=rank)[: wanted[solved]]}


def rank(key: str) -> bytes:
    """Where a key stands in the order in which rollouts are chosen."""
    return hashlib.sha256(key.encode()).digest()
