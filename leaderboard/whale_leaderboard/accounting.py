"""What counts: the only implementation of docs/budget.md.

    accountant = Accountant()
    for event in ledger.events():
        accountant.add(event.kind, event.purpose, charge)
    account = accountant.account()
    account.charged, account.paper, account.executed          # rollouts, three ways to count them

*charged* decides the track: settled rollouts of every purpose but test. *paper* is what the paper's x-axis
counts, weight and harness only. *executed* is everything that ran outside test, failed, interrupted and
repeated attempts included. Tokens, money and seconds are sums over executed attempts, test apart.

Not covered: curves over these counts (`curve.py`), prices (`prices.py`), whether a ledger is whole
(`audit.py`).
"""

from collections.abc import Mapping
from operator import add
from types import MappingProxyType

import msgspec
from msgspec.structs import astuple

from whale_bench.ledger import FLAGS, PURPOSES, Charge
from whale_envs.errors import UsageError

PAPER = ("weight", "harness")
"""Purposes on the paper's x-axis; its validation and test rollouts are on none."""

BUDGETED = tuple(purpose for purpose in PURPOSES if purpose != "test")
"""Purposes that a budget counts."""

EXECUTED = ("settle", "missing", "interrupted", "repeated")
"""Kinds of event that end an attempt."""

BUDGETS: Mapping[str, int] = MappingProxyType(
    {"30k": 30_000, "100k": 100_000, "300k": 300_000, "1M": 1_000_000}
)
"""Most charged rollouts of each budget track, smallest first; beyond it is "open"."""

OPEN = "open"

SIZES: Mapping[str, float] = MappingProxyType({"1B": 1e9, "5B": 5e9, "15B": 15e9, "40B": 40e9})
"""Most parameters of each size class, all of a mixture's experts counted; beyond it is "large"."""

_PARTS = Charge.__struct_fields__
_NOTHING: tuple[float, ...] = astuple(Charge())

LARGE, UNKNOWN = "large", "unknown"


class Tally(msgspec.Struct, frozen=True):
    """Attempts of one purpose."""

    settled: Charge = Charge()
    executed: Charge = Charge()
    """`settled` with failed, interrupted and repeated attempts."""


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What a submission has spent. Every number is of all of its ledgers together."""

    charged: int
    """Rollouts that the budget counts: settled ones outside test."""
    paper: int
    """Rollouts as the paper counts them: settled ones of weight and harness."""
    executed: int
    """Rollouts that ran outside test, whatever came of them."""
    test: int
    """Settled test rollouts; no budget counts them."""
    by_purpose: dict[str, Tally]
    """Of the purposes that occur, in the order of `PURPOSES`."""
    spent: Charge
    """Everything executed outside test: tokens, steps, proposer, seconds."""


class Accountant:
    """Adds up events, one at a time, in constant memory."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, bool], list[float]] = {}
        """By purpose, of settled attempts and of all others; in the order of a charge's parts."""

    def add(self, kind: str, purpose: str, charge: Charge) -> None:
        """Takes in one event; a reservation costs nothing.

        Raises:
            UsageError: there is no such purpose.
        """
        if purpose not in PURPOSES:
            raise UsageError(f"unknown purpose {purpose!r}; valid: {', '.join(PURPOSES)}")
        if kind not in EXECUTED:
            return
        name = (purpose, kind == "settle")
        self._sums[name] = list(map(add, self._sums.get(name, _NOTHING), astuple(charge)))

    def account(self) -> Account:
        """The account of all events so far."""
        tallies = {}
        for purpose in PURPOSES:
            settled, other = (
                _charge(dict(zip(_PARTS, self._sums.get((purpose, kind), _NOTHING), strict=True)))
                for kind in (True, False)
            )
            if (purpose, True) in self._sums or (purpose, False) in self._sums:
                tallies[purpose] = Tally(settled, _total([settled, other]))
        return account_of(tallies)


def account_of(tallies: Mapping[str, Tally]) -> Account:
    """The account of tallies by purpose."""
    budgeted = {purpose: tally for purpose, tally in tallies.items() if purpose in BUDGETED}
    spent: dict[str, float] = {}
    for tally in budgeted.values():
        _accumulate(spent, tally.executed)
    return Account(
        charged=sum(tally.settled.rollouts for tally in budgeted.values()),
        paper=sum(tally.settled.rollouts for name, tally in tallies.items() if name in PAPER),
        executed=sum(tally.executed.rollouts for tally in budgeted.values()),
        test=tallies["test"].settled.rollouts if "test" in tallies else 0,
        by_purpose=dict(tallies),
        spent=_charge(spent),
    )


def together(accounts: list[Account]) -> Account:
    """The account of several ledgers, each of which counts."""
    sums: dict[str, list[Tally]] = {}
    for account in accounts:
        for purpose, tally in account.by_purpose.items():
            sums.setdefault(purpose, []).append(tally)
    return account_of(
        {
            purpose: Tally(
                _total([tally.settled for tally in sums[purpose]]),
                _total([tally.executed for tally in sums[purpose]]),
            )
            for purpose in PURPOSES
            if purpose in sums
        }
    )


def budget_of(charged: int, *, metered: bool) -> str:
    """The budget track of so many charged rollouts; an agent that is not metered is in the open one.

    >>> budget_of(0, metered=True), budget_of(30_001, metered=True), budget_of(5, metered=False)
    ('30k', '100k', 'open')
    """
    if metered:
        for name, most in BUDGETS.items():
            if charged <= most:
                return name
    return OPEN


def size_of(parameters: float | None) -> str:
    """The size class of a model with so many parameters; None where nobody says.

    >>> size_of(134.5e6), size_of(4e9), size_of(None)
    ('1B', '5B', 'unknown')
    """
    if parameters is None:
        return UNKNOWN
    return next((name for name, most in SIZES.items() if parameters <= most), LARGE)


def _accumulate(sums: dict[str, float], charge: Charge) -> None:
    for name, value in zip(_PARTS, astuple(charge), strict=True):
        if value:
            sums[name] = True if name in FLAGS else sums.get(name, 0) + value


def _charge(sums: Mapping[str, float]) -> Charge:
    flags = {name: bool(sums[name]) for name in FLAGS if name in sums}
    return Charge(**(dict(sums) | flags))  # type: ignore[arg-type]  # the fields of a Charge, by construction


def _total(charges: list[Charge]) -> Charge:
    sums: dict[str, float] = {}
    for charge in charges:
        _accumulate(sums, charge)
    return _charge(sums)
