"""A log that inspect_ai opens and its viewer shows: a sample per example, an epoch per rollout.

    write_inspect(RunStore.open(Path("runs/demo")), Path("demo.eval"))     # or demo.json

Each sample has its chat, both profiles' verdicts as scores, token usage, metadata, and one model event
for each call with the messages exactly as sent. `target` is empty: gold answers are in no run. A run
with missing rollouts becomes a log of status "error" whose message says how many, without a mean.

The run is read twice: for the scores, then for the samples, of which one is in memory at a time. Of
100,000 rollouts, `.json` keeps their rewards only; `.eval` also a directory entry each (the zip's), and
summaries go through a temporary file.

Not covered: clock times within a rollout, which a run does not keep; tools as inspect_ai's own type
(schemas stand in an event's metadata).
"""

import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from whale_bench.export.chat import is_played, played
from whale_bench.export.files import fresh
from whale_bench.export.inspect_header import (
    Totals,
    error_of,
    read_totals,
    results,
    sampling_of,
    spec,
    stats,
)
from whale_bench.models.base import Message
from whale_bench.records import Rollout, Segment
from whale_bench.store import RunStore
from whale_envs.core import Verdict
from whale_envs.errors import UsageError

LOG_VERSION = 2
"""Of inspect_ai's log format, which its versions 0.3.x read."""

_REASONS = {"length": "max_tokens", "context_length": "model_length"}
"""Finish reasons by the other name that inspect_ai has for them."""

Put = Callable[[Rollout], None]


def write_inspect(store: RunStore, out: Path) -> None:
    """Writes the log; the ending of `out` is `.eval` (zipped, smaller) or `.json`.

    Raises:
        UsageError: the ending is another, or `out` cannot be made.
    """
    if out.suffix not in (".eval", ".json"):
        raise UsageError(f"a log of inspect_ai is named *.eval or *.json, not {out.name!r}")
    totals = read_totals(store)
    opened = _zipped if out.suffix == ".eval" else _plain
    with fresh(out) as temporary, opened(temporary, store, totals) as put:
        for rollout in store.rollouts():
            put(rollout)


@contextmanager
def _plain(path: Path, store: RunStore, totals: Totals) -> Iterator[Put]:
    """One JSON object, the samples last."""
    first = True
    with path.open("wb") as file:

        def put(rollout: Rollout) -> None:
            nonlocal first
            file.write((b"" if first else b",\n") + msgspec.json.encode(sample_of(rollout, totals)))
            first = False

        file.write(msgspec.json.encode(_header(store, totals))[:-1] + b',"samples":[\n')
        yield put
        file.write(b"\n]}\n")


@contextmanager
def _zipped(path: Path, store: RunStore, totals: Totals) -> Iterator[Put]:
    """A zip with a member for each sample, one for their summaries, and the header."""
    header = _header(store, totals)
    first = True
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=3) as archive,
        tempfile.TemporaryFile() as summaries,
    ):

        def put(rollout: Rollout) -> None:
            nonlocal first
            sample = sample_of(rollout, totals)
            name = f"samples/{sample['id']}_epoch_{sample['epoch']}.json"
            archive.writestr(name, msgspec.json.encode(sample))
            summaries.write((b"" if first else b",\n") + msgspec.json.encode(_summary(sample)))
            first = False

        start = {name: header[name] for name in ("version", "eval", "plan")}
        archive.writestr("_journal/start.json", msgspec.json.encode(start))
        yield put
        summaries.seek(0)
        with archive.open("summaries.json", "w") as member:
            member.write(b"[")
            shutil.copyfileobj(summaries, member)
            member.write(b"]")
        archive.writestr("header.json", msgspec.json.encode(header))


def _header(store: RunStore, totals: Totals) -> dict[str, Any]:
    settings = store.settings
    sampling = sampling_of(settings)
    step = {"solver": "harness", "params": {"harness_id": settings["harness_id"]}}
    header = {
        "version": LOG_VERSION,
        "status": "error" if totals.missing else "success",
        "eval": spec(settings, totals),
        "plan": {"name": "plan", "steps": [step], "config": sampling},
        "results": results(settings, totals),
        "stats": stats(settings, totals),
    }
    return header | ({"error": error_of(totals)} if totals.missing else {})


def sample_of(rollout: Rollout, totals: Totals) -> dict[str, Any]:
    """The rollout as one epoch of a sample."""
    usage = _usage(rollout.prompt_tokens, rollout.sampled_tokens)
    chat = list(_chat(rollout, totals.model))
    return {
        "id": rollout.example_id,
        "epoch": rollout.sample + 1,
        "input": rollout.opening,
        "target": "",
        "messages": chat,
        "output": _last_output(rollout, chat, totals.model),
        "scores": _scores(rollout.verdict),
        "metadata": {
            "key": rollout.key,
            "stop_condition": rollout.stop_condition,
            "truncated": rollout.truncated,
            "metered": rollout.metered,
            "format_ok": rollout.verdict.format_ok,
            "reward": rollout.verdict.reward,
            "error": rollout.error,
            "groups": rollout.groups,
            "metrics": rollout.metrics,
            "tool_calls": rollout.tool_calls,
            "steps": msgspec.to_builtins(rollout.steps),
        },
        "events": [_event(segment, totals) for segment in rollout.segments],
        "model_usage": {totals.model: usage} if usage else {},
        "total_time": rollout.seconds,
        "uuid": f"{totals.eval_id}-{rollout.key}",
    }


def _summary(sample: dict[str, Any]) -> dict[str, Any]:
    """What the viewer's list of samples shows."""
    kept = ("id", "epoch", "target", "scores", "model_usage", "total_time", "uuid")
    shown = ("key", "stop_condition", "truncated")
    return {name: sample[name] for name in kept} | {
        "input": sample["input"][:500],
        "metadata": {name: sample["metadata"][name] for name in shown},
        "completed": True,
        "message_count": len(sample["messages"]),
    }


def _scores(verdict: Verdict) -> dict[str, Any]:
    """Both profiles' verdicts; one that this episode cannot tell is left out."""
    values = {"standard": verdict.standard, "paper": verdict.paper}
    return {
        profile: {"value": value, "answer": verdict.answer, "explanation": verdict.reason}
        for profile, value in values.items()
        if value is not None
    }


def _chat(rollout: Rollout, model: str) -> Iterator[dict[str, Any]]:
    """The last call's messages, its reply, and what the environment said to that; or what was played."""
    if is_played(rollout, model):
        yield from map(_message, played(rollout))
        return
    segment = rollout.segments[-1]
    for message in segment.messages:
        yield _message(message)
    yield _reply(segment, model)
    for step in rollout.steps[-1:]:
        if step.observation or step.feedback:
            yield {"role": "user", "content": step.observation or step.feedback}


def _message(message: Message) -> dict[str, Any]:
    role = message.role if message.role in ("system", "user", "assistant", "tool") else "user"
    said: dict[str, Any] = {"role": role, "content": message.content}
    if role == "tool" and message.tool_call_id:
        said["tool_call_id"] = message.tool_call_id
    if role == "assistant" and message.tool_calls:
        said["tool_calls"] = [_tool_call(call, i) for i, call in enumerate(message.tool_calls)]
    return said


def _reply(segment: Segment, model: str) -> dict[str, Any]:
    """The sampled text as it was, reasoning included."""
    said: dict[str, Any] = {
        "role": "assistant",
        "content": segment.text,
        "source": "generate",
        "model": model,
    }
    if segment.tool_calls:
        said["tool_calls"] = [_tool_call(call, i) for i, call in enumerate(segment.tool_calls)]
    return said


def _tool_call(call: dict[str, Any], index: int) -> dict[str, Any]:
    """An OpenAI-shaped call; arguments that are no JSON object stand in `parse_error`."""
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    text = function.get("arguments")
    try:
        arguments = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        arguments = None
    found: dict[str, Any] = {
        "id": str(call.get("id") or index),
        "function": str(function.get("name", "")),
        "arguments": arguments if isinstance(arguments, dict) else {},
        "type": "function",
    }
    return found if isinstance(arguments, dict) else found | {"parse_error": str(text)}


def _output(segment: Segment, model: str) -> dict[str, Any]:
    reason = _REASONS.get(segment.finish_reason, segment.finish_reason)
    output: dict[str, Any] = {
        "model": model,
        "choices": [{"message": _reply(segment, model), "stop_reason": reason}],
        "completion": segment.text,
    }
    usage = _usage(segment.prompt_tokens, segment.sampled_tokens)
    return output | ({"usage": usage} if usage else {})


def _last_output(rollout: Rollout, chat: list[dict[str, Any]], model: str) -> dict[str, Any]:
    """The last call's, or the last action."""
    if not is_played(rollout, model):
        return _output(rollout.segments[-1], model)
    for message in reversed(chat):
        if message["role"] == "assistant":
            choice = {"message": message, "stop_reason": "stop"}
            return {"model": model, "choices": [choice], "completion": message["content"]}
    return {"model": model}


def _event(segment: Segment, totals: Totals) -> dict[str, Any]:
    return {
        "event": "model",
        "timestamp": totals.started,
        "working_start": 0.0,
        "model": totals.model,
        "input": [_message(message) for message in segment.messages],
        "tools": [],
        "tool_choice": "auto",
        "config": {"seed": segment.seed},
        "output": _output(segment, totals.model),
        "metadata": {"tools": segment.tools} if segment.tools else None,
    }


def _usage(prompt: int | None, sampled: int | None) -> dict[str, int] | None:
    """Token counts; None where the server did not say, since inspect_ai has no word for that."""
    if prompt is None or sampled is None:
        return None
    return {"input_tokens": prompt, "output_tokens": sampled, "total_tokens": prompt + sampled}
