"""Searches with the real engine, real environments, scripted models and scripted proposers."""

import sys
from pathlib import Path

import pytest
from whale_baselines.search import examine

from whale_bench.harness import check, other_boards

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent), str(HERE.parents[1] / "bench")]


@pytest.fixture(autouse=True)
def short_checks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every check is made, of fewer puzzles and replies: the board by 4 puzzles instead of 24, each with 4
    replies instead of 12; where examinations are not what is tested, on one changed board, and parrots by 8
    examples instead of all. The checks' own tests are in tests/bench."""
    monkeypatch.setattr(check, "_BOARDS", 4)
    monkeypatch.setattr(other_boards, "_READ", 4)
    monkeypatch.setattr(other_boards, "_PAIRS", 1)
    if request.module.__name__ not in ("test_examine", "test_hostile_candidates"):
        monkeypatch.setattr(other_boards, "_BOARDS", 1)
        monkeypatch.setattr(examine, "EXAMPLES", 8)
