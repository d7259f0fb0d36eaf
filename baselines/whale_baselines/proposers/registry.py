"""Finds a proposer by name.

    open_proposer("mutate", examples=pairs)
    open_proposer("anthropic", model="claude-opus-4-7", effort="max")

Not covered: proposers of one's own, which a search takes as objects.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from whale_baselines.proposers.claude_code import ClaudeCode
from whale_baselines.proposers.models import anthropic_proposer, openai_proposer
from whale_baselines.proposers.mutate import Mutate
from whale_baselines.proposers.replay import Replay
from whale_baselines.proposers.worked import WorkedExample
from whale_baselines.search.proposal import Proposer
from whale_envs.errors import UnknownNameError, UsageError

PROPOSERS: Mapping[str, str] = {
    "mutate": "recombines a library of mechanisms; no model, no cost",
    "anthropic": "a model of Anthropic's with tools (extra: anthropic)",
    "openai": "a model with tools behind an OpenAI-compatible server",
    "claude-code": "the Claude Code command line, through its SDK",
    "replay": "recorded sessions",
}
"""Every proposer by name, with a line for people."""


def open_proposer(
    name: str, *, examples: Sequence[WorkedExample | Sequence[str]] = (), **settings: Any
) -> Proposer:
    """The proposer of that name.

    Args:
        name: one of `PROPOSERS`.
        examples: worked examples of the weight split, for proposers that show them.
        settings: its own, as a recipe's table has them.

    Raises:
        UnknownNameError: there is no such proposer.
        UsageError: a setting is unknown or can never work, or what the proposer needs is not installed.
    """
    if name not in PROPOSERS:
        raise UnknownNameError("proposer", name, PROPOSERS)
    makers: dict[str, Callable[[], Proposer]] = {
        "mutate": lambda: Mutate(examples, **_only(name, settings)),
        "anthropic": lambda: anthropic_proposer(settings),
        "openai": lambda: openai_proposer(settings),
        "claude-code": lambda: ClaudeCode(settings),
        "replay": lambda: Replay(**_only(name, settings, "path")),
    }
    return makers[name]()


def _only(name: str, settings: dict[str, Any], *fields: str) -> dict[str, Any]:
    """`settings`, if they are all of these fields and no other."""
    for field in settings:
        if field not in fields:
            raise UsageError(
                f"the proposer {name} has no setting {field!r}; valid: {', '.join(fields) or 'none'}"
            )
    if missing := [field for field in fields if field not in settings]:
        raise UsageError(f"the proposer {name} needs {', '.join(missing)}")
    return settings
