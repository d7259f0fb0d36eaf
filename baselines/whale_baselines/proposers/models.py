"""The proposers that are models behind an API: `anthropic` and `openai`.

    anthropic_proposer({"model": "claude-opus-4-7", "effort": "max"})       # as published
    openai_proposer({"model": "NAME", "base_url": "http://127.0.0.1:8000/v1"})

Both are the loop of `agentic.py` over the suite's own backends, whose retries, counting of lost tokens,
prompt caching and thinking between tool calls they share. The whole chat is sent with every request, so
no server has to keep one.

Not covered: `claude-code`, which has a loop of its own, see `claude_code.py`.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec

from whale_baselines.proposers.agentic import AgenticProposer, Limits
from whale_baselines.proposers.prices import Price
from whale_bench.models.anthropic_api import PATIENCE, AnthropicBackend
from whale_bench.models.base import Request
from whale_bench.models.http_retry import Patience
from whale_bench.models.openai import OpenAIBackend
from whale_envs.errors import UsageError

NEWEST_OPUS = "claude-opus-5-5"
"""Newest Opus that the SDK's types (2.14) name; the paper's proposer was claude-opus-4-7."""

Effort = Literal["", "low", "medium", "high", "xhigh", "max"]

SettingsT = TypeVar("SettingsT", bound="ModelSettings")


class ModelSettings(Limits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a recipe may say of any proposer that is a model, beside the limits."""

    model: str = ""
    base_url: str | None = None
    """Address of the server; None is the backend's default."""
    price: tuple[float, float, float, float] | None = None
    """Dollars for a million prompt, sampled, cache-written and cache-read tokens, in place of the table's."""

    @property
    def own_price(self) -> Price | None:
        return None if self.price is None else Price(*self.price)


class AnthropicSettings(ModelSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """And of one of Anthropic's."""

    model: str = NEWEST_OPUS
    effort: Effort = "max"
    """As published; empty leaves it to the model."""


class EffortBackend(AnthropicBackend):
    """The Messages API, with an effort."""

    def __init__(
        self, model: str, *, effort: Effort, base_url: str | None = None, patience: Patience = PATIENCE
    ) -> None:
        super().__init__(model, base_url=base_url, patience=patience)
        self._effort = effort

    def _payload(self, request: Request) -> dict[str, Any]:
        payload = super()._payload(request)
        return {**payload, "output_config": {"effort": self._effort}} if self._effort else payload


def anthropic_proposer(settings: Mapping[str, Any]) -> AgenticProposer:
    """The proposer `anthropic`.

    Raises:
        UsageError: a setting is unknown or cannot be, the SDK is not installed, or there is no key.
    """
    given = settings_of(AnthropicSettings, "anthropic", settings)

    def open_backend() -> AnthropicBackend:
        return EffortBackend(given.model, effort=given.effort, base_url=given.base_url)

    open_backend()  # a missing key or SDK is said before the search begins
    return AgenticProposer("anthropic", open_backend, given, given.model, given.own_price)


def openai_proposer(settings: Mapping[str, Any]) -> AgenticProposer:
    """The proposer `openai`.

    Raises:
        UsageError: a setting is unknown or cannot be, or there is no model.
    """
    given = settings_of(ModelSettings, "openai", settings)
    if not given.model:
        raise UsageError('the proposer openai needs a model, such as model = "NAME"')

    def open_backend() -> OpenAIBackend:
        return OpenAIBackend(given.model, base_url=given.base_url)

    open_backend()
    return AgenticProposer("openai", open_backend, given, given.model, given.own_price)


def settings_of(kind: type[SettingsT], name: str, settings: Mapping[str, Any]) -> SettingsT:
    """Settings from a recipe's table.

    Raises:
        UsageError: one is unknown or cannot be.
    """
    valid = kind.__struct_fields__
    for field in settings:
        if field not in valid:
            raise UsageError(
                f"the proposer {name} has no setting {field!r}; valid: {', '.join(sorted(valid))}"
            )
    try:
        return msgspec.convert(dict(settings), kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"a setting of the proposer {name} cannot be: {error}") from error
