"""The domain's tool: a Python interpreter, local and confined, or on a SandboxFusion server.

    async with open_interpreter() as interpreter:
        result = await interpreter.run("print(6*7)")

    {"tool": "code_interpreter", "arguments": {"code": "print(6*7)"}}      # as an action

Not covered: other tools, and other languages.
"""

from typing import Any, Protocol, Self

import msgspec

from whale_envs.core import ToolCall
from whale_envs.errors import UsageError

TOOL = "code_interpreter"
TIMEOUT_S = 30.0
"""Published time limit of a call (reference §4.2)."""

SCHEMA: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": TOOL,
        "description": "Runs a Python program and returns what it prints.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The program."}},
            "required": ["code"],
        },
    },
}
"""OpenAI-shaped schema, for harnesses in native tool mode."""


class Result(Protocol):
    """What a call gave."""

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself and without an error."""

    @property
    def status(self) -> str:
        """Typed word, e.g. "finished" or "timed_out"."""

    @property
    def text(self) -> str:
        """What the model is shown."""


class Interpreter(Protocol):
    """Runs programs, many at a time."""

    async def run(self, code: str, *, session: str | None = None, timeout_s: float = TIMEOUT_S) -> Result:
        """Runs one; never raises for what the program does."""

    def forget_session(self, session: str) -> None:
        """Ends a session, if there is one of that name; from any thread, without waiting."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc: object) -> None: ...


def open_interpreter(*, url: str | None = None, unsafe: bool = False) -> Interpreter:
    """The interpreter of a run: a confined one on this machine, or a server's.

    Args:
        url: address of a SandboxFusion-compatible server.
        unsafe: run model-written code even where this machine cannot confine it.

    Raises:
        UsageError: the address is none, or both are given.
    """
    if url is not None:
        if unsafe:
            raise UsageError(
                "--unsafe-python is for this machine's interpreter; leave it out with --python-url"
            )
        from whale_envs.sandbox.fusion import FusionSandbox

        server: Interpreter = FusionSandbox(url)
        return server
    from whale_envs.sandbox import Sandbox

    local: Interpreter = Sandbox(unsafe=unsafe)
    return local


def call_text(code: str) -> str:
    """The action that runs `code`."""
    return msgspec.json.encode({"tool": TOOL, "arguments": {"code": code}}).decode()


def read_call(call: ToolCall) -> tuple[str, str]:
    """(code, what is wrong with the call); one of the two is empty unless the code is."""
    if call.tool != TOOL:
        return "", f"[unknown tool {call.tool[:80]!r}; the only tool is {TOOL}]"
    code = call.arguments.get("code")
    if not isinstance(code, str):
        return "", f'[{TOOL} needs "code", a string]'
    if extra := sorted(call.arguments.keys() - {"code"}):
        return "", f"[{TOOL} takes only code, not {', '.join(extra)[:80]}]"
    return code, ""
