"""The ledger's events as JSON lines, one event a line, in order.

    write_events(RunStore.open(Path("runs/demo")), Path("events.jsonl"))

`charge` stays the text that the hash is over, so that a reader can recompute the chain: an event's
hash is the SHA-256 of the JSON array of its other fields, written without spaces.

Not covered: totals, which `Ledger.charged` and `Ledger.executed` give.
"""

from pathlib import Path

import msgspec

from whale_bench.export.files import fresh
from whale_bench.ledger import Ledger
from whale_bench.store import RunStore


def write_events(store: RunStore, out: Path) -> None:
    """Writes every event after the chain was found whole.

    Raises:
        UsageError: there is no ledger, it is damaged, or `out` cannot be made.
    """
    with Ledger(store.folder / "ledger.sqlite", readonly=True) as ledger:
        ledger.audit()
        with fresh(out) as temporary, temporary.open("wb") as lines:
            for event in ledger.events():
                lines.write(msgspec.json.encode(event._asdict()) + b"\n")
