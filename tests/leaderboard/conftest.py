"""Honest bundles, each made once."""

from pathlib import Path

import pytest
from board_fakes import ABOUT, HARNESS, Honest, a_move, evaluated, programs, searches, spent_run
from whale_leaderboard.pack import pack


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("board")


@pytest.fixture(scope="session")
def chess_run(made: Path) -> Path:
    """A test run with a harness of one's own, in a process of its own."""
    (made / "mine.py").write_text(HARNESS)
    return evaluated(made / "chess", "chess_puzzles", Honest(a_move), harness=str(made / "mine.py"))


@pytest.fixture(scope="session")
def spent(made: Path, chess_run: Path) -> Path:
    return spent_run(made / "spent", made / "mine.py")


@pytest.fixture(scope="session")
def chess(made: Path, chess_run: Path, spent: Path) -> Path:
    """The bundle of both."""
    pack(chess_run, made / "chess.bundle", ABOUT, spent=[spent])
    return made / "chess.bundle"


@pytest.fixture(scope="session")
def plain(made: Path) -> Path:
    """The bundle of a fixture under h0, without anything spent; small and quick."""
    run = evaluated(made / "plain", "chess_puzzles", model="scripted/noisy-oracle:0.5")
    pack(run, made / "plain.bundle", ABOUT)
    return made / "plain.bundle"


@pytest.fixture(scope="session")
def maths(made: Path) -> Path:
    run = evaluated(made / "maths", "math_python", Honest(programs))
    pack(run, made / "maths.bundle", ABOUT)
    return made / "maths.bundle"


@pytest.fixture(scope="session")
def questions(made: Path) -> Path:
    run = evaluated(made / "questions", "search_qa", Honest(searches))
    pack(run, made / "questions.tar.gz", ABOUT)
    return made / "questions.tar.gz"
