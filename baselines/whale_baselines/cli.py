"""The command `whale-baselines`: train the weights of an agent, or search its harness.

    whale-baselines run demo/weight_only --out runs/demo
    whale-baselines run weight.toml --explain
    whale-baselines lineage runs/search --out lineage.html
    whale-baselines list | plan RECIPE | diff A B | simulate RECIPE --out DIR | status DIR | compare DIR ...

Exit codes: 0 done; 2 misuse, with one line that says what; 3 something failed, and the same command goes
on; 130 interrupted.

Not covered: what the commands print (`commands.py`).
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from whale_bench.console import run_app

app = typer.Typer(
    name="whale-baselines",
    help="Train agents of the whale suite.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _group() -> None:
    """Makes `run` a command with a name, where others are to follow."""


@app.command("run")
def run_command(
    recipe: Annotated[str, typer.Argument(help="A TOML file, or a shipped recipe such as demo/weight_only.")],
    out: Annotated[Path | None, typer.Option(help="Run folder; where it is there, the run goes on.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed, instead of the recipe's.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Only say what it would take.")] = False,
    log: Annotated[
        list[str] | None, typer.Option(help="Also log to tensorboard, wandb or trackio; may be repeated.")
    ] = None,
) -> None:
    """Run a recipe: with [recipe], training of the weights; with [search], of the harness."""
    from whale_baselines import search_run
    from whale_baselines.weight_command import run_weights

    if not search_run.is_search(Path(recipe)):
        run_weights(recipe, out, seed=seed, explain=explain, log=log or [])
        return
    import asyncio

    from whale_envs.errors import UsageError

    if out is None:
        raise UsageError("a run needs a folder: --out FOLDER")
    found = asyncio.run(
        search_run.run(
            search_run.read_plan(Path(recipe)), out, report=lambda _kind, told: typer.echo(_iterated(told))
        )
    )
    typer.echo(_evaluated(found))


@app.command("lineage")
def lineage_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of a search.")],
    out: Annotated[Path | None, typer.Option(help="The page; None for RUN/lineage.html.")] = None,
) -> None:
    """Write one page with the tree of candidates, their scores, and what each of them changed."""
    from whale_baselines.search.lineage import write_lineage

    typer.echo(write_lineage(folder, out or folder / "lineage.html"))


@app.command("list")
def list_command() -> None:
    """The recipes that come with this package."""
    from whale_baselines.commands import print_recipes

    print_recipes()


@app.command("plan")
def plan_command(
    recipe: Annotated[str, typer.Argument(help="Name of a recipe, or a TOML file.")],
    device_seconds: Annotated[float | None, typer.Option(help="For each rollout, all in.")] = None,
    usd_per_session: Annotated[float | None, typer.Option(help="Of the proposer.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Cycles, steps, rollouts, tokens, hours and money of a recipe, before anything is spent."""
    from whale_baselines.commands import print_plan, print_readiness
    from whale_baselines.plan import plan_of, with_rates
    from whale_baselines.recipes import load_recipe

    found = load_recipe(recipe)
    rated = with_rates(plan_of(found), device_seconds=device_seconds, usd_per_session=usd_per_session)
    print_plan(rated, as_json=as_json)
    if not as_json:
        print_readiness(found)


@app.command("diff")
def diff_command(
    a: Annotated[str, typer.Argument(help="Name of a recipe, or a TOML file.")],
    b: Annotated[str, typer.Argument(help="Another one.")],
) -> None:
    """All that differs between two recipes."""
    from whale_baselines.commands import print_differences
    from whale_baselines.recipes import load_recipe

    print_differences(load_recipe(a), load_recipe(b))


@app.command("simulate")
def simulate_command(
    recipe: Annotated[str, typer.Argument(help="A simulated recipe, such as simulated/whale.")],
    out: Annotated[Path, typer.Option(help="Run folder; where it is there, the run goes on.")],
    seeds: Annotated[int, typer.Option(min=1, help="Runs, with seeds that follow one another.")] = 1,
) -> None:
    """Run a schedule with the simulated learner: no model, and no entry of any ranking."""
    from whale_baselines.commands import simulate, told
    from whale_baselines.recipes import load_recipe

    simulate(load_recipe(recipe), out, seeds, told)


@app.command("status")
def status_command(
    folder: Annotated[Path, typer.Argument(help="Run folder.")],
    watch: Annotated[bool, typer.Option("--watch", help="Until it is finished.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Cycle, phase, signal, patience left, budget spent, time left."""
    from whale_baselines.commands import print_status

    print_status(folder, watch=watch, as_json=as_json)


@app.command("compare")
def compare_command(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders of those of several seeds.")],
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list.")] = False,
) -> None:
    """Recipes side by side, each over its seeds."""
    from whale_baselines.commands import print_comparison

    print_comparison(folders, as_json=as_json)


def main() -> None:
    """The console script."""
    run_app(app, "whale-baselines")


def _iterated(line: dict[str, Any]) -> str:
    found = ", ".join(f"{name} {status}" for name, status in line["candidates"].items()) or "no candidates"
    problem = f"; {line['problem']}" if line["problem"] else ""
    return (
        f"phase {line['phase']}, iteration {line['iteration']}: {line['accepted']} "
        f"{line['success']:.1%} [{line['success_low']:.1%}, {line['success_high']:.1%}], "
        f"{line['turns']:.2f} turns; {found}; {line['rollouts']} rollouts, {line['seconds']:.1f} s{problem}"
    )


def _evaluated(found: Any) -> str:
    change = found.difference
    return (
        f"dev mean@{found.k}: {found.before.mean:.1%} before, {found.after.mean:.1%} after, "
        f"{change.mean:+.1%} [{change.low:+.1%}, {change.high:+.1%}]"
    )


if __name__ == "__main__":
    main()
