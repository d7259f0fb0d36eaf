"""What the tests of own agents share."""

from typing import Any

from bench_fakes import EXAMPLES

from whale_bench import Rollout, Task, rollout
from whale_bench.agents.host import OwnAgent
from whale_bench.agents.protocol import Opening

LONG = next(i for i, e in enumerate(EXAMPLES) if len(e.gold) >= 3)
GOLD = EXAMPLES[LONG].gold
SOLVES = f"""
class Solver:
    def __init__(self):
        self.moves = iter({list(GOLD[::2])!r})
    def act(self, observation):
        return next(self.moves)
"""


async def play_own(
    agent: OwnAgent, *, example: int = LONG, sample: int = 0, key: str = "dev:x:0", **limits: Any
) -> Rollout:
    """One rollout on a chess puzzle."""
    task = Task("chess_puzzles", EXAMPLES, **limits)
    return await rollout(task, agent, EXAMPLES[example], sample=sample, seed=0, key=key)


async def ask(agent: OwnAgent, *observations: str, key: str = "k") -> list[str]:
    """The actions on these observations, without an environment."""
    async with agent.play(key, Opening("chess_puzzles", observations[0], 9, 1, []), []) as session:
        actions = [await session.begin()]
        actions += [await session.observe(text, "ok", "") for text in observations[1:]]
    return actions
