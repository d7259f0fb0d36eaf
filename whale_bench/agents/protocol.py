"""The JSON lines between the host and the process of an own agent, one object a line, UTF-8.

    < {"type": "hello", "version": 1, "concurrent": false}
    > {"type": "start", "version": 1, "rollout": "r1", "domain": "chess_puzzles", "observation": "…", …}
    < {"rollout": "r1", "action": "e2e4"}
    > {"type": "observe", "rollout": "r1", "observation": "…", "event": "ok", "feedback": "…"}
    < {"rollout": "r1", "action": "d1h5"}
    > {"type": "end", "rollout": "r1"}

The process speaks first. It answers each `start` and each `observe` once, with an action or with
{"rollout": …, "error": "what went wrong"}, which ends the rollout; `end` has no answer. One that says
`concurrent` is sent several rollouts at a time and answers in any order. Unknown fields are ignored in
both directions.

Not covered: who says what when something fails, see `host.py`.
"""

import json
from typing import Any

import msgspec

from whale_bench.text import scrub, scrub_all

VERSION = 1
"""Of this protocol; the host refuses a process that speaks another."""

LINE_BYTES = 2**20
"""Longest line that a process may write."""


class Hello(msgspec.Struct, frozen=True, tag="hello", tag_field="type"):
    """The first line of a process, once it can play."""

    version: int
    concurrent: bool = False
    """Whether it takes several rollouts at a time."""
    env_options: dict[str, int] = {}
    """Options asked of the environments, by name; held within their bounds."""
    sources: dict[str, str] = {}
    """Files that it runs and their SHA-256, by name."""


class Fault(msgspec.Struct, frozen=True, tag="fault", tag_field="type"):
    """In place of `Hello`: why the process cannot play, in a sentence."""

    message: str


class Opening(msgspec.Struct, frozen=True, tag="start", tag_field="type", omit_defaults=True):
    """Begins a rollout."""

    domain: str
    observation: str
    max_turns: int
    """Actions that the rollout takes at most."""
    seed: int
    """In [0, 2**63), another for each sample of each example."""
    tools: list[dict[str, Any]]
    """OpenAI-shaped schemas of what may be called; often none."""
    rollout: str = ""
    """Names the rollout between host and process; nothing about the example is in it."""
    base_url: str = ""
    """Address of the metering proxy, where there is one."""
    api_key: str = ""
    """Key that stands for this rollout at that proxy."""
    version: int = 0


class Observe(msgspec.Struct, frozen=True, tag="observe", tag_field="type"):
    """What the last action led to."""

    rollout: str
    observation: str
    event: str
    """Typed word for the action's fate: "ok", or why not."""
    feedback: str
    """One sentence on the same."""


class End(msgspec.Struct, frozen=True, tag="end", tag_field="type"):
    """The rollout is over; how it was judged is not said."""

    rollout: str


class Answer(msgspec.Struct, frozen=True):
    """What a process says to `Opening` or `Observe`."""

    rollout: str
    action: str | None = None
    error: str | None = None


def encode(message: msgspec.Struct) -> bytes:
    """A message as a line, with what UTF-8 cannot carry replaced."""
    try:
        return msgspec.json.encode(message) + b"\n"
    except UnicodeEncodeError:
        return msgspec.json.encode(scrub_all(msgspec.to_builtins(message))) + b"\n"


def decode_answer(line: bytes) -> Answer:
    """The answer in a line.

    Raises:
        ValueError: it holds none; says why.
    """
    try:
        answer = msgspec.json.decode(line, type=Answer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        try:  # the standard library reads escaped lone surrogates, which scrub replaces
            answer = msgspec.convert(scrub_all(json.loads(line)), Answer)
        except (ValueError, RecursionError):
            raise ValueError(f"{_shown(line)} is no answer: {error}") from error
    if (answer.action is None) == (answer.error is None):
        raise ValueError(f'{_shown(line)} holds neither "action" nor "error", a string, or both')
    return answer


def decode_hello(line: bytes) -> Hello | Fault:
    """The first line of a process.

    Raises:
        ValueError: it is neither, or of another version.
    """
    try:
        hello = msgspec.json.decode(line, type=Hello | Fault)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"its first line {_shown(line)} is no hello: {error}") from error
    if isinstance(hello, Hello) and hello.version != VERSION:
        raise ValueError(f"it speaks version {hello.version} of the protocol, this is version {VERSION}")
    return hello


def _shown(line: bytes) -> str:
    return repr(scrub(line.decode("utf-8", "replace").strip()[:120]))
