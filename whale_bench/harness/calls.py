"""Carries out a host's calls on a harness object: the same code in process and in a worker.

    harness = load_class(path.read_text(), str(path))()
    answer = answer_call(harness, Call(view))          # asks for the next messages

A call is answered by an `Answer` whose decision was checked for type, or by `HarnessFault`, which
names the file and line at fault. Only msgspec is imported, so that a worker starts fast and holds
nothing of the host.

Not covered: time and memory limits, which belong to the process around this.
"""

import inspect
import linecache
import sys
import traceback
import types
from typing import Any

import msgspec

from whale_bench.harness.base import (
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

_ROLES = ("system", "user", "assistant", "tool")


class Call(msgspec.Struct, frozen=True):
    """Ask for the next messages, or, with a reply, for what it means."""

    view: View
    reply: Reply | None = None


class Answer(msgspec.Struct, frozen=True):
    decision: Ask | Act | Nudge | Stop
    state: dict[str, Any]


class HarnessFault(Exception):  # noqa: N818 - it is the harness that is at fault, not this code
    """Harness code raised or returned what the contract does not allow; says file and line."""


def load_class(source: str, filename: str) -> type[BaseHarness]:
    """The `Harness` class of a harness file's source, in a fresh module.

    Raises:
        HarnessFault: syntax error, an exception while it runs, or no such class.
    """
    module = types.ModuleType("whale_harness")
    module.__file__ = filename
    sys.modules[module.__name__] = module  # dataclasses and typing look a module up by its name
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    try:
        exec(compile(source, filename, "exec"), module.__dict__)  # noqa: S102 - what a harness file is
    except SyntaxError as error:
        raise HarnessFault(f"{filename}:{error.lineno}: syntax error: {error.msg}") from error
    except BaseException as error:
        raise HarnessFault(f"{_where(error, filename)}: {type(error).__name__}: {error}") from error
    found = module.__dict__.get("Harness")
    if not (isinstance(found, type) and issubclass(found, BaseHarness)):
        raise HarnessFault(f"{filename}:1: defines no `class Harness(BaseHarness)`")
    return found


def read_settings(harness: BaseHarness, filename: str) -> Settings:
    """The harness's constants, checked for type.

    Raises:
        HarnessFault: a constant has the wrong type.
    """
    values = {
        "max_turns": harness.MAX_TURNS,
        "max_tokens": harness.MAX_TOKENS,
        "tool_mode": harness.TOOL_MODE,
        "tools": harness.TOOLS,
        "env_options": harness.ENV_OPTIONS,
    }
    for name in ("SYSTEM_PROMPT", "USER_PROMPT"):
        if not isinstance(getattr(harness, name), str):
            raise HarnessFault(f"{_line_of(type(harness), filename)}: {name} must be a string")
    try:
        return msgspec.convert(values, Settings)
    except msgspec.ValidationError as error:
        raise HarnessFault(f"{_line_of(type(harness), filename)}: {error}") from error


def answer_call(harness: BaseHarness, call: Call, filename: str = "harness.py") -> Answer:
    """Runs the hooks of one call.

    Raises:
        HarnessFault: a hook raised, or returned what the contract does not allow.
    """
    view, reply = call.view, call.reply
    hook: Any = harness.stop
    try:
        decision: Any
        if reply is None:
            stop = harness.stop(view)
            if not isinstance(stop, bool):
                raise HarnessFault(f"{_line_of(hook, filename)}: stop must return a bool, got {stop!r:.80}")
            hook = harness.messages
            decision = Stop("stop") if stop else Ask(_checked(harness.messages(view), hook, filename))
        else:
            hook = harness.read
            decision = harness.read(reply, view)
            if not isinstance(decision, Act | Nudge | Stop):
                raise HarnessFault(
                    f"{_line_of(hook, filename)}: read must return Act, Nudge or Stop, got {decision!r:.80}"
                )
            msgspec.convert(msgspec.to_builtins(decision), type(decision))
        state = msgspec.json.encode(view.state)
    except HarnessFault:
        raise
    except RecursionError as error:
        raise HarnessFault(f"{_line_of(hook, filename)}: RecursionError") from error
    except BaseException as error:
        raise HarnessFault(f"{_where(error, filename)}: {type(error).__name__}: {error}"[:2000]) from error
    if len(state) > STATE_BYTES:
        raise HarnessFault(
            f"{_line_of(hook, filename)}: view.state takes {len(state)} bytes, more than {STATE_BYTES}"
        )
    return Answer(decision, view.state)


def _checked(chat: Any, hook: Any, filename: str) -> list[dict[str, Any]]:
    def fault(what: str) -> HarnessFault:
        return HarnessFault(f"{_line_of(hook, filename)}: messages must return {what}")

    if not isinstance(chat, list) or not chat:
        raise fault(f"a non-empty list, got {chat!r:.80}")
    for message in chat:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise fault(f'dicts with a text "content", got {message!r:.80}')
        if message.get("role") not in _ROLES:
            raise fault(f'a "role" among {", ".join(_ROLES)}, got {message.get("role")!r:.80}')
    return chat


def _where(error: BaseException, filename: str) -> str:
    """file:line of the innermost frame inside the harness file, else of the outermost."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == filename]
    return f"{filename}:{lines[-1] if lines else 1}"


def _line_of(thing: Any, filename: str) -> str:
    """file:line where a class or function of the harness file begins."""
    try:
        code = inspect.unwrap(thing)
        return f"{filename}:{inspect.getsourcelines(code)[1] or 1}"
    except (OSError, TypeError):
        return f"{filename}:1"
