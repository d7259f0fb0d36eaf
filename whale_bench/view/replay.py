"""One rollout as a sequence of frames: what the harness showed, what the model did, what came back, why.

    replay = replay_of(rollout)
    [frame.title for frame in replay.frames]
    # ["2 messages", "f3f8", "f3f8 is right. The opponent replied e8d7.", …]

A frame holds blocks of typed text (`blocks.py`), so that the page knows nothing of domains. Messages
stand once and frames point at them, for most calls repeat those before.

Not covered: drawing (`static/`), and anything that is not in the rollout's line, such as gold answers.
"""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Literal

import msgspec

from whale_bench.agents.names import is_own_agent
from whale_bench.models.base import Message
from whale_bench.records import Rollout, Segment, Step
from whale_bench.replies import said_in
from whale_bench.view.blocks import (
    Block,
    call_block,
    call_blocks,
    function_of,
    observed_blocks,
    text_blocks,
)
from whale_bench.view.board import Position, Shown, walk
from whale_bench.view.data import headline
from whale_envs.core import ToolCall, parse_action

TITLE_CHARS = 90


class Sent(msgspec.Struct, frozen=True):
    """A message as sent."""

    role: str
    blocks: list[Block]


class Frame(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step of a replay."""

    actor: Literal["harness", "model", "environment", "verdict"]
    turn: int
    """From 1, one for each action or nudge; the verdict has that of the last."""
    title: str
    blocks: list[Block] = []
    facts: list[tuple[str, str]] = []
    """Names and values, e.g. ("sampled tokens", "12")."""
    sent: list[int] = []
    """Of the harness: indices into the replay's messages, in order."""
    known: int = 0
    """How many of the first of these were sent with the last call too."""
    board: Position | None = None


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What a page shows of a rollout."""

    key: str
    domain: str
    example_id: str
    sample: int
    task: str
    """What the rollout was about, in a line."""
    messages: list[Sent]
    frames: list[Frame]
    correct: bool
    reward: float
    stop_condition: str
    truncated: bool
    answer: str | None
    groups: list[tuple[str, str]]
    metrics: dict[str, float]
    prompt_tokens: int | None
    sampled_tokens: int | None
    seconds: float


def replay_of(rollout: Rollout) -> Replay:
    """The rollout's frames. Total: text of any kind is shown as text."""
    messages: dict[bytes, int] = {}
    sent: list[Sent] = []
    frames: list[Frame] = []
    boards: list[Shown] | None = None
    if rollout.domain == "chess_puzzles":
        boards = walk(rollout.opening, [(s.action, s.observation) for s in rollout.steps])
    last: list[int] = []
    own = is_own_agent(rollout.weights_id)
    if not next(_turns(rollout), ([], None))[0]:  # no call shows what the agent saw
        frames.append(_opening(rollout.opening, boards[0] if boards else None))
    for number, (segments, step) in enumerate(_turns(rollout)):
        shown = boards[min(number, len(boards) - 1)] if boards else None
        for segment in segments:
            indices = [_intern(message, messages, sent) for message in segment.messages]
            frames += [_shows(number, indices, last, segment, shown), _model(number, segment, shown)]
            last = indices
        if step is not None:
            frames.append(_answer(number, step, segments[-1] if segments else None, shown, own=own))
    frames.append(_verdict(rollout, boards[-1] if boards else None, frames))
    verdict = rollout.verdict
    return Replay(
        key=rollout.key,
        domain=rollout.domain,
        example_id=rollout.example_id,
        sample=rollout.sample,
        task=headline(rollout.opening),
        messages=sent,
        frames=frames,
        correct=verdict.correct,
        reward=verdict.reward,
        stop_condition=rollout.stop_condition,
        truncated=rollout.truncated,
        answer=verdict.answer,
        groups=list(rollout.groups),
        metrics=rollout.metrics,
        prompt_tokens=rollout.prompt_tokens,
        sampled_tokens=rollout.sampled_tokens,
        seconds=rollout.seconds,
    )


def _turns(rollout: Rollout) -> Iterator[tuple[Sequence[Segment], Step | None]]:
    """Every step with the calls that led to it; calls that led to none come last."""
    begin = 0
    for number, step in enumerate(rollout.steps):
        end = max(begin, number + 1 if step.calls is None else step.calls)
        yield rollout.segments[begin:end], step
        begin = end
    if rest := rollout.segments[begin:]:
        yield rest, None


def _intern(message: Message, known: dict[bytes, int], sent: list[Sent]) -> int:
    """The message's place in `sent`, where it is put if it is new."""
    name = msgspec.json.encode(message)
    if name not in known:
        known[name] = len(sent)
        blocks = observed_blocks(message.content) if message.role == "tool" else text_blocks(message.content)
        sent.append(Sent(message.role, blocks + call_blocks(message.tool_calls)))
    return known[name]


def _opening(opening: str, shown: Shown | None) -> Frame:
    return Frame(
        actor="environment",
        turn=1,
        title="The first observation",
        blocks=text_blocks(opening),
        board=shown.before if shown else None,
    )


def _shows(number: int, sent: list[int], last: list[int], segment: Segment, shown: Shown | None) -> Frame:
    known = next((i for i, (new, old) in enumerate(zip_longest(sent, last)) if new != old), len(sent))
    facts = _counted("prompt tokens", segment.prompt_tokens)
    if segment.tools:
        facts.append(("tools offered", ", ".join(function_of(tool)[0] for tool in segment.tools)))
    new = len(sent) - known
    return Frame(
        actor="harness",
        turn=number + 1,
        title=_many(new, "new message" if known else "message"),
        facts=facts,
        sent=sent,
        known=known,
        board=shown.before if shown else None,
    )


def _model(number: int, segment: Segment, shown: Shown | None) -> Frame:
    thinking, said = said_in(segment)
    blocks = [Block("reasoning", thinking)] if thinking else []
    blocks += text_blocks(said) + call_blocks(segment.tool_calls)
    facts = [*_counted("sampled tokens", segment.sampled_tokens), ("finished", segment.finish_reason)]
    summary = _line(said) or (f"calls {function_of(segment.tool_calls[0])[0]}" if segment.tool_calls else "")
    return Frame(
        actor="model",
        turn=number + 1,
        title=summary or "says nothing",
        blocks=blocks or [Block("text", segment.text)],
        facts=facts,
        board=(shown.attempted or shown.before) if shown else None,
    )


def _answer(number: int, step: Step, segment: Segment | None, shown: Shown | None, *, own: bool) -> Frame:
    """What became of an action: as what the harness read the reply, and what came back."""
    turn, board = number + 1, shown.after if shown else None
    if step.action is None:
        title = f"asks again: {_line(step.feedback)}"
        return Frame(
            actor="harness", turn=turn, title=title, blocks=text_blocks(step.observation), board=board
        )
    title = _line(step.feedback) or step.event
    call = parse_action(step.action)
    blocks = []
    if isinstance(call, ToolCall):
        blocks.append(call_block(call.tool, call.arguments))
    elif segment is None or step.action.strip() != said_in(segment)[1].strip():
        whose = "The agent's action" if own else "The harness read this as the action"
        blocks.append(Block("text", step.action, whose))
    if isinstance(call, ToolCall) and call.tool == "code_interpreter":
        blocks.append(Block("output", step.observation, "The program printed"))
    elif isinstance(call, ToolCall):
        blocks += observed_blocks(step.observation)
    else:
        blocks += text_blocks(step.observation)
    if step.feedback and title != step.feedback:
        blocks.insert(0, Block("feedback", step.feedback))
    return Frame(
        actor="environment",
        turn=turn,
        title=title,
        blocks=blocks,
        facts=[("event", step.event)],
        board=board,
    )


def _verdict(rollout: Rollout, shown: Shown | None, frames: list[Frame]) -> Frame:
    verdict = rollout.verdict
    facts = [("ended", rollout.stop_condition), ("reward", f"{verdict.reward:g}")]
    facts += [
        (f"{name} profile", "cannot tell: it would have gone another way" if value is None else f"{value:g}")
        for name, value in (("standard", verdict.standard), ("paper", verdict.paper))
    ]
    facts.append(("answer in a readable form", "yes" if verdict.format_ok else "no"))
    if rollout.truncated:
        facts.append(("cut off", "by a cap on turns, tokens or context"))
    blocks = [] if verdict.answer is None else [Block("text", verdict.answer, "Read as the answer")]
    if rollout.error:
        blocks.append(Block("output", rollout.error, "Error"))
    word = "solved" if verdict.correct else "not solved"
    boards = [frame.board for frame in frames if frame.board]
    return Frame(
        actor="verdict",
        turn=frames[-1].turn if frames else 1,
        title=word + ("" if verdict.reason == word else f": {_line(verdict.reason)}"),
        blocks=blocks,
        facts=facts,
        board=boards[-1] if boards else shown.after if shown else None,
    )


def _counted(name: str, tokens: int | None) -> list[tuple[str, str]]:
    return [] if tokens is None else [(name, f"{tokens:,}")]


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _line(text: str) -> str:
    """The text's beginning on one line."""
    line = " ".join(text[: 4 * TITLE_CHARS].split())
    return line if len(line) <= TITLE_CHARS else f"{line[: TITLE_CHARS - 1]}…"
