"""Builds results.json, the board as data, from a folder of submissions.

    build(Path("leaderboard/submissions"), Path("site"))

A submission is a bundle in that folder: NAME/ or NAME.tar.gz. Where NAME.report.json stands beside it,
written by `verify --out` of the same bundle by the same sources, it is taken; else the bundle is verified
at level 1. Equal submissions give equal bytes.

Not covered: pages.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from whale_envs import UsageError, __version__
from whale_leaderboard.archive import open_bundle
from whale_leaderboard.curve import Curve
from whale_leaderboard.digests import package_digest
from whale_leaderboard.layout import MANIFEST, MOST_MANIFEST
from whale_leaderboard.money import money_of
from whale_leaderboard.pack import ARCHIVE
from whale_leaderboard.ranking import paper_rows, rank
from whale_leaderboard.report import Refusal, Report
from whale_leaderboard.runs import Say
from whale_leaderboard.verify import verify

RESULTS = "results.json"
FORMAT = 1
_REPORT = ".report.json"


def build(submissions: Path, out: Path, *, say: Say = lambda _what, _count: None) -> dict[str, Any]:
    """Writes results.json; returns what is in it.

    Args:
        submissions: a folder of bundles.
        out: folder to write into; made if missing.
        say: told how far it is.

    Raises:
        UsageError: the folder is none, or a submission in it is refused.
    """
    if not submissions.is_dir():
        raise UsageError(f"{submissions} is no folder of submissions")
    names, reports = [], []
    for path in bundles_in(submissions):
        report = report_of(path, say)
        if not report.passed:
            first = next(finding for finding in report.findings if finding.refuses)
            raise UsageError(f"{path}: {first}")
        names.append(path.name)
        reports.append(report)
        say("submissions", len(reports))
    board = rank(reports)
    results = {
        "format": FORMAT,
        "version": __version__,
        "tracks": msgspec.to_builtins(board.tracks),
        "entries": {
            report.bundle: {"submission": name} | _facts(report)
            for name, report in sorted(zip(names, reports, strict=True), key=lambda pair: pair[0])
        },
        "reported": msgspec.to_builtins(paper_rows()),
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / RESULTS).write_text(json.dumps(results, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    except OSError as error:
        raise UsageError(f"{out}: cannot be written: {error}") from error
    return results


def bundles_in(folder: Path) -> Iterator[Path]:
    """Every bundle of a folder of submissions, by name."""
    for path in sorted(folder.iterdir()):
        if path.name.endswith(ARCHIVE) or (path.is_dir() and (path / MANIFEST).is_file()):
            yield path


def report_of(path: Path, say: Say = lambda _what, _count: None) -> Report:
    """The report beside a bundle where it is of it and of these sources, else a new one of level 1."""
    beside = path.with_name(path.name.removesuffix(ARCHIVE) + _REPORT)
    if beside.is_file():
        try:
            report = msgspec.json.decode(beside.read_bytes(), type=Report)
            with open_bundle(path) as bundle:
                digest = hashlib.sha256(bundle.read(MANIFEST, MOST_MANIFEST)).hexdigest()
        except (msgspec.DecodeError, UnicodeDecodeError, Refusal) as error:
            raise UsageError(f"{beside}: is no report of {path.name}: {error}") from error
        if report.bundle == digest and report.verifier.endswith(package_digest()):
            return report
    return verify(path, level=1, say=say)


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
        "money": msgspec.to_builtins(money_of(report.manifest, report.account)),
        "means": list(report.means),
        "curve": {
            "points": msgspec.to_builtins(report.curve),
            "rollouts_to_best": curve.rollouts_to_best(),
            "area": curve.area(budget) if budget else None,
        },
    }
