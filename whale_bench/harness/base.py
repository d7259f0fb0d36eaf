"""The contract of a harness: everything between a model and an environment.

A harness is one Python file that defines `class Harness(BaseHarness)`. The smallest is

    from whale_bench.harness import BaseHarness

    class Harness(BaseHarness):
        SYSTEM_PROMPT = "Answer in one line."

The host calls two hooks each turn, `messages` (what the model is shown) and `read` (what its reply
means), and one between turns, `stop`. Hooks are plain synchronous functions over plain data. A
`View` holds the rollout so far; `view.state` is a JSON object of at most `STATE_BYTES` that the
host keeps and hands in again, so that any process can go on with any rollout. Nothing else
survives a call. Randomness comes from `view.seed`, never from the clock or the system.

What a harness cannot do: see gold answers, change what the environment does, or act for the model.
An action counts only if it stands in text that the model sampled this turn (`provenance.py`), and
the host holds options within the environment's bounds whatever the file says.

Not covered: where a file runs and what it can reach there, see `workers.py`.
"""

from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

STATE_BYTES = 65_536
"""Most bytes of `view.state` as JSON."""

DECISION_BYTES = 2**20
"""Most bytes, as JSON, of what a call is answered with: the messages of a turn, an action or a nudge. The
largest contexts in use, of 262,144 tokens, take about that much text."""

ToolMode = Literal["text", "native"]

ChatMessage: TypeAlias = dict[str, Any]
"""{"role": "system" | "user" | "assistant" | "tool", "content": str, …}."""


class Reply(msgspec.Struct, frozen=True):
    """What the model sampled this turn."""

    text: str
    """Final text, without reasoning."""
    reasoning: str = ""
    tool_calls: tuple[dict[str, Any], ...] = ()
    """OpenAI-shaped, in native tool mode."""
    finish_reason: str = "stop"


class Turn(msgspec.Struct, frozen=True):
    """One finished turn."""

    reply: Reply
    action: str | None
    """What was done in the environment, None where the harness nudged instead."""
    observation: str
    """What the environment showed next, or the nudge."""
    feedback: str
    """One sentence on the action's fate, from the environment."""
    event: str
    """The same as a typed word, e.g. "ok" or "illegal"."""


class View(msgspec.Struct):
    """A rollout as a harness sees it. Everything but `state` is the host's copy."""

    domain: str
    opening: str
    """The first observation."""
    observation: str
    """The current observation."""
    turns: tuple[Turn, ...] = ()
    max_turns: int = 1
    tokens_left: int | None = None
    """Sampled tokens left in the rollout's budget, None where it has none."""
    seed: int = 0
    """In [0, 2**63), fixed for the rollout; the only source of randomness."""
    state: dict[str, Any] = msgspec.field(default_factory=dict)


class Act(msgspec.Struct, frozen=True, tag="act"):
    """Do this in the environment: a tool call as JSON text, or the final response."""

    action: str


class Nudge(msgspec.Struct, frozen=True, tag="nudge"):
    """Ask the model again without acting; costs a turn."""

    message: str


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End the rollout here; an unfinished task is judged as it stands."""

    note: str = ""


Decision: TypeAlias = Act | Nudge | Stop


class BaseHarness:
    """Defaults for every hook: a growing chat, whose replies are the actions."""

    SYSTEM_PROMPT: ClassVar[str] = ""
    USER_PROMPT: ClassVar[str] = "{observation}"
    """The first user message; `{observation}` is replaced."""
    TOOLS: ClassVar[list[dict[str, Any]]] = []
    """OpenAI-shaped function schemas, sent in native tool mode."""
    TOOL_MODE: ClassVar[ToolMode] = "text"
    MAX_TURNS: ClassVar[int | None] = None
    """Turns per rollout; None is the environment's default."""
    MAX_TOKENS: ClassVar[int | None] = None
    """Sampled tokens per turn; None leaves it to the rollout's budget."""
    ENV_OPTIONS: ClassVar[dict[str, int]] = {}
    """Options of the environment, such as retry budgets; held within its bounds."""

    def messages(self, view: View) -> list[ChatMessage]:
        """The chat to send; its last message is not the assistant's."""
        chat: list[ChatMessage] = []
        if self.SYSTEM_PROMPT:
            chat.append({"role": "system", "content": self.SYSTEM_PROMPT})
        chat.append({"role": "user", "content": self.USER_PROMPT.replace("{observation}", view.opening)})
        for turn in view.turns:
            chat.append({"role": "assistant", "content": turn.reply.text})
            chat.append({"role": "user", "content": turn.observation})
        return chat

    def read(self, reply: Reply, view: View) -> Decision:  # noqa: ARG002 - part of the contract
        """What the reply means."""
        return Act(reply.text)

    def stop(self, view: View) -> bool:  # noqa: ARG002 - part of the contract
        """Whether to end the rollout before the model is asked again."""
        return False


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """Host-side: the next request of a rollout, as the hooks decided it."""

    messages: list[ChatMessage]


class Settings(msgspec.Struct, frozen=True):
    """A harness's constants, read once when it is loaded."""

    max_turns: int | None
    max_tokens: int | None
    tool_mode: ToolMode
    tools: list[dict[str, Any]]
    env_options: dict[str, int]
