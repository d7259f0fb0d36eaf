"""Ranks the entries of each track, and compares them in pairs.

    board = rank([report, …])
    board.tracks[0].entries[0].rank

An entry is ranked if it is verified at level 1 or higher, is no fixture, and its agent was selected on dev
or had nothing to select (`selection.py`). Others stand below, with the reason. An entry's rank is one more
than the number of ranked entries of its track whose 95% interval lies wholly above its own: the rule by
which arenas rank models by intervals. So equal ranks are ties, an entry is compared with all above it and
not with one leader alone, and a wide interval may rank an entry before one with a better mean. Entries
stand by rank, within a rank by mean@8, which says nothing there. Every two entries of a track are compared
on the same examples, by the sign-flip test of their paired means; with many entries some p-values are
small by chance, and none is corrected for that.

Not covered: entries of different tracks, which are not of one thing.
"""

import tomllib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files

import msgspec

from whale_bench.statistics import Score
from whale_envs import UsageError
from whale_leaderboard.layout import Track, is_fixture
from whale_leaderboard.pairs import compare_all
from whale_leaderboard.report import UNPINNED, Report


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a track."""

    bundle: str
    agent: str
    rank: int | None
    """From 1; shared by ties; None for what is not ranked."""
    why_not: str
    """Why it is not ranked; empty for what is."""
    level: int
    badge: str
    score: Score
    charged: int
    paper: int
    executed: int


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Two ranked entries of a track on the same examples; the difference is a's less b's."""

    a: str
    b: str
    """Digests of their bundles."""
    difference: float
    low: float
    high: float
    p_value: float


class TrackBoard(msgspec.Struct, frozen=True, kw_only=True):
    """A track's entries, best first, those that are not ranked last."""

    track: Track
    entries: tuple[Entry, ...]
    pairs: tuple[Pair, ...]


class Board(msgspec.Struct, frozen=True, kw_only=True):
    """Every track that has entries, by name."""

    tracks: tuple[TrackBoard, ...]


class PaperRow(msgspec.Struct, frozen=True, kw_only=True):
    """A published number."""

    domain: str
    method: str
    score: float
    examples: int
    model: str
    status: str
    source: str


def rank(reports: Sequence[Report]) -> Board:
    """The board of these reports.

    Raises:
        UsageError: a bundle stands in two of them, or one was not read far enough to have a score.
    """
    digests = [report.bundle for report in reports]
    for report in reports:
        if report.track is None or report.score is None or report.manifest is None:
            raise UsageError(f"a bundle that is not well-formed has no place: {report.findings[:1]}")
        if digests.count(report.bundle) > 1:
            raise UsageError(f"the bundle {report.bundle} stands on the board twice")
    tracks: dict[tuple[str, ...], list[Report]] = {}
    for report in reports:
        assert report.track is not None
        tracks.setdefault(_names(report.track), []).append(report)
    return Board(tracks=tuple(_track(tracks[name]) for name in sorted(tracks)))


def why_not(report: Report) -> str:
    """Why an entry is not ranked; empty where it is."""
    assert report.manifest is not None
    manifest = report.manifest
    if manifest.fixture or is_fixture(manifest.model, manifest.weights_id):
        return "a scripted model is a fixture: a reference row"
    if manifest.about.reference:
        return "a reference row"
    if report.level < 1:
        return "not verified"
    if unpinned := [found.message for found in report.findings if found.code == UNPINNED]:
        return unpinned[0]
    if report.selection == "none":
        return "not selected on dev"
    return ""


def ranks(intervals: Sequence[tuple[float, float]]) -> list[int]:
    """The rank of each (low, high), from 1: one more than the number of intervals wholly above it.

    >>> ranks([(0.6, 0.8), (0.4, 0.55), (0.2, 0.7)])
    [1, 2, 1]
    """
    lows = sorted(low for low, _ in intervals)
    return [1 + len(lows) - bisect_right(lows, high) for _, high in intervals]


@cache
def paper_rows() -> tuple[PaperRow, ...]:
    """What the paper reports; never ranked."""
    table = tomllib.loads((files("whale_leaderboard") / "paper_rows.toml").read_text(encoding="utf-8"))
    return tuple(
        PaperRow(
            domain=domain,
            method=row["method"],
            score=row[domain],
            examples=examples,
            model=table["models"][domain],
            status=table["status"],
            source=table["source"],
        )
        for domain, examples in sorted(table["tests"].items())
        for row in table["row"]
        if domain in row
    )


def _names(track: Track) -> tuple[str, ...]:
    return (track.domain, track.tier, track.size, track.budget)


def _track(reports: list[Report]) -> TrackBoard:
    ordered = sorted(reports, key=lambda report: (-_score(report).mean, report.bundle))
    ranked = [report for report in ordered if not why_not(report)]
    places = ranks([(_score(report).low, _score(report).high) for report in ranked])
    by_rank = sorted(zip(places, ranked, strict=True), key=lambda pair: pair[0])  # stable: then by mean
    ranked = [report for _, report in by_rank]
    entries = [_entry(report, place) for place, report in by_rank]
    entries += [_entry(report, None) for report in ordered if why_not(report)]
    assert reports[0].track is not None
    return TrackBoard(
        track=reports[0].track,
        entries=tuple(entries),
        pairs=tuple(_pairs(ranked)),
    )


def _pairs(ranked: Sequence[Report]) -> Iterator[Pair]:
    for a, b, (difference, p_value) in compare_all([report.means for report in ranked]):
        yield Pair(
            a=ranked[a].bundle,
            b=ranked[b].bundle,
            difference=difference.mean,
            low=difference.low,
            high=difference.high,
            p_value=p_value,
        )


def _entry(report: Report, place: int | None) -> Entry:
    assert report.manifest is not None
    assert report.account is not None
    return Entry(
        bundle=report.bundle,
        agent=report.manifest.about.agent,
        rank=place,
        why_not=why_not(report),
        level=report.level,
        badge=report.badge,
        score=_score(report),
        charged=report.account.charged,
        paper=report.account.paper,
        executed=report.account.executed,
    )


def _score(report: Report) -> Score:
    assert report.score is not None
    return report.score
