"""What is played, and who plays: a domain's examples under limits, and a model with a harness.

    task = Task("chess_puzzles", examples)
    agent = Agent(backend, harness)              # or an `agents.host.OwnAgent`, which decides by itself

Not covered: playing, see `engine.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from whale_bench.harness.host import HarnessHost
from whale_bench.models.base import Backend, Request, Sampling
from whale_envs import ExampleSet, UnknownNameError, get_domain
from whale_envs.core import Profile

DEFAULT_SAMPLING = Sampling()


@dataclass(frozen=True, slots=True)
class Task:
    """What is played: a domain's examples under a profile and the rollout's limits."""

    domain: str
    examples: ExampleSet[Any]
    profile: Profile = "standard"
    max_tokens: int | None = None
    """Most sampled tokens per turn; a harness may ask for fewer."""
    token_budget: int | None = None
    """Most sampled tokens per rollout; None is the domain's published budget."""
    resources: Mapping[str, Any] = field(default_factory=dict)
    """What all rollouts share and the environment takes as options, such as an interpreter; before the
    harness's options of the same name."""

    @property
    def budget(self) -> int:
        """Most sampled tokens of a rollout."""
        return get_domain(self.domain).budget(self.token_budget)


@dataclass(frozen=True, slots=True)
class Agent:
    """A model with its sampling, and a harness."""

    backend: Backend
    harness: HarnessHost
    sampling: Sampling = DEFAULT_SAMPLING

    @property
    def weights_id(self) -> str:
        return self.backend.weights_id

    @property
    def harness_id(self) -> str:
        return self.harness.harness_id

    @property
    def fixture(self) -> bool:
        return self.backend.fixture

    @property
    def default_concurrency(self) -> int:
        return self.backend.default_concurrency

    @property
    def source(self) -> str:
        return self.harness.source

    def env_options(self, domain: str) -> dict[str, int]:
        return env_options(domain, self.harness)

    @property
    def tools(self) -> tuple[dict[str, Any], ...]:
        """Schemas that are sent with every request: those of a harness in native tool mode."""
        settings = self.harness.settings
        return tuple(settings.tools) if settings.tool_mode == "native" else ()

    def max_tokens(self, task: Task, left: int | None) -> int | None:
        """Most tokens of a turn with so many left in the rollout's budget."""
        given = [cap for cap in (self.harness.settings.max_tokens, task.max_tokens, left) if cap is not None]
        return max(1, min(given)) if given else None

    async def probe(self, task: Task) -> None:
        """Finds out before any rollout whether the model can be had at all, asked as in the first turn."""
        most = self.max_tokens(task, task.budget)
        await self.backend.probe(Request((), self.tools, self.sampling, most))

    def seconds(self) -> dict[str, float]:
        return self.backend.seconds()

    def warnings(self) -> list[str]:
        return self.backend.warnings()


def env_options(domain: str, harness: HarnessHost) -> dict[str, int]:
    """The harness's options for the environment, held within the environment's bounds.

    Raises:
        UnknownNameError: an option that the environment does not have.
    """
    bounds = get_domain(domain).module.ENV.BOUNDS
    asked = dict(harness.settings.env_options)
    if harness.settings.max_turns is not None:
        asked["max_turns"] = harness.settings.max_turns
    for name in asked:
        if name not in bounds:
            raise UnknownNameError(f"ENV_OPTIONS of {harness.name}", name, sorted(bounds))
    return {name: min(max(value, bounds[name][0]), bounds[name][1]) for name, value in asked.items()}
