"""Makes a record once and charges it once, whatever instant the process is killed at.

    book = Book(ledger, Path("simulated/steps.jsonl"), Step, "weight")
    step = book.once("weight:step:7", 2048, lambda: made_anew())

Reserve, make, write, settle: a record that was written but not settled is settled, and a reservation
that nothing came of is closed with all its rollouts, which then count as executed only.

Not covered: single rollouts. A simulated step is one event of the account, with all of its rollouts.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec

from whale_baselines.json_lines import JsonLines
from whale_bench.ledger import Charge, Ledger


class Keyed(Protocol):
    """A record that says what it is charged as."""

    @property
    def key(self) -> str: ...

    @property
    def rollouts(self) -> int: ...


T = TypeVar("T", bound=Keyed)


class Book(Generic[T]):
    """The records of one file, by key."""

    def __init__(self, ledger: Ledger, path: Path, kind: type[T], purpose: str) -> None:
        self.ledger = ledger
        self.purpose = purpose
        self._lines: JsonLines[Any] = JsonLines(path, kind)
        self._known: dict[str, T] = {record.key: record for record in self._lines.records}
        self._open = dict(ledger.open_reservations())

    def records(self) -> list[T]:
        return list(self._known.values())

    def get(self, key: str) -> T | None:
        return self._known.get(key)

    def once(self, key: str, rollouts: int, make: Callable[[], T]) -> T:
        """The record of that key, charged; made if it is not there.

        Args:
            key: unique in the run.
            rollouts: that making it takes.
            make: makes a record with this key.
        """
        found, attempt = self._known.get(key), self._open.pop(key, None)
        if found is not None:
            if attempt is not None:
                self.ledger.settle(key, attempt, Charge(rollouts=found.rollouts))
            return found
        if attempt is not None:
            self.ledger.fail(key, attempt, Charge(rollouts=rollouts, unmetered_tokens=True))
        attempt = self.ledger.reserve(key, self.purpose)
        made = self._known[key] = make()
        self._lines.append(cast("msgspec.Struct", made))
        self.ledger.settle(key, attempt, Charge(rollouts=made.rollouts))
        return made
