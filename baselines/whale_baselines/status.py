"""Where a run stands: cycle, phase, signal, patience left, budget spent, time left.

    status = status_of(Path("runs/whale"))
    status.patience_left, status.seconds_left

Reads the folder only, so it can look at a run that another process is writing.

Not covered: how well the run does, see `curves.py`.
"""

import time
from pathlib import Path

import msgspec

from whale_baselines.curves import outcome_of
from whale_baselines.history import History
from whale_baselines.plan import Extent, plan_of
from whale_baselines.run_recipe import recipe_of_run
from whale_baselines.schedule import Kind, current_phase, signals_of
from whale_bench.ledger import Ledger
from whale_bench.store import RunStore

_GROWING = ("run.toml", "rollouts-*.jsonl", "history.jsonl", "ledger.sqlite", "ledger.sqlite-wal")
"""Files of a run that its moves write to."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Of one run."""

    folder: str
    recipe: str
    simulated: bool
    finished: bool
    cycle: int
    phase: Kind | None
    """Of the last move; None before the first."""
    moves_in_phase: int
    signal: float | None
    best_signal: float | None
    """Of the phase."""
    patience_left: int | None
    """Moves until the phase ends if nothing improves."""
    steps: int
    total_steps: int
    iterations: int
    charged: dict[str, int]
    """Rollouts by purpose, as the ledger has them now."""
    in_history: int
    """Rollouts of the moves that the history has; what is under way is charged first."""
    dev: float | None
    """Best score on dev so far."""
    seconds: float
    """Spent on moves."""
    quiet_seconds: float
    """Since anything of it was last written: few while it runs, but for a long update or a session."""
    seconds_left: float | None
    """If later moves take as long as those so far, for the longest run that the schedule allows."""


def status_of(folder: Path) -> Status:
    """Raises `UsageError` where the folder holds no run of a recipe."""
    store = RunStore.open(folder)
    recipe = recipe_of_run(store.settings, folder)
    history = History(folder, readonly=True)
    with Ledger(folder / "ledger.sqlite", readonly=True) as ledger:
        charged = {purpose: charge.rollouts for purpose, charge in sorted(ledger.charged().items())}
    schedule, moves = recipe.plan_schedule(), history.moves
    phase = current_phase(moves)
    signals = signals_of(phase)
    kind = phase[-1].kind if phase else None
    rule = schedule.rule(kind) if kind else None
    steps = sum(made.kind == "train" for made in moves)
    finished = (folder / "summary.json").exists()
    outcome = outcome_of(history)
    return Status(
        folder=str(folder),
        recipe=recipe.name,
        simulated=recipe.simulated,
        finished=finished,
        cycle=phase[-1].cycle if phase else 0,
        phase=kind,
        moves_in_phase=len(phase),
        signal=signals[-1] if signals else None,
        best_signal=max(signals, default=None),
        patience_left=None if rule is None or finished else rule.left(signals),
        steps=steps,
        total_steps=schedule.total_steps,
        iterations=len(moves) - steps,
        charged=charged,
        in_history=sum(made.rollouts for made in moves),
        dev=None if outcome is None else outcome.selected.score.mean,
        seconds=sum(made.seconds for made in moves),
        quiet_seconds=_quiet_seconds(folder),
        seconds_left=0.0 if finished else _seconds_left(history, plan_of(recipe).most),
    )


def _quiet_seconds(folder: Path) -> float:
    files = (path for pattern in _GROWING for path in folder.glob(pattern))
    return max(0.0, time.time() - max((path.stat().st_mtime for path in files), default=0.0))


def _seconds_left(history: History, most: Extent) -> float | None:
    left, known = 0.0, False
    for kind, total in (("train", most.steps), ("search", most.iterations)):
        took = [made.seconds for made in history.moves if made.kind == kind]
        if took:
            known = True
            left += max(0, total - len(took)) * sum(took) / len(took)
    return left if known else None
