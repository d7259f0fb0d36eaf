"""The archive's log: what happened in a search, one event a line, never changed.

    with EventLog(Path("runs/search/archive/events.jsonl")) as log:
        log.append(Ended(phase=1, iteration=1, accepted="h0"))

A line is with the operating system when `append` returns. A kill can only tear the last one: a writer
that opens the file again cuts it off (or, where just the line's end is missing, adds that), a reader
passes over it. Anything else that is no event is a damaged file, and refused.

Events hold no reference answer, no example's id (which is a hash over the answer too) and no time of day.

Not covered: two writers, which the run folder's lock keeps apart; what follows from the events, see
`archive.py`.
"""

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import msgspec

from whale_baselines.search.proposal import Proposal
from whale_bench.ledger import Charge
from whale_bench.text import scrub_all
from whale_envs.errors import DataError, InfrastructureError, UsageError


class ScoreKey(msgspec.Struct, frozen=True):
    """What a score is of, beside the harness."""

    weights_id: str
    examples_id: str
    conditions: str
    """Sampling, seed, profile and limits, as a sentence."""


class Begun(msgspec.Struct, frozen=True, kw_only=True, tag="phase", tag_field="event"):
    """A phase begins with a harness, under weights."""

    phase: int
    incoming: str
    """Source."""
    key: ScoreKey
    rule: str
    prompt_only: bool


class Proposed(msgspec.Struct, frozen=True, kw_only=True, tag="session", tag_field="event"):
    """A proposer's session is over. Its proposals get the next names in the archive, in order."""

    phase: int
    iteration: int
    proposer: str
    proposals: tuple[Proposal, ...]
    charge: Charge
    problem: str = ""


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused", tag_field="event"):
    """A candidate has no score and will have none in its iteration."""

    name: str
    phase: int
    iteration: int
    status: str
    """See `Known.status`."""
    reason: str
    rollouts: int = 0
    """What it cost, smoke rollouts included."""


class Scored(msgspec.Struct, frozen=True, kw_only=True, tag="scored", tag_field="event"):
    """A harness has more samples."""

    name: str
    phase: int
    iteration: int
    key: ScoreKey
    first: int
    """Number of the first of these samples."""
    rewards: tuple[tuple[float, ...], ...]
    """`rewards[sample][example]`, examples in the order of their set."""
    turns: tuple[tuple[int, ...], ...]
    """Likewise: calls of the model."""
    metrics: dict[str, float] = {}
    """Means of the behaviour metrics over these rollouts."""
    rollouts: int = 0
    """What it cost, smoke rollouts included."""


class Examined(msgspec.Struct, frozen=True, kw_only=True, tag="examined", tag_field="event"):
    """A harness that the rule would accept was looked at, see `examine.py`."""

    name: str
    phase: int
    iteration: int
    finding: str = ""
    """Why it is not accepted for all that; empty where nothing was found."""


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="iteration", tag_field="event"):
    """An iteration is over."""

    phase: int
    iteration: int
    accepted: str
    """Name of the best harness so far."""
    notes: dict[str, str] = {}
    """What the rule said of each candidate, by name."""


Event: TypeAlias = Begun | Proposed | Refused | Scored | Examined | Ended

_DECODER = msgspec.json.Decoder(Event)


def read_events(path: Path) -> list[Event]:
    """The events of a file; none where there is no file.

    Raises:
        DataError: a line is none.
        UsageError: the file cannot be read.
    """
    return _read(path)[0]


class EventLog:
    """The file, open for writing; a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events, whole = _read(path)
        """Those that the file held when it was opened."""
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            os.ftruncate(self._file, whole)
            os.lseek(self._file, whole, os.SEEK_SET)
            if whole and os.pread(self._file, 1, whole - 1) != b"\n":
                os.write(self._file, b"\n")
        except OSError as error:
            raise InfrastructureError(f"{path}: cannot be written: {error}") from error

    def append(self, event: Event) -> None:
        """Writes one line.

        Raises:
            InfrastructureError: it cannot be written.
        """
        try:
            line: Any = msgspec.json.encode(event)
        except UnicodeEncodeError:
            line = msgspec.json.encode(scrub_all(msgspec.to_builtins(event)))
        view = memoryview(line + b"\n")
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            raise InfrastructureError(f"{self.path}: cannot be written: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._file)


def _read(path: Path) -> tuple[list[Event], int]:
    """The events, and how many bytes they take without a torn end."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    events: list[Event] = []
    whole = 0
    lines = data.splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            events.append(_DECODER.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if number == len(lines) and not line.endswith(b"\n"):
                break
            raise DataError(f"{path}:{number}: is no event of a search: {error}") from error
        whole += len(line)
    return events, whole
