"""Harness API, model backends, rollout engine, scoring and ledger of the whale suite.

    import asyncio, pathlib
    from whale_bench import EvalPlan, evaluate
    plan = EvalPlan(domain="chess_puzzles", model="scripted/random", n=2, k=2)
    summary = asyncio.run(evaluate(plan, pathlib.Path("runs/example")))

Names are loaded when first used, so that the command line and a harness's worker process start
fast. Importing this package loads neither torch nor a model client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whale_bench.engine import Agent, Task, rollout
    from whale_bench.evaluation import EvalPlan, evaluate
    from whale_bench.ledger import Ledger
    from whale_bench.models import Generation, Request, load_backend
    from whale_bench.records import Rollout, training_sequences
    from whale_bench.scoring import Summary
    from whale_bench.statistics import mean_at_k, pass_at_k
    from whale_bench.store import RunStore

_HOMES = {
    "Agent": "engine",
    "EvalPlan": "evaluation",
    "Generation": "models",
    "Ledger": "ledger",
    "Request": "models",
    "Rollout": "records",
    "RunStore": "store",
    "Summary": "scoring",
    "Task": "engine",
    "evaluate": "evaluation",
    "load_backend": "models",
    "mean_at_k": "statistics",
    "pass_at_k": "statistics",
    "rollout": "engine",
    "training_sequences": "records",
}

__all__ = [
    "Agent",
    "EvalPlan",
    "Generation",
    "Ledger",
    "Request",
    "Rollout",
    "RunStore",
    "Summary",
    "Task",
    "evaluate",
    "load_backend",
    "mean_at_k",
    "pass_at_k",
    "rollout",
    "training_sequences",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
