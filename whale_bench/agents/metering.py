"""What a rollout's calls through the proxy were: each becomes a `Segment`, with the tokens in `usage`.

    meter = Meter(segments)
    call = meter.begin(payload)
    call.answer(body)                   # or call.read_chunk(…) for each chunk of a stream, then call.end(…)

Of several choices the first is recorded; the tokens are those of all. Whether the server failed is told
here, too: `problem` stands until a call that began after the failure is answered well. So an agent that
got over a failure is judged by what it then does, and one that did not is not judged.

Not covered: the traffic itself, see `proxy.py`.
"""

import asyncio
import json
from typing import Any

from msgspec.structs import replace

from whale_bench.models.base import Message
from whale_bench.models.openai_reply import broke_off, plain_text, token_count
from whale_bench.records import Segment
from whale_bench.text import scrub, scrub_all
from whale_envs.errors import InfrastructureError, UsageError


class Meter:
    """The calls of one rollout.

    Args:
        segments: gets one more for each call that was answered, or was still open at the end.

    Attributes:
        problem: the last failure of the server; empty where there was none, or a later call got through.
        refusal: what a call was refused with (key, address, the model's name), until a later one is taken.
    """

    def __init__(self, segments: list[Segment]) -> None:
        self.problem = ""
        self.refusal: UsageError | InfrastructureError | None = None
        self._failures = 0
        self._segments = segments
        self._open: dict[Call, None] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self, payload: dict[str, Any]) -> "Call":
        """A call that is about to be made.

        Raises:
            RecursionError: the request is nested too deep to be kept.
        """
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
            call.end(given_up=True)

    def _fail(self, problem: str) -> None:
        self.problem = problem
        self._failures += 1

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
        self._meter, self._before = meter, meter._failures
        self._text: list[str] = []
        self._thought: list[str] = []
        self._tools: dict[Any, dict[str, Any]] = {}
        self._usage: Any = None
        self.model = str(payload.get("model"))
        """As the agent names it."""
        self.finish_reason = ""
        """The server's word, once it has said it."""
        tools, seed = payload.get("tools"), payload.get("seed")
        self._asked = Segment(
            messages=_messages(payload.get("messages")),
            text="",
            finish_reason="unfinished",
            tools=_kept(tools),
            seed=seed if type(seed) is int and abs(seed) < 2**63 else 0,
        )

    def read_chunk(self, chunk: Any) -> bool:
        """Takes a chunk in; whether it holds nothing but the usage."""
        if not isinstance(chunk, dict):
            return False
        self._usage = chunk.get("usage") or self._usage
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            if isinstance(choice, dict) and choice.get("index", 0) == 0:
                self._take(choice.get("delta"), choice.get("finish_reason"))
        if chunk.get("error"):  # whatever its code: the server had taken the call
            self.break_off(f"the server behind the proxy broke a stream off: {chunk['error']!r:.300}")
        elif self.finish_reason and not broke_off(self.finish_reason):
            self._get_through()  # before the agent sees it, and acts
        return choices == [] and bool(chunk.get("usage"))

    def answer(self, body: bytes) -> None:
        """The call is over, with an answer that came whole."""
        completion = read_json(body)
        found = completion if isinstance(completion, dict) else {}
        self._usage = found.get("usage")
        choices = found.get("choices")
        if not choices or found.get("error"):
            self.break_off(f"the server behind the proxy answered with no completion: {body[:200]!r}")
            return
        first = choices[0] if isinstance(choices, list) else None
        if isinstance(first, dict):
            self._take(first.get("message"), first.get("finish_reason"))
        self._settle()

    def end(self, *, given_up: bool) -> None:
        """A stream, or the rollout, is over; unless given up by the agent, the server has said its end."""
        if self.finish_reason:
            self._settle()
        elif given_up:
            self._meter._end(self, self._segment())
        else:
            self.break_off("the server behind the proxy ended a stream in the middle")

    def fail(self, problem: str = "") -> None:
        """No answer came; with a problem, the server is to blame."""
        if problem:
            self._meter._fail(problem)
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
        if self not in self._meter._open:
            return
        self._meter._fail(problem)
        try:
            segment = self._segment()
        except RecursionError:  # nested too deep to be kept
            segment = self._asked
        self._meter._end(self, segment)

    def _settle(self) -> None:
        """The server has said its end."""
        if broke_off(self.finish_reason):
            self.break_off(f"the server behind the proxy ended an answer with {self.finish_reason!r}")
            return
        segment = self._segment()
        self._get_through()
        self._meter._end(self, segment)

    def _get_through(self) -> None:
        """What failed before this call began, the agent has got over."""
        if self in self._meter._open and self._meter._failures == self._before:
            self._meter.problem = ""

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
        return replace(
            self._asked,
            text=f"<think>{thought}</think>{text}" if thought else text,
            finish_reason=scrub(self.finish_reason) or "unfinished",
            tool_calls=tuple(scrub_all(call) for call in self._tools.values()),
            prompt_tokens=token_count(usage.get("prompt_tokens")),
            sampled_tokens=token_count(usage.get("completion_tokens")),
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
    return tuple(
        Message(
            role=scrub(str(message.get("role", ""))),
            content=plain_text(message.get("content")),
            tool_calls=_kept(message.get("tool_calls")),
            tool_call_id=scrub(str(message.get("tool_call_id") or "")),
        )
        for message in (chat if isinstance(chat, list) else [])
        if isinstance(message, dict)
    )


def _kept(objects: Any) -> tuple[dict[str, Any], ...]:
    """The objects of a list, as a record may hold them; none where it is no list."""
    found = objects if isinstance(objects, list) else []
    return tuple(scrub_all(one) for one in found if isinstance(one, dict))


def read_json(data: bytes) -> Any:
    """A JSON value; None for what is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
