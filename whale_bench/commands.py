"""What the commands of `cli.py` do once their options are read: run, show progress, print tables.

Everything printed for people goes through rich; `--json` prints the same facts for machines. Progress
goes to standard error, results to standard output.

Not covered: parsing options, exit codes.
"""

import asyncio
import re
import shlex
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from whale_bench.evaluation import EvalPlan, Report, evaluate
from whale_bench.harness.host import shipped_harnesses
from whale_bench.models.registry import KINDS
from whale_bench.opening import check_model
from whale_bench.scoring import Group, Summary
from whale_bench.statistics import Score
from whale_envs import DOMAINS, SPLITS
from whale_envs.core import PROFILES
from whale_envs.errors import UsageError

_MISSING_SHOWN = 8


class Run(NamedTuple):
    """A plan and its folder; without a plan, a folder to resume."""

    plan: EvalPlan | None
    folder: Path
    base_url: str | tuple[str, ...] | None = None
    """Where the server of a resumed run is now, or several are; None for where they were."""
    retriever_url: str | None = None
    judge_url: str | None = None
    python_url: str | None = None
    bootstrap: bool = False
    """Show intervals by resampling examples."""
    automatic: bool = False
    """The folder's name is ours: where it is taken, another one is."""


def json_object(option: str, text: str | None) -> dict[str, Any] | None:
    """The JSON object that an option was given; None where it was not.

    Raises:
        UsageError: it is none.
    """
    try:
        return None if text is None else msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise UsageError(f"{option} takes a JSON object, got {text!r}: {error}") from error


def place(plans: Sequence[EvalPlan], out: Path | None) -> list[Run]:
    """Gives each plan a folder: `out` itself for one plan, else a folder in it for each model."""
    if out is not None and len(plans) == 1:
        return [Run(plans[0], out)]
    parent, stamp = out or Path("runs"), time.strftime("%Y%m%d-%H%M%S")
    runs: list[Run] = []
    for number, plan in enumerate(plans):
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", plan.model).strip("-")[-40:]
        name = f"{number}-{slug}" if out is not None else f"{stamp}-{plan.domain}-{slug}"
        runs.append(Run(plan, parent / name, automatic=out is None))
    return runs


@contextmanager
def _claimed(run: Run) -> Iterator[Run]:
    """The run in a folder that no other process has; one in which nothing ran goes again."""
    folder, number = run.folder, 1
    while run.automatic:
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            number += 1
            folder = run.folder.with_name(f"{run.folder.name}-{number}")
        except OSError as error:
            raise UsageError(f"{folder}: cannot be made into a run folder: {error}") from error
    try:
        yield run._replace(folder=folder)
    finally:
        if run.automatic:
            with suppress(OSError):  # most often because there is something in it
                folder.rmdir()
                folder.parent.rmdir()


def evaluate_all(runs: list[Run], summaries: list[Summary], *, quiet: bool) -> None:
    """Evaluates one run after another, each with a progress bar unless `quiet`.

    Fills `summaries`, and puts the folders that were really made into `runs`.

    Raises:
        UsageError: a model's name is wrong; found before anything runs.
    """
    for plan in (run.plan for run in runs if run.plan):
        check_model(plan)
    console = Console(stderr=True, soft_wrap=True)
    bars = Console(stderr=True, quiet=True) if quiet else console
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: console.print(
            f"warning: {message}", style="yellow", markup=False
        )
        for number, planned in enumerate(runs):
            with _claimed(planned) as run:
                runs[number] = run
                try:
                    with _progress(bars, run) as report:
                        summaries.append(asyncio.run(_until_signal(run, report)))
                except KeyboardInterrupt:
                    if (run.folder / "run.toml").is_file():
                        console.print(f"interrupted; go on with: {_resume(run)}", markup=False)
                    raise


def _resume(run: Run) -> str:
    """The command that goes on with a run."""
    return f"whale-bench eval --resume {shlex.quote(str(run.folder))}"


async def _until_signal(run: Run, report: Report) -> Summary:
    """Evaluates; SIGTERM ends it as Ctrl-C does."""
    task = asyncio.current_task()
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        assert task is not None
        task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    try:
        return await evaluate(
            run.plan,
            run.folder,
            report=report,
            base_url=run.base_url,
            retriever_url=run.retriever_url,
            judge_url=run.judge_url,
            python_url=run.python_url,
            bootstrap=run.bootstrap,
        )
    except asyncio.CancelledError:
        if stopped:
            raise KeyboardInterrupt from None
        raise


@contextmanager
def _progress(console: Console, run: Run) -> Iterator[Report]:
    """A bar with rollouts/s, running mean and time left; plain lines where there is no terminal."""
    began, first = time.monotonic(), -1
    label = run.plan.model if run.plan else f"resuming {run.folder}"
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TextColumn("{task.fields[mean]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=None, rate="", mean="")
        last_line = began

        def report(finished: int, total: int, reward: float | None) -> None:
            nonlocal first, last_line
            now = time.monotonic()
            first = finished if first < 0 else first
            rate = f"{(finished - first) / max(now - began, 1e-9):.1f} rollouts/s"
            mean = "" if reward is None else f"mean {reward:.3f}"
            bar.update(task, completed=finished, total=total, rate=rate, mean=mean)
            if not console.is_terminal and (now - last_line > 10 or finished == total):
                last_line = now
                console.print(f"{label}: {finished}/{total}  {rate}  {mean}", markup=False)

        yield report


def show(summaries: Sequence[Summary], runs: Sequence[Run], *, as_json: bool) -> None:
    """Prints the summaries, side by side."""
    if as_json:
        rows = [
            msgspec.to_builtins(s) | {"folder": str(r.folder)} for s, r in zip(summaries, runs, strict=True)
        ]
        sys.stdout.write(msgspec.json.encode(rows).decode() + "\n")
        return
    console = Console()
    lines = Console(soft_wrap=True, highlight=False)
    first = summaries[0]
    table = Table(title=f"{first.domain}, {first.tier}/{first.split}, {first.examples} examples × {first.k}")
    table.add_column("")
    for summary in summaries:
        table.add_column(summary.model + (" (fixture)" if summary.fixture else ""), justify="right")
    for label, cells in _rows(summaries):
        table.add_row(label, *cells)
    console.print(table)
    for summary, run in zip(summaries, runs, strict=True):
        lines.print(f"{summary.model}: {run.folder}", markup=False)
        for warning in summary.warnings:
            lines.print(f"  warning: {warning}", markup=False, style="yellow")
        for problem, count in summary.problems.items():
            lines.print(f"  {count} rollouts failed: {problem}", markup=False, style="red")
        if not summary.complete:
            shown = ", ".join(summary.missing[:_MISSING_SHOWN])
            more = len(summary.missing) - _MISSING_SHOWN
            lines.print(
                f"  incomplete: {len(summary.missing)} rollouts are missing and count for nothing: {shown}"
                + (f" and {more} more (summary.json)" if more > 0 else "")
                + f"\n  go on with: {_resume(run)}",
                markup=False,
                style="red",
            )


def _rows(summaries: Sequence[Summary]) -> Iterator[tuple[str, list[str]]]:
    first = summaries[0]
    judged = f", judged by {first.judge}" if first.judge else ""
    yield f"mean@{first.k}, {first.profile}{judged}", [_score(s) for s in summaries]
    yield (
        f"  95% interval{'' if first.interval == 't' else f', {first.interval}'}",
        [_interval(s.score) for s in summaries],
    )
    yield f"mean@{first.k}, {first.other_profile}", [_other_score(s) for s in summaries]
    yield "  diverged rollouts", [str(s.diverged) for s in summaries]
    for at in first.pass_at_k or {str(first.k): 0.0}:
        yield f"pass@{at}", [f"{s.pass_at_k[at]:.3f}" if at in s.pass_at_k else "–" for s in summaries]
    for name in DOMAINS[first.domain].shown_by:
        for value in dict.fromkeys(v for s in summaries for v in s.groups.get(name, {})):
            found = [s.groups.get(name, {}).get(value) for s in summaries]
            examples = max(group.examples for group in found if group)
            yield f"  {name} {value}, {examples} examples", [_group(group) for group in found]
    for name in dict.fromkeys(name for s in summaries for name in s.metrics):
        yield name, [f"{s.metrics[name]:.2f}" if name in s.metrics else "–" for s in summaries]
    for reason in dict.fromkeys(reason for s in summaries for reason in s.stop_conditions):
        yield f"ended: {reason}", [str(s.stop_conditions.get(reason, 0)) for s in summaries]
    yield "truncated", [f"{s.truncated:.1%}" for s in summaries]
    if not all(s.metered for s in summaries):
        yield "metered", ["tokens" if s.metered else "rollouts only" for s in summaries]
    yield "prompt tokens", [_count(s.prompt_tokens) for s in summaries]
    yield "sampled tokens", [_count(s.sampled_tokens) for s in summaries]
    yield "finished rollouts", [str(s.rollouts) for s in summaries]
    yield "missing rollouts", [str(len(s.missing)) for s in summaries]
    for part in dict.fromkeys(part for s in summaries for part in s.seconds):
        yield f"seconds: {part}", [f"{s.seconds[part]:.1f}" if part in s.seconds else "–" for s in summaries]


def _score(summary: Summary) -> str:
    if summary.score is not None:
        return f"{summary.score.mean:.3f}"
    return f"≥ {summary.lower_bound:.3f} (incomplete)"


def _group(group: Group | None) -> str:
    if group is None:
        return "–"
    if group.score is None:
        return f"≥ {group.lower_bound:.3f} ({group.missing} missing)"
    return f"{group.score.mean:.3f} ({_interval(group.score)})"


def _other_score(summary: Summary) -> str:
    if summary.other_score is not None:
        return f"{summary.other_score.mean:.3f}"
    return "diverged" if summary.complete else "–"


def _interval(score: Score | None) -> str:
    return "–" if score is None else f"{score.low:.3f} to {score.high:.3f}"


def _count(tokens: int | None) -> str:
    return "not reported" if tokens is None else f"{tokens:,}"


def show_doctor(*, as_json: bool) -> bool:
    """Prints what this machine has for the suite, with what mends it; whether nothing is broken."""
    from whale_bench.doctor import findings

    if as_json:
        found = list(findings())
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
        return all(one.state != "broken" for one in found)
    console, sound = Console(soft_wrap=True, highlight=False), True
    for one in findings():
        console.print(f"{one.state:8} {one.part:26} {one.what}", markup=False)
        if one.fix and one.state != "ok":
            console.print(f"{'':8} {'':26}   fix: {one.fix}", markup=False)
        sound &= one.state != "broken"
    return sound


def show_suite(*, as_json: bool) -> None:
    """Prints environments with tiers and split sizes, models, retrievers and harnesses."""
    from whale_envs.search_qa.retrievers import RETRIEVERS

    harnesses = shipped_harnesses()
    if as_json:
        suite = {
            "environments": {
                d.name: {
                    "id": d.env_id,
                    "tiers": dict(d.tiers),
                    "sizes": d.module.SIZES,
                    "harness": f"h0/{d.name}.py",
                }
                for d in DOMAINS.values()
            },
            "splits": SPLITS,
            "profiles": PROFILES,
            "models": KINDS,
            "retrievers": RETRIEVERS,
            "harnesses": {f"h0/{name}.py": "shipped" for name in harnesses},
        }
        sys.stdout.write(msgspec.json.encode(suite).decode() + "\n")
        return
    console = Console()
    table = Table(title="Environments")
    for column in ("environment", "tier", *SPLITS):
        table.add_column(column, no_wrap=True)
    table.add_column("data")
    for domain in DOMAINS.values():
        for tier, what in domain.tiers.items():
            sizes = domain.module.SIZES[tier]
            table.add_row(domain.name, tier, *(f"{sizes[s]:,}" for s in SPLITS), what)
    console.print(table)
    table = Table(title="Models")
    table.add_column("model", no_wrap=True)
    table.add_column("what it is")
    for name, what in KINDS.items():
        table.add_row(name, what)
    console.print(table)
    table = Table(title="Retrievers, of search_qa")
    table.add_column("retriever", no_wrap=True)
    table.add_column("what it is")
    for name, what in RETRIEVERS.items():
        table.add_row(name, what)
    console.print(table)
    table = Table(title="Harnesses")
    for column in ("harness", "environment"):
        table.add_column(column, no_wrap=True)
    table.add_column("used")
    for name in harnesses:
        table.add_row(f"h0/{name}.py", name, "without --harness")
    table.add_row("FILE", "any", "--harness FILE, a Python file that defines class Harness(BaseHarness)")
    console.print(table)
