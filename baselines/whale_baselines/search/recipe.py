"""Every constant of a harness search, with the paper's value as default.

    SearchRecipe()                                           # the paper's harness operator
    SearchRecipe(slots=2, examples=32, rule="paired")        # small, and careful about what it accepts

Not covered: how many iterations a phase has and when it ends, which is the schedule's matter; a proposer's
own settings.
"""

from dataclasses import dataclass
from typing import Literal

from whale_bench.plan import check_types
from whale_envs.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRecipe:
    """How harnesses are searched."""

    proposer: str = "anthropic"
    """Who writes candidates."""
    slots: int = 3
    """Candidates of an iteration; the paper's M."""
    examples: int = 256
    """The first of the `harness` split that every candidate is scored on; the paper's |D_harness|."""
    rule: Literal["paper", "paired"] = "paper"
    """How a candidate is accepted, see `acceptance.py`."""
    prompt_only: bool = False
    """Candidates differ from the phase's first harness in their two prompts alone (FST)."""
    smoke: int = 1
    """Rollouts with the real model before a candidate is scored; it is scored only if they have no fault."""
    false_accept: float = 0.05
    """Of the paired rule: most chance that a phase accepts anything that is no better, by the margin."""
    margin: float = 0.0
    """Of the paired rule: least difference of success, a fraction, that is worth accepting."""
    most_samples: int = 8
    """Of the paired rule: most rollouts of one harness on one example; a power of two."""
    planned: int = 15
    """Of the paired rule: candidates that a phase is planned to have; more are judged more strictly."""
    seed: int = 0
    """Of the proposer's draws."""

    def __post_init__(self) -> None:
        check_types(self, " of a search")
        for name in ("slots", "examples", "most_samples", "planned"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} of a search must be at least 1, got {getattr(self, name)}")
        if self.most_samples & (self.most_samples - 1):
            raise UsageError(f"most_samples of a search must be a power of two, got {self.most_samples}")
        if self.smoke < 0:
            raise UsageError(f"smoke of a search must be at least 0, got {self.smoke}")
        if not 0 < self.false_accept < 0.5 or not 0 <= self.margin < 1:
            raise UsageError(
                "a search has false_accept between 0 and 0.5 and margin from 0 to below 1, got "
                f"{self.false_accept}, {self.margin}"
            )
