"""The command `whale-baselines`: train the weights of an agent, or search its harness.

    whale-baselines run weight.toml --out runs/weight
    whale-baselines run weight.toml --explain
    whale-baselines lineage runs/search --out lineage.html

Exit codes: 0 done; 2 misuse, with one line that says what; 3 something failed, and the same command goes
on; 130 interrupted.

Not covered: schedules.
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
    """Run what the file asks for: with [recipe], training of the weights; with [search], of the harness."""
    import asyncio

    from whale_baselines import search_run, weight_run
    from whale_envs.errors import UsageError

    def report(kind: str, told: dict[str, Any]) -> None:
        say = {"explain": _explained, "step": _stepped, "iteration": _iterated}
        typer.echo(say[kind](told))
        if kind == "explain" and explain:
            raise typer.Exit

    if out is None and not explain:
        raise UsageError("a run needs a folder: --out FOLDER")
    folder = out or Path()
    if search_run.is_search(file):
        found = asyncio.run(search_run.run(search_run.read_plan(file), folder, report=report))
        typer.echo(_evaluated(found))
    else:
        asyncio.run(weight_run.run(weight_run.read_plan(file), folder, report=report))


@app.command("lineage")
def lineage_command(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder of a search.")],
    out: Annotated[Path | None, typer.Option(help="The page; None for RUN/lineage.html.")] = None,
) -> None:
    """Write one page with the tree of candidates, their scores, and what each of them changed."""
    from whale_baselines.search.lineage import write_lineage

    typer.echo(write_lineage(folder, out or folder / "lineage.html"))


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
