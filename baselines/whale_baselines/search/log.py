"""The archive's log: what happened in a search, one event a line, never changed.

    log = open_log(Path("runs/search/archive.jsonl"))
    log.append(Ended(phase=1, iteration=1, accepted="h0"))

What a kill can do to it, and what is a damaged file, is as `JsonLines` says. Events hold no reference
answer, no example's id (which is a hash over the answer too) and no time of day.

Not covered: two writers, which the run folder's lock keeps apart; what follows from the events, see
`archive.py`.
"""

import re
import secrets
from pathlib import Path
from typing import Any, TypeAlias, cast

import msgspec

from whale_baselines.json_lines import JsonLines
from whale_baselines.search.proposal import Proposal
from whale_bench.ledger import Charge
from whale_bench.store import write_whole
from whale_bench.text import scrub_all
from whale_envs.errors import InfrastructureError, UsageError


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
    """A harness that the rule would accept, or that a phase began with, was looked at, see `examine.py`."""

    name: str
    phase: int
    iteration: int
    finding: str = ""
    """Why it is not accepted for all that, or what is to be known of the incoming one; empty for nothing."""
    seed: int | None = None
    """Of all that was drawn, so that the examination can be made again."""


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="iteration", tag_field="event"):
    """An iteration is over."""

    phase: int
    iteration: int
    accepted: str
    """Name of the best harness so far."""
    notes: dict[str, str] = {}
    """What the rule said of each candidate, by name."""


Event: TypeAlias = Begun | Proposed | Refused | Scored | Examined | Ended


def open_log(path: Path, *, readonly: bool = False) -> JsonLines[Any]:
    """The log of an archive; `records` are its events.

    Raises:
        DataError: a line is no event; names it.
        UsageError: the file cannot be read.
    """
    try:
        return JsonLines(path, Event, readonly=readonly)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error


def scrubbed(event: Event) -> Event:
    """The event as a line can hold it."""
    return cast(Event, msgspec.convert(scrub_all(msgspec.to_builtins(event)), Event))


def secret_beside(log: Path) -> str:
    """The run's secret, in a file beside the log: 64 hex digits, from the system's entropy when it is made.

    No proposer may read it, so that nobody can write a harness for what is drawn by it.

    Raises:
        InfrastructureError: the file can be neither read nor written.
    """
    path = log.with_suffix(".secret")
    try:
        if path.is_file() and re.fullmatch("[0-9a-f]{64}", found := path.read_text("ascii", "replace")):
            return found
        made = secrets.token_hex(32)
        write_whole(path, made.encode())
    except OSError as error:
        raise InfrastructureError(f"{path}: cannot be read: {error}") from error
    return made
