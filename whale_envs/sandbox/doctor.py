"""What protects you from model-written code here, layer by layer, for `whale-bench doctor`.

    >>> for row in layers(): print(row)                                 # doctest: +SKIP
    namespaces    on   own users, processes, network (empty), IPC and …
    landlock      off  the kernel has none: Function not implemented

Every row is found by trying, not by reading versions. Not covered: whether a layer has a hole.
"""

import contextlib
from dataclasses import dataclass

from whale_envs.errors import InfrastructureError, UsageError
from whale_envs.sandbox.client import Sandbox


@dataclass(frozen=True, slots=True)
class Layer:
    """One wall around a program."""

    name: str
    active: bool
    why: str
    """What it keeps out where active, else why it is not."""

    def __str__(self) -> str:
        return f"{self.name:<14}{'on' if self.active else 'off':<5}{self.why}"


def layers(sandbox: Sandbox | None = None) -> tuple[Layer, ...]:
    """The layers of a sandbox, or of one started for the purpose; blocks for a second.

    The last row says whether the tool runs model-written code here without `--unsafe-python`.
    """
    with contextlib.ExitStack() as stack:
        if sandbox is None:
            sandbox = Sandbox(unsafe=True)
            stack.callback(sandbox.close)
        try:
            hello = sandbox.hello()
        except (InfrastructureError, UsageError) as error:
            return (Layer("python tool", False, str(error)),)
        rows = [Layer(row["name"], row["active"], row["why"]) for row in hello["layers"]]
    missing = sandbox.missing(hello)
    verdict = f"needs --unsafe-python: {missing}" if missing else "model-written code is confined"
    return (*rows, Layer("python tool", not missing, verdict))


def describe(sandbox: Sandbox | None = None) -> str:
    """`layers` as text, one a line."""
    return "\n".join(str(layer) for layer in layers(sandbox))
