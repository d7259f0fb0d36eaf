"""What rollouts are charged with, and how ledger and lines are made to agree after a kill.

    settled = reconcile(store, ledger, rows, "test")     # before anything new is reserved
    ledger.settle(key, attempt, charge_of(row))

Not covered: the account itself, see `ledger.py`.
"""

import warnings
from collections.abc import Mapping

from whale_bench.ledger import CACHED, COUNTED, Charge, Ledger, parts
from whale_bench.store import Outcome, RunStore


def reconcile(store: RunStore, ledger: Ledger, rows: Mapping[str, Outcome], purpose: str) -> set[str]:
    """Makes ledger and lines agree after a kill; returns the keys that an earlier launch settled.

    Raises:
        DataError: the ledger's events do not follow from one another.
    """
    ledger.audit()
    settled, waiting = ledger.settled_keys(), dict(ledger.open_reservations())
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
            stacklevel=2,
        )
    return settled


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
