"""Answers questions about the rollouts of a run, from an index that `build.py` makes.

    with RunIndex.open(folder) as index:                 # beside the user's other caches; built if stale
        page = index.rows(Query(outcome="failed", sort="tokens", limit=50))
        rollout = index.rollout(page.rows[0].key)        # one line, by its offset

An index is good for the files whose names, sizes and times it was built from. It is built again when
one of them differs, so a run that is still written can be looked at. With `cached=False` it lives in
memory and nothing is written anywhere. `first` has one of a run's beginning at once.

Not covered: several runs at once, and search in anything but keys, tasks, answers and last texts.
"""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal, Self

import msgspec

from whale_bench.outcomes import SkimmedLine
from whale_bench.records import Rollout
from whale_bench.store import RunStore
from whale_bench.view.build import (
    ANSWER_CHARS,
    COLUMNS,
    SAID_CHARS,
    Progress,
    build,
    built,
    cached_index,
    fingerprint,
    read_meta,
)
from whale_bench.view.data import Overview, Row
from whale_envs.errors import UsageError

__all__ = [
    "ANSWER_CHARS", "MOST_ROWS", "SAID_CHARS", "DamagedRolloutError", "ExamplePage", "ExampleRow", "Page",
    "Progress", "Query", "RunIndex",
]  # fmt: skip

MOST_ROWS = 500
"""Most rows of one page."""

Sort = Literal["order", "example", "solved", "stop", "turns", "tokens", "seconds"]
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
    offset: Annotated[int, msgspec.Meta(le=2**63 - 1)] = 0
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


class DamagedRolloutError(UsageError):
    """A rollout's line tells what tables show of it, and not the whole."""


class RunIndex:
    """An open index. Read it from one thread at a time."""

    def __init__(self, store: RunStore, parts: list[Path], database: sqlite3.Connection) -> None:
        self.store = store
        self._parts = parts
        self._database = database
        self._decoder = msgspec.json.Decoder(Rollout)
        self._skimmer = msgspec.json.Decoder(SkimmedLine)

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
        database = built(store, progress) if cached else build(store, None, progress)
        return cls(store, store.parts(), database)

    @classmethod
    def reuse(cls, folder: Path, *, stale: bool = False) -> Self | None:
        """The index of a run from the user's cache, if there is one that is good, or is `stale`."""
        store = RunStore.open(folder)
        database = cached_index(store, stale=stale)
        return None if database is None else cls(store, store.parts(), database)

    @classmethod
    def first(cls, folder: Path, most: int) -> Self:
        """An index, in memory, of the first `most` rollouts alone: a moment's work, however large the run."""
        store = RunStore.open(folder)
        return cls(store, store.parts(), build(store, None, most=most))

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
        return read_meta(self._database, "state") != fingerprint(self.store)

    @property
    def overview_json(self) -> bytes:
        return read_meta(self._database, "overview")

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
        found = self._select(COLUMNS, f"{where} ORDER BY {order}", values, query)
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
            DamagedRolloutError: the line is there, but a part of it that no table needs cannot be read.
            UsageError: the line is not there any more.
        """
        found = self._database.execute(
            "SELECT part, start, size FROM rollouts WHERE key = ?", (key,)
        ).fetchone()
        if found is None:
            return None
        part, start, size = found
        path = self._parts[part]
        try:
            with path.open("rb") as file:
                file.seek(start)
                line = file.read(size)
            there = self._skimmer.decode(line).key == key
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            there = False
        if not there:
            raise UsageError(f"{path}: rollout {key!r} has moved since it was indexed")
        try:
            return self._decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DamagedRolloutError(f"{path}: rollout {key!r} cannot be read: {error}") from error

    def _count(self, what: str, where: str, values: list[Any]) -> int:
        # The parts of a statement are our own words; what a user gave is in `values`.
        (total,) = self._database.execute(f"SELECT {what} FROM rollouts WHERE {where}", values).fetchone()  # noqa: S608
        return int(total)

    def _select(self, columns: str, rest: str, values: list[Any], query: Query) -> list[tuple[Any, ...]]:
        limit = [min(max(query.limit, 0), MOST_ROWS), max(query.offset, 0)]
        sql = f"SELECT {columns} FROM rollouts WHERE {rest} LIMIT ? OFFSET ?"  # noqa: S608
        return self._database.execute(sql, [*values, *limit]).fetchall()


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
