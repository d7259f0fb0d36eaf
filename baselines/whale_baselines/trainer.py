"""What a weight operator is: `update` with rows of accepted rollouts, and folders to write and restore.

    class MyTrainer:                                    # no base class: a Protocol
        base_id, accelerators, threads, overlaps, checkpoint_bytes = ...
        def update(self, rows, *, step): ...
        def write_weights(self, folder): ...
        def write_state(self, folder): ...
        def restore(self, folder): ...
        def take_weights(self, folder): ...

A trainer holds weights and optimizer in memory. It knows nothing of environments, harnesses, backends
or ledgers: `rsft_loop.py` plays the rollouts and hands over the weights, and `checkpoint.py` decides
when a folder is whole. `rsft.py` is the implementation.

Not covered: when to train, see the schedule; trainers that keep rollouts of earlier steps.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from whale_baselines.sequences import Row

STATE = "trainer"
"""Folder, within a checkpoint, of what a trainer needs besides the weights. No backend reads it, and it is
no part of `weights_id`."""

METRICS = "metrics.json"
"""Within a checkpoint's `STATE`: the line of the step that it finished."""


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """What a step did to the weights."""

    updates: int = 0
    """Optimizer steps."""
    skipped: int = 0
    """Optimizer steps that were left out, because their gradient was not finite."""
    tokens: int = 0
    """Trained tokens of the optimizer steps that were made."""
    loss: float | None = None
    """Negative log-likelihood per token, at the weights before each update; None without any."""
    grad_norm: float | None = None
    """Mean over the updates, before clipping."""
    padding: float = 0.0
    """Share of padding in what went through the model."""
    changed: float = 0.0
    """Share of the weights whose bfloat16 value, which is what backends serve, is another one now."""


class Trainer(Protocol):
    """A weight operator."""

    base_id: str
    """`weights_id` of the folder it began with."""

    @property
    def accelerators(self) -> int:
        """How many devices other than CPUs it computes on, over all processes."""
        ...

    @property
    def threads(self) -> int:
        """Of a CPU, that an update computes with: other numbers of them give other bits."""
        ...

    @property
    def overlaps(self) -> bool:
        """Whether `write_state` may run in a thread of its own, while nothing is asked of the trainer that
        changes it, and whether its updates repeat to the bit, which going on after a kill meanwhile needs.
        """
        ...

    def update(self, rows: Sequence[Row], *, step: int, threads: int | None = None) -> Update:
        """Trains on `rows` once; without rows, nothing at all changes.

        Args:
            rows: of one step, sampled from the weights as they are.
            step: number of the step, from which shuffling and dropout follow.
            threads: with which the update was made that this one has to repeat; None takes `self.threads`.

        Raises:
            UsageError: gradients were not finite too often in a row; the weights are still good.
        """
        ...

    @property
    def checkpoint_bytes(self) -> int:
        """What weights and state take on a disk, about."""
        ...

    def write_weights(self, folder: Path) -> None:
        """Writes the weights as a Hugging Face folder. Equal weights give equal bytes."""
        ...

    def write_state(self, folder: Path) -> None:
        """Writes, under `STATE` of the same folder, whatever else the trainer needs to go on."""
        ...

    def restore(self, folder: Path) -> None:
        """Becomes what it was when it wrote weights and state into `folder`, bit for bit.

        Raises:
            UsageError: the folder is not whole, or of another architecture.
        """
        ...

    def take_weights(self, folder: Path) -> bool:
        """Goes on from the weights that `write_weights` wrote into `folder`, all else as it is.

        Returns:
            False where a folder does not hold all that is trained, such as adapters; nothing changed then.

        Raises:
            UsageError: the folder is not whole, or of another architecture.
        """
        ...
