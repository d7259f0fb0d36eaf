"""What the commands about recipes print: list, plan, diff, status, compare.

    print_plan(plan_of(load_recipe("paper/search_qa/whale")), as_json=False)

`cli.py` reads the options and calls these.

Not covered: everything that is printed here is computed elsewhere.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.live import Live
from rich.table import Column, Table

from whale_baselines.comparing import Row, compare_runs, intervals_of, run_folders
from whale_baselines.plan import Extent, Plan
from whale_baselines.readiness import check_ready
from whale_baselines.recipe_files import recipe_names
from whale_baselines.recipes import RunRecipe, differences, load_recipe
from whale_baselines.run_recipe import seed_folders
from whale_baselines.status import Status, status_of
from whale_bench.statistics import Score
from whale_envs.errors import UsageError

LABEL = " (simulated)"
"""Beside everything that no model did."""


def print_recipes() -> None:
    """One a line, with its schedule and model."""
    table = Table(Column("recipe", no_wrap=True), "schedule", "model", box=None)
    for name in recipe_names():
        recipe = load_recipe(name)
        table.add_row(name, _schedule(recipe), str(recipe.agent.get("model", "none: simulated")))
    Console().print(table)


def print_differences(a: RunRecipe, b: RunRecipe) -> None:
    found = differences(a, b)
    if not found:
        Console().print(f"{a.name} and {b.name} do not differ", markup=False, highlight=False)
        return
    table = Table("", a.name, b.name)
    for key, (left, right) in found.items():
        table.add_row(key, *("not set" if side is None else str(side) for side in (left, right)))
    Console().print(table)


def print_plan(plan: Plan, *, as_json: bool) -> None:
    """The plan as tables, or as one JSON object."""
    if as_json:
        more = {"least": _totals(plan, plan.least), "most": _totals(plan, plan.most)}
        _write_json(msgspec.to_builtins(plan) | {"totals": more})
        return
    console = Console()
    title = f"{plan.recipe}{LABEL if plan.simulated else ''}: nothing has run"
    console.print(_plan_table(plan, title))
    console.print(_phases(plan), markup=False, highlight=False)
    if plan.simulated:
        return
    if plan.device_seconds is None:
        console.print(
            f"{plan.device}-hours are not known: nobody has published what a rollout takes here; "
            "give --device-seconds",
            markup=False,
        )
    if plan.usd_per_session is None and plan.most.sessions:
        console.print(
            f"the proposer's money is not known, for {_range(plan, lambda e: e.sessions)} sessions; "
            "give --usd-per-session",
            markup=False,
        )


def print_readiness(recipe: RunRecipe) -> None:
    """Whether this machine could run it, in a sentence."""
    try:
        check_ready(recipe)
    except UsageError as error:
        Console(soft_wrap=True).print(f"Not here: {error}", markup=False, highlight=False)


def print_status(place: Path, *, watch: bool, as_json: bool) -> None:
    """Where a run stands, or each of those of several seeds; with `watch`, until it is finished."""
    for folder in seed_folders(place):
        _print_status(folder, watch=watch, as_json=as_json)


def _print_status(folder: Path, *, watch: bool, as_json: bool) -> None:
    status = status_of(folder)
    if as_json:
        _write_json(status)
        return
    if not watch:
        Console().print(_status_table(status))
        return
    with Live(_status_table(status)) as live:
        while not status.finished:
            time.sleep(1.0)
            status = status_of(folder)
            live.update(_status_table(status))


def print_comparison(places: Sequence[Path], *, as_json: bool) -> None:
    """Recipes side by side, each over its seeds."""
    rows = compare_runs(run_folders(places))
    if as_json:
        _write_json(rows)
        return
    table = Table(
        Column("recipe", overflow="fold", min_width=20),
        *(Column(name, no_wrap=True) for name in ("dev", "selected on dev", "best on test")),
        Column("rollouts\nE, I", no_wrap=True),
        box=None,
        padding=(0, 1, 0, 0),
    )
    for row in rows:
        lengths = (row.median_steps, row.median_iterations)
        phases = ", ".join("none" if median is None else f"{median:g}" for median in lengths)
        table.add_row(
            f"{row.recipe}, {_seeds(row)}{LABEL if row.simulated else ''}",
            *(_score(score, "\n") for score in (row.dev, row.selected_on_dev, row.best_on_test)),
            f"{row.budget:,.0f}\n{phases}",
        )
    console = Console()
    console.print(table)
    console.print(_notes(rows), markup=False, highlight=False)


def _notes(rows: Sequence[Row]) -> str:
    return (
        f"Scores of the agent that dev selects: on dev, then on test. 95% intervals: {intervals_of(rows)}. "
        "'Best on test' is chosen on test, as the paper's is. E, I: median lengths of phases, in steps and "
        "iterations."
    )


def _seeds(row: Row) -> str:
    return f"seed {row.seeds[0]}" if len(row.seeds) == 1 else f"{len(row.seeds)} seeds"


def _plan_table(plan: Plan, title: str) -> Table:
    table = Table(title=title)
    for column in ("", "paper's counting", "executed"):
        table.add_column(column, justify="right" if column else "left")

    def both(label: str, paper: Callable[[Extent], Any], executed: Callable[[Extent], Any]) -> None:
        table.add_row(label, _range(plan, paper), _range(plan, executed))

    def same(label: str, of: Callable[[Extent], Any]) -> None:
        both(label, of, of)

    same("cycles", lambda e: e.cycles)
    same("steps", lambda e: e.steps)
    same("search iterations", lambda e: e.iterations)
    both("  of them with the proposer", lambda e: e.sessions, lambda e: e.sessions)
    table.add_row("rollouts per step", f"{plan.per_step:,}", f"{plan.per_step:,}")
    table.add_row("rollouts per iteration", f"{plan.per_iteration:,}", f"{plan.per_iteration:,}")
    table.add_row("  of the incoming harness", f"{plan.per_iteration:,}", f"{plan.per_incoming:,}")
    same("rollouts: weight", lambda e: e.weight)
    both("rollouts: harness", lambda e: e.harness_paper, lambda e: e.harness)
    both("  both, the method's budget", lambda e: e.budget_paper, lambda e: e.budget)
    both("rollouts: smoke, at most", lambda _e: "not counted", lambda e: e.smoke)
    both("rollouts: dev", lambda _e: "not counted", lambda e: e.dev)
    both("rollouts: test", lambda _e: "not counted", lambda e: e.test)
    if plan.simulated:
        return table
    both("sampled tokens, at most", lambda _e: "", plan.tokens)
    both(f"{plan.device}-hours", lambda _e: "", plan.hours)
    both("proposer, US dollars", lambda _e: "", plan.usd)
    return table


def _phases(plan: Plan) -> str:
    if plan.least.phases != plan.most.phases:
        return "Phases end by their own signals: from the least search to the most."
    by_kind = {kind: [p.moves for p in plan.most.phases if p.kind == kind] for kind in ("train", "search")}
    parts = [
        f"{len(lengths)} {'weight' if kind == 'train' else 'search'} phases of {_lengths(lengths)}"
        for kind, lengths in by_kind.items()
        if lengths
    ]
    return "; ".join(parts) + "."


def _lengths(lengths: Sequence[int]) -> str:
    return f"{lengths[0]}" if len(set(lengths)) == 1 else f"{lengths[0]}, the last of {lengths[-1]}"


def _range(plan: Plan, of: Callable[[Extent], Any]) -> str:
    least, most = of(plan.least), of(plan.most)
    return _value(most) if least == most else f"{_value(min(least, most))} to {_value(max(least, most))}"


def _totals(plan: Plan, extent: Extent) -> dict[str, Any]:
    return {
        "budget_paper": extent.budget_paper,
        "budget": extent.budget,
        "rollouts": extent.rollouts,
        "tokens": plan.tokens(extent),
        "hours": plan.hours(extent),
        "usd": plan.usd(extent),
    }


def _status_table(status: Status) -> Table:
    table = Table(
        title=f"{status.recipe}{LABEL if status.simulated else ''}, {status.folder}", show_header=False
    )
    for label, value in _status_rows(status):
        table.add_row(label, value)
    return table


def _status_rows(status: Status) -> Iterator[tuple[str, str]]:
    phase = {"train": "weight", "search": "search", None: "not begun"}[status.phase]
    yield "state", "finished" if status.finished else "running, or to be gone on with (`resume`)"
    if not status.finished:
        yield "last written", f"{status.quiet_seconds:,.0f} s ago"
    yield "cycle", str(status.cycle)
    yield "phase", f"{phase}, {status.moves_in_phase} moves"
    yield "signal", "none" if status.signal is None else f"{status.signal:.1%}, best {status.best_signal:.1%}"
    if not status.finished:
        left = status.patience_left
        yield "ends without progress in", "the total decides" if left is None else f"{left} moves"
    yield "steps", f"{status.steps:,} of {status.total_steps:,}"
    yield "search iterations", f"{status.iterations:,}"
    for purpose, count in status.charged.items():
        yield f"rollouts: {purpose}", f"{count:,}"
    yield "best on dev", "none" if status.dev is None else f"{status.dev:.1%}"
    yield "seconds", f"{status.seconds:,.0f}"
    yield "seconds left, at most", "unknown" if status.seconds_left is None else f"{status.seconds_left:,.0f}"


def _schedule(recipe: RunRecipe) -> str:
    schedule = recipe.schedule
    if schedule.kind == "fixed":
        return f"E {schedule.epochs:g}, I {schedule.iterations}" + (
            ", prompts only" if recipe.search.prompt_only else ""
        )
    return schedule.kind.replace("_", " ")


def _score(score: Score | None, then: str = " ") -> str:
    return "none" if score is None else f"{score.mean:.1%}{then}[{score.low:.1%}, {score.high:.1%}]"


def _value(value: Any) -> str:
    if value is None:
        return "not known"
    if isinstance(value, float):
        return f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _write_json(value: Any) -> None:
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
