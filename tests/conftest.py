"""Fixtures for all tests."""

import gc
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser

settings.register_profile("whale", derandomize=True, deadline=None, database=None)
settings.load_profile("whale")

# A suite that a script starts in the background is told to ignore interrupts, and so would be every process
# that a test means to interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent


def pytest_collection_finish() -> None:
    """What all test files brought in stays to the end, and is not looked through for garbage each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One thread for torch: threads that spin for each other slow everything down tenfold."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def cpu_within() -> Callable[[float], AbstractContextManager[None]]:
    """That a block takes so many CPU seconds of this process.

    It is there to tell linear from quadratic, so ten times as many are let pass: on a busy machine a second
    of work has been seen to take four. Garbage is not collected meanwhile, for it is that of all tests.
    """

    @contextmanager
    def within(seconds: float) -> Iterator[None]:
        gc.disable()
        try:
            began = time.process_time()
            yield
            assert time.process_time() - began < 10 * seconds
        finally:
            gc.enable()

    return within


@pytest.fixture(scope="session")
def stub_url() -> Iterator[str]:
    """Address of the benchmarks' chat server, which gives every request the same reply."""
    command = [sys.executable, str(ROOT / "benchmarks" / "stub_server.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.kill()


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """Debian's Chromium."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    if path is None:
        pytest.fail("these tests need Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots are left."""
    folder = Path(os.environ.get("WHALE_SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
