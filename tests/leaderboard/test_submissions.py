"""Every submission in the tree, verified as a stranger's would be; `make submissions` runs this alone."""

from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from whale_leaderboard.archive import ARCHIVE
from whale_leaderboard.ranking import why_not
from whale_leaderboard.report import Report
from whale_leaderboard.results import REPORT, bundles_in
from whale_leaderboard.verify import verify
from whale_leaderboard.vouching import beyond, vouched

SHELF = Path(__file__).resolve().parent.parent.parent / "leaderboard" / "submissions"
BUNDLES = list(bundles_in(SHELF))
MOST_MB = 50
CAPPED = {"unmetered", "own_agent", "varies"}
"""Notes with which an honest entry stays at level 1."""


@pytest.mark.parametrize("bundle", BUNDLES, ids=lambda path: path.name)
def test_a_submission_verifies_and_its_report_says_no_more(bundle: Path) -> None:
    assert bundle.is_dir() or bundle.stat().st_size < MOST_MB * 10**6
    found = verify(bundle, level=2)
    assert found.passed, found.findings
    assert found.manifest is not None
    assert found.level == (1 if CAPPED & {finding.code for finding in found.findings} else 2)
    beside = bundle.with_name(bundle.name.removesuffix(ARCHIVE) + REPORT)
    if beside.is_file():
        said = msgspec.json.decode(beside.read_bytes(), type=Report)
        assert not beyond(said, found, sha256(beside.read_bytes()).hexdigest(), vouched(SHELF))


def test_nothing_else_lies_in_the_folder() -> None:
    known = {"README.md", *(path.name for path in BUNDLES)}
    known |= {path.name.removesuffix(ARCHIVE) + REPORT for path in BUNDLES}
    assert {path.name for path in SHELF.iterdir()} <= known


def test_the_reference_agents_are_there_and_are_not_ranked() -> None:
    reports = {path.name.removesuffix(ARCHIVE): verify(path, level=1) for path in BUNDLES}
    for name in ("random-chess_puzzles-mini", "random-math_python-mini", "random-search_qa-mini"):
        assert "reference" in why_not(reports[name])
        assert reports[name].score.mean < 0.05
    assert "reference" in why_not(reports["stockfish-chess_puzzles-mini"])
    assert reports["stockfish-chess_puzzles-mini"].score.mean > 0.9
