"""Model backends: what serves a model. `base.py` is the contract, `load_backend` finds one by name."""

from whale_bench.models.base import (
    Backend,
    Generation,
    Message,
    Reloadable,
    Request,
    Sampling,
    TokenBackend,
    Usage,
)
from whale_bench.models.registry import load_backend

__all__ = [
    "Backend",
    "Generation",
    "Message",
    "Reloadable",
    "Request",
    "Sampling",
    "TokenBackend",
    "Usage",
    "load_backend",
]
