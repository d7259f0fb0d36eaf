"""Training in several processes: the first one plays, keeps the accounts and writes; all of them train.

    accelerate launch --num_processes 8 -m whale_baselines.cli run weight.toml --out runs/weight

    trainer = RsftTrainer(base, recipe)
    if trainer.is_first:
        with leading(trainer) as together:      # a `Trainer`, for the loop
            ...
    else:
        follow(trainer)                         # until the first process is done

Every call of the first process's trainer is announced to the others, which make the same call on theirs:
each gradient, each gathering of weights, and each forward pass of spread ones needs all of them. So nobody
calls the trainer itself while it leads. Rows of token ids are what is sent; nothing
else of a rollout leaves the first process.

Not covered: sampling in several processes, for which a server has its own ways; processes that come and go.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from whale_baselines.rsft import RsftTrainer
from whale_baselines.sequences import Row
from whale_baselines.trainer import Update
from whale_envs.errors import WhaleError

_END = "end"


class Leading:
    """The first process's `Trainer`: each call is one of all processes."""

    def __init__(self, trainer: RsftTrainer) -> None:
        self._trainer = trainer
        self.base_id = trainer.base_id

    @property
    def accelerators(self) -> int:
        return self._trainer.accelerators

    @property
    def threads(self) -> int:
        return self._trainer.threads

    @property
    def overlaps(self) -> bool:
        return False

    @property
    def checkpoint_bytes(self) -> int:
        return self._trainer.checkpoint_bytes

    def update(self, rows: Sequence[Row], *, step: int, threads: int | None = None) -> Update:
        self._announce("update", tuple(rows), step=step, threads=threads)
        return self._trainer.update(rows, step=step, threads=threads)

    def logprobs(self, prompts: Sequence[tuple[int, ...]]) -> list[float]:
        prompts = tuple(prompts)
        self._announce("logprobs", prompts)
        return self._trainer.logprobs(prompts)

    def write_weights(self, folder: Path) -> None:
        self._announce("write_weights", folder)
        self._trainer.write_weights(folder)

    def write_state(self, folder: Path) -> None:
        self._announce("write_state", folder)
        self._trainer.write_state(folder)

    def restore(self, folder: Path) -> None:
        self._announce("restore", folder)
        self._trainer.restore(folder)

    def take_weights(self, folder: Path) -> bool:
        self._announce("take_weights", folder)
        return self._trainer.take_weights(folder)

    def end(self) -> None:
        """Lets the others go."""
        self._announce(_END)

    def _announce(self, call: str, *args: Any, **named: Any) -> None:
        _shared([(call, args, named)])


@contextlib.contextmanager
def leading(trainer: RsftTrainer) -> Iterator[Leading | RsftTrainer]:
    """The trainer for the loop of the first process; the trainer itself where there is no other."""
    if trainer.processes == 1:
        yield trainer
        return
    together = Leading(trainer)
    try:
        yield together
    finally:
        together.end()


def follow(trainer: RsftTrainer) -> None:
    """Makes the calls that the first process announces, until it is done.

    A call that fails in all processes alike ends this one quietly: the first one says why.
    """
    while True:
        call, args, named = _shared([None])
        if call == _END:
            return
        with contextlib.suppress(WhaleError):
            getattr(trainer, call)(*args, **named)


def _shared(box: list[Any]) -> Any:
    """What the first process has in its box."""
    import torch.distributed

    torch.distributed.broadcast_object_list(box, src=0)
    return box[0]
