"""What every host of a harness offers: its constants, and answers to calls.

    decision, state = await harness.call(view)                  # Ask or Stop
    decision, state = await harness.call(view, reply)           # Act, Nudge or Stop

Not covered: where the hooks run, see `host.py`.
"""

import abc
import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from whale_bench.harness.base import Act, Ask, Nudge, Reply, Settings, Stop, View
from whale_envs.errors import HarnessFileError

HostDecision = Ask | Act | Nudge | Stop


class HarnessHost(abc.ABC):
    """A loaded harness. Also an async context manager that ends what it started."""

    name: str
    source: str
    settings: Settings

    @cached_property
    def harness_id(self) -> str:
        """Content hash of the file."""
        return "sha256:" + hashlib.sha256(self.source.encode()).hexdigest()

    @abc.abstractmethod
    async def call(self, view: View, reply: Reply | None = None) -> tuple[HostDecision, dict[str, Any]]:
        """(decision, new state): the next messages, or what `reply` means.

        Raises:
            HarnessError: the harness raised, broke the contract, hung or died.
        """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None


def read_source(path: Path) -> str:
    """The text of a harness file.

    Raises:
        HarnessFileError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise HarnessFileError(f"{path}: cannot be read as a harness file: {error}") from error
