"""A folder that Hugging Face `datasets` loads: one row per rollout, in Parquet.

    write_dataset(RunStore.open(Path("runs/demo")), Path("demo"))
    datasets.load_dataset("demo", split="test")

What varies in shape (segments, steps, groups, metrics) is JSON text, so that every run has the same
columns; `messages` is the last call's chat and its reply, as trainers take it. Rows are written
`ROWS` at a time. Needs the extra `data`.

Not covered: token arrays as columns; they stand in `segments`.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from whale_bench.export.chat import is_played, played
from whale_bench.export.files import fresh
from whale_bench.records import Rollout
from whale_bench.store import RunStore
from whale_envs.errors import UsageError

ROWS = 64
"""Rollouts in memory at once, and in a row group."""

_PLAIN = (
    "key", "domain", "example_id", "sample", "seed", "harness_id", "weights_id", "opening", "stop_condition",
    "truncated", "error", "metered", "prompt_tokens", "sampled_tokens", "tool_calls", "seconds",
)  # fmt: skip
"""Fields of a rollout that are columns as they are."""

_JSON = ("groups", "metrics", "segments", "steps")
"""Fields of a rollout that are columns of JSON text."""

_CARD = """\
---
configs:
- config_name: default
  data_files:
  - split: {split}
    path: rollouts.parquet
---
# {model} on {domain}, {tier}/{split}

Rollouts of a whale-bench run, one a row: {finished} of {expected} ({examples} examples, {k} each).
{missing}
`reward` is the verdict under the profile {profile}; `standard` and `paper` are those of both, null where
the episode cannot tell. `groups`, `metrics`, `segments` and `steps` are JSON. Gold answers are not
included. Settings of the run:

```json
{settings}
```
"""


def write_dataset(store: RunStore, out: Path) -> None:
    """Writes the folder.

    Raises:
        UsageError: the extra is not installed, or `out` cannot be made.
    """
    try:
        import pyarrow as pa
        from pyarrow.parquet import ParquetWriter
    except ImportError as error:
        raise UsageError('an export to datasets needs pip install "whale-envs[data]"') from error
    schema = _schema(pa)
    with fresh(out) as temporary:
        temporary.mkdir()
        rollouts, finished = store.rollouts(), 0
        with ParquetWriter(temporary / "rollouts.parquet", schema) as writer:
            while rows := [row_of(rollout, store.settings) for rollout in islice(rollouts, ROWS)]:
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))
                finished += len(rows)
        (temporary / "README.md").write_text(_card(store.settings, finished), encoding="utf-8")


def row_of(rollout: Rollout, settings: dict[str, Any]) -> dict[str, Any]:
    """The rollout as a row of plain values."""
    verdict = rollout.verdict
    return {
        **{name: getattr(rollout, name) for name in _PLAIN},
        "model": settings["model"],
        "reward": verdict.reward,
        "correct": verdict.correct,
        "standard": verdict.standard,
        "paper": verdict.paper,
        "answer": verdict.answer,
        "format_ok": verdict.format_ok,
        "model_calls": len(rollout.segments),
        "messages": list(_messages(rollout, settings["model"])),
        **{name: msgspec.json.encode(getattr(rollout, name)).decode() for name in _JSON},
    }


def _messages(rollout: Rollout, model: str) -> Iterator[dict[str, str]]:
    """The last call's chat and its reply, tool calls stand in `segments`; or what was played."""
    if is_played(rollout, model):
        for message in played(rollout):
            yield {"role": message.role, "content": message.content}
        return
    segment = rollout.segments[-1]
    for message in segment.messages:
        yield {"role": message.role, "content": message.content}
    yield {"role": "assistant", "content": segment.text}


def _schema(pa: Any) -> Any:
    text, whole, real, yes = pa.string(), pa.int64(), pa.float64(), pa.bool_()
    numbers = {
        "sample": whole, "seed": whole, "truncated": yes, "metered": yes, "prompt_tokens": whole,
        "sampled_tokens": whole, "tool_calls": whole, "seconds": real,
    }  # fmt: skip
    columns = [(name, numbers.get(name, text)) for name in _PLAIN]
    columns += [("model", text), ("reward", real), ("correct", yes), ("standard", real), ("paper", real)]
    columns += [("answer", text), ("format_ok", yes), ("model_calls", whole)]
    columns += [("messages", pa.list_(pa.struct([("role", text), ("content", text)])))]
    return pa.schema(columns + [(name, text) for name in _JSON])


def _card(settings: dict[str, Any], finished: int) -> str:
    expected = settings["n"] * settings["k"]
    lost = expected - finished
    return _CARD.format(
        **{name: settings[name] for name in ("split", "model", "domain", "tier", "k", "profile")},
        finished=finished,
        expected=expected,
        examples=settings["n"],
        missing=f"\n**{lost} rollouts are missing**: the run is incomplete and has no score.\n"
        if lost
        else "",
        settings=msgspec.json.format(msgspec.json.encode(settings), indent=2).decode(),
    )
