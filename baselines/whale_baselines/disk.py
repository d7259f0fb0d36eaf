"""Folders that are written whole: errors of the disk told from others, synchronised.

    with writing(place, half):                          # `half` is deleted when something fails
        ...
        synchronise(half)
        half.replace(place)

Not covered: what is written, see `checkpoint.py`.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from whale_envs.errors import InfrastructureError, UsageError


@contextlib.contextmanager
def writing(place: Path, half: Path) -> Iterator[None]:
    """Deletes what is half written when something fails, and tells the disk's faults from others."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        shutil.rmtree(half, ignore_errors=True)
        if not _is_of_writing(error):
            raise
        raise InfrastructureError(
            f"{place}: the checkpoint cannot be written: {error}; earlier ones are untouched"
        ) from error


def _is_of_writing(error: BaseException) -> bool:
    """Whether a disk is at fault; torch and safetensors have exceptions of their own for that.

    torch closes its file while the disk's exception passes by, and then raises about that.
    """
    told = ("no space left", "file write", "failed writing", "disk quota", "file too large", "i/o error")
    one: BaseException | None = error
    while one is not None:
        if isinstance(one, OSError) or any(words in str(one).lower() for words in told):
            return True
        one = one.__cause__ or one.__context__
    return False


def synchronise(folder: Path) -> None:
    """Makes sure that a folder and all that it holds are on the disk."""
    for path in sorted(folder.rglob("*")):
        synchronise_one(path)
    synchronise_one(folder)


def synchronise_one(path: Path) -> None:
    """Makes sure of one file; of a folder, that it has these names in it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
