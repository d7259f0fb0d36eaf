"""A folder that appears whole or not at all.

    with workshop(Path("indexes/mini")) as work:
        ...                                  # fill work / "made"
        deliver(work / "made", Path("indexes/mini"))

The work is done in a locked folder beside the target, removed at the end. What a killed process left is
removed by the next one that works on the same target.

Not covered: going on where a killed process stopped.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from whale_envs.errors import UsageError


@contextlib.contextmanager
def workshop(target: Path) -> Iterator[Path]:
    """A new folder on the same disk as the target.

    Raises:
        UsageError: the target has something in it, or nothing can be made there.
    """
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise UsageError(f"{target} is there already and not an empty folder; name another, or remove it")
        target.parent.mkdir(parents=True, exist_ok=True)
        for left in target.parent.glob(f".{target.name}.building-*"):
            with _held(left) as gone:
                if gone:
                    shutil.rmtree(left, ignore_errors=True)
        work = target.with_name(f".{target.name}.building-{secrets.token_hex(4)}")
        work.mkdir()
    except OSError as error:
        raise UsageError(f"{target} cannot be made: {error}") from error
    with _held(work):
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)


def deliver(made: Path, target: Path) -> None:
    """Puts what was made in the target's place.

    Raises:
        UsageError: something is there by now.
    """
    try:
        made.rename(target)  # replaces an empty folder, and no other
    except OSError as error:
        raise UsageError(f"{target} cannot be made: {error}") from error


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[bool]:
    """Whether nobody else holds the folder; if so, it is held meanwhile."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)
