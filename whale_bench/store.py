"""A run is a folder that people can read.

    runs/20260901-120000-chess_puzzles-random/
        run.toml               resolved settings, versions, hashes, and a hash of all these
        harness.py             the harness as it was
        rollouts-0000.jsonl    one rollout a line, append-only; one file per launch
        ledger.sqlite          the account (ledger.py)
        run.lock               held by the process that writes
        summary.json           written at the end

A line is written whole before the ledger settles it, so a process killed at any instant loses only
rollouts in flight. A last line cut in the middle is read past with a warning, and its rollout runs
again. A key that stands twice counts once, the first time. Settings that were edited, and lines of
another run, are refused.

Not covered: runs written by two processes at once, which the lock refuses.
"""

import fcntl
import hashlib
import os
import tomllib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
import tomli_w

from whale_bench.outcomes import Outcome, OutcomeReader, SkimmedLine, outcome_of
from whale_bench.records import Rollout
from whale_bench.text import scrub_all
from whale_envs.errors import InfrastructureError, UsageError

__all__ = [
    "ADDRESSES", "FORMAT", "DamagedLineWarning", "Outcome", "RunStore", "SkimmedLine", "lines_of",
    "outcome_of", "settings_id", "write_whole",
]  # fmt: skip

FORMAT = 1
"""Version of the folder's layout, in run.toml."""

ADDRESSES = ("base_url", "retriever_url", "judge_url", "python_url")
"""Settings that say where something is, which may be elsewhere when a run goes on."""

_OF_THE_RUN = ("domain", "seed", "weights_id", "harness_id")
"""What every line shares with run.toml."""

_READ_AHEAD = 2**17
"""Bytes read at once: with the default's 8 KiB, lines of some kilobytes cost three times as much."""

_TEMPORARY = ".half-written-"
"""Begins the names of files that a kill may leave behind."""


class DamagedLineWarning(UserWarning):
    """A line of a rollouts file could not be read and was passed over."""


_Row = TypeVar("_Row", Rollout, SkimmedLine)


class RunStore:
    """One run's folder. Open it with `create` or `open`; as a context manager it holds the lock."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder
        self.settings = settings
        """run.toml as a dict."""
        self._of_the_run = tuple(settings.get(name) for name in _OF_THE_RUN)
        self._lock: int | None = None
        self._file: int | None = None

    @classmethod
    def create(cls, folder: Path, settings: dict[str, Any], harness_source: str | None) -> Self:
        """A new run.

        Raises:
            UsageError: the folder holds something already, or cannot be made.
        """
        settings = {"format": FORMAT, **settings}
        settings["settings_id"] = settings_id(settings)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(not path.name.startswith(_TEMPORARY) for path in folder.iterdir()):
                raise UsageError(f"{folder} is not empty; give --out another folder, or --resume this one")
            _write_whole(folder / "run.toml", tomli_w.dumps(settings).encode())
            if harness_source is not None:  # an own agent has none
                _write_whole(folder / "harness.py", harness_source.encode())
        except OSError as error:
            raise UsageError(f"{folder}: cannot be made into a run folder: {error}") from error
        return cls(folder, settings)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """An existing run.

        Raises:
            UsageError: the folder is no run, or one of another layout, or its settings were edited.
        """
        path = folder / "run.toml"
        try:
            settings = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise UsageError(f"{folder} is no run folder: there is no {path.name} in it") from error
        except (OSError, ValueError, RecursionError) as error:
            raise UsageError(f"{path}: cannot be read: {error}") from error
        if settings.get("format") != FORMAT:
            raise UsageError(
                f"{path}: layout {settings.get('format')!r} is not {FORMAT}, the one this version reads"
            )
        if settings.get("settings_id") not in (settings_id(settings), settings_id(settings, ("base_url",))):
            raise UsageError(
                f"{path}: its settings are not those that the run began with (its settings_id is another); "
                "put back what was edited, or begin a new run"
            )
        return cls(folder, settings)

    def __enter__(self) -> Self:
        try:
            self._lock = os.open(self.folder / "run.lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise UsageError(f"{self.folder} cannot be written to: {error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            self._lock = None
            raise UsageError(f"{self.folder} is being written by another process") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for descriptor in (self._file, self._lock):
            if descriptor is not None:
                os.close(descriptor)
        self._file = self._lock = None

    def append(self, rollout: Rollout) -> None:
        """Writes one line; it is with the operating system when this returns.

        Raises:
            InfrastructureError: the line cannot be written, or not whole; the next begins a new part.
        """
        if self._lock is None:
            raise UsageError("a run is written inside `with store:` only")
        try:
            line = msgspec.json.encode(rollout)
        except UnicodeEncodeError:
            line = msgspec.json.encode(scrub_all(msgspec.to_builtins(rollout)))
        view = memoryview(line + b"\n")
        try:
            if self._file is None:
                self._file = os.open(
                    self._next_part(), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644
                )
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            if self._file is not None:
                os.close(self._file)
                self._file = None
            raise InfrastructureError(f"{self.folder}: a rollout cannot be written: {error}") from error

    def rollouts(self) -> Iterator[Rollout]:
        """Every rollout once, in the order in which they finished.

        Raises:
            UsageError: a file cannot be read, or holds a rollout of another run.
        """
        return _once(self._read(Rollout))

    def outcomes(self) -> Iterator[Outcome]:
        """The outcome of every rollout once, for who keeps them; decodes no more of a line than that."""
        reader = OutcomeReader()
        return (reader.outcome(line) for line in _once(self.skimmed()))

    def skimmed(self) -> Iterator[SkimmedLine]:
        """What an outcome is made of, of every line, for who keeps none and knows which keys were there: to
        remember them all would take memory.
        """
        return self._read(SkimmedLine)

    def _read(self, kind: type[_Row]) -> Iterator[_Row]:
        decoder = msgspec.json.Decoder(kind)
        for part in self.parts():
            for number, line in enumerate(lines_of(part), start=1):
                try:
                    row = decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    warnings.warn(
                        f"{part}:{number}: not a whole rollout, passed over: {error}",
                        DamagedLineWarning,
                        stacklevel=2,
                    )
                    continue
                self.check_belongs(row, part, number)
                yield row

    def check_belongs(self, row: Any, part: Path, number: int) -> None:
        """Whether a line, with the fields that all lines of a run share, is one of this run.

        Raises:
            UsageError: it is not; names its file and its number there, from 1.
        """
        if (row.domain, row.seed, row.weights_id, row.harness_id) == self._of_the_run:
            return
        for name in _OF_THE_RUN:
            if name in self.settings and getattr(row, name) != self.settings[name]:
                raise UsageError(
                    f"{part}:{number}: rollout {row.key!r} is of another run: its {name} is "
                    f"{getattr(row, name)!r}, that of run.toml is {self.settings[name]!r}"
                )

    def write_harness(self, source: str) -> None:
        """Writes harness.py, whole or not at all, if it is not there."""
        if not (self.folder / "harness.py").exists():
            write_whole(self.folder / "harness.py", source.encode())

    def write_addresses(self, settings: Mapping[str, Any]) -> None:
        """Writes the `ADDRESSES` among these settings into run.toml, if it says otherwise."""
        now = {name: settings[name] for name in ADDRESSES if name in settings}
        if now != {name: self.settings.get(name) for name in now}:
            self.settings |= now
            self.settings["settings_id"] = settings_id(self.settings)
            write_whole(self.folder / "run.toml", tomli_w.dumps(self.settings).encode())

    def write_summary(self, summary: Any) -> None:
        """Writes summary.json, whole or not at all."""
        text = msgspec.json.format(msgspec.json.encode(summary, order="sorted"), indent=2)
        write_whole(self.folder / "summary.json", text + b"\n")

    def read_summary(self) -> bytes | None:
        """What summary.json holds; None where there is none."""
        path = self.folder / "summary.json"
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error}") from error

    def parts(self) -> list[Path]:
        """The files of rollouts, in the order in which they were written."""
        return sorted(self.folder.glob("rollouts-*.jsonl"))

    def _next_part(self) -> Path:
        numbers = [part.stem.removeprefix("rollouts-") for part in self.parts()]
        number = max((int(number) for number in numbers if number.isdecimal()), default=-1) + 1
        return self.folder / f"rollouts-{number:04d}.jsonl"


def settings_id(settings: Mapping[str, Any], addresses: Sequence[str] = ADDRESSES) -> str:
    """Hash of a run's settings, but for these addresses, which may change; of older runs, one alone."""
    kept = {name: value for name, value in settings.items() if name not in ("settings_id", *addresses)}
    return f"sha256:{hashlib.sha256(msgspec.json.encode(kept, order='sorted')).hexdigest()}"


def _once(rows: Iterable[_Row]) -> Iterator[_Row]:
    """The first row of each key."""
    seen: set[str] = set()
    for row in rows:
        if row.key not in seen:
            seen.add(row.key)
            yield row


def lines_of(part: Path) -> Iterator[bytes]:
    """The lines of a file of rollouts.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        with part.open("rb", buffering=_READ_AHEAD) as lines:
            yield from lines
    except OSError as error:
        raise UsageError(f"{part}: cannot be read: {error}") from error


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file of a run, whole or not at all.

    Raises:
        InfrastructureError: it cannot be written.
    """
    try:
        _write_whole(path, data)
    except OSError as error:
        raise InfrastructureError(f"{path}: cannot be written: {error}") from error


def _write_whole(path: Path, data: bytes) -> None:
    temporary = path.with_name(f"{_TEMPORARY}{path.name}")
    temporary.write_bytes(data)
    temporary.replace(path)
