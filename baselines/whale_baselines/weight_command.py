"""What `whale-baselines run` does with a recipe of weights: run, show progress, print steps and scores.

    run_weights("demo/weight_only", Path("runs/demo"))

Progress goes to standard error, results to standard output: one line a step, one line an evaluation.

Not covered: parsing options, exit codes.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from whale_baselines.tracking import Trackers
from whale_baselines.weight_run import find_recipe, read_plan, run
from whale_envs.errors import UsageError


class _ExplainedError(Exception):
    """Everything was said that was asked for."""


def run_weights(
    recipe: str,
    out: Path | None,
    *,
    seed: int | None = None,
    explain: bool = False,
    log: Sequence[str] = (),
) -> None:
    """Trains as the recipe says, or only explains it.

    Args:
        recipe: a file or the name of a shipped one.
        out: the run's folder; None where nothing is run.
        seed: instead of the recipe's.
        explain: only say what it would take.
        log: names of loggers, see `tracking.py`.

    Raises:
        UsageError, InfrastructureError: see `weight_run.run`.
    """
    plan = read_plan(find_recipe(recipe))
    if seed is not None:
        plan = replace(plan, recipe=replace(plan.recipe, seed=seed), agent=replace(plan.agent, seed=seed))
    if out is None and not explain:
        raise UsageError("a run needs a folder: --out FOLDER")
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        Trackers(log, out or Path()) as trackers,
        Progress(*columns, console=console, transient=True) as bar,
    ):
        report = _reporter(bar, trackers, explain=explain)
        try:
            asyncio.run(run(plan, out or Path(), report=report))
        except _ExplainedError:
            return


def _reporter(bar: Progress, trackers: Trackers, *, explain: bool) -> Callable[[str, dict[str, Any]], None]:
    """Prints what is told, and hands numbers on."""
    out = Console(soft_wrap=True, highlight=False, markup=False)
    task = bar.add_task("", total=None, visible=False)

    def report(kind: str, told: dict[str, Any]) -> None:
        if kind == "rollouts":
            bar.update(task, description=told["what"], completed=told["done"], total=told["of"], visible=True)
            return
        bar.update(task, visible=False)
        bar.refresh()
        out.print({"explain": explained, "step": stepped, "dev": scored}[kind](told))
        if kind == "explain" and explain:
            raise _ExplainedError
        trackers.log(kind, told)

    return report


def explained(told: dict[str, Any]) -> str:
    """A table of what a run is going to take."""
    width = max(map(len, told))
    return "\n".join(f"{name.replace('_', ' '):<{width}}  {_number(value)}" for name, value in told.items())


def _number(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"


def stepped(line: dict[str, Any]) -> str:
    """A step's line for people."""
    loss = "no update" if line["loss"] is None else f"loss {line['loss']:.3f}"
    seconds = "  ".join(f"{part} {value:.1f} s" for part, value in line["seconds"].items())
    return (
        f"step {line['step']}: reward {line['reward']:.1%}, "
        f"{line['accepted']} of {line['rollouts']} accepted, {line['updates']} updates, {loss}; {seconds}"
    )


def scored(line: dict[str, Any]) -> str:
    """An evaluation's line for people; the error is one standard error."""
    score = f"mean@{line['k']} {line['mean']:.1%} ± {line['stderr']:.1%} on {line['examples']} examples"
    rise = line["rise"]
    since = f", {rise['mean']:+.1%} ± {rise['stderr']:.1%} since the start" if rise else ""
    return f"dev after step {line['step']}: {score}{since}; {line['seconds']:.1f} s"
