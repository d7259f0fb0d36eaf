"""A disk that fills up in the middle of a run: exit 3, a ledger that holds, and a resume that finishes."""

import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from bench_fakes import results, run, settled

from whale_bench.ledger import Ledger
from whale_bench.store import DamagedLineWarning

EVAL = [sys.executable, "-m", "whale_bench.cli", "eval"]
PLAN = ["chess_puzzles", "-m", "scripted/noisy-oracle:0.7", "-n", "40", "-k", "8", "-c", "16"]
LIMITED = (  # no file may grow beyond so many bytes
    "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2);"
    "sys.argv[1:2] = []; sys.argv[0] = 'whale-bench'; runpy.run_module('whale_bench', run_name='__main__')"
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("full") / "whole"
    subprocess.run([*EVAL, *PLAN, "--out", folder], check=True, capture_output=True)
    return folder


def holds(folder: Path) -> None:
    """What has to be true of the folder however full the disk was."""
    with Ledger(folder / "ledger.sqlite", readonly=True) as ledger:
        ledger.audit()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamagedLineWarning)
        assert set(settled(folder)) <= set(results(folder))


def finishes(folder: Path, whole: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamagedLineWarning)
        assert run(None, folder).complete
        assert results(folder) == results(whole)
    assert settled(folder) == settled(whole)
    with Ledger(folder / "ledger.sqlite", readonly=True) as ledger:
        assert ledger.open_reservations() == []
        assert ledger.charged()["test"].rollouts == 320


@pytest.mark.parametrize("most", [50_000, 120_000, 400_000])
def test_a_file_that_may_grow_no_more_ends_the_run_and_a_resume_finishes_it(
    tmp_path: Path, whole: Path, most: int
) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-c", LIMITED, str(most), "eval"]
    done = subprocess.run([*command, *PLAN, "--out", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("whale-bench: ")
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    holds(folder)
    finishes(folder, whole)


@pytest.mark.parametrize("size", ["300k", "700k"])
def test_a_full_disk_ends_the_run_and_a_resume_finishes_it(tmp_path: Path, whole: Path, size: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    try:
        first = [*EVAL, *PLAN, "--out", disk / "run"]
        done = subprocess.run(first, capture_output=True, text=True, check=False)
        assert done.returncode == 3, done.stderr
        assert "Traceback" not in done.stderr
        again = [*EVAL, "--resume", disk / "run"]
        still = subprocess.run(again, capture_output=True, text=True, check=False)
        assert still.returncode == 3, still.stderr  # it is still full
        assert "Traceback" not in still.stderr
        shutil.copytree(disk / "run", tmp_path / "run")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    holds(tmp_path / "run")
    finishes(tmp_path / "run", whole)
