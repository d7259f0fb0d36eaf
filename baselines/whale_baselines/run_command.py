"""What `whale-baselines run` and `resume` do: run a recipe, show progress, print moves and scores.

    run_seeds(load_recipe("demo/weight_only"), Path("runs/demo"), seeds=1)

Progress goes to standard error, results to standard output: one line a step, one an iteration, one an
evaluation. A recipe says whether models play or the simulated learner does.

Not covered: parsing options, exit codes.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from whale_baselines.commands import LABEL, print_plan
from whale_baselines.history import FILE, History, Made, Point
from whale_baselines.plan import plan_of
from whale_baselines.readiness import check_ready
from whale_baselines.recipes import RunRecipe
from whale_baselines.run_recipe import OpenOperators, recipe_in, run_recipe, seed_folders
from whale_baselines.tracking import Trackers
from whale_envs.errors import UsageError


def run_seeds(recipe: RunRecipe, out: Path | None, *, seeds: int = 1, log: Sequence[str] = ()) -> None:
    """Runs a recipe, or goes on with it, once for each of so many seeds.

    Args:
        recipe: what to run, with the first seed.
        out: the run's folder; with several seeds one that holds `seed-0`, `seed-1`, …
        seeds: that follow one another.
        log: names of loggers, see `tracking.py`.

    Raises:
        UsageError, InfrastructureError: see `run_recipe`.
    """
    if out is None:
        raise UsageError("a run needs a folder: --out FOLDER")
    _check_place(out, seeds)
    for number in range(seeds):
        seeded = recipe.with_seed(recipe.recipe.seed + number)
        folder = out / f"seed-{seeded.recipe.seed}" if seeds > 1 else out
        _run(seeded, folder, operators_of(seeded), log)


def _check_place(out: Path, seeds: int) -> None:
    """Refuses a run inside a run's folder, and one beside the folders of seeds."""
    if seeds > 1 and (out / "run.toml").exists():
        raise UsageError(f"{out} holds one run: {seeds} seeds need another folder, with one in it for each")
    if seeds == 1 and seed_folders(out) != [out]:
        names = ", ".join(folder.name for folder in seed_folders(out))
        raise UsageError(f"{out} holds the runs {names}: give --seeds, one of those folders, or another one")


def resume(place: Path, *, log: Sequence[str] = ()) -> None:
    """Goes on with the run in a folder, or with each of those that it holds.

    Raises:
        UsageError: there is none.
    """
    for folder in seed_folders(place):
        recipe = recipe_in(folder)
        _run(recipe, folder, operators_of(recipe), log)


def explain(recipe: RunRecipe) -> None:
    """Prints the plan of a recipe and what training takes; makes nothing, though it loads the model."""
    print_plan(plan_of(recipe), as_json=False)

    def explained(told: Mapping[str, Any]) -> bool:
        _out().print(explanation(told), end="")
        return False

    asyncio.run(run_recipe(recipe, None, operators=operators_of(recipe), explained=explained))


def operators_of(recipe: RunRecipe) -> OpenOperators:
    """Who makes the moves of a recipe."""
    if recipe.simulated:
        from whale_baselines.simulated.opening import simulated_operators

        return simulated_operators
    from whale_baselines.real_operators import real_operators

    return real_operators


def _run(recipe: RunRecipe, folder: Path, operators: OpenOperators, log: Sequence[str]) -> None:
    check_ready(recipe)
    finished = (folder / "summary.json").exists()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        Trackers(log, folder) as trackers,
        Progress(*columns, console=Console(stderr=True), transient=True) as bar,
    ):
        shown = bar.add_task("", total=None, visible=False)
        report = _reporter(recipe, folder, trackers, lambda: bar.update(shown, visible=False))

        def progress(what: str, done: int, of: int) -> None:
            bar.update(shown, description=what, completed=done, total=of, visible=done < of)

        def explained(told: Mapping[str, Any]) -> bool:
            if told:
                _out().print(explanation(told), end="")
            return True

        running = run_recipe(
            recipe, folder, operators=operators, report=report, progress=progress, explained=explained
        )
        asyncio.run(running)
    if finished:
        _out().print(f"{folder}: was finished, nothing was left to do")


def _reporter(
    recipe: RunRecipe, folder: Path, trackers: Trackers, pause: Callable[[], None]
) -> Callable[[Made | Point], None]:
    """Prints what is written down, and hands its numbers on."""
    out, name = _out(), f"{recipe.name} seed {recipe.recipe.seed}{LABEL if recipe.simulated else ''}: "
    moves = len(History(folder, readonly=True).moves) if (folder / FILE).exists() else 0

    def report(record: Made | Point) -> None:
        nonlocal moves
        moves += isinstance(record, Made)
        pause()
        if not recipe.simulated or isinstance(record, Point):  # simulated moves are too many for lines
            out.print(name + line_of(record))
        trackers.log(*_numbers(record, moves))

    return report


def _numbers(record: Made | Point, moves: int) -> tuple[str, dict[str, Any]]:
    """(kind, what there is to log) of a record; "step" counts the moves of the run."""
    if isinstance(record, Point):
        score = msgspec.structs.asdict(record.score)
        return record.split, {**record.metrics, **score, "step": record.moves, "charged": record.charged}
    kind = "step" if record.kind == "train" else "iteration"
    told = {"signal": record.signal, "rollouts": record.rollouts, "cycle": record.cycle}
    return kind, {**record.metrics, **told, "step": moves}


def line_of(record: Made | Point) -> str:
    """A record's line for people; the error is one standard error."""
    if isinstance(record, Point):
        spent = sum(count for purpose, count in record.charged.items() if purpose != "test")
        score = f"{record.score.mean:.1%} ± {record.score.stderr:.1%}"
        rise = record.rise
        since = f", {rise.mean:+.1%} ± {rise.stderr:.1%} since the start" if rise else ""
        return f"{record.moves} moves, {spent:,} rollouts, {record.split} {score}{since}"
    return _stepped(record) if record.kind == "train" else _iterated(record)


def _stepped(made: Made) -> str:
    told = made.metrics
    if told["updates"]:
        trained = (
            f"{told['trained_tokens']:,} tokens, {told['updates']} updates, loss {told['loss']:.3f}, "
            f"gradient norm {told['grad_norm']:.2f}, {told['changed_bf16']:.2%} of bfloat16 weights changed, "
            f"padding {told['padding']:.1%}"
        )
    else:
        trained = "no update"
    skipped = f", {told['skipped']} updates skipped" if told["skipped"] else ""
    seconds = "  ".join(f"{part} {value:.1f} s" for part, value in told["seconds"].items())
    return (
        f"step {told['step']} (cycle {made.cycle}): reward {made.signal:.1%}, of the last steps "
        f"{told['reward_window']:.1%}; {told['accepted']} of {made.rollouts} accepted, of "
        f"{told['accepted_examples']} examples; {trained}{skipped}; {seconds}"
    )


def _iterated(made: Made) -> str:
    told = made.metrics
    found = ", ".join(f"{name} {status}" for name, status in told["candidates"].items()) or "no candidates"
    problem = f"; {told['problem']}" if told["problem"] else ""
    return (
        f"iteration {made.number} (cycle {made.cycle}): {told['accepted']} {made.signal:.1%} "
        f"[{told['success_low']:.1%}, {told['success_high']:.1%}], {told['turns']:.2f} turns; {found}; "
        f"{made.rollouts} rollouts, {made.seconds:.1f} s{problem}"
    )


def explanation(told: Mapping[str, Any]) -> str:
    """A table of what training is going to take; empty where there is none."""
    width = max(map(len, told), default=0)
    return "".join(f"{name.replace('_', ' '):<{width}}  {_number(value)}\n" for name, value in told.items())


def _number(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"


def _out() -> Console:
    return Console(soft_wrap=True, highlight=False, markup=False)
