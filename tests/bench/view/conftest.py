"""Runs to look at, made once."""

import sys
from pathlib import Path

import pytest
from view_fakes import REPLIES, make_run

sys.path.append(str(Path(__file__).parent.parent))  # for bench_fakes, where these tests run alone


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one run of each domain, named after it."""
    folder = tmp_path_factory.mktemp("runs")
    for domain in REPLIES:
        make_run(domain, folder / domain)
    return folder
