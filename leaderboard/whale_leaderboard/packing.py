"""What packing needs of run folders: their ledgers, added up, and lines put in order on disk.

    order, purposes, accountant, events, head = read_ledger(store)
    write_ordered(lines, out, len(order), lost)

Not covered: what a bundle is made of, see `pack.py`.
"""

import os
import tempfile
from array import array
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from whale_bench.ledger import GENESIS, Event, Ledger
from whale_bench.store import RunStore
from whale_envs import UsageError
from whale_leaderboard.accounting import Accountant
from whale_leaderboard.audit import StrictCharge


class ReadLedger(NamedTuple):
    """A run's ledger, read once."""

    order: dict[str, int]
    """Place of each settled rollout, by key, in the order of settlement."""
    purposes: list[str]
    """Of these, by place."""
    accountant: Accountant
    events: int
    head: str
    """Hash of the last event."""


def read_ledger(store: RunStore) -> ReadLedger:
    """The ledger of a run folder, what it leaves open counted as the audit counts it."""
    order: dict[str, int] = {}
    purposes: list[str] = []
    accountant, events, head = Accountant(store.settings.get("judge")), 0, GENESIS
    waiting: dict[tuple[str, int], str] = {}
    decode = msgspec.json.Decoder(StrictCharge).decode
    with Ledger(store.folder / "ledger.sqlite", readonly=True) as ledger:
        for event in ledger.events():
            events, head, attempt = event.seq, event.hash, (event.key, event.attempt)
            if event.kind == "reserve":
                waiting[attempt] = event.purpose
                continue
            waiting.pop(attempt, None)
            charge: Any = decode(event.charge)
            accountant.add(event.kind, event.purpose, charge, event.at)
            if event.kind == "settle" and charge.rollouts:
                order[event.key] = len(purposes)
                purposes.append(event.purpose)
    for (key, _), purpose in waiting.items():
        accountant.leave_open(key, purpose)
    return ReadLedger(order, purposes, accountant, events, head)


def first_events(store: RunStore) -> list[Event]:
    """The first event of a run's ledger; none of an empty one."""
    with Ledger(store.folder / "ledger.sqlite", readonly=True) as ledger:
        return list(islice(ledger.events(), 1))


def write_ordered(
    lines: Iterator[tuple[int, bytes]], out: Path, count: int, lost: Callable[[int], UsageError]
) -> int:
    """Writes lines by their place in [0, count), whatever order they come in; returns how many.

    Raises:
        UsageError: `lost(place)` for the first place without a line.
    """
    starts, lengths = array("q", [-1]) * count, array("q", [0]) * count
    with tempfile.TemporaryFile(dir=out.parent) as scattered, out.open("wb") as ordered:
        at = 0
        for place, line in lines:
            starts[place], lengths[place] = at, len(line)
            at += scattered.write(line)
        scattered.flush()
        for place in range(count):
            if starts[place] < 0:
                raise lost(place)
            ordered.write(os.pread(scattered.fileno(), lengths[place], starts[place]) + b"\n")
    return count
