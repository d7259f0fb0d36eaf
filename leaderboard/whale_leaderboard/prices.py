"""What tokens cost, by model and date: the table in prices.toml.

    cost_usd("gpt-5.4-mini", date(2026, 10, 1), prompt=1_000_000, sampled=0)      # 0.75
    cost_usd("a-model-of-mine", date(2026, 10, 1), prompt=5, sampled=5)           # None: unknown, not 0

Not covered: discounts, batch prices, taxes; hardware of one's own, which is counted in device seconds.
"""

import datetime as dt
import tomllib
from functools import cache
from importlib.resources import files

import msgspec


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """US dollars per million tokens."""

    model: str
    """As its server names it."""
    since: dt.date
    prompt: float
    sampled: float
    cache_read: float
    cache_write: float
    source: str


@cache
def price_table() -> tuple[Price, ...]:
    """Every entry, oldest first."""
    text = (files("whale_leaderboard") / "prices.toml").read_text(encoding="utf-8")
    found = msgspec.convert(tomllib.loads(text)["price"], list[Price])
    return tuple(sorted(found, key=lambda price: price.since))


def price_of(model: str, on: dt.date) -> Price | None:
    """The price in force on a day; None where the table has none for it."""
    name = model.rpartition("/")[2]
    known = [price for price in price_table() if price.model == name and price.since <= on]
    return known[-1] if known else None


def cost_usd(
    model: str,
    on: dt.date,
    *,
    prompt: int,
    sampled: int,
    cache_read: int = 0,
    cache_write: int = 0,
) -> float | None:
    """US dollars for so many tokens; None where the price is unknown.

    Args:
        model: as its server names it, with or without a kind before a slash.
        on: the day.
        prompt: all prompt tokens, those from and into the server's cache included.
        sampled: sampled tokens.
        cache_read: of `prompt`, those from the cache.
        cache_write: of `prompt`, those into it.
    """
    price = price_of(model, on)
    if price is None:
        return None
    plain = max(0, prompt - cache_read - cache_write)
    dollars = (
        plain * price.prompt
        + sampled * price.sampled
        + cache_read * price.cache_read
        + cache_write * price.cache_write
    )
    return dollars / 1e6
