"""What a training step costs, in the run's ledger: optimizer steps, trained tokens, seconds; no rollouts.

    attempt = reserve(ledger, step=3)                   # before the update
    settle(ledger, attempt, line)                       # when the step's weights are written

The key is `train:STEP`, the purpose "weight". A kill between a step's whole checkpoint and its settlement is
made up for by `settle_earlier`, from the line in the checkpoint; an update that a kill cut short is closed as
interrupted. However often a run is killed, each finished step is charged once. A finished step that is made
anew, as its checkpoint was damaged or not whole, counts as executed only.

Device seconds count sampling and training, as both run on the same accelerators one after the other.

Not covered: accelerators of a server elsewhere, which does not say how many it has; evaluation on `dev`.
"""

import json
from pathlib import Path
from typing import Any

from whale_baselines.checkpoint import TrainingState
from whale_baselines.trainer import METRICS, STATE
from whale_bench.ledger import Charge, Ledger

PURPOSE = "weight"
_PREFIX = "train:"


def reserve(ledger: Ledger, step: int) -> int:
    """Announces the update of a step; the number of the attempt."""
    key = f"{_PREFIX}{step}"
    return ledger.reserve(key, PURPOSE, again=key in ledger.settled_keys())


def settle(ledger: Ledger, attempt: int, line: dict[str, Any]) -> None:
    """Charges a finished step, once; one that was made anew after its charge counts as executed.

    Args:
        ledger: of the run.
        attempt: of `reserve`.
        line: the step's metrics, with its seconds of sampling and training.
    """
    key = f"{_PREFIX}{line['step']}"
    close = ledger.repeat if key in ledger.settled_keys() else ledger.settle
    close(key, attempt, charge_of_step(line))


def repeat(ledger: Ledger, line: dict[str, Any]) -> None:
    """Notes that a finished step was made anew."""
    key = f"{_PREFIX}{line['step']}"
    if key in ledger.settled_keys():
        ledger.repeat(key, ledger.reserve(key, PURPOSE, again=True), charge_of_step(line))


def settle_earlier(ledger: Ledger, folder: Path, state: TrainingState) -> None:
    """Makes the ledger agree with the newest checkpoint after a kill."""
    key = f"{_PREFIX}{state.step}"
    waiting = {of: attempt for of, attempt in ledger.open_reservations() if of.startswith(_PREFIX)}
    finished = waiting.pop(key, None)
    for other, attempt in waiting.items():
        ledger.interrupt(other, attempt, Charge())
    beside = folder / STATE / METRICS
    if state.step and (finished is not None or key not in ledger.settled_keys()):
        attempt = ledger.reserve(key, PURPOSE) if finished is None else finished
        settle(ledger, attempt, json.loads(beside.read_text()))


def charge_of_step(line: dict[str, Any]) -> Charge:
    """The charge of a step with these metrics."""
    seconds = line["seconds"]
    return Charge(
        optimizer_steps=line["updates"],
        trained_tokens=line["trained_tokens"],
        seconds=seconds["train"],
        device_seconds=line["accelerators"] * (seconds["sample"] + seconds["train"]),
    )
