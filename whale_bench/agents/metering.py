"""What a rollout's calls through the proxy were: each becomes a `Segment`, with the tokens in `usage`.

    meter = Meter(segments)
    call = meter.begin(payload)
    call.finish(completion)             # or call.read_chunk(…) for each chunk of a stream, then call.finish()

Of several choices the first is recorded; the tokens are those of all.

Not covered: the traffic itself, see `proxy.py`.
"""

import asyncio
import json
from typing import Any

from whale_bench.models.base import Message
from whale_bench.models.openai_reply import plain_text, token_count
from whale_bench.records import Segment
from whale_bench.text import scrub, scrub_all
from whale_envs.errors import InfrastructureError, UsageError


class Meter:
    """The calls of one rollout.

    Args:
        segments: gets one more for each call that was answered, or was still open at the end.

    Attributes:
        problem: the last failure of the server, empty where there was none.
        refusal: what a call was refused with (key, address, the model's name), until a later one is taken.
    """

    def __init__(self, segments: list[Segment]) -> None:
        self.problem = ""
        self.refusal: UsageError | InfrastructureError | None = None
        self._segments = segments
        self._open: dict[Call, None] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self, payload: dict[str, Any]) -> "Call":
        """A call that is about to be made."""
        call = Call(self, payload)
        self._open[call] = None
        self._idle.clear()
        return call

    @property
    def is_waiting(self) -> bool:
        """Whether the server has yet to answer a call."""
        return bool(self._open)

    async def close(self, patience: float) -> None:
        """Waits a little for open calls; those that then still are have unknown tokens."""
        try:
            async with asyncio.timeout(patience):
                await self._idle.wait()
        except TimeoutError:
            pass
        for call in tuple(self._open):
            call.finish()

    def _end(self, call: "Call", segment: Segment | None) -> None:
        if call not in self._open:
            return
        del self._open[call]
        if segment is not None:
            self._segments.append(segment)
        if not self._open:
            self._idle.set()


class Call:
    """One call: filled by the whole answer or by the chunks of a stream."""

    def __init__(self, meter: Meter, payload: dict[str, Any]) -> None:
        self._meter, self._payload = meter, payload
        self._text: list[str] = []
        self._thought: list[str] = []
        self._tools: dict[Any, dict[str, Any]] = {}
        self._usage: Any = None
        self.model = str(payload.get("model"))
        """As the agent names it."""
        self.finish_reason = ""
        """The server's word, once it has said it."""

    def read_chunk(self, chunk: Any) -> bool:
        """Takes a chunk in; whether it holds nothing but the usage."""
        if not isinstance(chunk, dict):
            return False
        self._usage = chunk.get("usage") or self._usage
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            if isinstance(choice, dict) and choice.get("index", 0) == 0:
                self._take(choice.get("delta"), choice.get("finish_reason"))
        return choices == [] and bool(chunk.get("usage"))

    def finish(self, completion: Any = None) -> None:
        """The call is over, with this answer or with what the chunks held."""
        if isinstance(completion, dict):
            self._usage = completion.get("usage")
            choices = completion.get("choices")
            first = choices[0] if isinstance(choices, list) and choices else None
            if isinstance(first, dict):
                self._take(first.get("message"), first.get("finish_reason"))
        self._meter._end(self, self._segment())

    def end(self, *, given_up: bool) -> None:
        """A stream is over: in the middle, unless the agent gave it up or the server has said its end."""
        if self in self._meter._open and not given_up and not self.finish_reason:
            self._meter.problem = "the server behind the proxy ended a stream in the middle"
        self.finish()

    def fail(self, problem: str = "") -> None:
        """No answer came; with a problem, the server is to blame."""
        self._meter.problem = problem or self._meter.problem
        self._meter._end(self, None)

    def take(self) -> None:
        """The server takes the call: what it refused before, the agent has got over."""
        self._meter.refusal = None

    def refuse(self, error: UsageError | InfrastructureError) -> None:
        """The server refused the call for what it would refuse all others for."""
        self._meter.refusal = error
        self.fail()

    def break_off(self, problem: str) -> None:
        """The answer broke off: tokens were spent, nobody knows how many."""
        self._meter.problem = problem
        try:
            segment = self._segment()
        except RecursionError:  # nested too deep to be kept
            segment = Segment((), "", "unfinished")
        self._meter._end(self, segment)

    def _take(self, message: Any, finish: Any) -> None:
        self.finish_reason = finish if isinstance(finish, str) else self.finish_reason
        if not isinstance(message, dict):
            return
        self._text.append(plain_text(message.get("content")))
        self._thought.append(plain_text(message.get("reasoning_content") or message.get("reasoning")))
        calls = message.get("tool_calls")
        for number, part in enumerate(calls if isinstance(calls, list) else []):
            if isinstance(part, dict):
                _merge(self._tools.setdefault(str(part.get("index", number)), {}), part)

    def _segment(self) -> Segment:
        usage = self._usage if isinstance(self._usage, dict) else {}
        thought, text = "".join(self._thought), "".join(self._text)
        tools, seed = self._payload.get("tools"), self._payload.get("seed")
        return Segment(
            messages=_messages(self._payload.get("messages")),
            text=f"<think>{thought}</think>{text}" if thought else text,
            finish_reason=scrub(self.finish_reason) or "unfinished",
            tools=tuple(scrub_all(t) for t in tools if isinstance(t, dict))
            if isinstance(tools, list)
            else (),
            tool_calls=tuple(scrub_all(call) for call in self._tools.values()),
            prompt_tokens=token_count(usage.get("prompt_tokens")),
            sampled_tokens=token_count(usage.get("completion_tokens")),
            seed=seed if type(seed) is int and abs(seed) < 2**63 else 0,
        )


def _merge(call: dict[str, Any], part: dict[str, Any]) -> None:
    """Puts a piece of a tool call to what there is of it: the texts in `function` are continued."""
    for name, value in part.items():
        if name == "function" and isinstance(value, dict):
            function = call.get("function")
            if not isinstance(function, dict):
                function = call["function"] = {}
            for field, piece in value.items():
                joined = isinstance(piece, str) and isinstance(function.get(field), str)
                function[field] = function[field] + piece if joined else piece
        elif name != "index" and value is not None:
            call[name] = value


def _messages(chat: Any) -> tuple[Message, ...]:
    """The chat as text; parts that are no text are left out."""
    messages = []
    for message in chat if isinstance(chat, list) else []:
        if isinstance(message, dict):
            calls = message.get("tool_calls")
            messages.append(
                Message(
                    role=scrub(str(message.get("role", ""))),
                    content=plain_text(message.get("content")),
                    tool_calls=tuple(scrub_all(c) for c in calls if isinstance(c, dict))
                    if isinstance(calls, list)
                    else (),
                    tool_call_id=scrub(str(message.get("tool_call_id") or "")),
                )
            )
    return tuple(messages)


def read_json(data: bytes) -> Any:
    """A JSON value; None for what is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
