"""What a training step came to: the state after it, and its line in `metrics.jsonl`.

    after = advance(state, admitted, update, sampler, rewards)
    line = line_of(after, admitted, update, reward)
    lines_after(path, step=3)                           # of finished steps whose checkpoints are lost
    mend(path, checkpoint)                              # after a kill: one line for each finished step

Not covered: seconds and `weights_id` of a line, which `rsft_loop.py` adds.
"""

import json
from pathlib import Path
from typing import Any

import msgspec

from whale_baselines.checkpoint import Checkpoint, TrainingState
from whale_baselines.json_lines import read_lines, write_lines
from whale_baselines.sampler import SamplerState
from whale_baselines.sequences import Admitted
from whale_baselines.trainer import METRICS, STATE, Update


def advance(
    state: TrainingState,
    admitted: Admitted,
    update: Update,
    sampler: SamplerState,
    rewards: tuple[float, ...],
) -> TrainingState:
    """The state after a step."""
    empty = not admitted.accepted
    return msgspec.structs.replace(
        state,
        step=state.step + 1,
        sampler=sampler,
        rollouts=state.rollouts + admitted.rollouts,
        updates=state.updates + update.updates,
        skipped=state.skipped + update.skipped,
        trained_tokens=state.trained_tokens + update.tokens,
        empty=state.empty + empty,
        empty_in_a_row=state.empty_in_a_row + 1 if empty else 0,
        rewards=rewards,
    )


def line_of(state: TrainingState, admitted: Admitted, update: Update, reward: float) -> dict[str, Any]:
    """The metrics of a step, but for its seconds and the weights that it ends with."""
    rollouts = admitted.rollouts
    return {
        "step": state.step,
        "epoch": state.sampler.epoch,
        "position": state.sampler.position,
        "rollouts": rollouts,
        "accepted": admitted.accepted,
        "acceptance": admitted.accepted / rollouts,
        "cut_off": admitted.cut_off,
        "accepted_examples": admitted.examples,
        "broken_share": admitted.broken / rollouts,
        "accepted_tokens": admitted.sampled,
        "verify_seconds": admitted.env_seconds,
        "trained_tokens": update.tokens,
        "updates": update.updates,
        "skipped": update.skipped,
        "empty": not admitted.accepted,
        "loss": update.loss,
        "grad_norm": update.grad_norm,
        "padding": update.padding,
        "changed_bf16": update.changed,
        "reward": reward,
        "reward_window": sum(state.rewards) / len(state.rewards),
        "total": {"rollouts": state.rollouts, "updates": state.updates, "tokens": state.trained_tokens},
    }


def lines_after(path: Path, step: int) -> list[dict[str, Any]]:
    """Metrics of finished steps after a checkpoint's: there are some only where later ones were lost."""
    lines = {line["step"]: line for line in read_lines(path)}
    return [lines[number] for number in sorted(lines) if number > step]


def mend(path: Path, now: Checkpoint) -> None:
    """Makes the metrics those of the finished steps: one line each, also for a kill between two writes."""
    lines: dict[int, dict[str, Any]] = {}
    for line in read_lines(path):
        lines.setdefault(line["step"], line)
    beside = now.folder / STATE / METRICS
    if now.state.step not in lines and beside.exists():
        lines[now.state.step] = json.loads(beside.read_text()) | {"weights_id": now.state.weights_id}
    write_lines(path, [lines[step] for step in sorted(lines) if step <= now.state.step])
