"""One sandbox for all these tests, with short programs' limits."""

from collections.abc import Iterator

import pytest

from whale_envs.sandbox import Limits, Sandbox

LIMITS = Limits(memory_mb=256, scratch_mb=16, output_mb=4, processes=32)


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    shared = Sandbox(limits=LIMITS)
    yield shared
    shared.close()
