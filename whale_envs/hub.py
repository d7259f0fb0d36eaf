"""Streams rows of a dataset on the Hugging Face hub, or of local files in a format `datasets` reads.

    for row in stream_rows("Lichess/chess-puzzles", needed=[{"FEN"}, {"Moves"}], revision="479ea9b…"):
        ...

A dataset is named with its revision, a commit hash: the same name holds other rows next month.

Not covered: what the rows mean, and keeping what was read (each domain's own hub module).
"""

import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from whale_envs.errors import DataError, InfrastructureError, UsageError


def show_progress(done: int, wanted: int | None = None) -> None:
    """Says on a terminal's standard error how far a long read is; silent elsewhere."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\rreading the hub: {done:,}" + (f" of {wanted:,}" if wanted else " rows") + "  ")


def stream_rows(
    source: str,
    *,
    needed: Collection[Collection[str]],
    split: str = "train",
    revision: str | None = None,
    config: str | None = None,
    **options: Any,
) -> Iterator[Mapping[str, Any]]:
    """Rows in file order, one at a time.

    Args:
        source: the dataset's id on the hub, or a format that `datasets` reads, such as "parquet".
        needed: sets of column names; the rows must have at least one column of each.
        split: the dataset's own name of the split.
        revision: a commit hash of the hub; None for a local file.
        config: the dataset's configuration, where it has several.
        options: more for `datasets.load_dataset`, such as data_files for a local file.

    Raises:
        UsageError: the extra is not installed.
        InfrastructureError: the rows cannot be had.
        DataError: there are none, or a needed column is missing.
    """
    try:
        import datasets
    except ImportError as error:
        raise UsageError('the full tier needs the extra data: pip install "whale-envs[data]"') from error
    if revision is not None:
        options["revision"] = revision
    if config is not None:
        options["name"] = config
    try:
        rows = iter(datasets.load_dataset(source, split=split, streaming=True, **options))
        first = next(rows, None)
        if first is None:
            raise DataError(f"{source} has no rows")
        missing = [sorted(names) for names in needed if not set(names) & set(first)]
        if missing:
            lacks = sorted(" or ".join(names) for names in missing)
            raise DataError(f"{source} lacks the columns {lacks}; it has {sorted(first)}")
        yield first
        yield from rows
    except DataError:
        raise
    except Exception as error:  # whatever client, file system or parser is at work down there
        raise InfrastructureError(
            f"{source} cannot be read: {error}. The tiers mini and small are embedded and need no network"
        ) from error
