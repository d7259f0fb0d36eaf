"""A rollout in flight: what has been sampled and done, and what that has cost so far.

    now = Progress(env, view, budget)
    now.segments.append(segment)
    now.tokens_left, now.used()

Not covered: what happens next, see `turns.py`; the record of a rollout that has ended, see `engine.py`.
"""

import time
from dataclasses import dataclass, field
from typing import Any

from whale_bench.harness.base import View
from whale_bench.ledger import CACHED, COUNTED, Charge, parts
from whale_bench.models.base import Request, Usage
from whale_bench.records import Segment, Step
from whale_envs.core import TextEnv

NOTHING = Usage()


@dataclass(slots=True)
class Progress:
    """A rollout in flight."""

    env: TextEnv
    view: View
    budget: int | None
    own: bool = False
    """Whether an own agent plays, whose calls of a model may be unknown."""
    segments: list[Segment] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    cut: bool = False
    """Whether the last reply was cut off."""
    asking: bool = False
    """Whether the model has been asked and has not replied."""
    unanswered: Usage = NOTHING
    """Of a call that the server failed, or refused, for good."""
    env_seconds: float = 0.0

    async def step(self, action: str) -> tuple[str, bool, dict[str, Any]]:
        """The environment's step: the observation, whether it ended, and the rest it tells."""
        began = time.perf_counter()
        try:
            observation, _, terminated, truncated, told = await self.env.astep(action)
        finally:
            self.env_seconds += time.perf_counter() - began
        return observation, terminated or truncated, told

    @property
    def sampled(self) -> int:
        return sum(s.sampled_tokens or 0 for s in self.segments)

    @property
    def lost(self) -> tuple[int, int]:
        """(prompt, sampled) tokens of attempts that came to nothing."""
        calls: list[Segment | Usage] = [*self.segments, self.unanswered]
        return sum(c.lost_prompt_tokens for c in calls), sum(c.lost_sampled_tokens for c in calls)

    def cached(self) -> dict[str, Any]:
        """Prompt tokens from and into the server's cache, where it said how many."""
        calls = [*self.segments, self.unanswered]
        told = {name: [getattr(call, name) for call in calls] for name in CACHED}
        return {name: sum(n or 0 for n in each) for name, each in told.items() if set(each) != {None}}

    @property
    def metered(self) -> bool:
        """Whether all calls are known; of an own agent, that it acted but called nothing is not believed."""
        return not self.own or bool(self.segments)

    @property
    def tokens_left(self) -> int | None:
        return None if self.budget is None else self.budget - self.sampled

    def over_budget(self, request: Request) -> bool:
        """Whether the last reply, the answer to `request`, was ended by the budget or broke it."""
        left = self.tokens_left
        if left is None:
            return False
        if self.segments[-1].sampled_tokens is None:  # not counted: `left` is still what it was
            return self.cut and request.max_tokens == left
        return left < 0 or (left == 0 and self.cut)

    def used(self) -> Charge:
        """What the rollout has cost so far; nobody knows the tokens of a call without an answer."""
        tokens = [(s.prompt_tokens, s.sampled_tokens) for s in self.segments]
        counters = self.env.counters()
        lost_prompt, lost_sampled = self.lost
        return Charge(
            rollouts=1,
            prompt_tokens=sum(prompt or 0 for prompt, _ in tokens) + lost_prompt,
            sampled_tokens=self.sampled + lost_sampled,
            model_calls=len(tokens),
            unmetered_tokens=self.asking or not self.metered or any(None in pair for pair in tokens),
            **parts(counters, COUNTED),
            **parts(self.cached(), CACHED),
        )
