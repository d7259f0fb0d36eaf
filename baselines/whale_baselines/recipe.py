"""Every constant of rejection-sampling fine-tuning, with the paper's value as default.

    Recipe()                                            # the paper's weight operator
    Recipe(prompts=16, lr=3e-5, minibatch=8, seed=1)    # one that shows progress on a laptop

Defaults: arXiv 2609.00196 where it says, else its code (the optimizer's are the defaults of the
trainer that it uses). The paper's minibatch of 64 is taken as one over all processes.

Not covered: how many steps a phase has and when it ends, which is the schedule's matter.
"""

import hashlib
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_type_hints

import msgspec

from whale_bench.plan import check_types
from whale_envs.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How the weights are trained."""

    prompts: int = 256
    """Examples of a step."""
    samples: int = 8
    """Rollouts of each example of a step; the paper's G."""
    minibatch: int = 64
    """Training sequences of one optimizer step, over all processes."""
    sft_epochs: int = 1
    """Passes over the accepted rollouts of a step."""
    lr: float = 1e-7
    """Constant, without warm-up."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Of AdamW."""
    weight_decay: float = 0.01
    clip: float = 1.0
    """Largest norm of a gradient."""
    micro_tokens: int = 16_384
    """Most tokens of one forward pass, padding included; a longer sequence passes alone."""
    precision: Literal["auto", "bfloat16", "float32"] = "auto"
    """Of the forward pass; the trained weights are float32. auto: bfloat16 where the hardware has it."""
    lora_rank: int = 0
    """Rank of LoRA adapters on all linear layers; 0 trains all weights."""
    temperature: float = 1.0
    """What the loss divides logits by: the sampling temperature, as in the paper's code."""
    server_command: str = ""
    """Starts a server on a folder, for openai/NAME: {folder}, {host} and {port} are filled in, and each new
    checkpoint gets a new server. Empty where one runs already and takes weights."""
    seed: int = 0
    """Of the order of examples and rows, and of dropout."""
    keep_last: int = 2
    """Newest checkpoints that are kept."""
    window: int = 10
    """Steps that the sliding mean of the reward is over."""
    most_empty: int = 3
    """Steps in a row without an accepted rollout after which a run stops; 0 never stops it."""
    most_skipped: int = 3
    """Updates in a row with a gradient that is not finite after which a phase stops."""

    def __post_init__(self) -> None:
        check_types(self, " of a recipe")
        for name in _COUNTS:
            if getattr(self, name) < (name != "most_empty"):
                least = int(name != "most_empty")
                raise UsageError(f"{name} of a recipe must be at least {least}, got {getattr(self, name)}")
        for name, value in {"lr": self.lr, "clip": self.clip, "temperature": self.temperature}.items():
            if not 0 < value < 1e6:
                raise UsageError(f"{name} of a recipe must be more than 0, got {value}")
        decay = 0 <= self.weight_decay < 1e6
        if self.lora_rank < 0 or not decay or not all(0 <= beta < 1 for beta in self.betas):
            raise UsageError(
                "a recipe has lora_rank >= 0, finite weight_decay >= 0 and betas in [0, 1), got "
                f"{self.lora_rank}, {self.weight_decay}, {self.betas}"
            )

    @property
    def recipe_id(self) -> str:
        """Hash of what decides the weights: all but how much is kept, when to stop and who serves."""
        kept = {name: value for name, value in asdict(self).items() if name not in _NO_MATTER}
        return f"sha256:{hashlib.sha256(msgspec.json.encode(kept, order='sorted')).hexdigest()}"


_OF_KEEPING = ("keep_last", "window", "most_empty", "most_skipped")
_NO_MATTER = (*_OF_KEEPING, "server_command")
_COUNTS = ("prompts", "samples", "minibatch", "sft_epochs", "micro_tokens", *_OF_KEEPING)


def recipe_of(settings: dict[str, Any]) -> Recipe:
    """A recipe from its fields by name, such as a table of a TOML file.

    Raises:
        UsageError: there is no such field, or it cannot have that value.
    """
    known = list(get_type_hints(Recipe))
    for name in settings:
        if name not in known:
            raise UsageError(f"a recipe has no {name!r}; valid: {', '.join(known)}")
    given: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in settings.items()}
    return Recipe(**given)
