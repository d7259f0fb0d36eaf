"""Prints a `Comparison`: scores and difference, groups, flipped examples, what to mind.

    show_comparison(compare(a, b), most=10, as_json=False)

Not covered: how the numbers are reached, see `compare.py`.
"""

import sys
from collections.abc import Mapping

import msgspec
from rich.console import Console
from rich.table import Table

from whale_bench.compare import Comparison, GroupComparison, Side
from whale_bench.statistics import Difference, PValue, Score


def show_comparison(found: Comparison, *, most: int, as_json: bool) -> None:
    """Prints to standard output.

    Args:
        found: what to print.
        most: rows of each list that people are shown; the JSON has all.
        as_json: one JSON object in place of the tables.
    """
    if as_json:
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
        return
    console = Console()
    lines = Console(soft_wrap=True, highlight=False)
    console.print(_scores(found))
    for label, side in (("a", found.a), ("b", found.b)):
        lines.print(f"{label}: {_name(side)}, {side.folder}", markup=False)
    if found.left_out:
        lines.print(
            f"compared: the {found.compared} examples complete in both; {found.left_out} are left out",
            markup=False,
        )
    for warning in found.warnings:
        lines.print(f"warning: {warning}", markup=False, style="yellow")
    for name, values in found.groups.items():
        console.print(_groups(name, values, most))
        if len(values) > most:
            lines.print(f"{len(values) - most} smaller groups more with --show or --json", markup=False)
    more = sum(flip.size > 0 for flip in found.flips)
    lines.print(
        f"b solves {more} examples more often than a, {len(found.flips) - more} less often", markup=False
    )
    if found.flips[:most]:
        console.print(_flips(found, most))
    if len(found.flips) > most:
        lines.print(f"{len(found.flips) - most} more with --show or --json", markup=False)


def _scores(found: Comparison) -> Table:
    a, b = found.a, found.b
    table = Table(title=f"{found.domain}, {found.compared} examples, {found.profile}")
    for column in ("", f"a, mean@{a.k}", f"b, mean@{b.k}", "b - a"):
        table.add_column(column, justify="right" if column else "left")
    shift = found.difference
    table.add_row("mean", f"{a.score.mean:.3f}", f"{b.score.mean:.3f}", f"{shift.mean:+.3f}")
    kind = "" if found.interval == "t" else f", {found.interval}"
    table.add_row(f"95% interval{kind}", _interval(a.score), _interval(b.score), _interval(shift))
    table.add_row("p-value, sign flip", "", "", _p_value(found.p_value))
    if not found.complete:
        table.add_row("missing rollouts", str(a.missing), str(b.missing), "")
        table.add_row("all, missing = wrong", f"≥ {a.lower_bound:.3f}", f"≥ {b.lower_bound:.3f}", "")
    return table


def _groups(name: str, values: Mapping[str, GroupComparison], most: int) -> Table:
    table = Table(title=name, title_justify="left")
    for column in (name, "examples", "a", "b", "b - a", "95% interval"):
        table.add_column(column, justify="left" if column == name else "right")
    largest = sorted(values, key=lambda value: -values[value].difference.examples)[:most]
    for value in (value for value in values if value in largest):
        group = values[value]
        table.add_row(
            value,
            str(group.difference.examples),
            f"{group.a.mean:.3f}",
            f"{group.b.mean:.3f}",
            f"{group.difference.mean:+.3f}",
            _interval(group.difference),
        )
    return table


def _flips(found: Comparison, most: int) -> Table:
    table = Table()
    for column in ("example", "a", "b"):
        table.add_column(column, no_wrap=True, justify="left" if column == "example" else "right")
    for flip in found.flips[:most]:
        table.add_row(flip.example_id, f"{flip.a_solved}/{flip.a_k}", f"{flip.b_solved}/{flip.b_k}")
    return table


def _name(side: Side) -> str:
    return f"{side.model}{' (fixture)' if side.fixture else ''}, harness {side.harness_id[:19]}"


def _interval(found: Score | Difference) -> str:
    sign = "+" if isinstance(found, Difference) else ""
    return f"{found.low:{sign}.3f} to {found.high:{sign}.3f}"


def _p_value(p_value: PValue | None) -> str:
    if p_value is None:
        return "none: incomplete (--incomplete)"
    return f"{p_value.value:.2g} ({'exact' if p_value.exact else 'drawn'})"
