"""Reads a folder of submissions, and says all of the board as data: what results.json holds.

    submissions = read(Path("leaderboard/submissions"))
    board = rank([one.report for one in submissions])
    results_of(submissions, board)

A submission is a bundle in that folder: NAME/ or NAME.tar.gz. Where NAME.report.json stands beside it,
written by `verify --out` of the same bundle by the same sources, it is taken, if it is of the level that is
asked for or a higher one; else the bundle is verified. Up to level 2 whoever builds stands for the reports
in the folder: the tests of this repository compare each with what they find themselves. A report of level 3
is taken only where the maintainers' list has it (`vouching.py`).

Not covered: pages, see `site/`.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from whale_envs import UsageError, __version__
from whale_leaderboard.archive import ARCHIVE, read_first
from whale_leaderboard.curve import Curve
from whale_leaderboard.digests import verifier
from whale_leaderboard.layout import MANIFEST, MOST_MANIFEST
from whale_leaderboard.money import money_of
from whale_leaderboard.ranking import Board, paper_rows
from whale_leaderboard.report import Refusal, Report, Say
from whale_leaderboard.vouching import LIST, claims_reproduction, vouched

RESULTS = "results.json"
FORMAT = 1
REPORT = ".report.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Submission(NamedTuple):
    """A bundle of the folder, verified."""

    path: Path
    name: str
    """Of its pages; the bundle's without its ending."""
    report: Report


def read(submissions: Path, *, level: int = 1, say: Say = lambda _what, _count: None) -> list[Submission]:
    """Every submission of a folder, by name.

    Args:
        submissions: a folder of bundles.
        level: to verify at, where no report is beside a bundle; 1 or 2.
        say: told how far it is.

    Raises:
        UsageError: the folder is none, a submission in it is refused, or has a name that makes no address.
    """
    if not submissions.is_dir():
        raise UsageError(f"{submissions} is no folder of submissions")
    found: dict[str, Submission] = {}
    for path in bundles_in(submissions):
        name = path.name.removesuffix(ARCHIVE)
        if not _NAME.fullmatch(name):
            raise UsageError(f"{path}: a submission's name has letters, digits, dots and dashes alone")
        if name in found:
            raise UsageError(f"{path}: there is another submission {name!r}, {found[name].path.name}")
        report = report_of(path, level=level, say=say)
        if not report.passed:
            first = next(finding for finding in report.findings if finding.refuses)
            raise UsageError(f"{path}: {first}")
        found[name] = Submission(path, name, report)
        say("submissions", len(found))
    return list(found.values())


def results_of(submissions: Sequence[Submission], board: Board) -> dict[str, Any]:
    """What results.json holds; equal submissions give equal data."""
    return {
        "format": FORMAT,
        "version": __version__,
        "tracks": msgspec.to_builtins(board.tracks),
        "entries": {
            one.report.bundle: {"submission": one.path.name, "page": page_of(one.name)} | _facts(one.report)
            for one in submissions
        },
        "reported": msgspec.to_builtins(paper_rows()),
    }


def page_of(name: str) -> str:
    """Where in the site the page of a submission is."""
    return f"entries/{name}.html"


def bundles_in(folder: Path) -> Iterator[Path]:
    """Every bundle of a folder of submissions, by name."""
    for path in sorted(folder.iterdir()):
        if path.name.endswith(ARCHIVE) or (path.is_dir() and (path / MANIFEST).is_file()):
            yield path


def report_of(path: Path, *, level: int = 1, say: Say = lambda _what, _count: None) -> Report:
    """The report beside a bundle where it is of it, of these sources and of that level, else a new one."""
    beside = path.with_name(path.name.removesuffix(ARCHIVE) + REPORT)
    if beside.is_file():
        try:
            text = beside.read_bytes()
            report = msgspec.json.decode(text, type=Report)
            digest = hashlib.sha256(read_first(path, MANIFEST, MOST_MANIFEST)).hexdigest()
        except (msgspec.DecodeError, UnicodeDecodeError, Refusal) as error:
            raise UsageError(f"{beside}: is no report of {path.name}: {error}") from error
        fits = report.bundle == digest and report.verifier == verifier()
        fits &= report.behaviour is not None  # what pages need is in it
        if fits and report.asked >= level:
            if claims_reproduction(report) and hashlib.sha256(text).hexdigest() not in vouched(path.parent):
                said = f"says level {report.level}, and its SHA-256 is not in"
                raise UsageError(f"{beside}: {said} {LIST} beside the folder of submissions")
            return report
    # What replays need is not loaded where every report is there, nor by the processes of `site/reading.py`.
    from whale_leaderboard.verify import verify

    return verify(path, level=level, say=say)


def _facts(report: Report) -> dict[str, Any]:
    """What an entry's own page needs, beside its place on the board."""
    assert report.manifest is not None
    assert report.account is not None
    curve = Curve(report.curve)
    budget = report.account.charged
    return {
        "manifest": msgspec.to_builtins(report.manifest),
        "report": {
            "level": report.level,
            "badge": report.badge,
            "findings": msgspec.to_builtins(report.findings),
            "replay": msgspec.to_builtins(report.replay),
            "repeatable": report.repeatable,
            "reproduction": msgspec.to_builtins(report.reproduction),
            "verifier": report.verifier,
        },
        "selection": report.selection,
        "account": msgspec.to_builtins(report.account),
        "money": msgspec.to_builtins(money_of(report.account)),
        "means": list(report.means),
        "curve": {
            "points": msgspec.to_builtins(report.curve),
            "rollouts_to_best": curve.rollouts_to_best(),
            "area": curve.area(budget) if budget else None,
        },
    }
