"""The command `whale-baselines`: train the weights of an agent, search its harness, or both in turn.

    whale-baselines run demo/weight_only --out runs/demo
    whale-baselines run mine.toml --explain
    whale-baselines resume runs/demo
    whale-baselines lineage runs/search --out lineage.html
    whale-baselines list | plan RECIPE | diff A B | status DIR | compare DIR ... | crossplay DIR

Exit codes: 0 done; 2 misuse, with one line that says what; 3 something failed, and the same command goes
on; 130 interrupted.

Not covered: what the commands do and print (`run_command.py`, `commands.py`).
"""

from pathlib import Path
from typing import Annotated

import typer

from whale_bench.console import run_app

app = typer.Typer(
    name="whale-baselines",
    help="Train agents of the whale suite.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command("run")
def run_command(
    recipe: Annotated[str, typer.Argument(help="A TOML file, or a shipped recipe such as demo/weight_only.")],
    *,
    out: Annotated[Path | None, typer.Option(help="Run folder; where it is there, the run goes on.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed, instead of the recipe's.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs, with seeds that follow one another.")] = 1,
    explain: Annotated[bool, typer.Option("--explain", help="Only say what it would take.")] = False,
    log: Annotated[
        list[str] | None, typer.Option(help="Also log to tensorboard, wandb or trackio; may be repeated.")
    ] = None,
) -> None:
    """Run a recipe: training, search, or both in turn, as its schedule says."""
    from whale_baselines import run_command as command
    from whale_baselines.commands import print_comparison
    from whale_baselines.recipes import load_recipe

    found = load_recipe(recipe)
    if seed is not None:
        found = found.with_seed(seed)
    if explain:
        command.explain(found)
        return
    command.run_seeds(found, out, seeds=seeds, log=log or [])
    if out is not None and seeds > 1:
        print_comparison([out], as_json=False)


@app.command("resume")
def resume_command(
    folder: Annotated[Path, typer.Argument(help="Run folder, or a folder of those of several seeds.")],
    log: Annotated[
        list[str] | None, typer.Option(help="Also log to tensorboard, wandb or trackio; may be repeated.")
    ] = None,
) -> None:
    """Go on with a run from its folder alone."""
    from whale_baselines.run_command import resume

    resume(folder, log=log or [])


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


@app.command("status")
def status_command(
    folder: Annotated[Path, typer.Argument(help="Run folder, or a folder of those of several seeds.")],
    watch: Annotated[bool, typer.Option("--watch", help="Until it is finished.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for each run.")] = False,
) -> None:
    """Cycle, phase, signal, patience left, budget spent, time left."""
    from whale_baselines.commands import print_status

    print_status(folder, watch=watch, as_json=as_json)


@app.command("compare")
def compare_command(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold some.")],
    page: Annotated[Path | None, typer.Option(help="Also write a page with curves and the table.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list.")] = False,
) -> None:
    """Recipes side by side, each over its seeds."""
    from whale_baselines.commands import print_comparison

    if page is not None:
        from whale_baselines.comparison_page import write_comparison

        write_comparison(folders, page)
    print_comparison(folders, as_json=as_json)


@app.command("crossplay")
def crossplay_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    page: Annotated[Path | None, typer.Option(help="The page; None for RUN/crossplay/index.html.")] = None,
) -> None:
    """Play every kept weights with every accepted harness on dev, and write the matrix as a heat map."""
    import asyncio

    from whale_baselines.crossplay import FOLDER, crossplay
    from whale_baselines.crossplay_page import gap_of, write_crossplay

    matrix = asyncio.run(crossplay(folder))
    typer.echo(gap_of(matrix))
    typer.echo(write_crossplay(matrix, folder.resolve().name, page or folder / FOLDER / "index.html"))


def main() -> None:
    """The console script."""
    run_app(app, "whale-baselines")


if __name__ == "__main__":
    main()
