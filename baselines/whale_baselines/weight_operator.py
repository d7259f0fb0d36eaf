"""The weight operator of `rsft_loop.py` behind the loop's protocol.

    trainer = await open_weight_operator(phase, base, use_harness)
    stepped = await trainer.step(1)

`Phase` counts its steps over the whole run and keeps them in checkpoints and `metrics.jsonl`, so a step
that a killed launch finished without the history knowing of it is told from there.

Not covered: how a harness gets into the player (`use_harness` does that), and how long checkpoints are
kept, which the recipe's `keep_last` says.
"""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from whale_baselines.alternate import Stepped
from whale_baselines.history import Harness
from whale_baselines.rsft_loop import Phase
from whale_envs.errors import UsageError

UseHarness = Callable[[Harness], Awaitable[None]]
"""Makes the phase's player roll out under a harness from now on."""


class PhaseOperator:
    """Implements `WeightOperator`. Made by `open_weight_operator`."""

    def __init__(self, phase: Phase, use_harness: UseHarness) -> None:
        self.phase = phase
        self._use_harness = use_harness
        self._harness_id = ""

    @property
    def base_id(self) -> str:
        """`weights_id` of the weights that the run began with."""
        return self.phase.now.state.base_id

    async def begin(self, harness: Harness) -> None:
        await self._use_harness(harness)
        self._harness_id = harness.harness_id

    async def step(self, number: int) -> Stepped:
        """See `WeightOperator.step`.

        Raises:
            UsageError: the checkpoints are of an earlier or a much later step; and what `Phase.step` raises.
        """
        finished = self.phase.now.state.step
        if finished == number - 1:
            began_with, line = self.phase.now.state.weights_id, await self.phase.step()
        elif finished >= number:
            began_with, line = self._line(number - 1)["weights_id"], self._line(number)
        else:
            raise UsageError(
                f"step {number} is next, and the newest checkpoint is of step {finished}: "
                "were checkpoints deleted?"
            )
        return Stepped(
            began_with=began_with,
            weights_id=line["weights_id"],
            harness_id=self._harness_id,
            reward=line["reward"],
            rollouts=line["rollouts"],
            metrics={name: value for name, value in line.items() if name not in _BESIDE},
        )

    def join(self) -> None:
        """See `WeightOperator.join`.

        Raises:
            InfrastructureError: the newest checkpoint cannot be written.
        """
        self.phase.join()

    def _line(self, number: int) -> dict[str, Any]:
        """The line of metrics of a finished step; of step 0, the weights that the run began with."""
        if number == 0:
            return {"weights_id": self.base_id}
        for text in self.phase.metrics.read_text().splitlines():
            line: dict[str, Any] = json.loads(text)
            if line["step"] == number:
                return line
        raise UsageError(f"{self.phase.metrics} lacks step {number}, which a checkpoint says is finished")


_BESIDE = ("weights_id", "reward", "rollouts")
"""What the history has of a line of metrics in fields of its own; the rest it keeps whole."""


async def open_weight_operator(phase: Phase, base: Path, use_harness: UseHarness) -> PhaseOperator:
    """The operator on a run's folder: from its newest checkpoint, or a first one made from `base`.

    Raises:
        UsageError, InfrastructureError: as `Phase.begin`.
    """
    await phase.begin(base)
    return PhaseOperator(phase, use_harness)
