"""Environments, tools, verifiers and data of the whale suite.

    import gymnasium
    env = gymnasium.make("whale_envs:whale/ChessPuzzles-v0", tier="mini", split="dev")

Importing this package registers its environments with Gymnasium. It loads neither torch nor a
model client nor a JVM.
"""

from importlib.metadata import PackageNotFoundError, version

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

try:
    __version__ = version("whale-envs")
except PackageNotFoundError:  # a source tree on the path, not installed
    __version__ = "0+unknown"

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
