"""SIGKILL at random instants, then resume: outcomes and charges equal those of an uninterrupted run."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bench_fakes import FILES, alive, children, lines, results, run, settled, wait_for

from whale_bench.ledger import Ledger

pytestmark = pytest.mark.filterwarnings("ignore::whale_bench.store.DamagedLineWarning")

COMMAND = [sys.executable, "-m", "whale_bench.cli", "eval"]
PLAN = ["chess_puzzles", "-m", "scripted/noisy-oracle:0.7", "-n", "96", "-k", "8", "-c", "8"]
ROLLOUTS = 96 * 8
KILLS_PER_RUN = 4
RUNS = int(os.environ.get("WHALE_KILLS", "4")) // KILLS_PER_RUN
"""`make kills` asks for twenty kills."""


def start(folder: Path, plan: list[str] = PLAN) -> subprocess.Popen[bytes]:
    """Resumes the folder's run, or begins it where a kill came before there was one."""
    more = ["--resume", str(folder)] if (folder / "run.toml").exists() else [*plan, "--out", str(folder)]
    return subprocess.Popen([*COMMAND, *more], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill_at(folder: Path, rng: random.Random) -> bool:
    """Starts or resumes the run and kills it at a random instant; whether that hit it in progress."""
    begun = lines(folder)
    with start(folder) as process:
        if rng.random() < 0.15:  # while it starts: folder, settings, ledger
            wait_for(folder.exists if begun == 0 else lambda: True, process)
            ready = time.monotonic() + rng.random() * (0.02 if begun == 0 else 0.5)
        else:
            target = begun + 1 + rng.randrange(max(1, (ROLLOUTS - begun) // 2))
            wait_for(lambda: lines(folder) >= target, process)
            ready = time.monotonic() + rng.random() * 0.004
        wait_for(lambda: time.monotonic() >= ready, process)
        process.kill()
        process.wait()
    return process.returncode == -signal.SIGKILL and lines(folder) < ROLLOUTS


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kill") / "whole"
    with start(folder) as process:
        assert process.wait() == 0
    return folder


def test_kills_lose_and_double_nothing(whole: Path, tmp_path: Path) -> None:
    rng = random.Random(20)
    hits = listed = 0
    for number in range(RUNS):
        folder = tmp_path / str(number)
        in_progress = sum(kill_at(folder, rng) for _ in range(KILLS_PER_RUN))
        hits += in_progress
        with start(folder) as process:
            assert process.wait() == 0
        assert results(folder) == results(whole)
        assert settled(folder) == settled(whole)
        with Ledger(folder / "ledger.sqlite", readonly=True) as ledger:
            assert ledger.open_reservations() == []
            interrupted = ledger.totals("interrupted").get("test")
            executed, charged = ledger.executed()["test"].rollouts, ledger.charged()["test"].rollouts
        apart = interrupted.rollouts if interrupted else 0
        assert charged == ROLLOUTS
        assert executed == charged + apart
        assert apart <= in_progress * 8  # no more than were in flight
        listed += apart
        shutil.rmtree(folder)
    assert hits >= RUNS * KILLS_PER_RUN // 2
    assert listed > 0


def test_a_kill_leaves_no_harness_worker_behind(tmp_path: Path) -> None:
    plan = [*PLAN, "--harness", str(FILES / "good.py"), "-n", "48", "-k", "4"]
    with start(tmp_path / "run", plan) as process:
        assert wait_for(lambda: lines(tmp_path / "run") > 3, process)
        workers = children(process.pid)
        assert workers
        process.kill()
        process.wait()
    with start(tmp_path / "run") as process:
        assert wait_for(lambda: not any(alive(pid) for pid in workers), process)
        process.kill()
    assert run(None, tmp_path / "run").complete
    assert len(settled(tmp_path / "run")) == 48 * 4
