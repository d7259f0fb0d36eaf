"""Where this project keeps what it fetches or builds once: one folder per user; and a file's hash.

    write_cached(cache_dir() / "chess_puzzles" / "full.csv", data)

Not covered: run folders and results, which a command line names itself.
"""

import hashlib
import os
import secrets
from pathlib import Path

from whale_envs.errors import UsageError


def cache_dir() -> Path:
    """$WHALE_CACHE, else $XDG_CACHE_HOME/whale-envs, else ~/.cache/whale-envs; not created here.

    An empty variable counts as unset, as the XDG base directory specification says.

    Raises:
        UsageError: the variable names a user's home that does not exist.
    """
    own, base = os.environ.get("WHALE_CACHE"), os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    named = own or f"{base}/whale-envs"
    try:
        return Path(named).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{named!r} cannot be the cache: {error}; WHALE_CACHE names it") from error


def make_cached_folder(folder: Path) -> None:
    """Makes a folder of the cache, before work is done for it.

    Raises:
        UsageError: it cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    if not os.access(folder, os.W_OK):
        raise _unwritable(folder, "permission denied")


def write_cached(path: Path, data: bytes) -> None:
    """Writes a file of the cache, whole or not at all.

    Raises:
        UsageError: it cannot be written.
    """
    make_cached_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        try:
            temporary.write_bytes(data)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(path.parent, error) from error


def _unwritable(folder: Path, why: object) -> UsageError:
    return UsageError(f"{folder} cannot be written to: {why}; WHALE_CACHE names the cache")


def hash_file(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
