"""The command `whale-leaderboard`: pack runs into a submission, verify one, build and serve the site.

    whale-leaderboard pack runs/test --about about.toml --spent runs/weight --out entry.tar.gz
    whale-leaderboard verify entry.tar.gz --level 2
    whale-leaderboard build leaderboard/submissions --out site

Exit codes: 0 verified, or done; 1 findings that refuse the bundle; 2 misuse, with one line that says what;
3 infrastructure: a tool, a server or the disk failed; 4 this machine cannot verify, for it lacks data or
cannot confine what a bundle runs; 130 interrupted. Neither 3 nor 4 says anything about a bundle.

Not covered: what the pages are, see `site/`.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whale_bench.console import FINDINGS, run_app

if TYPE_CHECKING:
    from whale_leaderboard.report import Report, Say

app = typer.Typer(
    name="whale-leaderboard",
    help="Pack, verify and rank submissions.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_EVERY_SECONDS = 10.0

CANNOT_VERIFY = 4
"""Exit code where this machine lacks what verifying needs."""


@app.command("pack")
def pack_command(
    run: Annotated[Path, typer.Argument(help="Folder of the run on the whole test split, k = 8.")],
    about: Annotated[Path, typer.Option(help="TOML file: agent, authors, licence, hardware, and so on.")],
    out: Annotated[Path, typer.Option(help="Bundle to make: NAME.tar.gz, or a folder.")],
    spent: Annotated[
        list[Path] | None, typer.Option(help="Folder of a run that was spent on the agent; several times.")
    ] = None,
) -> None:
    """Make a submission of runs; everything but --about comes from their folders."""
    from whale_leaderboard.pack import pack, read_about

    facts = read_about(about)
    with _progress() as say:
        manifest = pack(run, out, facts, spent=spent or (), say=say)
    claim = manifest.claim
    typer.echo(
        f"{out}: {manifest.about.agent}, {manifest.domain} {manifest.tier}, mean@8 {claim.score.mean:.4f}, "
        f"{claim.charged:,} charged rollouts "
        f"({claim.paper:,} as the paper counts, {claim.executed:,} executed)"
    )


@app.command("verify")
def verify_command(
    bundle: Annotated[Path, typer.Argument(help="A submission: a folder or a .tar.gz.")],
    level: Annotated[int, typer.Option(help="1 well-formed, 2 replayed, 3 reproduced.")] = 2,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Of level 3: what serves its weights, KIND/NAME.")
    ] = None,
    base_url: Annotated[str | None, typer.Option(help="Server of --model.")] = None,
    seconds: Annotated[float, typer.Option(min=1.0, help="Most time for level 2.")] = 4 * 3600.0,
    out: Annotated[Path | None, typer.Option(help="Write the report there too, as JSON.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Verify a submission; exit code 1 if anything refuses it, 4 if it cannot be verified here."""
    import msgspec

    from whale_bench.view.hidden import escaped
    from whale_envs.errors import UsageError
    from whale_leaderboard.verify import verify

    with _able(), _progress() as say:
        report = verify(bundle, level=level, model=model, base_url=base_url, seconds=seconds, say=say)
    text = escaped(msgspec.json.format(msgspec.json.encode(report), indent=1).decode()) + "\n"
    if out is not None:
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{out}: cannot be written: {error}") from error
    if as_json:
        sys.stdout.write(text)
    else:
        _show(bundle, report)
    if not report.passed:
        raise typer.Exit(FINDINGS)


@app.command("rules")
def rules_command() -> None:
    """Print the rules of the board."""
    typer.echo((files("whale_leaderboard") / "rules.md").read_text(encoding="utf-8"), nl=False)


@app.command("diff")
def diff_command(
    a: Annotated[Path, typer.Argument(help="A submission.")],
    b: Annotated[Path, typer.Argument(help="Another one.")],
) -> None:
    """Show how two submissions differ: agent, harness, spending, score."""
    from whale_leaderboard.difference import differences

    for line in differences(a, b):
        typer.echo(line)


@app.command("build")
def build_command(
    submissions: Annotated[Path, typer.Argument(help="Folder of submissions.")],
    out: Annotated[Path, typer.Option(help="Folder of the site; a site there is replaced.")],
    level: Annotated[
        int, typer.Option(help="Verify at this level, 1 or 2, where no report is beside a bundle.")
    ] = 1,
    url: Annotated[
        str, typer.Option(help="Address that the site will have, for the links of its feeds.")
    ] = "",
) -> None:
    """Build the site from a folder of submissions."""
    from whale_envs.errors import UsageError
    from whale_leaderboard.site.build import build

    if level not in (1, 2):
        raise UsageError(f"a site is built at level 1 or 2, got {level}")
    with _able(), _progress() as say:
        results = build(submissions, out, level=level, url=url, say=say)
    typer.echo(f"{out / 'index.html'}: {len(results['entries'])} entries in {len(results['tracks'])} tracks")


@app.command("serve")
def serve_command(
    site: Annotated[Path, typer.Argument(help="Folder that build made.")],
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 0,
) -> None:
    """Serve a built site to this machine alone, until Ctrl-C."""
    from whale_leaderboard.site.serve import serve

    serve(site, port, typer.echo)


def _show(bundle: Path, report: "Report") -> None:
    for finding in report.findings:
        typer.echo(str(finding))
    if report.score is not None and report.account is not None and report.track is not None:
        track = report.track
        typer.echo(
            f"mean@8 {report.score.mean:.4f} (95% {report.score.low:.4f} to {report.score.high:.4f}); track "
            f"{track.domain}/{track.tier}, size {track.size}, budget {track.budget}; "
            f"selected: {report.selection}"
        )
        account = report.account
        typer.echo(
            f"rollouts: {account.charged:,} charged, {account.paper:,} as the paper counts, "
            f"{account.executed:,} executed, {account.test:,} test"
        )
    if report.replay is not None:
        counts = {n: getattr(report.replay, n) for n in report.replay.__struct_fields__}
        typer.echo("replay: " + ", ".join(f"{count} {name}" for name, count in counts.items() if count))
    typer.echo(f"{bundle}: {report.badge} (level {report.level} of {report.asked})")


@contextmanager
def _able() -> "Iterator[None]":
    """Ends the command where this machine cannot verify, with an exit code of its own."""
    from whale_leaderboard.report import CannotVerifyError

    try:
        yield
    except CannotVerifyError as error:
        typer.echo(f"whale-leaderboard: cannot verify here: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(CANNOT_VERIFY) from error


@contextmanager
def _progress() -> "Iterator[Say]":
    """Tells on standard error how far it is: a line that changes, or now and then one more."""
    from rich.console import Console

    console = Console(stderr=True)
    last = time.monotonic()
    with console.status("reading", spinner="line") as status:

        def say(what: str, count: int) -> None:
            nonlocal last
            status.update(f"{what}: {count:,}")
            if not console.is_terminal and time.monotonic() - last > _EVERY_SECONDS:
                last = time.monotonic()
                console.print(f"{what}: {count:,}", markup=False)

        yield say


def main() -> None:
    """The console script."""
    run_app(app, "whale-leaderboard")


if __name__ == "__main__":
    main()
