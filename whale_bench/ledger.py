"""The append-only account of a run: reserve before a rollout, settle after it.

    attempt = ledger.reserve(key, "test")
    ledger.settle(key, attempt, Charge(rollouts=1, sampled_tokens=12))

Each event has a sequence number and the hash of the one before, so that a partial edit shows
(`audit`); its author could rebuild the whole chain, and no more is claimed. A key is settled at
most once. After a kill, `interrupt` closes reservations that nothing came of: they count as
executed, never as charged. Where the record of a settled rollout was lost, `repeat` closes the
attempt that made it anew; it, too, counts as executed only.

`charged` is what a budget counts. `executed` adds what was spent for nothing: interrupted, failed
and repeated attempts. A failed one counts with the tokens it had used; of an interrupted one only the
rollout is known, and its tokens are flagged as unmetered.

One writer process per run (`RunStore` holds the lock); readers are free. The file is that of
`ledger_file.py`.

Not covered: budgets over several runs, and the price of a token.
"""

import hashlib
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import msgspec

from whale_bench.ledger_file import is_full, open_account
from whale_envs.errors import DataError, InfrastructureError, UsageError

Kind = Literal["reserve", "settle", "missing", "interrupted", "repeated"]

PURPOSES = ("weight", "harness", "smoke", "dev", "test")
"""What a rollout was for. A budget counts all but test."""

_COUNTS = """
WITH mine (key) AS (VALUES (?)) SELECT
    (SELECT count(*) FROM events e, mine m WHERE e.key = m.key AND e.kind = 'reserve'),
    (SELECT count(*) FROM events e, mine m WHERE e.key = m.key AND e.kind != 'reserve'),
    (SELECT count(*) FROM events e, mine m WHERE e.key = m.key AND e.kind = 'settle')
"""
"""Attempts begun, attempts ended and settlements of a key. Each count has an index of its own; a query over
all kinds would read the whole table."""

GENESIS = "0" * 64


class Charge(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one attempt cost. Tokens the server does not report count 0 and are flagged.

    A rollout is an attempt; so are, with `rollouts` 0, a step of a trainer and a proposer's session, each
    under a key of its own.
    """

    rollouts: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    seconds: float = 0.0
    """Wall seconds of the rollout."""
    unmetered_tokens: bool = False
    """True where nobody said how many tokens were used; the counts are then too low."""
    judge_calls: int = 0
    judge_prompt_tokens: int = 0
    judge_sampled_tokens: int = 0
    """Tokens of the judge's model, apart from the agent's; 0 where the verdict was known already."""
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    """Of `prompt_tokens`, what came from a server's prompt cache and went into it, where it says so."""
    optimizer_steps: int = 0
    trained_tokens: int = 0
    """Sampled tokens that optimizer steps were made on."""
    proposer_calls: int = 0
    """Requests to the model that proposes harnesses, failed ones included."""
    proposer_prompt_tokens: int = 0
    """Cached ones included."""
    proposer_sampled_tokens: int = 0
    proposer_micro_usd: int = 0
    """Millionths of a dollar."""
    unpriced: bool = False
    """True where a price is unknown; the money is then too low."""
    device_seconds: float = 0.0
    """Seconds of training and sampling times the number of accelerators; 0 without any."""


COUNTED = ("tool_calls", "judge_calls", "judge_prompt_tokens", "judge_sampled_tokens")
"""Parts of a charge that the environment counts, by the name of its counter."""

FLAGS = ("unmetered_tokens", "unpriced")
"""Parts of a charge that say it is too low."""

CACHED = ("cache_read_tokens", "cache_write_tokens")
"""Parts of a charge that a segment has under the same name."""


def parts(counters: Mapping[str, float], names: Iterable[str]) -> dict[str, Any]:
    """The parts of a charge that a rollout's counters hold, by name; 0 where they hold none."""
    return {name: int(counters.get(name, 0)) for name in names}


class Event(NamedTuple):
    """One line of the account."""

    seq: int
    kind: Kind
    key: str
    attempt: int
    purpose: str
    at: float
    """Unix time."""
    charge: str
    """A `Charge` as JSON, or empty."""
    prev: str
    hash: str


class Ledger:
    """The account in one SQLite file; see the module's docstring.

    Args:
        path: the file; made if missing.
        readonly: refuse to write, and leave the file as it is.

    Raises:
        UsageError: there is no such file to read, or none can be made.
        DataError: the file is no ledger.
    """

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self.path = path
        self._readonly = readonly
        self._db = open_account(path, readonly=readonly)
        row = next(self._read("SELECT seq, hash FROM events ORDER BY seq DESC LIMIT 1"), None)
        self._begun: dict[tuple[str, int], str] = {}
        """Purposes of this process's attempts that have not ended."""
        self._seq: int = row[0] if row else 0
        self._last: str = row[1] if row else GENESIS

    def reserve(self, key: str, purpose: str, *, again: bool = False) -> int:
        """Announces an attempt at a rollout; returns its number, from 1.

        Args:
            key: unique name of the rollout in its run.
            purpose: one of `PURPOSES`.
            again: the key is settled, but its record was lost; the attempt ends in `repeat`.

        Raises:
            UsageError: the key is settled already (or, with `again`, is not), or has an attempt open.
        """
        if purpose not in PURPOSES:
            raise UsageError(f"unknown purpose {purpose!r}; valid: {', '.join(PURPOSES)}")
        attempt = self._next_attempt(key, again=True) if again else 1
        try:
            self._append("reserve", key, attempt, purpose, "")
        except sqlite3.IntegrityError:  # most attempts are their key's first; this one is not
            attempt = self._next_attempt(key, again=again)
            self._append("reserve", key, attempt, purpose, "")
        self._begun[key, attempt] = purpose
        return attempt

    def _next_attempt(self, key: str, *, again: bool) -> int:
        begun, ended, settled = map(int, next(self._read(_COUNTS, key)))
        if begun != ended:
            raise UsageError(f"rollout {key!r} is reserved already")
        if bool(settled) != again:
            raise UsageError(f"rollout {key!r} is {'not settled yet' if again else 'settled already'}")
        return begun + 1

    def settle(self, key: str, attempt: int, charge: Charge) -> None:
        """Charges a finished attempt, once."""
        self._end("settle", key, attempt, charge)

    def fail(self, key: str, attempt: int, charge: Charge) -> None:
        """Closes an attempt that ended as missing (infrastructure); it is not charged."""
        self._end("missing", key, attempt, charge)

    def interrupt(self, key: str, attempt: int, used: Charge | None = None) -> None:
        """Closes an attempt that a killed process left open; it is not charged.

        `used` is what it is known to have cost; None for a rollout, of which nothing else is known.
        """
        self._end("interrupted", key, attempt, used or Charge(rollouts=1, unmetered_tokens=True))

    def repeat(self, key: str, attempt: int, charge: Charge) -> None:
        """Closes an attempt that made a lost record anew; the key's one charge stays as it was."""
        self._end("repeated", key, attempt, charge)

    def open_reservations(self) -> list[tuple[str, int]]:
        """(key, attempt) of every reservation without an end, in order."""
        rows = self._read(
            "SELECT key, attempt FROM events r WHERE kind = 'reserve' AND NOT EXISTS "
            "(SELECT 1 FROM events e WHERE e.key = r.key AND e.attempt = r.attempt AND e.kind != 'reserve') "
            "ORDER BY seq"
        )
        return [(key, attempt) for key, attempt in rows]

    def settled(self) -> Iterator[str]:
        """The keys that were charged."""
        return (key for (key,) in self._read("SELECT key FROM events WHERE kind = 'settle'"))

    def settled_keys(self) -> set[str]:
        return set(self.settled())

    def totals(self, *kinds: Kind) -> dict[str, Charge]:
        """Sums by purpose of the events of these kinds."""
        sums: dict[str, Charge] = {}
        for event in self.events():
            if event.kind in kinds:
                charge = msgspec.json.decode(event.charge, type=Charge)
                sums[event.purpose] = _add(sums.get(event.purpose, Charge()), charge)
        return sums

    def charged(self) -> dict[str, Charge]:
        """What counts, by purpose."""
        return self.totals("settle")

    def executed(self) -> dict[str, Charge]:
        """What was spent, by purpose, interrupted, failed and repeated attempts included."""
        return self.totals("settle", "missing", "interrupted", "repeated")

    def events(self) -> Iterator[Event]:
        """All events in order."""
        columns = ", ".join(Event._fields)
        return (Event(*row) for row in self._read(f"SELECT {columns} FROM events ORDER BY seq"))  # noqa: S608

    def audit(self) -> int:
        """Recomputes the chain; returns the number of events.

        Raises:
            DataError: a sequence number or a hash does not follow; names the first such event.
        """
        return sum(1 for _ in self.audited())

    def audited(self) -> Iterator[tuple[Kind, str, int]]:
        """(kind, key, attempt) of each event in order, once it is known to follow from the last.

        Raises:
            DataError: as of `audit`.
        """
        prev, encode, sha256 = GENESIS, msgspec.json.Encoder().encode, hashlib.sha256
        columns = ", ".join(Event._fields)
        for seq, row in enumerate(self._read(f"SELECT {columns} FROM events ORDER BY seq"), start=1):  # noqa: S608
            said = row[-1]
            if row[0] != seq or row[-2] != prev or sha256(encode(row[:-1])).hexdigest() != said:
                raise DataError(f"ledger event {row[0]} ({row[1]} {row[2]}) does not follow from the last")
            prev = said
            yield row[1], row[2], row[3]

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _end(self, kind: Kind, key: str, attempt: int, charge: Charge) -> None:
        purpose = self._begun.get((key, attempt)) or self._purpose(key, attempt)
        try:
            self._append(kind, key, attempt, purpose, msgspec.json.encode(charge).decode())
        except sqlite3.IntegrityError as error:
            raise UsageError(f"attempt {attempt} of rollout {key!r} has ended already") from error
        self._begun.pop((key, attempt), None)

    def _purpose(self, key: str, attempt: int) -> str:
        """Of an attempt that another launch began, or that has ended."""
        found = "SELECT purpose FROM events WHERE key = ? AND attempt = ? AND kind = 'reserve'"
        for (purpose,) in self._read(found, key, attempt):
            return str(purpose)
        raise UsageError(f"attempt {attempt} of rollout {key!r} was never reserved")

    def _read(self, query: str, *values: object) -> Iterator[tuple[Any, ...]]:
        try:
            yield from self._db.execute(query, values)
        except sqlite3.Error as error:
            if is_full(error):
                raise InfrastructureError(f"{self.path}: cannot be written: {error}") from error
            raise DataError(f"{self.path}: is damaged: {error}") from error

    def _append(self, kind: Kind, key: str, attempt: int, purpose: str, charge: str) -> None:
        if self._readonly:
            raise UsageError(f"this ledger was opened to be read only, so {kind} {key!r} is refused")
        event = (self._seq + 1, kind, key, attempt, purpose, time.time(), charge, self._last)
        digest = _digest(event)
        try:
            self._db.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*event, digest))
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            raise InfrastructureError(f"{self.path}: cannot be written: {error}") from error
        self._seq, self._last = self._seq + 1, digest


def _digest(event: tuple[object, ...]) -> str:
    """The hash of an event, given its other fields."""
    return hashlib.sha256(msgspec.json.encode(event)).hexdigest()


def _add(a: Charge, b: Charge) -> Charge:
    sums = {f: getattr(a, f) + getattr(b, f) for f in Charge.__struct_fields__ if f not in FLAGS}
    return Charge(**sums, **{f: getattr(a, f) or getattr(b, f) for f in FLAGS})
