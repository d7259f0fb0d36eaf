"""Carries out a host's calls on a harness object: the same code in process and in a worker.

    harness, settings = load(path.read_text(), str(path))
    answer = answer_call(harness, Call(view), str(path))     # asks for the next messages

A call is answered by an `Answer` that was checked for type and can be written as JSON, or by
`HarnessFault`, which names the file and line at fault. Only msgspec is imported, so that a worker
starts fast and holds nothing of the host.

Not covered: time and memory limits, which belong to the process around this.
"""

import inspect
import linecache
import sys
import traceback
import types
from typing import Any, Literal

import msgspec

from whale_bench.harness.base import (
    DECISION_BYTES,
    STATE_BYTES,
    Act,
    Ask,
    BaseHarness,
    Nudge,
    Reply,
    Settings,
    Stop,
    View,
)
from whale_bench.text import scrub, scrub_all

_MOST_WORDS = 2000
"""Most characters of a fault's text."""


class Start(msgspec.Struct, frozen=True):
    """The first thing a worker is told: the harness, as the host read it."""

    path: str
    source: str
    strict: bool = False
    """See `answer_call`."""


class Call(msgspec.Struct, frozen=True):
    """Ask for the next messages, or, with a reply, for what it means."""

    view: View
    reply: Reply | None = None
    number: int = 0
    """Of the call in its worker, from 1."""


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    decision: Ask | Act | Nudge | Stop
    state: dict[str, Any]
    number: int = 0


class Fault(msgspec.Struct, frozen=True, tag="fault"):
    """A `HarnessFault` on its way to the host."""

    number: int
    """Of the call; 0 while the file was loaded."""
    text: str


class HarnessFault(Exception):  # noqa: N818 - it is the harness that is at fault, not this code
    """Harness code raised or returned what the contract does not allow; says file and line."""


class _Message(msgspec.Struct):
    """A `ChatMessage`, checked."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: list[dict[str, Any]] = []
    tool_call_id: str = ""


class _Chat(msgspec.Struct):
    """Messages, checked: of a type that is no class, msgspec works out at every call what it asks for."""

    chat: list[_Message]


def load(source: str, filename: str) -> tuple[BaseHarness, Settings]:
    """The harness of a file's source, in a fresh module, and its constants.

    Raises:
        HarnessFault: syntax error, an exception while it runs, no such class, or a constant of the
            wrong type.
    """
    module = types.ModuleType("whale_harness")
    module.__file__ = filename
    sys.modules[module.__name__] = module  # dataclasses and typing look a module up by its name
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    found: Any = None
    try:
        exec(compile(source, filename, "exec"), module.__dict__)  # noqa: S102 - what a harness file is
        found = module.__dict__.get("Harness")
        if not (isinstance(found, type) and issubclass(found, BaseHarness)):
            raise HarnessFault(f"{filename}:1: defines no `class Harness(BaseHarness)`")
        harness = found()
        return harness, _settings(harness, filename)
    except (HarnessFault, KeyboardInterrupt):
        raise
    except BaseException as error:
        if isinstance(error, SyntaxError) and error.filename == filename:
            raise HarnessFault(f"{filename}:{error.lineno or 1}: syntax error: {error.msg}") from error
        raise HarnessFault(f"{_where(error, filename, found)}: {_words(error)}") from error


def answer_call(
    harness: BaseHarness, call: Call, filename: str = "harness.py", *, strict: bool = False
) -> Answer:
    """Runs the hooks of one call.

    Args:
        harness: whose hooks.
        call: what is asked; the harness may change `view.state`.
        filename: of its file.
        strict: whether to find out if the rest of what a hook was given was changed.

    Raises:
        HarnessFault: a hook raised, or returned what the contract does not allow, or, if `strict`,
            changed what it was given.
    """
    view, reply = call.view, call.reply
    given = _given(call) if strict else b""
    hook: Any = harness.stop
    try:
        decision: Any
        if reply is None:
            stop = harness.stop(view)
            if not isinstance(stop, bool):
                raise _fault(hook, filename, f"stop must return a bool, got {stop!r:.80}")
            hook = harness.messages
            decision = Stop("stop") if stop else Ask(_checked(harness.messages(view), hook, filename))
        else:
            hook = harness.read
            decision = harness.read(reply, view)
            if type(decision) not in (Act, Nudge, Stop):
                raise _fault(hook, filename, f"read must return Act, Nudge or Stop, got {decision!r:.80}")
            decision = _written(decision, hook, filename)
        if strict and _given(call) != given:
            raise _fault(hook, filename, f"{hook.__name__} changed the view or the reply that it was given")
        if type(view.state) is not dict:
            raise _fault(hook, filename, f"view.state must be a dict, got {view.state!r:.80}")
        state = _encoded(view.state)
    except (HarnessFault, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise HarnessFault(f"{_where(error, filename, hook)}: {_words(error)}") from error
    if len(state) > STATE_BYTES:
        raise _fault(hook, filename, f"view.state takes {len(state)} bytes, more than {STATE_BYTES}")
    return Answer(decision, msgspec.json.decode(state), call.number)


def check_answer(answer: Answer, call: Call) -> None:
    """Looks at an answer from a worker again, in the host: the harness had its hands on the worker.

    Raises:
        HarnessFault: it is not what `answer_call` could have returned.
    """
    allowed = (Ask, Stop) if call.reply is None else (Act, Nudge, Stop)
    if not isinstance(answer.decision, allowed):
        raise HarnessFault(f"answered with {type(answer.decision).__name__} where it may not")
    if isinstance(answer.decision, Ask):
        _checked(answer.decision.messages, None, "its process")
    else:
        _written(answer.decision, None, "its process")
    if len(msgspec.json.encode(answer.state)) > STATE_BYTES:
        raise HarnessFault(f"view.state takes more than {STATE_BYTES} bytes")


def _given(call: Call) -> bytes:
    """Everything that a hook may read and not write."""
    return msgspec.json.encode([msgspec.structs.replace(call.view, state={}), call.reply])


def _settings(harness: BaseHarness, filename: str) -> Settings:
    values = {
        "max_turns": harness.MAX_TURNS,
        "max_tokens": harness.MAX_TOKENS,
        "tool_mode": harness.TOOL_MODE,
        "tools": harness.TOOLS,
        "env_options": harness.ENV_OPTIONS,
    }
    for name in ("SYSTEM_PROMPT", "USER_PROMPT"):
        if not isinstance(getattr(harness, name), str):
            raise _fault(type(harness), filename, f"{name} must be a string")
    try:
        settings = msgspec.convert(values, Settings)
        return msgspec.json.decode(msgspec.json.encode(settings), type=Settings)
    except (msgspec.ValidationError, TypeError, ValueError, OverflowError) as error:
        raise _fault(type(harness), filename, f"constant: {error}".replace("$.", "")) from error


def _written(decision: Act | Nudge | Stop, hook: Any, filename: str) -> Act | Nudge | Stop:
    """What `read` returned, if its one field is text."""
    [(name, value)] = msgspec.structs.asdict(decision).items()
    if not isinstance(value, str):
        kind = type(decision).__name__
        raise _fault(hook, filename, f"read returned {kind} whose {name} is no text: {value!r:.80}")
    _bounded(msgspec.json.encode(written := scrub(value)), hook, filename)
    return type(decision)(written)


def _checked(chat: Any, hook: Any, filename: str) -> list[dict[str, Any]]:
    """What `messages` returned, if it is a chat."""
    if not isinstance(chat, list) or not chat:
        raise _fault(hook, filename, f"messages must return a non-empty list, got {chat!r:.80}")
    try:
        last = msgspec.convert({"chat": chat}, _Chat).chat[-1]
        encoded = _encoded(chat)
    except (msgspec.ValidationError, TypeError, ValueError, OverflowError) as error:
        raise _fault(
            hook, filename, f"messages returned what is no chat: {error}".replace("$.chat", "$")
        ) from error
    if last.role == "assistant":
        raise _fault(hook, filename, "messages must not end with the assistant's")
    _bounded(encoded, hook, filename)
    checked: list[dict[str, Any]] = msgspec.json.decode(encoded)
    return checked


def _bounded(encoded: bytes, hook: Any, filename: str) -> None:
    """Refuses what no prompt can use."""
    if len(encoded) > DECISION_BYTES:
        name = getattr(hook, "__name__", "it")
        what = f"{name} returned {len(encoded)} bytes, more than {DECISION_BYTES}"
        raise _fault(hook, filename, what)


def _encoded(value: Any) -> bytes:
    """`value` as JSON, scrubbed where JSON could not carry it."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(scrub_all(value))


def _fault(thing: Any, filename: str, what: str) -> HarnessFault:
    return HarnessFault(f"{_line_of(thing, filename)}: {what}"[:_MOST_WORDS])


def _words(error: BaseException) -> str:
    """An exception in one line."""
    return scrub(" ".join(f"{type(error).__name__}: {error}".split()))[:_MOST_WORDS]


def _where(error: BaseException, filename: str, thing: Any) -> str:
    """file:line of the innermost frame inside the harness file, else where `thing` begins."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == filename]
    return f"{filename}:{lines[-1] or 1}" if lines else _line_of(thing, filename)


def _line_of(thing: Any, filename: str) -> str:
    """file:line where a function or class of the harness file begins; of a hook, else its class."""
    if thing is None:
        return filename
    try:
        code = inspect.unwrap(thing)
        if inspect.getsourcefile(code) != filename:
            owner = getattr(thing, "__self__", None)
            return f"{filename}:1" if owner is None else _line_of(type(owner), filename)
        return f"{filename}:{inspect.getsourcelines(code)[1] or 1}"
    except (OSError, TypeError):
        return f"{filename}:1"
