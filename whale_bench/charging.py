"""What rollouts are charged with, and how ledger and lines are made to agree after a kill.

    settled = reconcile(store, ledger, rows, "test")     # before anything new is reserved
    ledger.settle(key, attempt, charge_of(row))

Not covered: the account itself, see `ledger.py`.
"""

import warnings
from collections.abc import Container, Mapping
from pathlib import Path
from typing import NamedTuple

from whale_bench.keys import Keys, Marks
from whale_bench.ledger import CACHED, COUNTED, Charge, Ledger, parts
from whale_bench.store import Outcome, RunStore


class Standing(NamedTuple):
    """What a ledger, whose events follow from one another, says of a run before it goes on."""

    settled: Container[str]
    """Charged by an earlier launch."""
    waiting: Mapping[str, int]
    """Attempts that were reserved, and neither settled nor closed, by key."""

    def owes(self, key: str) -> bool:
        """Whether the ledger has to be told of a rollout whose line is there."""
        return key in self.waiting or key not in self.settled


def standing_of(path: Path, keys: Keys) -> Standing:
    """Of the ledger at `path`, which is only read, once, and need not be there.

    Raises:
        DataError: the ledger's events do not follow from one another.
    """
    settled = Marks(keys)
    waiting: dict[tuple[str, int], None] = {}
    if path.is_file():
        with Ledger(path, readonly=True) as ledger:
            for kind, key, attempt in ledger.audited():
                if kind == "reserve":
                    waiting[key, attempt] = None
                    continue
                waiting.pop((key, attempt), None)
                if kind == "settle":
                    settled.add(key)
    return Standing(settled, dict(waiting.keys()))


def reconcile(store: RunStore, ledger: Ledger, rows: Mapping[str, Outcome], purpose: str) -> set[str]:
    """Makes ledger and lines agree after a kill; returns the keys that an earlier launch settled.

    Raises:
        DataError: the ledger's events do not follow from one another.
    """
    ledger.audit()
    settled = ledger.settled_keys()
    settle_lines(store, ledger, rows, purpose, Standing(settled, dict(ledger.open_reservations())))
    return settled


def settle_lines(
    store: RunStore, ledger: Ledger, rows: Mapping[str, Outcome], purpose: str, standing: Standing
) -> None:
    """The same of a ledger whose standing is known; `rows` are at least those that it owes something."""
    settled, waiting = standing.settled, dict(standing.waiting)
    unreserved = 0
    for row in rows.values():
        attempt = waiting.pop(row.key, None)
        if attempt is None and row.key not in settled:
            unreserved += 1
            attempt = ledger.reserve(row.key, purpose)
        if attempt is not None:
            close = ledger.repeat if row.key in settled else ledger.settle
            close(row.key, attempt, charge_of(row))
    for key, attempt in waiting.items():
        ledger.interrupt(key, attempt)
    if unreserved:
        warnings.warn(
            f"{unreserved} rollouts of {store.folder} stood in no ledger reservation; they are charged now",
            stacklevel=3,
        )


def charge_of(row: Outcome) -> Charge:
    """What the ledger settles a finished rollout with: where the size of a call is unknown, the others'."""
    return Charge(
        rollouts=1,
        prompt_tokens=row.known_prompt_tokens or row.prompt_tokens or 0,
        sampled_tokens=row.known_sampled_tokens or row.sampled_tokens or 0,
        model_calls=row.model_calls,
        seconds=row.seconds,
        unmetered_tokens=row.prompt_tokens is None or row.sampled_tokens is None,
        **parts(row.metrics, (*COUNTED, *CACHED)),
    )
