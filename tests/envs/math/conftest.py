"""Time for algebra: tests of verdicts wait as long as a loaded machine needs; tests of time do not."""

import pytest

from whale_envs.math_python import verifier
from whale_envs.math_python.worker import Allowance


@pytest.fixture
def punctual() -> None:
    """Asked for by tests that measure: checks have the time that they have in use."""


@pytest.fixture(autouse=True)
def patient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "punctual" not in request.fixturenames:
        monkeypatch.setattr(verifier, "Allowance", lambda: Allowance(300))
