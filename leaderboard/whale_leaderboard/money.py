"""What an entry cost in money, as far as prices are known: proposer and judge, apart.

    money = money_of(account)
    money.proposer_usd, money.judge_usd                 # None where a price is unknown, never 0 for it

The proposer's money is what its sessions recorded, failed calls included; where one of them had no price it
is unknown. A judge's is its tokens at the price in `prices.toml` that was in force on the day on which they
were used, by the ledger; tokens of a day or a judge without a price make it unknown. Test rollouts' judge
tokens are counted apart: no budget counts them either.

Not covered: hardware, which is in device seconds; the target agent's own tokens where it is served for
money, which the account has.
"""

import math
from collections.abc import Iterable

import msgspec

from whale_leaderboard.accounting import Account, Judged
from whale_leaderboard.prices import cost_usd


class Money(msgspec.Struct, frozen=True, kw_only=True):
    """US dollars; None for unknown."""

    proposer_usd: float | None
    judge_usd: float | None
    """Outside test."""
    judge_test_usd: float | None
    device_seconds: float


def money_of(account: Account) -> Money:
    """The money of an entry with this account."""
    return Money(
        proposer_usd=None if account.spent.unpriced else account.spent.proposer_micro_usd / 1e6,
        judge_usd=_cost(one for one in account.judged if not one.test),
        judge_test_usd=_cost(one for one in account.judged if one.test),
        device_seconds=account.spent.device_seconds,
    )


def _cost(used: Iterable[Judged]) -> float | None:
    """Dollars for all of it; None where one part of it has no price."""
    costs = [
        cost_usd(one.judge, one.day, prompt=one.prompt_tokens, sampled=one.sampled_tokens) for one in used
    ]
    known = [cost for cost in costs if cost is not None]
    return math.fsum(known) if len(known) == len(costs) else None
