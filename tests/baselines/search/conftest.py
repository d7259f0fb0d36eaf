"""Searches with the real engine, real environments, scripted models and scripted proposers."""

import sys
from pathlib import Path

import pytest
from whale_baselines.search import examine

from whale_bench.harness import check

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent), str(HERE.parents[1] / "bench")]


@pytest.fixture(autouse=True)
def short_checks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every check is made, of fewer puzzles: the board by 4 instead of 24, and where examinations are not
    what is tested, parrots by 8 instead of all. The checks' own tests are in tests/bench."""
    monkeypatch.setattr(check, "_BOARDS", 4)
    if request.module.__name__ not in ("test_examine", "test_hostile_candidates"):
        monkeypatch.setattr(examine, "EXAMPLES", 8)
