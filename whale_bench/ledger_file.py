"""The SQLite file of an account: made, opened to write or to read, and known where it is damaged.

    db = open_account(Path("runs/one/ledger.sqlite"), readonly=True)

In WAL mode. A file that was begun and never got its table, as a kill while it is made leaves one, is an
empty account; a file that had a table and lost it is damaged.

Not covered: what stands in it, see `ledger.py`; a copy of the file without its WAL, which lacks the last
events.
"""

import sqlite3
from pathlib import Path

from whale_envs.errors import DataError, InfrastructureError, UsageError

_TABLE = """
CREATE TABLE events (
    seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, key TEXT NOT NULL, attempt INTEGER NOT NULL,
    purpose TEXT NOT NULL, at REAL NOT NULL, charge TEXT NOT NULL, prev TEXT NOT NULL, hash TEXT NOT NULL
) STRICT
"""

_INDEXES = """
CREATE UNIQUE INDEX IF NOT EXISTS one_settlement ON events (key) WHERE kind = 'settle';
CREATE UNIQUE INDEX IF NOT EXISTS one_reservation ON events (key, attempt) WHERE kind = 'reserve';
CREATE UNIQUE INDEX IF NOT EXISTS one_end ON events (key, attempt) WHERE kind != 'reserve';
"""

_PAGE = 4096
"""Bytes of a page; a file with a table has two at least."""


def open_account(path: Path, *, readonly: bool) -> sqlite3.Connection:
    """A connection to the file, which is made if missing; with `readonly` it is left as it is.

    Raises:
        UsageError: there is no such file to read, or none can be made.
        DataError: the file is no ledger.
        InfrastructureError: the disk is full.
    """
    if readonly and not path.is_file():
        raise UsageError(f"{path}: there is no ledger")
    target = f"{path.absolute().as_uri()}?mode={'ro' if readonly else 'rwc'}"
    try:
        db = sqlite3.connect(target, uri=True, isolation_level=None)
    except sqlite3.Error as error:
        raise UsageError(f"{path}: cannot be opened as a ledger: {error}") from error
    try:
        begun = _is_only_begun(db, path)
        if begun and readonly:
            db.close()
            db = sqlite3.connect(":memory:", isolation_level=None)
        elif not readonly:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")  # a killed process loses nothing
        if begun:
            db.execute(_TABLE)
        if begun or not readonly:
            db.executescript(_INDEXES)
        db.execute("SELECT hash FROM events ORDER BY seq DESC LIMIT 1").fetchone()
    except sqlite3.Error as error:
        db.close()
        if is_full(error):
            raise InfrastructureError(f"{path}: cannot be written: {error}") from error
        raise DataError(f"{path}: is no ledger, or damaged: {error}") from error
    return db


def is_full(error: sqlite3.Error) -> bool:
    """Whether the disk is at fault and not the file: even readers write, to share memory with a writer."""
    name = getattr(error, "sqlite_errorname", "")
    return name.startswith(("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHM", "SQLITE_IOERR_TRUNCATE"))


def _is_only_begun(db: sqlite3.Connection, path: Path) -> bool:
    """Whether nothing was ever made in the file: it is empty, or has SQLite's header and no more.

    A file whose table was dropped is another matter: every change of a schema is counted in the header.
    """
    try:
        changes: int = db.execute("PRAGMA schema_version").fetchone()[0]
    except sqlite3.OperationalError as error:
        # The header's own journal is still there, and a reader may not undo it. Later ones are WALs.
        if error.sqlite_errorname != "SQLITE_READONLY_ROLLBACK":
            raise
        return path.stat().st_size <= _PAGE
    return changes == 0
