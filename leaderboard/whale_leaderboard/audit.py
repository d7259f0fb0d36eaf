"""Audits a ledger against the records of what it charged: every link, every sum, in one pass each.

    audit = Audit("runs/0", splits)
    for settled in audit.settlements(events, records):    # functions that give the lines, anew each time
        ...
    audit.accountant.account(), audit.head

The ledger's lines are those of `whale-bench export --to events`. Checked: sequence numbers without a gap,
each hash over its event and the one before; attempts that begin before they end, end once, and follow one
another; at most one settlement of a key, and a repeat only of a settled one; charges that are counts, not
negative, with nothing of the agent's where no rollout was; a record for every settled rollout, in the
same order, that says the same, of an example of the purpose's split. The first fault is a `Refusal` that
names its line.

Memory holds three numbers for each key and the attempts in flight. The chain shows partial edits; its
author could have written all of it anew (docs/budget.md says what that leaves).

Not covered: whether the records are true, which replaying them shows (`replay.py`).
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from whale_bench.ledger import GENESIS, PURPOSES, Charge
from whale_leaderboard.accounting import Accountant
from whale_leaderboard.layout import Charged
from whale_leaderboard.report import Refusal

Lines = Callable[[], Iterator[tuple[int, bytes]]]
"""Gives (number, line) of a file, from the beginning each time it is called."""

MOST_OPEN = 100_000
"""Attempts in flight at once."""

FIRST, LAST = 1_577_836_800.0, 4_102_444_800.0
"""Unix time of the beginnings of 2020 and 2100; an event is of between."""

_AGENTS = ("prompt_tokens", "sampled_tokens", "model_calls", "tool_calls")
"""Parts of a charge that only a rollout has."""

_SLACK = 2.0
"""Seconds by which a rollout may be longer than the time between its reservation and its settlement."""

_FASTEST = 20_000.0
"""Sampled tokens per second above which a rollout's time or its tokens cannot be true."""


def _bounded(name: str, kind: Any, default: Any) -> tuple[str, Any, Any]:
    counts = kind in (int, float)
    return name, Annotated[kind, Meta(ge=0, le=2**53)] if counts else kind, default


StrictCharge = msgspec.defstruct(
    "StrictCharge",
    [_bounded(f.name, f.type, f.default) for f in msgspec.structs.fields(Charge)],
    bases=(Charge,),
    frozen=True,
    forbid_unknown_fields=True,
)
"""A charge of known parts alone, none of them negative."""


_encode = msgspec.json.Encoder().encode
_read_any = msgspec.json.Decoder(dict[str, Any]).decode


class EventLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event as it is exported."""

    seq: int
    kind: Literal["reserve", "settle", "missing", "interrupted", "repeated"]
    key: Annotated[str, Meta(min_length=1, max_length=512)]
    attempt: Annotated[int, Meta(ge=1, le=10**6)]
    purpose: str
    at: float
    charge: str
    prev: str
    hash: str


class Settled(NamedTuple):
    """A settled rollout and its record."""

    event: EventLine
    charge: Charge
    record: Charged
    number: int
    """Line of the record."""


@dataclass(slots=True)
class Audit:
    """See the module's docstring.

    Args:
        place: folder of the run in the bundle, for messages.
        splits: ids of the examples that rollouts of each purpose may be of.
    """

    place: str
    splits: Mapping[str, Collection[str]]
    accountant: Accountant = field(default_factory=Accountant)
    events: int = 0
    records: int = 0
    head: str = GENESIS
    first: str = ""
    """Hash of the first event; empty without any."""
    odd_times: list[str] = field(default_factory=list)
    """The first few events whose times cannot be, for a note."""
    odd_count: int = 0
    _open: dict[tuple[str, int], tuple[str, float]] = field(default_factory=dict)
    _begun: "array[int]" = field(default_factory=lambda: array("q"))
    _before: "array[int]" = field(default_factory=lambda: array("q"))
    _settled: "array[int]" = field(default_factory=lambda: array("q"))
    _repeated: "array[int]" = field(default_factory=lambda: array("q"))

    def settlements(self, events: Lines, records: Lines) -> Iterator[Settled]:
        """Every settled rollout with its record, in order; the checks of the whole at the end.

        Raises:
            Refusal: the first fault.
        """
        read = msgspec.json.Decoder(Charged).decode
        lines = records()
        for event, charge in self._chain(events):
            if event.kind != "settle" or not charge.rollouts:
                continue
            number, line = next(lines, (0, b""))
            if not number:
                raise self._refusal(
                    "no_record", "ledger.jsonl", event.seq, f"{event.key!r} is charged and has no record"
                )
            try:
                record = read(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise self._refusal("record", "charged.jsonl", number, f"is no record: {error}") from error
            if _encode(record) != line:  # a name twice, of which readers take either
                raise self._refusal("record", "charged.jsonl", number, "can be read in more than one way")
            self._check_record(record, event, charge, number)
            self.records += 1
            yield Settled(event, charge, record, number)
        if extra := next(lines, None):
            raise self._refusal(
                "no_charge", "charged.jsonl", extra[0], "the record is of nothing that was charged"
            )
        self._check_whole(events)

    def _chain(self, events: Lines) -> Iterator[tuple[EventLine, Charge]]:
        """Every event after it was checked, with its charge."""
        read = msgspec.json.Decoder(EventLine).decode
        read_charge: Callable[[str], Any] = msgspec.json.Decoder(StrictCharge).decode
        nothing = Charge()
        last = 0.0
        for number, line in events():
            try:
                event: EventLine = read(line)
                charge: Charge = read_charge(event.charge) if event.kind != "reserve" else nothing
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise self._refusal("event", "ledger.jsonl", number, f"is no event: {error}") from error
            self._check_link(event, line, number)
            self.head, self.events = event.hash, number
            self.first = self.first or event.hash
            if event.purpose not in PURPOSES or not FIRST <= event.at < LAST:
                raise self._refusal(
                    "event", "ledger.jsonl", number, f"purpose {event.purpose!r:.80}, time {event.at!r}"
                )
            if event.at < last:
                self._odd(number, "is earlier than the one before")
            last = event.at
            if event.kind == "reserve":
                self._begin(event)
            else:
                self._end(event, charge)
            self.accountant.add(event.kind, event.purpose, charge, event.at)
            yield event, charge
        for (key, _), (purpose, _) in self._open.items():
            self.accountant.leave_open(key, purpose)

    def _check_link(self, event: EventLine, line: bytes, number: int) -> None:
        """Whether an event follows from the last one, and says one thing alone."""
        body = (event.seq, event.kind, event.key, event.attempt, event.purpose, event.at, event.charge)
        if event.seq != number:
            raise self._refusal(
                "sequence", "ledger.jsonl", number, f"event {event.seq} stands where {number} should"
            )
        if event.prev != self.head:
            raise self._refusal(
                "chain", "ledger.jsonl", number, f"event {number} does not follow from the last"
            )
        if hashlib.sha256(_encode((*body, event.prev))).hexdigest() != event.hash:
            raise self._refusal("hash", "ledger.jsonl", number, f"event {number} is not what was hashed")
        names = 0 if event.kind == "reserve" else len(_read_any(event.charge))
        if _encode(event) != line or event.charge.count(":") != names:  # one may stand there twice
            raise self._refusal(
                "event", "ledger.jsonl", number, f"event {number} can be read in more than one way"
            )

    def _begin(self, event: EventLine) -> None:
        if event.charge:
            raise self._refusal("event", "ledger.jsonl", event.seq, "a reservation that charges something")
        attempt = (event.key, event.attempt)
        if attempt in self._open or len(self._open) >= MOST_OPEN:
            raise self._refusal(
                "attempt", "ledger.jsonl", event.seq, f"{event.key!r} is reserved already, or too many are"
            )
        self._open[attempt] = (event.purpose, event.at)
        self._begun.append(hash(attempt))
        if event.attempt > 1:
            self._before.append(hash((event.key, event.attempt - 1)))

    def _end(self, event: EventLine, charge: Charge) -> None:
        purpose, began = self._open.pop((event.key, event.attempt), ("", 0.0))
        if purpose != event.purpose:
            why = "was never reserved" if not purpose else f"was reserved for {purpose}"
            raise self._refusal(
                "attempt", "ledger.jsonl", event.seq, f"attempt {event.attempt} of {event.key!r} {why}"
            )
        if charge.rollouts > 1 or (not charge.rollouts and any(getattr(charge, name) for name in _AGENTS)):
            raise self._refusal(
                "charge",
                "ledger.jsonl",
                event.seq,
                f"{event.key!r} charges {charge.rollouts} rollouts with {charge.model_calls} calls",
            )
        if event.kind == "settle":
            self._settled.append(hash(event.key))
            if charge.seconds > event.at - began + _SLACK:
                self._odd(event.seq, "took longer than from its reservation to its settlement")
            if charge.sampled_tokens > _FASTEST * max(charge.seconds, 0.05):
                self._odd(event.seq, f"sampled {charge.sampled_tokens:,} tokens in {charge.seconds:g} s")
        elif event.kind == "repeated":
            self._repeated.append(hash(event.key))

    def _check_record(self, record: Charged, event: EventLine, charge: Charge, number: int) -> None:
        for name, said, charged in (
            ("key", record.key, event.key),
            ("purpose", record.purpose, event.purpose),
            ("model_calls", record.model_calls, charge.model_calls),
            ("prompt_tokens", record.prompt_tokens, charge.prompt_tokens),
            ("sampled_tokens", record.sampled_tokens, charge.sampled_tokens),
        ):
            if said is None:
                if not charge.unmetered_tokens:
                    raise self._refusal(
                        "totals", "charged.jsonl", number, f"{record.key!r} has no {name}, its charge has all"
                    )
            elif said != charged:
                raise self._refusal(
                    "totals",
                    "charged.jsonl",
                    number,
                    f"its {name} is {said!r}, event {event.seq} of the ledger has {charged!r}",
                )
        if record.example_id not in self.splits[record.purpose]:
            raise self._refusal(
                "split",
                "charged.jsonl",
                number,
                f"{record.key!r} is of example {record.example_id!r}, which is not in the split that "
                f"{record.purpose} rollouts are of",
            )

    def _check_whole(self, events: Lines) -> None:
        """What only shows when everything has been read: duplicates and attempts out of turn."""
        begun, settled = _sorted(self._begun), _sorted(self._settled)
        for hashes, kind, what in ((begun, "reserve", "reserved"), (settled, "settle", "settled")):
            twice = hashes[:-1][hashes[1:] == hashes[:-1]]
            if len(twice):
                raise self._named(events, kind, set(twice.tolist()), "duplicate", f"is {what} twice", after=1)
        for hashes, known, kind, what in (
            (_sorted(self._before), begun, "reserve", "begins an attempt whose predecessor is not there"),
            (_sorted(self._repeated), settled, "repeated", "repeats what was never settled"),
        ):
            lost = set(hashes[~np.isin(hashes, known)].tolist())
            if lost:
                raise self._named(events, kind, lost, "attempt", what)

    def _named(
        self, events: Lines, kind: str, wanted: set[int], code: str, what: str, *, after: int = 0
    ) -> Refusal:
        """The refusal for the first event of a kind with one of these hashes, found by reading again.

        Args:
            events: anew.
            kind: of the event.
            wanted: hashes of keys; of a reservation, of its attempt, or of the one before where that is lost.
            code: of the finding.
            what: said of the event.
            after: how many with the same hash come before it.
        """
        seen: Counter[int] = Counter()
        for number, line in events():
            event = msgspec.json.decode(line, type=EventLine)
            if event.kind != kind:
                continue
            attempt = event.attempt if code == "duplicate" else event.attempt - 1
            name = hash((event.key, attempt)) if kind == "reserve" else hash(event.key)
            if name in wanted:
                if seen[name] == after:
                    return self._refusal(code, "ledger.jsonl", number, f"{event.key!r} {what}")
                seen[name] += 1
        raise AssertionError("a fault that is not there when read again")

    def _odd(self, number: int, what: str) -> None:
        self.odd_count += 1
        if len(self.odd_times) < 3:
            self.odd_times.append(f"event {number} {what}")

    def _refusal(self, code: str, file: str, number: int, message: str) -> Refusal:
        return Refusal(1, code, f"{self.place}/{file}:{number}", message)


def _sorted(hashes: "array[int]") -> "np.ndarray[Any, np.dtype[np.int64]]":
    return np.sort(np.frombuffer(hashes, dtype=np.int64)) if hashes else np.empty(0, np.int64)
