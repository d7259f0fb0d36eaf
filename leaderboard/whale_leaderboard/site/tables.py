"""What pages show of the board: rows, figures, facts, each a plain value for a template.

    rows = rows_of(board, submissions)
    series = series_of(rows, curves)

Not covered: how they look (`templates/`), the drawing (`chart.py`).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from whale_bench.ledger import FLAGS, Charge
from whale_leaderboard.accounting import Account
from whale_leaderboard.curve import Curve
from whale_leaderboard.matrix import Matrix
from whale_leaderboard.money import Money, money_of
from whale_leaderboard.ranking import Entry, PaperRow, TrackBoard
from whale_leaderboard.report import Report
from whale_leaderboard.results import Submission, page_of
from whale_leaderboard.site.chart import Figure, Series, draw

MOST_CROSSED = 24
"""Weights, and harnesses, of a cross-play matrix that a page shows."""
SHADES = 9

_CHOSEN = {"dev": "by dev", "fixed": "nothing was to choose", "none": "not by dev"}


class Row(NamedTuple):
    """A row of a table of entries. Empty and None are what a paper's row does not have."""

    agent: str
    href: str
    note: str
    """Authors, or why it is not ranked."""
    domain: str
    tier: str
    size: str
    budget: str
    status: str
    """ "ranked", "reference", "not ranked" or "reported"."""
    rank: int | None
    tied: bool
    why_not: str
    score: Any
    """A `Score`, or a paper's mean alone."""
    charged: int | None
    paper: int | None
    executed: int | None
    proposer: float | None
    """Dollars."""
    level: int
    badge: str


class Mean(NamedTuple):
    """A score without an interval."""

    mean: float


class Line(NamedTuple):
    """A row of the table under a figure."""

    name: str
    href: str
    number: int
    """In the figure; 0 where it is not drawn."""
    points: str
    """JSON: [rollouts, best dev score] at each step."""
    at: tuple[float | None, ...]
    """At the figure's budgets."""
    to_best: int | None
    area: float | None
    test: float


def rows_of(track: TrackBoard, submissions: Mapping[str, Submission]) -> list[Row]:
    """The entries of a track, in its order."""
    ranks = [entry.rank for entry in track.entries]
    return [
        _row(track, entry, submissions[entry.bundle], ranks.count(entry.rank) > 1) for entry in track.entries
    ]


def reported_row(row: PaperRow) -> Row:
    """A published number."""
    return Row(
        agent=row.method, href="", note=f"{row.model}, {row.source}", domain=row.domain, tier="the paper's",
        size="", budget="", status="reported", rank=None, tied=False, why_not=row.status,
        score=Mean(row.score), charged=None, paper=None, executed=None, proposer=None, level=-1,
        badge=row.status,
    )  # fmt: skip


def choices_of(rows: Sequence[Row]) -> dict[str, list[str]]:
    """What each filter offers."""
    names = ("domain", "tier", "size", "budget", "status", "badge")
    return {name: sorted({getattr(row, name) for row in rows} - {""}) for name in names}


def figure_of(
    rows: Sequence[Row], reports: Sequence[Report], title: str, up: str = ""
) -> tuple[Figure, list[Line]]:
    """A figure of entries and the table under it.

    Args:
        rows: of the entries.
        reports: of the same, in the same order.
        title: of the figure.
        up: from the page to the site's root.
    """
    series = []
    for row, report in zip(rows, reports, strict=True):
        assert report.score is not None
        series.append(Series(row.agent, Curve(report.curve), row.charged or 0, report.score))
    drawn = draw(series, title)
    lines = []
    for number, (row, one) in enumerate(zip(rows, series, strict=True), start=1):
        lines.append(
            Line(
                name=row.agent,
                href=f"{up}{row.href}",
                number=number if number <= drawn.shown else 0,
                points=json.dumps([[p.rollouts, p.score] for p in one.curve.steps]),
                at=tuple(one.curve.score_at(budget) for budget in drawn.budgets),
                to_best=one.curve.rollouts_to_best(),
                area=one.curve.area(drawn.most) if one.curve.steps else None,
                test=one.score.mean,
            )
        )
    return drawn, lines


def ledger_of(account: Account) -> dict[str, Any]:
    """Sums by purpose under both countings; only columns in which something stands."""
    found: list[tuple[str, str, Charge]] = []
    for purpose, tally in account.by_purpose.items():
        found += [(purpose, "charged", tally.settled), (purpose, "executed", tally.executed)]
    columns = [
        name
        for name in Charge.__struct_fields__
        if name not in FLAGS and name != "proposer_micro_usd" and any(getattr(c, name) for _, _, c in found)
    ]
    lines = [
        {"purpose": purpose, "counted": how, "values": [getattr(charge, name) for name in columns]}
        for purpose, how, charge in found
    ]
    return {"columns": columns, "lines": lines}


def counts_of(account: Account, money: Money) -> list[tuple[str, str]]:
    """The three counts and what it cost."""
    device = f"{money.device_seconds / 3600:,.1f} h" if money.device_seconds else "none"
    flagged = "too low: some are unknown" if account.spent.unmetered_tokens else "all known"
    return [
        ("charged rollouts", f"{account.charged:,}"),
        ("as the paper counts", f"{account.paper:,}"),
        ("executed", f"{account.executed:,}"),
        ("test rollouts", f"{account.test:,}"),
        ("token counts", flagged),
        ("proposer", _dollars(money.proposer_usd)),
        ("judge", _dollars(money.judge_usd)),
        ("judge, of test rollouts", _dollars(money.judge_test_usd)),
        ("accelerators", device),
    ]


def identity_of(report: Report) -> list[tuple[str, str]]:
    """Who and what an entry is."""
    assert report.manifest is not None
    manifest, about = report.manifest, report.manifest.about
    parameters = "not said" if about.parameters is None else f"{about.parameters:,.0f}, as its authors say"
    pairs = [
        ("authors", ", ".join(about.authors)), ("licence", about.licence), ("hardware", about.hardware),
        ("model", manifest.model), ("trained from", about.base), ("parameters", parameters),
        ("proposer", about.proposer), ("weights", manifest.weights_id), ("harness", manifest.harness_id),
        ("packed with", f"whale-envs {manifest.package.version}"),
        ("selection", _CHOSEN[report.selection]),
    ]  # fmt: skip
    return [(name, value) for name, value in pairs if value]


def verification_of(report: Report) -> list[tuple[str, str]]:
    """What was verified, in counts."""
    pairs = [
        ("level", f"{report.level}, {report.badge}"),
        ("level asked for", str(report.asked)),
        ("verifier", report.verifier),
        ("bundle", report.bundle),
    ]
    if report.replay is not None:
        counts = msgspec.structs.asdict(report.replay)
        pairs += [(name.replace("_", " "), f"{count:,}") for name, count in counts.items() if count]
    if report.repeatable is not None:
        pairs.append(("mean@8 with varying results as wrong", f"{report.repeatable:.4f}"))
    if (again := report.reproduction) is not None:
        pairs += [
            ("reproduced with", again.model),
            ("examples drawn", f"{again.examples} × {again.samples}"),
            ("recorded, reproduced", f"{again.recorded:.4f}, {again.reproduced:.4f}"),
            ("p-value", f"{again.p_value:.3g}, refused below {again.alpha:g}"),
        ]
    return pairs


def matrix_of(matrix: Matrix) -> dict[str, Any]:
    """The cross-play matrix as rows of cells, the first `MOST_CROSSED` of either kind."""
    columns = matrix.harnesses[:MOST_CROSSED]
    most = max(cell.mean for row in matrix.scores for cell in row) or 1.0
    rows = [
        {
            "weights": weights,
            "cells": [
                {
                    "score": cell,
                    "shade": round(SHADES * cell.mean / most),
                    "own": matrix.partner.get(weights) == harness,
                }
                for harness, cell in zip(columns, cells, strict=False)
            ],
        }
        for weights, cells in zip(matrix.weights[:MOST_CROSSED], matrix.scores, strict=False)
    ]
    left_out = len(matrix.weights) - len(rows), len(matrix.harnesses) - len(columns)
    return {"columns": columns, "rows": rows, "gap": matrix.gap, "left_out": left_out}


def points_of(report: Report) -> list[dict[str, Any]]:
    """Every agent that dev evaluated, with what is new in it."""
    found, before = [], ("", "")
    for point in report.curve:
        now = (point.weights_id, point.harness_id)
        new = [name for name, a, b in zip(("weights", "harness"), now, before, strict=True) if a != b]
        found.append(
            {
                "rollouts": point.rollouts,
                "score": point.score,
                "weights": point.weights_id,
                "harness": point.harness_id,
                "changed": " and ".join(new) if before != ("", "") else "the first",
            }
        )
        before = now
    return found


def _row(track: TrackBoard, entry: Entry, submission: Submission, shared: bool) -> Row:
    report = submission.report
    assert report.manifest is not None
    assert report.account is not None
    manifest, place = report.manifest, track.track
    status = "ranked" if entry.rank is not None else "not ranked"
    if manifest.fixture or manifest.about.reference:
        status = "reference"
    return Row(
        agent=entry.agent,
        href=page_of(submission.name),
        note=entry.why_not or ", ".join(manifest.about.authors),
        domain=place.domain,
        tier=place.tier,
        size=place.size,
        budget=place.budget,
        status=status,
        rank=entry.rank,
        tied=shared and entry.rank is not None,
        why_not=entry.why_not,
        score=entry.score,
        charged=entry.charged,
        paper=entry.paper,
        executed=entry.executed,
        proposer=money_of(report.account).proposer_usd,
        level=entry.level,
        badge=entry.badge,
    )


def _dollars(value: float | None) -> str:
    return "unknown" if value is None else f"${value:,.2f}"
