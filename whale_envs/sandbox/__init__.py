r"""A Python interpreter for model-written code: fast, bounded and confined (`client` says how).

    from whale_envs.sandbox import run
    result = await run("print(2+2)", timeout_s=5)
    result.status, result.text                          # ('finished', '4\n')

Not imported by `import whale_envs`, and loads neither numpy nor sympy in this process.
"""

from whale_envs.sandbox.client import CODE_BYTES, TIMEOUT_S, Sandbox, run, shared
from whale_envs.sandbox.plan import Limits
from whale_envs.sandbox.results import STATUSES, TEXT_CHARS, RunResult, Status

__all__ = [
    "CODE_BYTES",
    "STATUSES",
    "TEXT_CHARS",
    "TIMEOUT_S",
    "Limits",
    "RunResult",
    "Sandbox",
    "Status",
    "run",
    "shared",
]
