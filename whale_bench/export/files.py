"""An output that is there whole or not at all.

    with fresh(Path("demo.json")) as temporary:
        temporary.write_bytes(data)

Not covered: two processes that make the same output at once; the later one fails.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from whale_envs.errors import UsageError


@contextmanager
def fresh(out: Path) -> Iterator[Path]:
    """A path beside `out` to write a file or folder at; it becomes `out` at the end, or goes.

    Raises:
        UsageError: `out` is there already, or cannot be written.
    """
    if out.exists():
        raise UsageError(f"{out} is there already; give --out another place")
    temporary = out.with_name(f".half-written-{out.name}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _remove(temporary)
        yield temporary
        temporary.rename(out)
    except OSError as error:
        raise UsageError(f"{out}: cannot be written: {error}") from error
    finally:
        _remove(temporary)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()
