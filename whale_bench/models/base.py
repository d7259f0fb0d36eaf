"""What a model backend is: `async generate(request) -> Generation`.

    backend = load_backend("local/smollm2")
    async with backend:
        generation = await backend.generate(Request(messages=[Message("user", "Hi")], seed=1))

A backend serves one model with fixed weights. It may batch concurrent requests; a caller asks for
one rollout's turn at a time and never knows. Failures follow `whale_envs.errors`: a request that
the model cannot answer raises `ModelError`, a server or connection that fails after retries raises
`InfrastructureError`, and a setting that can never work (wrong key, wrong name) `UsageError`.

Not covered: how weights change; a backend that can take new ones is a `Reloadable` besides.
"""

import abc
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Protocol, Self, runtime_checkable

import msgspec

from whale_envs.errors import InfrastructureError, ModelError

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "context_length"]
"""The last two end the rollout as a `ModelError` of that name would, and what was used is known."""


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One chat message, as sent."""

    role: str
    """"system", "user", "assistant" or "tool"."""
    content: str
    tool_calls: tuple[dict[str, Any], ...] = ()
    """OpenAI-shaped calls of an assistant message, in native tool mode."""
    tool_call_id: str = ""


TemplateKwargs = tuple[tuple[str, bool | int | float | str], ...]


class Sampling(msgspec.Struct, frozen=True):
    """The protocol's sampling defaults (reference §2), the same for training, search and test."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 20
    """0 switches the cut off."""
    chat_template_kwargs: TemplateKwargs = ()
    """Switches of the model's chat template, such as ("enable_thinking", True), by name."""


SAMPLING = Sampling.__struct_fields__
"""Names of the settings that every model has and an own agent has not."""


class Request(msgspec.Struct, frozen=True):
    """One turn to sample."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    """OpenAI-shaped function schemas; empty in text tool mode."""
    sampling: Sampling = Sampling()
    max_tokens: int | None = None
    """Most tokens to sample, at least 1; None leaves it to the model's context."""
    seed: int = 0
    """In [0, 2**63); differs for every turn of every sample."""
    prompt_ids: tuple[int, ...] | None = None
    """The exact prompt for a token-level backend, in place of rendering `messages`."""
    host: Any = None
    """The running environment, for the scripted fixtures alone; never serialised or sent."""


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one call; None where the server does not say."""

    prompt_tokens: int | None = None
    """All of them, what a prompt cache gave or took included."""
    sampled_tokens: int | None = None
    cache_read_tokens: int | None = None
    """Prompt tokens that came from the server's prompt cache."""
    cache_write_tokens: int | None = None
    """Prompt tokens that went into it."""
    lost_prompt_tokens: int = 0
    """Of attempts that came to nothing and were made anew, as far as the server told before it failed.
    They are paid for, so they are charged, but they are not the model's: they shorten no rollout."""
    lost_sampled_tokens: int = 0


class UnansweredError(InfrastructureError):
    """A server failed after its retries; `usage` is what the attempts had cost, as `lost_…_tokens`."""

    usage = Usage()


class CostlyRefusalError(ModelError):
    """A `ModelError` after attempts that had cost tokens; `usage` has them, as `lost_…_tokens`."""

    usage = Usage()


class Generation(msgspec.Struct, frozen=True):
    """What came back for one request."""

    text: str
    """The final text: no reasoning, no special tokens."""
    finish_reason: FinishReason = "stop"
    reasoning: str = ""
    tool_calls: tuple[dict[str, Any], ...] = ()
    raw_text: str = ""
    """All sampled text, reasoning included, special tokens too where the backend has ids."""
    prompt_ids: tuple[int, ...] | None = None
    sampled_ids: tuple[int, ...] | None = None
    """Exactly the sampled ids, the end-of-turn token included when it was sampled."""
    logprobs: tuple[float, ...] | None = None
    """Of `sampled_ids`, one to one."""
    usage: Usage = Usage()


class Backend(abc.ABC):
    """Serves one model. Also an async context manager that frees what it holds."""

    name: str
    """As given on the command line, e.g. "local/smollm2"."""
    weights_id: str
    """Content hash of what is served; "remote:NAME" where the weights cannot be seen."""
    fixture: bool = False
    """True for the scripted models: they are marked in every output and in no ranking."""
    default_concurrency: int = 64
    """Rollouts in flight that suit this backend."""
    address_from: str = "--base-url"
    """The option or variable that a server's address came from, for messages about a wrong one."""
    named_by: str = "--model"
    """The option that names the model; where it is another, that one chooses the sampling, too."""

    def check_sampling(self, sampling: Sampling) -> None:  # noqa: B027  # most take any
        """Refuses what the model's server can never take.

        Raises:
            UsageError: names the setting.
        """

    @abc.abstractmethod
    async def generate(self, request: Request) -> Generation:
        """Samples one turn.

        Raises:
            ModelError: the model cannot answer this request ("context_length", "content_filter").
            InfrastructureError: the server failed, retries included.
            UsageError: the settings can never work.
        """

    async def probe(self, like: Request | None = None) -> None:  # noqa: B027  # most have no server
        """Finds out before the first rollout whether the backend can be used at all.

        Args:
            like: has the sampling, tools and `max_tokens` that will be asked with; the rest of it counts
                for nothing. None for the defaults.

        Raises:
            UsageError: a setting (key, name, address, sampling) can never work; names it.
            InfrastructureError: nothing answers.
        """

    def seconds(self) -> dict[str, float]:
        """Wall seconds spent so far by part (e.g. "load", "prefill", "decode"), for reports."""
        return {}

    def warnings(self) -> list[str]:
        """What was sampled otherwise than asked so far, a sentence each; shown with the score."""
        return []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None


class TokenBackend(Backend):
    """A backend at token level: renders chats itself, so that earlier sampled ids can be kept."""

    @abc.abstractmethod
    def render(
        self,
        messages: tuple[Message, ...],
        tools: tuple[dict[str, Any], ...] = (),
        kwargs: TemplateKwargs = (),
    ) -> str:
        """The chat template's text for `messages`, open for the assistant to continue.

        Raises:
            UsageError: the template knows none of the names in `kwargs`.
            ModelError: "chat_template", it does not take these messages.
        """

    @abc.abstractmethod
    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of rendered text, special tokens recognised, none added."""

    @abc.abstractmethod
    def decode(self, ids: tuple[int, ...]) -> str:
        """Text of token ids, special tokens kept."""


def finite_logprobs(values: Iterable[Any] | None) -> tuple[float, ...] | None:
    """The values; None where one is no finite number, which no record could hold.

    >>> finite_logprobs([-1, -0.5]), finite_logprobs([-1, float("nan")]), finite_logprobs([10**400])
    ((-1.0, -0.5), None, None)
    """
    if values is None:
        return None
    values = tuple(values)
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return None
    try:
        return tuple(map(float, values)) if all(map(math.isfinite, values)) else None
    except OverflowError:  # an integer beyond all floats
        return None


def names_weights(weights_id: str, of: str) -> bool:
    """Whether a backend's `weights_id` is `of`, or a remote server's claim to it."""
    return weights_id == of or (weights_id.startswith("remote:") and weights_id.endswith(f":{of}"))


@runtime_checkable
class Reloadable(Protocol):
    """A backend whose weights can be replaced while it runs."""

    weights_id: str

    async def reload(self, folder: str | Path) -> str:
        """Serves the weights in `folder` from now on and returns their `weights_id`.

        Requests under way end with the old weights, later ones wait for the new.

        Raises:
            UsageError: the folder cannot replace what is served, which goes on being served.
            InfrastructureError: the swap failed half-way; nothing is served any more.
        """
        ...


@runtime_checkable
class Pausable(Protocol):
    """A `Reloadable` on the device that its weights are trained on, which an update can have for itself."""

    resting: bool
    """Whether `reload` has to come before the next request."""

    async def rest(self) -> None:
        """Gives up the device's memory, the weights in it included, once requests under way have ended.

        Where nothing would be won by that, nothing happens, and `resting` stays False.

        Raises:
            InfrastructureError: it failed; nothing is served any more.
        """
        ...


@runtime_checkable
class Sharing(Protocol):
    """A `Reloadable` that samples from the memory of whoever trains."""

    async def adopt(self, folder: str | Path, weights_id: str) -> None:
        """`reload` of a folder that the caller has hashed. That it holds what is shared is still proved.

        Raises:
            UsageError, InfrastructureError: as `reload`.
        """
        ...


@runtime_checkable
class Remembering(Protocol):
    """A `Reloadable` whose check of new weights needs what it found out about the last ones."""

    def remembered(self) -> bytes:
        """That, as JSON."""
        ...

    def remember(self, told: bytes) -> None:
        """Goes on from what an earlier process remembered.

        Raises:
            msgspec.DecodeError: it is something else.
        """
        ...
