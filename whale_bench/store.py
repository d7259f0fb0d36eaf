"""A run is a folder that people can read.

    runs/20260901-120000-chess_puzzles-random/
        run.toml               resolved settings, versions, hashes
        harness.py             the harness as it was
        rollouts-0000.jsonl    one rollout a line, append-only; one file per launch
        ledger.sqlite          the account (ledger.py)
        run.lock               held by the process that writes
        summary.json           written at the end

A line is written whole before the ledger settles it, so a process killed at any instant loses only
rollouts in flight. A last line cut in the middle is read past with a warning, and its rollout runs
again. A key that stands twice counts once, the first time.

Not covered: runs written by two processes at once, which the lock refuses.
"""

import fcntl
import os
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import tomli_w

from whale_bench.records import Rollout
from whale_bench.text import scrub_all
from whale_envs.core import Verdict
from whale_envs.errors import UsageError

FORMAT = 1
"""Version of the folder's layout, in run.toml."""

_TEMPORARY = ".half-written-"
"""Begins the names of files that a kill may leave behind."""


class DamagedLineWarning(UserWarning):
    """A line of a rollouts file could not be read and was passed over."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout without its content: what scoring needs, small in memory."""

    key: str
    example_id: str
    sample: int
    verdict: Verdict
    stop_condition: str
    truncated: bool
    metrics: dict[str, float]
    groups: tuple[tuple[str, str], ...]
    model_calls: int
    tool_calls: int
    prompt_tokens: int | None
    sampled_tokens: int | None
    seconds: float
    texts: int
    """Hash of the sampled texts, to tell equal samples within one process."""


def outcome_of(rollout: Rollout) -> Outcome:
    """The rollout's outcome."""
    return Outcome(
        **{name: getattr(rollout, name) for name in _SHARED},
        model_calls=len(rollout.segments),
        texts=hash(tuple(segment.text for segment in rollout.segments)),
    )


_SHARED = tuple(name for name in Outcome.__struct_fields__ if name in Rollout.__struct_fields__)


class RunStore:
    """One run's folder. Open it with `create` or `open`; as a context manager it holds the lock."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder = folder
        self.settings = settings
        """run.toml as a dict."""
        self._lock: int | None = None
        self._file: int | None = None

    @classmethod
    def create(cls, folder: Path, settings: dict[str, Any], harness_source: str) -> Self:
        """A new run.

        Raises:
            UsageError: the folder holds something already, or cannot be made.
        """
        settings = {"format": FORMAT, **settings}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(not path.name.startswith(_TEMPORARY) for path in folder.iterdir()):
                raise UsageError(f"{folder} is not empty; give --out another folder, or --resume this one")
            _write_whole(folder / "run.toml", tomli_w.dumps(settings).encode())
            store = cls(folder, settings)
            store.write_harness(harness_source)
        except OSError as error:
            raise UsageError(f"{folder}: cannot be made into a run folder: {error}") from error
        return store

    @classmethod
    def open(cls, folder: Path) -> Self:
        """An existing run.

        Raises:
            UsageError: the folder is no run, or one of another layout.
        """
        path = folder / "run.toml"
        try:
            settings = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise UsageError(f"{folder} is no run folder: there is no {path.name} in it") from error
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: cannot be read: {error}") from error
        if settings.get("format") != FORMAT:
            raise UsageError(
                f"{path}: layout {settings.get('format')!r} is not {FORMAT}, the one this version reads"
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
        """Writes one line; it is with the operating system when this returns."""
        if self._lock is None:
            raise UsageError("a run is written inside `with store:` only")
        if self._file is None:
            numbers = [part.stem.removeprefix("rollouts-") for part in self._parts()]
            number = max((int(number) for number in numbers if number.isdecimal()), default=-1) + 1
            path = self.folder / f"rollouts-{number:04d}.jsonl"
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        try:
            line = msgspec.json.encode(rollout)
        except UnicodeEncodeError:
            line = msgspec.json.encode(scrub_all(msgspec.to_builtins(rollout)))
        view = memoryview(line + b"\n")
        while view:
            view = view[os.write(self._file, view) :]

    def rollouts(self) -> Iterator[Rollout]:
        """Every rollout once, in the order in which they finished."""
        decoder = msgspec.json.Decoder(Rollout)
        seen: set[str] = set()
        for part in self._parts():
            with part.open("rb") as lines:
                for number, line in enumerate(lines, start=1):
                    try:
                        row = decoder.decode(line)
                    except (msgspec.DecodeError, UnicodeDecodeError) as error:
                        warnings.warn(
                            f"{part}:{number}: not a whole rollout, passed over: {error}",
                            DamagedLineWarning,
                            stacklevel=2,
                        )
                        continue
                    if row.key not in seen:
                        seen.add(row.key)
                        yield row

    def outcomes(self) -> Iterator[Outcome]:
        """The outcome of every rollout once."""
        return map(outcome_of, self.rollouts())

    def write_harness(self, source: str) -> None:
        """Writes harness.py, whole or not at all, if it is not there."""
        if not (self.folder / "harness.py").exists():
            _write_whole(self.folder / "harness.py", source.encode())

    def write_summary(self, summary: Any) -> None:
        """Writes summary.json, whole or not at all."""
        text = msgspec.json.format(msgspec.json.encode(summary, order="sorted"), indent=2)
        _write_whole(self.folder / "summary.json", text + b"\n")

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob("rollouts-*.jsonl"))


def _write_whole(path: Path, data: bytes) -> None:
    temporary = path.with_name(f"{_TEMPORARY}{path.name}")
    temporary.write_bytes(data)
    temporary.replace(path)
