"""Metrics for TensorBoard, Weights & Biases or trackio, beside those in the run's folder.

    with Trackers(["tensorboard"], Path("runs/demo")) as trackers:
        trackers.log("step", line)                      # train/reward, train/loss, …
        trackers.log("dev", score)                      # dev/mean, dev/stderr, …

The writers are accelerate's. A name that is unknown or not installed is refused before anything is loaded.
What stands in history.jsonl and metrics.jsonl is complete without them.

Not covered: logging in to a service, which its own client does.
"""

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from whale_envs.errors import UnknownNameError, UsageError

LOGGERS = {"tensorboard": "TensorBoardTracker", "wandb": "WandBTracker", "trackio": "TrackioTracker"}
"""Classes of accelerate, by the name of the package that each needs."""

_KINDS = {"step": "train", "iteration": "search", "dev": "dev", "test": "test"}


class Trackers:
    """The loggers that were asked for. Use it as a context manager: leaving flushes them.

    Raises:
        UsageError: one is unknown, or not installed.
    """

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        for name in names:
            if name not in LOGGERS:
                raise UnknownNameError("logger", name, LOGGERS)
            if importlib.util.find_spec(name) is None:
                raise UsageError(f'--log {name} needs its package: pip install "whale-envs[{name}]"')
        self._names = list(dict.fromkeys(names))
        self._folder = folder
        self._open: list[Any] = []

    def log(self, kind: str, told: dict[str, Any]) -> None:
        """Hands the numbers of a line on; kinds that are not in `_KINDS` have none."""
        if kind not in _KINDS or not self._names:
            return
        if not self._open:
            self._start()
        values = dict(_numbers(told, _KINDS[kind]))
        for tracker in self._open:
            tracker.log(values, step=told["step"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for tracker in self._open:
            tracker.finish()

    def _start(self) -> None:
        import accelerate.tracking as library

        for name in self._names:
            made: Any = getattr(library, LOGGERS[name])
            where = {"logging_dir": str(self._folder)} if name == "tensorboard" else {}
            tracker = made(self._folder.name or "whale", **where)
            if hasattr(tracker, "start"):
                tracker.start()
            self._open.append(tracker)


def _numbers(told: dict[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in told.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}/{name}")
        elif isinstance(value, int | float):
            yield f"{prefix}/{name}", float(value)
