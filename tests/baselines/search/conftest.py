"""Searches with the real engine, real environments, scripted models and scripted proposers."""

import sys
from pathlib import Path

import pytest

from whale_bench.harness import check

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent), str(HERE.parents[1] / "bench")]


@pytest.fixture(autouse=True)
def few_boards(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check that no harness goes by the board, on 4 puzzles instead of 24; it is not what these test."""
    monkeypatch.setattr(check, "_BOARDS", 4)
