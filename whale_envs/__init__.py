"""Environments, tools, verifiers and data of the whale suite.

    import gymnasium
    env = gymnasium.make("whale_envs:whale/ChessPuzzles-v0", tier="mini", split="dev")

Importing this package registers its environments with Gymnasium. It loads neither torch nor a
model client nor a JVM.
"""

from typing import Any

import gymnasium

from whale_envs.core import (
    PROFILES,
    SPLITS,
    Example,
    ExampleSet,
    FinalResponse,
    TextEnv,
    ToolCall,
    Verdict,
    parse_action,
)
from whale_envs.errors import (
    DataError,
    EpisodeError,
    InfrastructureError,
    RolloutError,
    UnknownNameError,
    UsageError,
    WhaleError,
)
from whale_envs.spaces import UnicodeText
from whale_envs.suite import DOMAINS, Domain, get_domain, load_examples, make_env

for _domain in DOMAINS.values():
    if _domain.env_id not in gymnasium.registry:
        gymnasium.register(_domain.env_id, entry_point=f"whale_envs.{_domain.name}:ENV")

__all__ = [
    "DOMAINS",
    "PROFILES",
    "SPLITS",
    "DataError",
    "Domain",
    "EpisodeError",
    "Example",
    "ExampleSet",
    "FinalResponse",
    "InfrastructureError",
    "RolloutError",
    "TextEnv",
    "ToolCall",
    "UnicodeText",
    "UnknownNameError",
    "UsageError",
    "Verdict",
    "WhaleError",
    "__version__",
    "get_domain",
    "load_examples",
    "make_env",
    "parse_action",
]


def __getattr__(name: str) -> Any:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version  # a tenth of what importing us takes

    try:
        return version("whale-envs")
    except PackageNotFoundError:  # a source tree on the path, not installed
        return "0+unknown"
