"""Builds the site from a folder of submissions: static pages, the feeds, results.json.

    build(Path("leaderboard/submissions"), Path("site"))

    index.html              every entry, sortable and filtered; the tracks
    DOMAIN.html             its tracks: ranking, score against rollouts, pairs; what the paper reports
    entries/NAME.html       an entry: behaviour, curve, ledger, harness with its diff to h0, verification
    replays/NAME.html       some of its rollouts, step by step, side by side: the page of `whale-bench view`
    rules.html  feed.xml  feed.json  results.json

Equal submissions give equal bytes. The pages ask no host for anything and work from disk. A site is there
whole or not at all: it is built beside `out` and takes its place at the end.

Not covered: publishing it.
"""

import datetime as dt
import json
import shutil
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from whale_bench.garbage import fewer_collections
from whale_bench.scoring import Summary
from whale_envs import DOMAINS, UsageError
from whale_leaderboard.money import money_of
from whale_leaderboard.ranking import Board, TrackBoard, paper_rows, rank
from whale_leaderboard.report import Say
from whale_leaderboard.results import RESULTS, Submission, page_of, read, results_of
from whale_leaderboard.site import tables
from whale_leaderboard.site.chart import Figure
from whale_leaderboard.site.chosen import SAMPLE_NOTE
from whale_leaderboard.site.contents import Contents, groups_of
from whale_leaderboard.site.feeds import check_url, write_feeds
from whale_leaderboard.site.reading import reading
from whale_leaderboard.site.templates import Pages

MOST_PAIRS = 100
"""Pairs that a page lists."""


def build(
    submissions: Path,
    out: Path,
    *,
    level: int = 1,
    url: str = "",
    say: Say = lambda _what, _count: None,
) -> dict[str, Any]:
    """Builds the site; returns what is in its results.json.

    Args:
        submissions: a folder of bundles.
        out: folder of the site; made if missing, and replaced where it holds a site.
        level: to verify at where no report is beside a bundle; 1 or 2.
        url: address that the site will have, for the feeds' links; they are relative without one.
        say: told how far it is.

    Raises:
        UsageError: a submission is refused, `url` is no address, or `out` cannot be written or holds
            something else.
    """
    _check_place(out)
    url = check_url(url)
    found = read(submissions, level=level, say=say)
    temporary = out.with_name(f".half-written-{out.name}")
    old = out.with_name(f".replaced-{out.name}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        for left in (temporary, old):
            shutil.rmtree(left, ignore_errors=True)
        for folder in (temporary, temporary / "entries", temporary / "replays"):
            folder.mkdir()
        with fewer_collections(), reading(found, temporary / "replays") as ready:
            site = _Site(found, rank([one.report for one in found]), url)
            site.write(temporary, ready, say)
        results = results_of(found, site.board)
        # The encoder of `json` that indents is ten times slower than both of these.
        text = msgspec.json.format(json.dumps(results, ensure_ascii=False, sort_keys=True), indent=1)
        (temporary / RESULTS).write_text(f"{text}\n", encoding="utf-8")
        if out.exists():
            out.rename(old)
        temporary.rename(out)
    except OSError as error:
        raise UsageError(f"{out}: cannot be written: {error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    return results


def _check_place(out: Path) -> None:
    """What would be replaced is a site, or nothing."""
    if out.is_dir() and (not any(out.iterdir()) or (out / RESULTS).is_file()):
        return
    if out.exists():
        raise UsageError(f"{out} holds something that is no site; give --out another place")


class _Site:
    """Writes pages.

    Args:
        submissions: every one, verified.
        board: of them.
        url: address of the site, or empty.
    """

    def __init__(self, submissions: Sequence[Submission], board: Board, url: str) -> None:
        self.board = board
        self._url = url
        self._submissions = submissions
        self._of = {one.report.bundle: one for one in submissions}
        self._pages = Pages()
        domains = sorted(DOMAINS)
        self._nav = [("Entries", "index.html")]
        self._nav += [(domain.replace("_", " "), f"{domain}.html") for domain in domains]
        self._nav.append(("Rules", "rules.html"))
        self._domains = domains
        self._rows = {id(track): tables.rows_of(track, self._of) for track in board.tracks}

    def write(self, folder: Path, ready: Iterable[tuple[Submission, Contents]], say: Say) -> None:
        """Writes every page into a folder, but for those of replays.

        Args:
            folder: of the site.
            ready: what is to be shown of each submission, in any order.
            say: told how many are done.
        """
        places = {
            entry.bundle: (track, row)
            for track in self.board.tracks
            for row, entry in zip(self._rows[id(track)], track.entries, strict=True)
        }
        dates: dict[str, str] = {}
        for number, (one, contents) in enumerate(ready, start=1):
            dates[one.name] = _date(contents.ended)
            self._entry(folder, *places[one.report.bundle], one, contents)
            say("pages", number)
        self._page(folder, "index.html", "index.html", "Entries", **self._index())
        for domain in self._domains:
            self._page(
                folder, "domain.html", f"{domain}.html", domain.replace("_", " "), **self._domain(domain)
            )
        self._page(folder, "rules.html", "rules.html", "Rules", rules=_rules())
        write_feeds(folder, self._pages, self._submissions, dates, self._url)

    def _page(self, folder: Path, template: str, name: str, title: str, **values: Any) -> None:
        root = "../" * name.count("/")
        text = self._pages.render(template, **values, title=title, root=root, nav=self._nav, here=name)
        _write(folder / name, text)

    def _index(self) -> dict[str, Any]:
        rows = [row for track in self.board.tracks for row in self._rows[id(track)]]
        rows += [tables.reported_row(row) for row in paper_rows()]
        tracks = [
            {
                **{name: getattr(track.track, name) for name in track.track.__struct_fields__},
                "href": f"{track.track.domain}.html#{_track_id(track)}",
                "ranked": sum(entry.rank is not None for entry in track.entries),
                "others": sum(entry.rank is None for entry in track.entries),
            }
            for track in self.board.tracks
        ]
        return {"rows": rows, "choices": tables.choices_of(rows), "tracks": tracks}

    def _domain(self, domain: str) -> dict[str, Any]:
        tracks = []
        for track in self.board.tracks:
            if track.track.domain != domain:
                continue
            rows = self._rows[id(track)]
            reports = [self._of[entry.bundle].report for entry in track.entries]
            drawn, series = tables.figure_of(rows, reports, f"Score against rollouts, {_track_id(track)}")
            names = {entry.bundle: entry.agent for entry in track.entries}
            pairs = [
                {"a": names[p.a], "b": names[p.b], "difference": p.difference, "low": p.low, "high": p.high,
                 "p_value": p.p_value}
                for p in track.pairs[:MOST_PAIRS]
            ]  # fmt: skip
            place = {name: getattr(track.track, name) for name in ("tier", "size", "budget")}
            tracks.append(
                place
                | {"id": _track_id(track), "rows": rows, "drawn": drawn, "series": series, "pairs": pairs}
                | {"left_out": len(track.pairs) - len(pairs)}
            )
        reported = [row for row in paper_rows() if row.domain == domain]
        return {"domain": domain, "tracks": tracks, "reported": reported}

    def _entry(
        self, folder: Path, track: TrackBoard, row: tables.Row, one: Submission, contents: Contents
    ) -> None:
        report = one.report
        assert report.manifest is not None
        assert report.account is not None
        assert report.behaviour is not None
        summary = report.behaviour.summary
        drawn: Figure | None = None
        series: list[tables.Line] = []
        if report.curve:
            drawn, series = tables.figure_of(
                [row], [report], f"Score against rollouts, {row.agent}", up="../"
            )
        self._page(
            folder,
            "entry.html",
            page_of(one.name),
            row.agent,
            slug=one.name,
            row=row,
            track_id=_track_id(track),
            about=report.manifest.about,
            manifest=report.manifest,
            summary=summary,
            shown=contents.shown,
            sample_note=SAMPLE_NOTE,
            identity=tables.identity_of(report),
            behaviour=_behaviour(summary),
            groups=groups_of(report),
            drawn=drawn,
            series=series,
            points=tables.points_of(report),
            matrix=None if contents.matrix is None else tables.matrix_of(contents.matrix),
            counts=tables.counts_of(report.account, money_of(report.account)),
            ledger=tables.ledger_of(report.account),
            source=contents.source,
            same=contents.diff == [],
            diff=contents.diff,
            verification=tables.verification_of(report),
            findings=report.findings,
        )


def _behaviour(summary: Summary) -> list[tuple[str, str]]:
    pairs = [("cut off by a cap", f"{summary.truncated:.1%}")]
    pairs += [(f"pass@{k}", f"{value:.4f}") for k, value in summary.pass_at_k.items()]
    for name in ("prompt_tokens", "sampled_tokens"):
        value = getattr(summary, name)
        pairs.append((name.replace("_", " "), "not known" if value is None else f"{value:,}"))
    return pairs + [
        (f"mean {name.replace('_', ' ')}", f"{v:.4g}") for name, v in sorted(summary.metrics.items())
    ]


def _track_id(track: TrackBoard) -> str:
    return f"{track.track.tier}-{track.track.size}-{track.track.budget}"


def _rules() -> list[str]:
    text = (files("whale_leaderboard") / "rules.md").read_text(encoding="utf-8")
    rules: list[str] = []
    for line in text.splitlines():
        number, dot, rest = line.partition(". ")
        if dot and number.isdecimal():
            rules.append(rest)
        else:
            rules[-1] += " " + line.strip()
    return [rule.replace("`", "") for rule in rules]


def _date(at: float) -> str:
    """A time as feeds write it; what no calendar has is its beginning."""
    try:
        moment = dt.datetime.fromtimestamp(at, tz=dt.UTC)
    except (ValueError, OverflowError, OSError):
        moment = dt.datetime.fromtimestamp(0, tz=dt.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
