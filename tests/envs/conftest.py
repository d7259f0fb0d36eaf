"""What the tests of several domains share."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def no_network_and_no_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Set before `datasets` is imported, which reads its settings once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("huggingface")))
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
            patch.setenv(name, "1")
        yield
