"""What a run did so far, in `history.jsonl`: the agent it began with, every move, every evaluation.

    history = History(Path("runs/whale"))
    history.begin(Pair(weights_id, harness.harness_id), recipe_id)
    history.moves                   # what a schedule sees: training steps and search iterations
    history.pair                    # the agent as it stands now
    history.points                  # evaluations, which no schedule sees

Each move names the weights and the harness that it left, so that the next one can be checked against
them. The sources of the accepted harnesses stand beside it, in `harnesses/`.

Not covered: rollouts, charges and weights, which their own files hold.
"""

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from whale_baselines.json_lines import JsonLines
from whale_baselines.schedule import Entry
from whale_bench.statistics import Difference, Score
from whale_bench.store import write_whole
from whale_envs.errors import DataError, InfrastructureError, UsageError

FILE = "history.jsonl"


class Harness(NamedTuple):
    """A harness file."""

    harness_id: str
    source: str


class Pair(NamedTuple):
    """An agent, by the hashes of its parts."""

    weights_id: str
    harness_id: str


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start", tag_field="record"):
    """The first line."""

    weights_id: str
    harness_id: str
    recipe_id: str


class Made(Entry, frozen=True, kw_only=True, tag="move", tag_field="record"):
    """A move, with the agent that it left."""

    weights_id: str
    harness_id: str
    """Of a search iteration: the best one of the phase so far."""
    seconds: float = 0.0
    """Wall time; the only part in which equal runs differ."""
    metrics: dict[str, Any] = msgspec.field(default_factory=dict)


class Point(msgspec.Struct, frozen=True, kw_only=True, tag="point", tag_field="record"):
    """An evaluation of the agent as it stood after so many moves."""

    moves: int
    split: str
    weights_id: str
    harness_id: str
    score: Score
    rollouts: int
    """That this evaluation was charged; 0 where the same agent had been evaluated before."""
    charged: dict[str, int]
    """Rollouts charged in all by then, by purpose, this evaluation's included."""
    rise: Difference | None = None
    """Since the agent that the run began with."""
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
    """Means of the behaviour metrics."""


class History:
    """One run's history. `folder` has to be there.

    Raises:
        DataError: the file is damaged.
    """

    def __init__(self, folder: Path, *, readonly: bool = False) -> None:
        self.folder = folder
        self._lines: JsonLines[Any] = JsonLines(folder / FILE, Start | Made | Point, readonly=readonly)
        records = self._lines.records
        if records and (not isinstance(records[0], Start) or any(isinstance(r, Start) for r in records[1:])):
            raise DataError(f"{folder / FILE}: does not begin as a history does")
        self.moves: list[Made] = [record for record in records if isinstance(record, Made)]
        self.points: list[Point] = [record for record in records if isinstance(record, Point)]

    def begin(self, pair: Pair, recipe_id: str) -> None:
        """Writes the first line, or checks it.

        Raises:
            UsageError: the run began with something else.
        """
        ours = Start(weights_id=pair.weights_id, harness_id=pair.harness_id, recipe_id=recipe_id)
        if not self._lines.records:
            self._lines.append(ours)
            return
        for name in Start.__struct_fields__:
            began, now = getattr(self._lines.records[0], name), getattr(ours, name)
            if began != now:
                raise UsageError(
                    f"{self.folder} cannot be gone on from: its {name} is {began!r}, now it is {now!r}"
                )

    @property
    def start(self) -> Pair:
        if not self._lines.records:
            raise UsageError(f"{self.folder} has no history yet")
        first: Start = self._lines.records[0]
        return Pair(first.weights_id, first.harness_id)

    @property
    def pair(self) -> Pair:
        """The agent after the last move."""
        return Pair(self.moves[-1].weights_id, self.moves[-1].harness_id) if self.moves else self.start

    def add(self, record: Made | Point) -> None:
        self._lines.append(record)
        if isinstance(record, Made):
            self.moves.append(record)
        else:
            self.points.append(record)

    def keep_harness(self, harness: Harness) -> None:
        """Writes the source, whole or not at all, where it is not there yet."""
        path = self._path(harness.harness_id)
        if path.exists():
            return
        try:
            path.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise InfrastructureError(f"{path}: cannot be written: {error}") from error
        write_whole(path, harness.source.encode())

    def harness(self, harness_id: str) -> Harness:
        """A harness that was kept.

        Raises:
            DataError: its file is missing, or another one now.
        """
        path = self._path(harness_id)
        try:
            found = harness_of(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: cannot be read: {error}") from error
        if found.harness_id != harness_id:
            raise DataError(f"{path} was edited: it hashes to {found.harness_id}, not to {harness_id}")
        return found

    def _path(self, harness_id: str) -> Path:
        return harness_path(self.folder, harness_id)


def harness_path(folder: Path, harness_id: str) -> Path:
    """Where a run keeps the source of a harness."""
    return folder / "harnesses" / f"{harness_id.rpartition(':')[2][:16]}.py"


def harness_of(source: str) -> Harness:
    """A harness by its source; the same id as the rollouts under it have."""
    return Harness("sha256:" + hashlib.sha256(source.encode()).hexdigest(), source)
