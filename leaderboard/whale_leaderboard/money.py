"""What an entry cost in money, as far as prices are known: proposer and judge, apart.

    money = money_of(manifest, account)
    money.proposer_usd, money.judge_usd                 # None where a price is unknown, never 0 for it

The proposer's money is what its sessions recorded, failed calls included; where one of them had no price it
is unknown. The judge's is its tokens by `prices.toml`. Test rollouts' judge tokens are counted apart: no
budget counts them either.

Not covered: hardware, which is in device seconds; the target agent's own tokens where it is served for
money, which the account has.
"""

import datetime as dt

import msgspec

from whale_bench.ledger import Charge
from whale_leaderboard.accounting import Account
from whale_leaderboard.layout import Manifest
from whale_leaderboard.prices import cost_usd


class Money(msgspec.Struct, frozen=True, kw_only=True):
    """US dollars; None for unknown."""

    proposer_usd: float | None
    judge_usd: float | None
    """Outside test."""
    judge_test_usd: float | None
    device_seconds: float


def money_of(manifest: Manifest, account: Account, on: dt.date | None = None) -> Money:
    """The money of an entry.

    Args:
        manifest: which names the judge.
        account: as it was recomputed.
        on: day whose prices hold; None for the day of the last price that is known.
    """
    test = account.by_purpose["test"].executed if "test" in account.by_purpose else Charge()
    return Money(
        proposer_usd=None if account.spent.unpriced else account.spent.proposer_micro_usd / 1e6,
        judge_usd=_judge(manifest, account.spent, on),
        judge_test_usd=_judge(manifest, test, on),
        device_seconds=account.spent.device_seconds,
    )


def _judge(manifest: Manifest, charge: Charge, on: dt.date | None) -> float | None:
    if not charge.judge_prompt_tokens and not charge.judge_sampled_tokens:
        return 0.0
    return cost_usd(
        manifest.judge or "",
        on or dt.date.max,
        prompt=charge.judge_prompt_tokens,
        sampled=charge.judge_sampled_tokens,
    )
