"""Loads a harness and runs its hooks: shipped files in process, any other in a confined process.

    async with load_harness("chess_puzzles", file="mine.py") as harness:
        decision, state = await harness.call(view)

Both kinds answer the same calls (`calls.py`).

Not covered: the confined process, see `process.py`.
"""

import copy
from pathlib import Path
from typing import Any

from whale_bench.harness.base import Reply, View
from whale_bench.harness.calls import Call, HarnessFault, answer_call, load
from whale_bench.harness.host_base import HarnessHost, HostDecision, read_source
from whale_bench.harness.process import ProcessHarness
from whale_bench.harness.shipped import shipped_harnesses
from whale_envs.errors import HarnessError, HarnessFileError, UnknownNameError, UsageError

__all__ = [
    "HarnessHost",
    "HostDecision",
    "InProcessHarness",
    "ProcessHarness",
    "load_harness",
    "load_harness_source",
    "read_source",
    "shipped_harnesses",
]


class InProcessHarness(HarnessHost):
    """For files that ship with this package."""

    def __init__(self, source: str, name: str) -> None:
        self.name, self.source = name, source
        try:
            self._harness, self.settings = load(source, name)
        except HarnessFault as fault:
            raise HarnessFileError(str(fault)) from fault

    async def call(self, view: View, reply: Reply | None = None) -> tuple[HostDecision, dict[str, Any]]:
        try:
            answer = answer_call(self._harness, Call(copy.copy(view), reply), self.name)
        except HarnessFault as fault:
            raise HarnessError("harness_error", str(fault)) from fault
        return answer.decision, answer.state


def load_harness(domain: str, file: str | Path | None = None, *, unsafe: bool = False) -> HarnessHost:
    """The domain's h0, or the harness of a file, which may run unconfined only if `unsafe`.

    Raises:
        UnknownNameError: the domain has no h0.
        HarnessFileError: the file cannot be read or used; some faults show only in `__aenter__`.
    """
    if file is None:
        shipped = shipped_harnesses()
        if domain not in shipped:
            raise UnknownNameError("environment", domain, shipped)
        return InProcessHarness(shipped[domain], f"h0/{domain}.py")
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"harness file {str(file)!r} does not exist; give a Python file, or none for h0")
    return ProcessHarness(path.resolve(), unsafe=unsafe)


def load_harness_source(domain: str, source: str, name: str, *, unsafe: bool = False) -> HarnessHost:
    """The harness of a text, such as a candidate's; in process if it is the domain's h0, word for word.

    Args:
        domain: which environment it is for.
        source: as a harness file would hold it.
        name: what faults call the file.
        unsafe: run it even where it cannot be confined.

    Raises:
        UnknownNameError: the domain has no h0.
    """
    shipped = shipped_harnesses()
    if domain not in shipped:
        raise UnknownNameError("environment", domain, shipped)
    if source == shipped[domain]:
        return InProcessHarness(source, name)
    return ProcessHarness(name, source=source, unsafe=unsafe)
