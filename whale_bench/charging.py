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
    """What a ledger says of a run before it goes on."""

    settled: Marks
    """Charged by an earlier launch."""
    waiting: frozenset[str]
    """Reserved, and neither settled nor closed."""

    def owes(self, key: str) -> bool:
        """Whether the ledger has to be told of a rollout whose line is there."""
        return key in self.waiting or key not in self.settled


def standing_of(path: Path, keys: Keys) -> Standing:
    """Of the ledger at `path`, which is only read, and need not be there."""
    if not path.is_file():
        return Standing(Marks(keys), frozenset())
    with Ledger(path, readonly=True) as ledger:
        return Standing(
            Marks(keys, ledger.settled()), frozenset(key for key, _ in ledger.open_reservations())
        )


def reconcile(store: RunStore, ledger: Ledger, rows: Mapping[str, Outcome], purpose: str) -> set[str]:
    """Makes ledger and lines agree after a kill; returns the keys that an earlier launch settled.

    Raises:
        DataError: the ledger's events do not follow from one another.
    """
    ledger.audit()
    settled = ledger.settled_keys()
    settle_lines(store, ledger, rows, purpose, settled)
    return settled


def settle_lines(
    store: RunStore, ledger: Ledger, rows: Mapping[str, Outcome], purpose: str, settled: Container[str]
) -> None:
    """The same where `settled` is known, and `rows` are at least those that the ledger owes something."""
    waiting = dict(ledger.open_reservations())
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
