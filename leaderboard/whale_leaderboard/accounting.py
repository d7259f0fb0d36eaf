"""What counts: the only implementation of docs/budget.md.

    accountant = Accountant()
    for event in ledger.events():
        accountant.add(event.kind, event.purpose, charge, event.at)
    accountant.leave_open(key, purpose)                       # for every reservation without an end
    account = accountant.account()
    account.charged, account.paper, account.executed          # rollouts, three ways to count them

*charged* decides the track: settled rollouts of every purpose but test. *paper* is what the paper's x-axis
counts, weight and harness only. *executed* is everything that ran outside test, failed, interrupted and
repeated attempts included, and what is still open where a ledger ends. Tokens, money and seconds are sums
over executed attempts, test apart; a judge's tokens are also kept by day, for its price.

Not covered: curves over these counts (`curve.py`), prices (`prices.py`), whether a ledger is whole
(`audit.py`).
"""

import datetime as dt
from collections.abc import Iterable, Mapping
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

UNFINISHED = Charge(rollouts=1, unmetered_tokens=True)
"""What a reservation that is open at a ledger's end has cost: one rollout, of which nothing else is known."""

SESSIONS = ("train:", "proposer:")
"""Beginnings of the keys of a trainer's steps and a proposer's sessions, which are no rollouts."""

_PARTS = Charge.__struct_fields__
_NOTHING: tuple[float, ...] = astuple(Charge())

LARGE, UNKNOWN = "large", "unknown"


class Tally(msgspec.Struct, frozen=True):
    """Attempts of one purpose."""

    settled: Charge = Charge()
    executed: Charge = Charge()
    """`settled` with failed, interrupted and repeated attempts."""


class Judged(msgspec.Struct, frozen=True, order=True):
    """What a judge read and wrote on one day."""

    day: dt.date
    """In UTC."""
    judge: str
    """Its name in the run's settings."""
    test: bool
    """Whether for the final score, which no budget counts."""
    prompt_tokens: int
    sampled_tokens: int


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
    judged: tuple[Judged, ...] = ()
    """Tokens of judges, by day."""


class Accountant:
    """Adds up events, one at a time, in memory that grows with the days on which a judge was asked.

    Args:
        judge: the judge of the ledger's run, if there is one.
    """

    def __init__(self, judge: str | None = None) -> None:
        self._judge = judge or ""
        self._sums: dict[tuple[str, bool], list[float]] = {}
        """By purpose, of settled attempts and of all others; in the order of a charge's parts."""
        self._judged: dict[tuple[dt.date, bool], tuple[int, int]] = {}

    def add(self, kind: str, purpose: str, charge: Charge, at: float = 0.0) -> None:
        """Takes in one event; a reservation costs nothing until it ends, or the ledger does.

        Args:
            kind: of the event.
            purpose: of the attempt.
            charge: of the event.
            at: when it was, in Unix time; out of a calendar's range it is the first day.

        Raises:
            UsageError: there is no such purpose.
        """
        if purpose not in PURPOSES:
            raise UsageError(f"unknown purpose {purpose!r}; valid: {', '.join(PURPOSES)}")
        if kind not in EXECUTED:
            return
        name = (purpose, kind == "settle")
        self._sums[name] = list(map(add, self._sums.get(name, _NOTHING), astuple(charge)))
        if charge.judge_prompt_tokens or charge.judge_sampled_tokens:
            when = (_day(at), purpose == "test")
            prompt, sampled = self._judged.get(when, (0, 0))
            used = prompt + charge.judge_prompt_tokens, sampled + charge.judge_sampled_tokens
            self._judged[when] = used

    def leave_open(self, key: str, purpose: str) -> None:
        """Takes in a reservation that has no end where the ledger ends."""
        session = key.startswith(SESSIONS)
        used = Charge(unpriced=key.startswith("proposer:")) if session else UNFINISHED
        self.add("interrupted", purpose, used)

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
        judged = (Judged(day, self._judge, test, *used) for (day, test), used in self._judged.items())
        return account_of(tallies, judged)


def account_of(tallies: Mapping[str, Tally], judged: Iterable[Judged] = ()) -> Account:
    """The account of tallies by purpose, and of what judges used."""
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
        judged=tuple(sorted(judged)),
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
        },
        [one for account in accounts for one in account.judged],
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


def _day(at: float) -> dt.date:
    try:
        return dt.datetime.fromtimestamp(at, dt.UTC).date()
    except (ValueError, OverflowError, OSError):
        return dt.date.min


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
