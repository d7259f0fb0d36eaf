"""Writes runs in forms that other tools read.

    export(Path("runs/demo"), "inspect", Path("demo.eval"))

Gold answers are in no run folder, hence in no export. An export is there whole or not at all, and
never takes the place of something. docs/logs.md says what each form holds.
"""

from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

from whale_bench.export.inspect import write_inspect
from whale_bench.export.ledger import write_events
from whale_bench.export.parquet import write_dataset
from whale_bench.store import RunStore
from whale_envs.errors import UnknownNameError

__all__ = ["WRITERS", "export"]

Writer = Callable[[RunStore, Path], None]

WRITERS = MappingProxyType[str, Writer](
    {"inspect": write_inspect, "datasets": write_dataset, "events": write_events}
)
"""By the name of the form."""


def export(run: Path, form: str, out: Path) -> None:
    """Writes a run's folder in another form.

    Args:
        run: the run's folder, which stays as it is; it may be incomplete.
        form: one of `WRITERS`.
        out: the file or folder to make.

    Raises:
        UsageError: the folder is no run, the form is unknown, or `out` cannot be made.
    """
    if form not in WRITERS:
        raise UnknownNameError("form of export", form, WRITERS)
    WRITERS[form](RunStore.open(run), out)
