"""The command `whale-baselines`: train the weights of an agent.

    whale-baselines run demo/weight_only --out runs/demo
    whale-baselines run weight.toml --explain

Exit codes: 0 done; 2 misuse, with one line that says what; 3 something failed, and the same command goes
on; 130 interrupted.

Not covered: search for harnesses, schedules.
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
    """Train by rejection sampling: draw, play, keep what is verified, fine-tune on it, serve, again."""
    from whale_baselines.weight_command import run_weights

    run_weights(recipe, out, seed=seed, explain=explain, log=log or [])


def main() -> None:
    """The console script."""
    run_app(app, "whale-baselines")


if __name__ == "__main__":
    main()
