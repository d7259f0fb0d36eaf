"""Looks for garbage less often while many rollouts are in flight.

    with fewer_collections():
        ...

Python looks through its youngest objects after every 700 that are new. Rollouts in flight are many young
objects of which hardly any is garbage, so that an eighth of a rollout's CPU went into looking
(docs/measurements.md). What is collected late is small: some megabytes.

Not covered: a process that has switched collections off, which stays as it is.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLDS = (20_000, 20, 50)

_entered: list[tuple[int, int, int]] = []
"""Thresholds that were found, once for each use that has not ended."""


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Raises the thresholds, for the whole process; the last of several uses puts them back."""
    found = gc.get_threshold()
    _entered.append(found)
    if 0 < found[0] < _THRESHOLDS[0]:
        gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        first = _entered[0]
        _entered.pop()
        if not _entered:
            gc.set_threshold(*first)
