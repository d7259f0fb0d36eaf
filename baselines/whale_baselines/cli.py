"""The command `whale-baselines`: train the weights of an agent.

    whale-baselines run weight.toml --out runs/weight
    whale-baselines run weight.toml --explain

Exit codes: 0 done; 2 misuse, with one line that says what; 3 something failed, and the same command goes
on; 130 interrupted.

Not covered: search for harnesses, schedules.
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
    file: Annotated[Path, typer.Argument(help="TOML file: steps, [agent], [recipe].")],
    out: Annotated[Path | None, typer.Option(help="Run folder; where it is there, the run goes on.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Only say what it would take.")] = False,
) -> None:
    """Train by rejection sampling: draw, play, keep what is verified, fine-tune on it, serve, again."""
    import asyncio

    from whale_baselines.weight_run import read_plan, run
    from whale_envs.errors import UsageError

    plan = read_plan(file)
    if out is None and not explain:
        raise UsageError("a run needs a folder: --out FOLDER")

    def report(kind: str, told: dict[str, Any]) -> None:
        typer.echo(_explained(told) if kind == "explain" else _stepped(told))
        if kind == "explain" and explain:
            raise typer.Exit

    asyncio.run(run(plan, out or Path(), report=report))


def main() -> None:
    """The console script."""
    run_app(app, "whale-baselines")


def _explained(told: dict[str, Any]) -> str:
    width = max(map(len, told))
    return "\n".join(f"{name.replace('_', ' '):<{width}}  {_number(value)}" for name, value in told.items())


def _number(value: Any) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}"


def _stepped(line: dict[str, Any]) -> str:
    loss = "no update" if line["loss"] is None else f"loss {line['loss']:.3f}"
    seconds = "  ".join(f"{part} {value:.1f} s" for part, value in line["seconds"].items())
    return (
        f"step {line['step']}: reward {line['reward']:.1%}, "
        f"{line['accepted']} of {line['rollouts']} accepted, {line['updates']} updates, {loss}; {seconds}"
    )


if __name__ == "__main__":
    main()
