"""Fixtures for all tests."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("whale", derandomize=True, deadline=None, database=None)
settings.load_profile("whale")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One thread for torch: threads that spin for each other slow everything down tenfold."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def stub_url() -> Iterator[str]:
    """Address of the benchmarks' chat server, which gives every request the same reply."""
    command = [sys.executable, str(ROOT / "benchmarks" / "stub_server.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.kill()
