"""Where each rollout of a run stands, and what tables show of it: read once, kept in SQLite.

    with RunIndex.open(folder) as index:                 # beside the user's other caches; built if stale
        page = index.rows(Query(outcome="failed", sort="tokens", limit=50))
        rollout = index.rollout(page.rows[0].key)        # one line, by its offset

An index is good for the files whose names, sizes and times it was built from. It is built again when
one of them differs, so a run that is still written can be looked at; a last line that is not whole yet
is passed over. With `cached=False` it lives in memory and nothing is written anywhere.

Not covered: several runs at once, and search in anything but keys, tasks, answers and last texts.
"""

import hashlib
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import msgspec

from whale_bench.records import Rollout
from whale_bench.scoring import Summary
from whale_bench.store import Outcome, RunStore, SkimmedLine, outcome_of
from whale_bench.view.data import Overview, Row, headline, overview_of
from whale_envs.errors import UsageError
from whale_envs.paths import cache_dir, make_cached_folder

FORMAT = 1
"""Version of the index's layout; another one is built anew."""

MOST_ROWS = 500
"""Most rows of one page."""

ANSWER_CHARS, SAID_CHARS = 200, 300

Sort = Literal["order", "example", "solved", "stop", "turns", "tokens", "seconds"]
Progress = Callable[[int, int], None]
"""Called with (bytes read, bytes in all)."""

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
_COLUMNS = "key, example, sample, reward, stop, truncated, turns, tokens, seconds, task, answer, said, groups"
_ORDER = {
    "order": "id", "example": "example", "solved": "reward", "stop": "stop", "turns": "turns",
    "tokens": "tokens", "seconds": "seconds",
}  # fmt: skip
_ORDER_EXAMPLES = _ORDER | {
    "order": "MIN(id)", "solved": "SUM(reward > 0.5)", "turns": "AVG(turns)", "tokens": "AVG(tokens)",
    "seconds": "AVG(seconds)", "stop": "example",
}  # fmt: skip


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Which rollouts, in which order; what is empty does not narrow."""

    outcome: Literal["", "solved", "failed", "truncated"] = ""
    stop: str = ""
    group: str = ""
    """As "name=value"."""
    text: str = ""
    """Stands in key, task, answer or last text, in any case."""
    example: str = ""
    sort: Sort = "order"
    desc: bool = False
    offset: int = 0
    limit: int = 50


class Page(msgspec.Struct, frozen=True):
    """Rows of a query, and how many there are in all."""

    total: int
    rows: list[Row]


class ExampleRow(msgspec.Struct, frozen=True, kw_only=True):
    """The rollouts of one example that a query finds."""

    example: str
    rollouts: int
    solved: int
    turns: float
    tokens: float | None
    seconds: float
    """Means."""
    task: str
    first: str
    """Key of one of them."""


class ExamplePage(msgspec.Struct, frozen=True):
    total: int
    rows: list[ExampleRow]


class _Line(SkimmedLine, kw_only=True, gc=False):
    """As much of a rollout's line as an index needs; the rest is skipped, which halves the time."""

    opening: str


class _Place(NamedTuple):
    part: int
    start: int
    size: int


class RunIndex:
    """An open index. Read it from one thread at a time."""

    def __init__(self, store: RunStore, parts: list[Path], database: sqlite3.Connection) -> None:
        self.store = store
        self._parts = parts
        self._database = database
        self._decoder = msgspec.json.Decoder(Rollout)

    @classmethod
    def open(cls, folder: Path, *, cached: bool = True, progress: Progress | None = None) -> Self:
        """The index of a run, built if there is none or if it is stale.

        Args:
            folder: the run's folder.
            cached: keep it in the user's cache; otherwise it lives in memory.
            progress: called while it is built.

        Raises:
            UsageError: the folder is no run, a file cannot be read, or the cache cannot be written.
        """
        store = RunStore.open(folder)
        state = fingerprint(store)
        path = _place(folder) if cached else None
        database = _reuse(path, state) if path else None
        if database is None:
            if path is not None:
                make_cached_folder(path.parent)
            database = _build(store, path, state, progress)
        return cls(store, store.parts(), database)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._database.close()

    @property
    def stale(self) -> bool:
        """Whether the run's files have changed since."""
        return _read(self._database, "state") != fingerprint(self.store)

    @property
    def overview_json(self) -> bytes:
        return _read(self._database, "overview")

    @property
    def overview(self) -> Overview:
        return msgspec.json.decode(self.overview_json, type=Overview)

    def outcomes(self) -> Iterator[tuple[str, bool]]:
        """(key, solved) of every rollout."""
        for key, solved in self._database.execute("SELECT key, reward > 0.5 FROM rollouts ORDER BY id"):
            yield key, bool(solved)

    def rows(self, query: Query) -> Page:
        """The rollouts that `query` asks for."""
        where, values = _where(query)
        total = self._count("COUNT(*)", where, values)
        order = f"{_ORDER[query.sort]} {'DESC' if query.desc else 'ASC'}, id"
        found = self._select(_COLUMNS, f"{where} ORDER BY {order}", values, query)
        return Page(total, [_row(columns) for columns in found])

    def examples(self, query: Query) -> ExamplePage:
        """The examples of the rollouts that `query` asks for."""
        where, values = _where(query)
        total = self._count("COUNT(DISTINCT example)", where, values)
        means = "AVG(turns), AVG(tokens), AVG(seconds)"
        columns = f"example, COUNT(*), SUM(reward > 0.5), {means}, MIN(task), MIN(key)"
        order = f"{_ORDER_EXAMPLES[query.sort]} {'DESC' if query.desc else 'ASC'}, MIN(id)"
        found = self._select(columns, f"{where} GROUP BY example ORDER BY {order}", values, query)
        names = ExampleRow.__struct_fields__
        return ExamplePage(total, [ExampleRow(**dict(zip(names, row, strict=True))) for row in found])

    def rollout(self, key: str) -> Rollout | None:
        """The rollout of that key, read from its line; None where there is none.

        Raises:
            UsageError: the line is not there any more.
        """
        found = self._database.execute(
            "SELECT part, start, size FROM rollouts WHERE key = ?", (key,)
        ).fetchone()
        if found is None:
            return None
        place = _Place(*found)
        path = self._parts[place.part]
        try:
            with path.open("rb") as file:
                file.seek(place.start)
                rollout = self._decoder.decode(file.read(place.size))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError(f"{path}: rollout {key!r} has moved since it was indexed: {error}") from error
        if rollout.key != key:
            raise UsageError(f"{path}: rollout {key!r} has moved since it was indexed")
        return rollout

    def _count(self, what: str, where: str, values: list[Any]) -> int:
        # The parts of a statement are our own words; what a user gave is in `values`.
        (total,) = self._database.execute(f"SELECT {what} FROM rollouts WHERE {where}", values).fetchone()  # noqa: S608
        return int(total)

    def _select(self, columns: str, rest: str, values: list[Any], query: Query) -> list[tuple[Any, ...]]:
        limit = [min(max(query.limit, 0), MOST_ROWS), max(query.offset, 0)]
        sql = f"SELECT {columns} FROM rollouts WHERE {rest} LIMIT ? OFFSET ?"  # noqa: S608
        return self._database.execute(sql, [*values, *limit]).fetchall()


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


def _where(query: Query) -> tuple[str, list[Any]]:
    parts, values = ["1"], []
    if query.outcome:
        parts.append(
            {"solved": "reward > 0.5", "failed": "reward <= 0.5", "truncated": "truncated"}[query.outcome]
        )
    for column in ("stop", "example"):
        if value := getattr(query, column):
            parts.append(f"{column} = ?")
            values.append(value)
    if query.group:
        name, _, value = query.group.partition("=")
        parts.append("instr(groups, ?)")
        values.append(msgspec.json.encode((name, value)).decode())
    if query.text:
        parts.append("instr(haystack, ?)")
        values.append(query.text.lower())
    return " AND ".join(parts), values


def _row(columns: tuple[Any, ...]) -> Row:
    values = dict(zip(Row.__struct_fields__, columns, strict=True))
    values["truncated"] = bool(values["truncated"])
    values["groups"] = msgspec.json.decode(values["groups"], type=list[tuple[str, str]])
    return Row(**values)


def _place(folder: Path) -> Path:
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:32]
    return cache_dir() / "view" / f"{name}.sqlite"


def _reuse(path: Path, state: bytes) -> sqlite3.Connection | None:
    """The index at `path`, if it was built from just these files."""
    if not path.is_file():
        return None
    database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False)
    try:
        if _read(database, "state") == state:
            return database
    except sqlite3.DatabaseError:  # half a file, or none of ours: built anew
        pass
    database.close()
    return None


def _read(database: sqlite3.Connection, name: str) -> bytes:
    found = database.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return bytes(found[0]) if found else b""


def _build(store: RunStore, path: Path | None, state: bytes, progress: Progress | None) -> sqlite3.Connection:
    """Reads the run. The file gets its name when it is whole, so that a kill leaves no half index."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}") if path else None
    try:
        database = sqlite3.connect(str(temporary or ":memory:"), check_same_thread=False)
        try:
            database.executescript(f"PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; {_TABLE}")
            _fill(database, store, state, progress)
            database.executescript(_INDEXES)
            if temporary is None or path is None:
                return database
        except BaseException:
            database.close()
            raise
        database.close()
        temporary.replace(path)
    except (OSError, sqlite3.OperationalError) as error:
        raise UsageError(
            f"{path}: the index cannot be written: {error}; WHALE_CACHE names the cache"
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False)


def _fill(database: sqlite3.Connection, store: RunStore, state: bytes, progress: Progress | None) -> None:
    outcomes: list[Outcome] = []
    damaged = 0
    seen: set[str] = set()

    def rows() -> Iterator[tuple[Any, ...]]:
        nonlocal damaged
        for line, place in _lines(store, progress):
            if line is None:
                damaged += 1
            elif line.key not in seen:
                seen.add(line.key)
                outcomes.append(outcome_of(line))
                yield _columns(line, place)

    marks = ", ".join("?" * (_COLUMNS.count(",") + 5))
    insert = f"INSERT INTO rollouts ({_COLUMNS}, haystack, part, start, size) VALUES ({marks})"  # noqa: S608
    with database:
        database.executemany(insert, rows())
        overview = overview_of(
            store.settings, outcomes, _stored(store), folder=store.folder.resolve().name, damaged=damaged
        )
        meta = {"state": state, "overview": msgspec.json.encode(overview)}
        database.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())


def _columns(line: _Line, place: _Place) -> tuple[Any, ...]:
    task, answer = headline(line.opening), (line.verdict.answer or "")[:ANSWER_CHARS]
    said = line.segments[-1].text[:SAID_CHARS] if line.segments else ""
    haystack = "\n".join((line.key, task, answer, said)).lower()
    return (
        line.key, line.example_id, line.sample, line.verdict.reward, line.stop_condition, line.truncated,
        len(line.segments), line.sampled_tokens, line.seconds, task, answer, said,
        msgspec.json.encode(line.groups).decode(), haystack, *place,
    )  # fmt: skip


def _lines(store: RunStore, progress: Progress | None) -> Iterator[tuple[_Line | None, _Place]]:
    """Every line of a run with its place; None for one that is no whole rollout."""
    decoder = msgspec.json.Decoder(_Line)
    parts = store.parts()
    try:
        total = sum(part.stat().st_size for part in parts)
        done = 0
        for number, part in enumerate(parts):
            start = 0
            with part.open("rb") as lines:
                for count, line in enumerate(lines, start=1):
                    place = _Place(number, start, len(line))
                    start += len(line)
                    try:
                        row = decoder.decode(line)
                    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                        yield None, place
                        continue
                    store.check_belongs(row, f"{part}:{count}")
                    yield row, place
                    if progress and count % 500 == 0:
                        progress(done + start, total)
            done += start
        if progress:
            progress(total, total)
    except OSError as error:
        raise UsageError(f"{store.folder}: cannot be read: {error}") from error


def _stored(store: RunStore) -> Summary | None:
    try:
        return msgspec.json.decode(store.read_summary() or b"", type=Summary)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
