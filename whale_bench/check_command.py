"""What `whale-bench check-harness` does: a line, or a row of JSON, for each finding.

    whale-bench check-harness mine.py --domain chess_puzzles --json
    whale-bench check-harness mine.py --prompt-only-of parent.py

Exit codes: 0 clean, 1 findings, 2 misuse.

Not covered: what is checked, see `harness/check.py`.
"""

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from whale_bench.console import FINDINGS

if TYPE_CHECKING:
    from whale_bench.harness.findings import Finding


def check_harness_command(
    file: Annotated[Path, typer.Argument(help="A harness file.")],
    domain: Annotated[list[str] | None, typer.Option("--domain", help="Only this environment.")] = None,
    prompt_only_of: Annotated[
        str | None,
        typer.Option(help="A parent file, or an environment for its h0: only the two prompts may differ."),
    ] = None,
    unsafe_harness: Annotated[
        bool, typer.Option("--unsafe-harness", help="Run the file even where it cannot be confined.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> None:
    """Check a harness file against the contract; prints a line for each finding."""
    from whale_bench.harness.check import check_harness
    from whale_envs import UsageError, get_domain

    if not file.is_file():
        raise UsageError(f"harness file {str(file)!r} does not exist")
    domains = tuple(get_domain(name).name for name in domain) if domain else None
    parent = None if prompt_only_of is None else _parent(prompt_only_of)
    try:
        checked = check_harness(file, domains, prompt_only_of=parent, unsafe=unsafe_harness)
        findings = asyncio.run(checked)
    except ValueError as error:
        if isinstance(error, UsageError) or parent is None:
            raise
        raise UsageError(f"--prompt-only-of {prompt_only_of}: {error}") from error
    if as_json:
        typer.echo(json.dumps([_row(finding) for finding in findings], indent=2, ensure_ascii=False))
    for finding in [] if as_json else findings:
        typer.echo(f"{finding.message}" + (f"  [{finding.domain}]" if finding.domain else ""))
    if findings:
        raise typer.Exit(FINDINGS)
    if not as_json:
        typer.echo(f"{file}: holds the contract")


def _parent(name: str) -> str:
    """The source of a parent."""
    from whale_bench.harness.host import read_source, shipped_harnesses
    from whale_envs import UsageError

    shipped = shipped_harnesses()
    if name in shipped:
        return shipped[name]
    if not Path(name).is_file():
        raise UsageError(f"--prompt-only-of {name!r} is no file and none of {', '.join(sorted(shipped))}")
    return read_source(Path(name))


def _row(finding: "Finding") -> dict[str, object]:
    return {
        "file": finding.file,
        "line": finding.line,
        "domain": finding.domain,
        "message": finding.message,
    }
