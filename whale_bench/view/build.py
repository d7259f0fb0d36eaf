"""Builds the index of a run: where each rollout stands, and what tables show of it, kept in SQLite.

    database = built(store)                              # from the user's other caches, or made there
    database = build(store, None)                        # in memory
    python -m whale_bench.view.build RUN                 # in a process of its own; says how far it is

The file gets its name when it is whole, and its builder holds a lock: two builders of one run wait for one
another, and what a killed one left is thrown away by the next. A last line that is not whole yet is passed
over. As a process it writes lines of JSON: {"read", "total"} in bytes, and {"error"} where it must end; it
ends by itself when nobody reads these any more.

Not covered: questions about the rollouts, see `index.py`.
"""

import contextlib
import fcntl
import hashlib
import os
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from whale_bench.outcomes import Outcome, OutcomeReader, SkimmedLine
from whale_bench.scoring import Summary
from whale_bench.store import RunStore, lines_of
from whale_bench.view.data import Beginning, Overview, beginning_of, headline, overview_of
from whale_envs.errors import UsageError
from whale_envs.paths import cache_dir, make_cached_folder

FORMAT = 1
"""Version of the index's layout; another one is built anew."""

Progress = Callable[[int, int], None]
"""Called with (bytes read, bytes in all)."""

COLUMNS = "key, example, sample, reward, stop, truncated, turns, tokens, seconds, task, answer, said, groups"

ANSWER_CHARS, SAID_CHARS = 200, 300

_TABLE = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE rollouts (
  id INTEGER PRIMARY KEY, key TEXT NOT NULL, example TEXT NOT NULL, sample INTEGER NOT NULL,
  reward REAL NOT NULL, stop TEXT NOT NULL, truncated INTEGER NOT NULL, turns INTEGER NOT NULL,
  tokens INTEGER, seconds REAL NOT NULL, task TEXT NOT NULL, answer TEXT NOT NULL, said TEXT NOT NULL,
  groups TEXT NOT NULL, haystack TEXT NOT NULL, part INTEGER NOT NULL, start INTEGER NOT NULL,
  size INTEGER NOT NULL);
"""
_INDEXES = (
    "CREATE UNIQUE INDEX by_key ON rollouts (key); CREATE INDEX by_example ON rollouts (example, sample);"
)
_INSERT = (
    f"INSERT INTO rollouts ({COLUMNS}, haystack, part, start, size) "  # noqa: S608
    f"VALUES ({', '.join('?' * (COLUMNS.count(',') + 5))})"
)


class _Line(SkimmedLine, kw_only=True, gc=False):
    """As much of a rollout's line as an index needs; the rest is skipped, which halves the time."""

    opening: str


class _Place(NamedTuple):
    part: int
    start: int
    size: int


def fingerprint(store: RunStore) -> bytes:
    """What an index depends on: names, sizes and times of the run's files, and our own format."""
    found: list[tuple[str, int, int]] = []
    for path in [store.folder / "run.toml", store.folder / "summary.json", *store.parts()]:
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error}") from error
        found.append((path.name, status.st_size, status.st_mtime_ns))
    return msgspec.json.encode([FORMAT, found])


def place_of(folder: Path) -> Path:
    """Where the index of the run in `folder` is kept."""
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:32]
    return cache_dir() / "view" / f"{name}.sqlite"


def cached_index(store: RunStore, *, stale: bool = False) -> sqlite3.Connection | None:
    """The index in the user's cache, if there is one that was built from just these files, or is `stale`."""
    path = place_of(store.folder)
    if not path.is_file():
        return None
    database = _open(path)
    try:
        state = read_meta(database, "state")
        if state == fingerprint(store) or (stale and state):
            return database
    except sqlite3.DatabaseError:  # half a file, or none of ours: built anew
        pass
    database.close()
    return None


def read_meta(database: sqlite3.Connection, name: str) -> bytes:
    """What an index says of the run as a whole, by name."""
    found = database.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return bytes(found[0]) if found else b""


def built(store: RunStore, progress: Progress | None = None) -> sqlite3.Connection:
    """The index in the user's cache, built if there is none or if it is stale.

    Raises:
        UsageError: a file of the run cannot be read, or the cache cannot be written.
    """
    found = cached_index(store)
    if found is not None:
        return found
    path = place_of(store.folder)
    make_cached_folder(path.parent)
    temporary = path.with_suffix(".half-built")
    try:
        with _locked(path.with_suffix(".lock")):
            found = cached_index(store)  # another builder may have been first
            if found is not None:
                return found
            temporary.unlink(missing_ok=True)
            try:
                build(store, temporary, progress).close()
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
            return _open(path)
    except (OSError, sqlite3.OperationalError) as error:
        raise UsageError(
            f"{path}: the index cannot be written: {error}; WHALE_CACHE names the cache"
        ) from error


def build(
    store: RunStore, path: Path | None, progress: Progress | None = None, *, most: int | None = None
) -> sqlite3.Connection:
    """Reads the run, or its first `most` rollouts, into a new file, or into memory where there is no path."""
    state = fingerprint(store)  # before the first line is read, so that what is written meanwhile shows
    database = sqlite3.connect(str(path or ":memory:"), check_same_thread=False)
    try:
        database.executescript(f"PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; {_TABLE}")
        _fill(database, store, state, progress, most)
        database.executescript(_INDEXES)
    except BaseException:
        database.close()
        raise
    return database


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Held by one process at a time; a killed one lets go of it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False)


def _fill(
    database: sqlite3.Connection, store: RunStore, state: bytes, progress: Progress | None, most: int | None
) -> None:
    outcomes: list[Outcome] = []
    damaged = 0
    seen: set[str] = set()
    reader = OutcomeReader()
    encoded: dict[int, str] = {}
    """Groups as JSON, by the identity of the tuples that `outcomes` keep."""

    def rows() -> Iterator[tuple[Any, ...]]:
        nonlocal damaged
        for line, place in _lines(store, progress):
            if line is None:
                damaged += 1
            elif line.key not in seen:
                seen.add(line.key)
                outcome = reader.outcome(line)
                outcomes.append(outcome)
                groups = encoded.get(id(outcome.groups))
                if groups is None:
                    groups = encoded[id(outcome.groups)] = msgspec.json.encode(outcome.groups).decode()
                yield _columns(line, groups, place)
                if len(seen) == most:
                    return

    folder = store.folder.resolve().name
    with database:
        database.executemany(_INSERT, rows())
        overview: Overview | Beginning
        if most is None:
            overview = overview_of(store.settings, outcomes, _stored(store), folder=folder, damaged=damaged)
        else:
            overview = beginning_of(store.settings, _stored(store), folder=folder, first=len(outcomes))
        meta = {"state": state, "overview": msgspec.json.encode(overview)}
        database.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())


def _columns(line: _Line, groups: str, place: _Place) -> tuple[Any, ...]:
    task, answer = headline(line.opening), (line.verdict.answer or "")[:ANSWER_CHARS]
    said = line.segments[-1].text[:SAID_CHARS] if line.segments else ""
    return (
        line.key, line.example_id, line.sample, line.verdict.reward, line.stop_condition, line.truncated,
        len(line.segments), line.sampled_tokens, line.seconds, task, answer, said,
        groups, f"{line.key}\n{task}\n{answer}\n{said}".lower(), *place,
    )  # fmt: skip


def _lines(store: RunStore, progress: Progress | None) -> Iterator[tuple[_Line | None, _Place]]:
    """Every line of a run with its place; None for one that is no whole rollout."""
    decoder = msgspec.json.Decoder(_Line)
    parts = store.parts()
    try:
        total = sum(part.stat().st_size for part in parts)
    except OSError as error:
        raise UsageError(f"{store.folder}: cannot be read: {error}") from error
    done = 0
    for number, part in enumerate(parts):
        start = 0
        for count, line in enumerate(lines_of(part), start=1):
            place = _Place(number, start, len(line))
            start += len(line)
            try:
                row = decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                yield None, place
                continue
            store.check_belongs(row, part, count)
            yield row, place
            if progress and count % 500 == 0:
                progress(done + start, total)
        done += start
    if progress:
        progress(total, total)


def _stored(store: RunStore) -> Summary | None:
    try:
        return msgspec.json.decode(store.read_summary() or b"", type=Summary)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _main(folder: Path) -> None:
    def say(**words: Any) -> None:
        try:
            os.write(sys.stdout.fileno(), msgspec.json.encode(words) + b"\n")
        except BrokenPipeError:
            sys.exit(1)

    try:
        built(RunStore.open(folder), lambda read, total: say(read=read, total=total)).close()
    except UsageError as error:
        say(error=str(error))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
