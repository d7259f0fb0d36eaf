"""What tokens of proposing models cost: a dated table, and the money of a call.

    cost("claude-opus-5-5", usage)          # millionths of a dollar, or None where nobody here knows

List prices of Anthropic's own API in US dollars for a million tokens, as documented by it in October 2026
(the cache is the five-minute one, which is what is asked for). A model that is not here has no
known price, and its spend is marked as unpriced rather than counted as nothing.

Not covered: discounts, batches, other clouds, prices that depend on the prompt's length.
"""

import msgspec

from whale_bench.models.base import Usage


class Price(msgspec.Struct, frozen=True):
    """Dollars for a million tokens; the same as millionths of a dollar for one."""

    prompt: float
    sampled: float
    cache_write: float
    cache_read: float


_OPUS_4 = Price(5.0, 25.0, 6.25, 0.50)

PRICES = {
    "claude-fable-5-1": Price(10.0, 50.0, 12.5, 0.25),
    "claude-mythos-5-1": Price(10.0, 50.0, 12.5, 0.25),
    "claude-fable-5": Price(10.0, 50.0, 12.5, 1.0),
    "claude-mythos-5": Price(10.0, 50.0, 12.5, 1.0),
    "claude-opus-5-5": Price(4.0, 20.0, 5.0, 0.20),
    "claude-opus-5": _OPUS_4,
    "claude-opus-4-8": _OPUS_4,
    "claude-opus-4-7": _OPUS_4,
    "claude-opus-4-6": _OPUS_4,
    "claude-opus-4-5": _OPUS_4,
    "claude-sonnet-5-5": Price(2.0, 10.0, 2.5, 0.10),
    "claude-sonnet-5": Price(2.0, 10.0, 2.5, 0.20),
}
"""Models whose whole row was read; others are unpriced."""


def cost(model: str, usage: Usage, price: Price | None = None) -> int | None:
    """Millionths of a dollar that a call cost, lost attempts included; None where that is unknown.

    Args:
        model: its name, with or without a date at the end.
        usage: tokens by kind.
        price: in place of the table's.
    """
    price = price or PRICES.get(model) or PRICES.get(_undated(model))
    if price is None:
        return None
    read, written = usage.cache_read_tokens or 0, usage.cache_write_tokens or 0
    prompt = (usage.prompt_tokens or 0) + usage.lost_prompt_tokens
    sampled = (usage.sampled_tokens or 0) + usage.lost_sampled_tokens
    plain = max(0, prompt - read - written)
    spent = plain * price.prompt + sampled * price.sampled
    return round(spent + written * price.cache_write + read * price.cache_read)


def _undated(model: str) -> str:
    name, _, date = model.rpartition("-")
    return name if len(date) == 8 and date.isdigit() else model
