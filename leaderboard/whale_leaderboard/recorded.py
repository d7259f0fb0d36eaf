"""What a recorded rollout offers in place of the outside world: its model, its own agent, its judge.

    backend = RecordedBackend(row, native=False)
    agent = Agent(backend, harness)
    again = await rollout(task, agent, example, sample=row.sample, seed=row.seed, key=row.key)

The engine plays as ever; what it asks for is compared with what was asked for then, and the first
difference raises `Diverged`. Tools are in `recorded_tools.py`.

Not covered: comparing the rollout that comes out, see `replay.py`.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from whale_bench.agents.host import OwnAgent
from whale_bench.agents.protocol import Opening
from whale_bench.models.base import Backend, Generation, Message, Request, Usage
from whale_bench.records import Rollout, Segment
from whale_bench.replies import said_in
from whale_envs.errors import AgentError, HarnessError, ModelError
from whale_envs.search_qa import Judgement
from whale_leaderboard.sampled import unsampled

MODEL_FAILED = ("context_length", "content_filter", "chat_template")
HARNESS_FAILED = ("harness_error", "harness_timeout")
AGENT_FAILED = ("agent_error", "agent_timeout")

_AROUND = 40


class Diverged(Exception):  # noqa: N818 - not an error of this program
    """The rollout went another way than the recorded one; says where."""


class RecordedBackend(Backend):
    """Answers with the recorded generations, each only to the request it was the answer to.

    Args:
        row: the rollout.
        native: whether its backend gives tool calls.
    """

    fixture = False

    def __init__(self, row: Rollout, *, native: bool) -> None:
        self._native = native
        self.name = self.weights_id = row.weights_id
        self._row = row
        self.calls = 0

    async def generate(self, request: Request) -> Generation:
        number, segments = self.calls, self._row.segments
        if number >= len(segments):
            raise self._end()
        self.calls += 1
        segment = segments[number]
        if why := _differs(request, segment):
            raise Diverged(f"call {number + 1}: {why}")
        if why := unsampled(segment, native=self._native):
            raise Diverged(f"call {number + 1}: {why}")
        reasoning, text = said_in(segment)
        return Generation(
            text=text,
            reasoning=reasoning,
            raw_text=segment.text,
            finish_reason=segment.finish_reason,  # type: ignore[arg-type]  # one of its words, see `rows.py`
            tool_calls=segment.tool_calls,
            prompt_ids=segment.prompt_ids,
            sampled_ids=segment.sampled_ids,
            logprobs=segment.logprobs,
            usage=Usage(
                segment.prompt_tokens,
                segment.sampled_tokens,
                segment.cache_read_tokens,
                segment.cache_write_tokens,
                segment.lost_prompt_tokens,
                segment.lost_sampled_tokens,
            ),
        )

    def _end(self) -> Exception:
        """What asking the model once more than was recorded means."""
        row = self._row
        if row.stop_condition in MODEL_FAILED:
            return ModelError(row.stop_condition, row.error)
        if row.stop_condition in HARNESS_FAILED:
            return HarnessError(row.stop_condition, row.error)
        return Diverged(f"the model is asked again after its {len(row.segments)} recorded replies")


class RecordedAgent(OwnAgent):
    """An own agent that plays the recorded actions; its program is not here, and does not run.

    Args:
        row: the rollout.
        options: of the environment, as its run's settings have them.
    """

    def __init__(self, row: Rollout, options: dict[str, int]) -> None:
        # OwnAgent's own constructor is for one that has processes.
        self.name, self.weights_id, self.harness_id = row.weights_id, row.weights_id, row.harness_id
        self._row, self._options = row, options

    def env_options(self, domain: str) -> dict[str, int]:  # noqa: ARG002 - as OwnAgent's
        return self._options

    @asynccontextmanager
    async def play(  # type: ignore[override]  # a session of actions in place of a process
        self,
        key: str,  # noqa: ARG002 - as OwnAgent's
        opening: Opening,  # noqa: ARG002
        segments: list[Segment],
    ) -> "AsyncIterator[_Actions]":
        segments += self._row.segments
        yield _Actions(self._row)


class _Actions:
    """The recorded actions of an own agent, in turn."""

    def __init__(self, row: Rollout) -> None:
        self._row = row
        self._steps = iter(row.steps)

    async def begin(self) -> str:
        return self._next()

    async def observe(self, observation: str, event: str, feedback: str) -> str:  # noqa: ARG002
        return self._next()

    def _next(self) -> str:
        step = next(self._steps, None)
        if step is not None and step.action is not None:
            return step.action
        if self._row.stop_condition in AGENT_FAILED:
            raise AgentError(self._row.stop_condition, self._row.error)
        raise Diverged(f"the agent is asked again after its {len(self._row.steps)} recorded actions")


class RecordedJudge:
    """Says what the judge said; only a judge could tell whether it was right."""

    def __init__(self, row: Rollout) -> None:
        self._row = row
        self.asked = 0

    async def judge(self, question: str, golds: Sequence[str], answer: str) -> Judgement:  # noqa: ARG002
        self.asked += 1
        metrics = self._row.metrics
        silent = bool(metrics.get("judge_fallback", 0))
        return Judgement(
            None if silent else self._row.verdict.reward > 0.5,
            int(metrics.get("judge_calls", 0)),
            int(metrics.get("judge_prompt_tokens", 0)),
            int(metrics.get("judge_sampled_tokens", 0)),
        )


def _differs(request: Request, segment: Segment) -> str:
    """How a request differs from the recorded one, in words; empty where it does not."""
    if request.messages != segment.messages:
        return _messages_differ(request.messages, segment.messages)
    if request.tools != segment.tools:
        return "other tool schemas are sent"
    if request.seed != segment.seed:
        return f"its seed is {request.seed}, {segment.seed} is recorded"
    return ""


def _messages_differ(now: Sequence[Message], then: Sequence[Message]) -> str:
    if len(now) != len(then):
        return f"{len(now)} messages are sent, {len(then)} are recorded"
    for number, (one, other) in enumerate(zip(now, then, strict=True), start=1):
        for name in Message.__struct_fields__:
            mine, recorded = getattr(one, name), getattr(other, name)
            if mine != recorded:
                return f"message {number} ({one.role}): {text_differs(name, mine, recorded)}"
    raise AssertionError("messages that are equal and are not")


def text_differs(name: str, now: Any, then: Any) -> str:
    """Where two values part, in words."""
    if not isinstance(now, str) or not isinstance(then, str):
        return f"its {name} is {now!r:.200}, {then!r:.200} is recorded"
    at = next(
        (i for i, (a, b) in enumerate(zip(now, then, strict=False)) if a != b), min(len(now), len(then))
    )
    here, there = now[at : at + _AROUND], then[at : at + _AROUND]
    return f"its {name} differs at character {at + 1}: {here!r} here, {there!r} recorded"
