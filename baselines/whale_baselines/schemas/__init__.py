"""JSON Schemas (2020-12) of the files that a run of a recipe has beside those of `whale_bench.schemas`.

    python -m whale_baselines.schemas      # writes the *.json beside this module anew

They are made, as those are, from the types that read the files, and committed. What no type of its own reads
is described here. Rollouts and the ledger's events are those of `whale-bench schema`.

Not covered: run.toml, whose tables are the recipe's (docs/recipes.md); what stands in `archive/`, which
follows from archive.jsonl; checkpoints.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_type_hints

import msgspec

from whale_baselines.curves import CrossPlay, Outcome, PhaseLength
from whale_baselines.history import Made, Point, Start
from whale_baselines.search.log import Event
from whale_bench.schemas import VERSION as VERSION
from whale_bench.schemas import Committed


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over all steps so far."""

    rollouts: int
    updates: int
    tokens: int
    """Trained ones."""


class StepLine(msgspec.Struct, frozen=True, kw_only=True):
    """A finished training step."""

    step: int
    """From 1, over the whole run."""
    epoch: int
    """That the next step draws from, from 0."""
    position: int
    """Examples of that epoch that were drawn already."""
    rollouts: int
    accepted: int
    acceptance: float
    """The share of accepted rollouts."""
    cut_off: int
    """Rollouts that were right and cut off, which are not accepted."""
    accepted_examples: int
    """Different examples among the accepted."""
    broken_share: float
    """The share of rollouts that became several training sequences."""
    accepted_tokens: int
    """Sampled tokens of the accepted rollouts."""
    verify_seconds: float
    """In the environments' steps, tools and verification, summed over the rollouts."""
    trained_tokens: int
    """Of the optimizer steps that were made."""
    updates: int
    """Optimizer steps."""
    skipped: int
    """Optimizer steps left out, because their gradient was not finite."""
    empty: bool
    """Whether no rollout was accepted."""
    loss: float | None
    """Negative log-likelihood per token; null without an update."""
    grad_norm: float | None
    """Before clipping, mean over the updates."""
    padding: float
    """Share of padding in what went through the model."""
    changed_bf16: float
    """Share of the weights whose bfloat16 value is another one now."""
    reward: float
    """Mean over the rollouts."""
    reward_window: float
    """Mean over the last steps, as many as the recipe's window has."""
    total: Totals
    seconds: dict[str, float]
    """Wall seconds by part."""
    accelerators: int
    """Devices other than CPUs."""
    threads: int
    """Of the CPU, that the update was made with."""
    weights_id: str
    """Of the weights that the step left."""


Phase = msgspec.defstruct("Phase", [*get_type_hints(PhaseLength).items()], frozen=True)
Phase.__doc__ = PhaseLength.__doc__


class RecipeSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run of a recipe."""

    recipe: str
    """Its name."""
    domain: str
    fixture: bool
    """True where the learner is simulated, or the model scripted: no entry of any ranking."""
    outcome: Outcome | None
    """Null where nothing was evaluated on dev."""
    phases: list[Phase]  # type: ignore[valid-type]


KINDS: Mapping[str, tuple[str, Any]] = MappingProxyType(
    {
        "history": ("a line of history.jsonl: the start, a move or an evaluation", Start | Made | Point),
        "metrics": ("a line of metrics.jsonl: a training step", StepLine),
        "archive": ("a line of archive.jsonl: an event of the search", Event),
        "summary": ("summary.json of a run of a recipe", RecipeSummary),
        "matrix": ("crossplay/matrix.json: all weights of a run with all its harnesses", CrossPlay),
    }
)
"""Title and type by name."""

COMMITTED = Committed.of_types("whale-baselines", Path(__file__).parent, KINDS)
read_schema, make, path_of = COMMITTED.read, COMMITTED.make, COMMITTED.path_of
