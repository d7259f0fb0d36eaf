"""Finished rollouts made of nothing but token ids."""

from typing import Any

from whale_bench.records import Rollout, Segment
from whale_envs.core import Verdict


def segment(prompt: Any, sampled: Any, **changes: Any) -> Segment:
    """One call; `prompt` or `sampled` None where the server told no ids."""
    ids = (None if part is None else tuple(part) for part in (prompt, sampled))
    return Segment((), "", prompt_ids=next(ids), sampled_ids=next(ids), **changes)


def rollout_of(*segments: Segment, key: str = "weight:e0:0", reward: float = 1.0, **changes: Any) -> Rollout:
    """A rollout with these calls of the model."""
    _, example_id, sample = key.split(":")
    fields: dict[str, Any] = {
        "key": key, "domain": "chess_puzzles", "example_id": example_id, "sample": int(sample), "seed": 0,
        "harness_id": "h", "weights_id": "w", "opening": "o", "segments": segments, "steps": (),
        "verdict": Verdict(reward, "solved", standard=reward, paper=reward), "stop_condition": "solved",
        "truncated": False,
    }  # fmt: skip
    return Rollout(**{**fields, **changes})
