"""The accounting standard against slow recounts: accounts, audits, curves, prices."""

import datetime as dt
import hashlib
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from whale_leaderboard.accounting import BUDGETS, Account, Accountant, budget_of, size_of, together
from whale_leaderboard.audit import Audit
from whale_leaderboard.curve import Curve, Point
from whale_leaderboard.layout import Charged
from whale_leaderboard.money import money_of
from whale_leaderboard.packing import read_ledger
from whale_leaderboard.prices import cost_usd, price_table
from whale_leaderboard.report import Refusal

from whale_bench.ledger import GENESIS, PURPOSES, Charge, Event, Ledger
from whale_bench.store import RunStore
from whale_envs import UsageError

ROOT = Path(__file__).resolve().parent.parent.parent

charges = st.builds(
    Charge,
    rollouts=st.just(1),
    prompt_tokens=st.integers(0, 50),
    sampled_tokens=st.integers(0, 50),
    model_calls=st.integers(0, 3),
    seconds=st.floats(0, 1),
    unmetered_tokens=st.booleans(),
)
spendings = st.lists(
    st.tuples(
        st.sampled_from(PURPOSES),
        st.sampled_from(("settle", "missing", "interrupted", "repeated", "trained")),
        charges,
    ),
    max_size=40,
)


def written(folder: Path, spending: list[tuple[str, str, Charge]]) -> tuple[list[bytes], list[bytes]]:
    """(events, records) of a ledger in which this was spent, by way of the real ledger."""
    path = folder / "ledger.sqlite"
    path.unlink(missing_ok=True)
    records = []
    with Ledger(path) as ledger:
        for number, (purpose, kind, charge) in enumerate(spending):
            key = f"{purpose}:e:{number}"
            attempt = ledger.reserve(key, purpose)
            if kind == "trained":
                ledger.settle(key, attempt, Charge(optimizer_steps=1, device_seconds=charge.seconds))
                continue
            if kind == "missing":
                ledger.fail(key, attempt, charge)
            elif kind == "interrupted":
                ledger.interrupt(key, attempt)
            if kind in ("missing", "interrupted"):
                attempt = ledger.reserve(key, purpose)
            ledger.settle(key, attempt, charge)
            records.append(_record(key, purpose, charge))
            if kind == "repeated":
                attempt = ledger.reserve(key, purpose, again=True)
                ledger.repeat(key, attempt, charge)
        events = [msgspec.json.encode(event._asdict()) for event in ledger.events()]
    return events, records


def _record(key: str, purpose: str, charge: Charge) -> bytes:
    unknown = charge.unmetered_tokens
    return msgspec.json.encode(
        Charged(
            key=key, purpose=purpose, example_id="e", sample=0, weights_id="w", harness_id="h",
            prompt_tokens=None if unknown else charge.prompt_tokens,
            sampled_tokens=None if unknown else charge.sampled_tokens,
            model_calls=charge.model_calls, reward=0.0, reason="r", digest="0" * 64,
        )
    )  # fmt: skip


def audited(events: list[bytes], records: list[bytes]) -> tuple[Account, Audit]:
    def lines(found: list[bytes]) -> Any:
        def read() -> Iterator[tuple[int, bytes]]:
            return iter(enumerate(found, start=1))

        return read

    audit = Audit("runs/0", {purpose: {"e"} for purpose in PURPOSES})
    for _ in audit.settlements(lines(events), lines(records)):
        pass
    return audit.accountant.account(), audit


def recounted(events: list[bytes]) -> dict[str, int]:
    """The counts of docs/budget.md, the slow way: from the text of the ledger alone."""
    counts = dict.fromkeys(("charged", "paper", "executed", "test", "prompt", "sampled"), 0)
    for line in events:
        event = json.loads(line)
        if event["kind"] == "reserve":
            continue
        charge = json.loads(event["charge"])
        rollouts, test = charge.get("rollouts", 0), event["purpose"] == "test"
        if event["kind"] == "settle":
            counts["test"] += rollouts if test else 0
            counts["charged"] += 0 if test else rollouts
            counts["paper"] += rollouts if event["purpose"] in ("weight", "harness") else 0
        if not test:
            counts["executed"] += rollouts
            counts["prompt"] += charge.get("prompt_tokens", 0)
            counts["sampled"] += charge.get("sampled_tokens", 0)
    return counts


@settings(max_examples=30)
@given(spendings)
def test_the_audit_counts_what_a_slow_recount_counts(spending: list[Any]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        events, records = written(Path(folder), spending)
        account, audit = audited(events, records)
        with Ledger(Path(folder) / "ledger.sqlite", readonly=True) as ledger:
            executed = ledger.executed()
    counts = recounted(events)
    assert {name: getattr(account, name) for name in ("charged", "paper", "executed", "test")} == {
        name: counts[name] for name in ("charged", "paper", "executed", "test")
    }
    assert (account.spent.prompt_tokens, account.spent.sampled_tokens) == (
        counts["prompt"],
        counts["sampled"],
    )
    assert (audit.events, audit.records) == (len(events), len(records))
    assert account.paper <= account.charged <= account.executed
    for purpose, tally in account.by_purpose.items():
        assert tally.executed.rollouts == executed[purpose].rollouts


@settings(max_examples=40)
@given(spendings.filter(bool), st.integers(0, 2**32))
def test_any_edit_of_a_ledger_is_refused(spending: list[Any], seed: int) -> None:
    """Every field of every event, by every small edit that leaves it JSON; and every removal or exchange."""
    import tempfile

    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        events, records = written(Path(folder), spending)
    damaged = list(events)
    at = draw.randrange(len(events))
    what = draw.choice(("field", "remove", "exchange", "copy"))
    if what == "field":
        event = json.loads(events[at])
        name = draw.choice(sorted(event))
        old = event[name]
        event[name] = old + 1 if isinstance(old, int | float) else f"{old}x"
        damaged[at] = msgspec.json.encode(event)
    elif what == "remove" and at < len(events) - 1:
        del damaged[at]
    elif what == "exchange" and len(events) > 1:
        other = (at + 1) % len(events)
        damaged[at], damaged[other] = damaged[other], damaged[at]
    else:
        damaged.insert(at, events[at])
    with pytest.raises(Refusal) as caught:
        audited(damaged, records)
    assert caught.value.finding.place.startswith("runs/0/")


def test_a_ledger_that_was_cut_off_between_two_events_shows_by_its_head(tmp_path: Path) -> None:
    events, records = written(tmp_path, [("weight", "settle", Charge(rollouts=1))] * 3)
    whole, cut = audited(events, records)[1], audited(events[:4], records[:2])[1]
    assert whole.head != cut.head
    assert json.loads(events[-1])["hash"] == whole.head


def test_what_is_open_at_the_end_is_executed_and_not_charged(tmp_path: Path) -> None:
    """As it would be once a resumed run had closed it as interrupted."""
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.settle("weight:e:0", ledger.reserve("weight:e:0", "weight"), Charge(rollouts=1))
        for key, purpose in (("weight:e:1", "weight"), ("test:e:0", "test"), ("train:7", "weight")):
            ledger.reserve(key, purpose)
        ledger.reserve("proposer:1:2", "harness")
        events = [msgspec.json.encode(event._asdict()) for event in ledger.events()]
    account, _ = audited(events, [_record("weight:e:0", "weight", Charge(rollouts=1))])
    assert (account.charged, account.executed, account.test) == (1, 2, 0)
    assert account.by_purpose["test"].executed.rollouts == 1
    assert account.by_purpose["harness"].executed == Charge(unpriced=True)
    assert account.spent.unmetered_tokens


def test_packing_counts_a_ledger_as_the_audit_does(chess_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(chess_run, folder)
    with Ledger(folder / "ledger.sqlite") as ledger:
        ledger.reserve("dev:in-flight:0", "dev")
        ledger.reserve("proposer:0:1", "harness")
    packed = read_ledger(RunStore.open(folder))
    account = packed.accountant.account()
    assert (account.charged, account.executed, account.test) == (0, 1, 768)
    with Ledger(folder / "ledger.sqlite", readonly=True) as ledger:
        slow = Accountant()
        waiting = {}
        for event in ledger.events():
            charge = msgspec.json.decode(event.charge, type=Charge) if event.charge else Charge()
            slow.add(event.kind, event.purpose, charge, event.at)
            waiting[event.key, event.attempt] = (event.purpose, event.kind)
    for (key, _), (purpose, kind) in waiting.items():
        if kind == "reserve":
            slow.leave_open(key, purpose)
    assert account == slow.account()


@pytest.mark.parametrize("seconds", ["-1", "1e999", "NaN", "1e300", '"x"'])
def test_a_charge_that_is_no_count_is_refused(seconds: str, tmp_path: Path) -> None:
    events, records = written(tmp_path, [("weight", "settle", Charge(rollouts=1, seconds=0.5))])
    event = json.loads(events[1])
    event["charge"] = f'{{"rollouts":1,"seconds":{seconds}}}'
    event["hash"] = hashlib.sha256(msgspec.json.encode([event[n] for n in Event._fields[:-1]])).hexdigest()
    with pytest.raises(Refusal, match="is no event"):
        audited([events[0], msgspec.json.encode(event)], records)
    assert json.loads(events[0])["prev"] == GENESIS


def test_times_that_cannot_be_are_noted_and_refuse_nothing(tmp_path: Path) -> None:
    spending = [("weight", "settle", Charge(rollouts=1, seconds=3600.0)),
                ("weight", "settle", Charge(rollouts=1, sampled_tokens=10**6, seconds=0.1))]  # fmt: skip
    _, audit = audited(*written(tmp_path, spending))
    assert audit.odd_count == 2
    assert "took longer" in audit.odd_times[0]
    assert "1,000,000 tokens" in audit.odd_times[1]


def test_accounts_of_several_ledgers_add_up() -> None:
    one, other = Accountant(), Accountant()
    both = Accountant()
    for accountant in (one, both):
        accountant.add("settle", "weight", Charge(rollouts=1, sampled_tokens=3))
    for accountant in (other, both):
        accountant.add("missing", "dev", Charge(rollouts=1, unmetered_tokens=True))
    assert together([one.account(), other.account()]) == both.account()
    with pytest.raises(UsageError, match="unknown purpose 'play'"):
        one.add("settle", "play", Charge())


def test_tracks_end_where_they_say() -> None:
    for name, most in BUDGETS.items():
        assert budget_of(most, metered=True) == name
        assert budget_of(most + 1, metered=True) != name
    assert budget_of(1_000_001, metered=True) == "open"
    assert [size_of(n) for n in (1e9, 1.1e9, 2e12, None)] == ["1B", "5B", "large", "unknown"]


points = st.lists(
    st.builds(Point, st.integers(0, 100), st.floats(0, 1, allow_nan=False)), min_size=1, max_size=12
)


@settings(max_examples=100)
@given(points, st.integers(1, 120), st.floats(0, 1))
def test_a_curve_is_never_optimistic(found: list[Point], budget: int, wanted: float) -> None:
    curve = Curve(found)
    known = [p.score for p in found if p.rollouts <= budget]
    assert curve.score_at(budget) == (max(known) if known else None)
    reached = [p.rollouts for p in found if p.score >= wanted]
    assert curve.rollouts_to(wanted) == (min(reached) if reached else None)
    best = max(p.score for p in found)
    assert curve.rollouts_to_best() == min(p.rollouts for p in found if p.score == best)
    slow = (
        sum(max((p.score for p in found if p.rollouts <= at), default=0.0) for at in range(budget)) / budget
    )
    assert curve.area(budget) == pytest.approx(slow)
    assert Curve(list(reversed(found))).steps == curve.steps
    more = Curve([*found, Point(budget, wanted)])
    assert all((more.score_at(at) or 0) >= (curve.score_at(at) or 0) for at in range(0, 120, 7))
    assert all(more.score_at(at) == curve.score_at(at) for at in range(budget))


def test_a_curve_without_points_knows_nothing() -> None:
    curve = Curve([])
    assert (curve.score_at(5), curve.rollouts_to(0.0), curve.rollouts_to_best()) == (None, None, None)
    assert curve.area(10) == 0.0
    for bad in ([Point(-1, 0.5)], [Point(1, 1.5)], [Point(1, float("nan"))]):
        with pytest.raises(UsageError, match="a point needs"):
            Curve(bad)
    with pytest.raises(UsageError, match="at least 1"):
        curve.area(0)


def test_an_unknown_price_is_no_price_and_cached_tokens_are_cheaper() -> None:
    day = dt.date(2026, 10, 1)
    assert cost_usd("no-such-model", day, prompt=10, sampled=10) is None
    price = price_table()[0]
    assert cost_usd(price.model, price.since - dt.timedelta(days=1), prompt=10, sampled=10) is None
    whole = cost_usd(f"anthropic/{price.model}", day, prompt=25_010, sampled=50)
    cached = cost_usd(price.model, day, prompt=25_010, sampled=50, cache_read=20_000, cache_write=5_000)
    assert whole == pytest.approx((25_010 * price.prompt + 50 * price.sampled) / 1e6)
    assert cached is not None
    assert whole is not None
    assert cached < whole
    assert all(p.source.startswith("https://") for p in price_table())


@given(st.lists(st.tuples(st.integers(-400, 400), st.booleans(), st.integers(1, 10**6)), max_size=8))
def test_a_judge_costs_what_it_cost_on_the_day_it_was_asked(asked: list[tuple[int, bool, int]]) -> None:
    price = next(price for price in price_table() if price.model == "gpt-5.4-mini")
    accountant = Accountant("openai/gpt-5.4-mini")
    wanted: dict[bool, float | None] = {False: 0.0, True: 0.0}
    for days, test, tokens in asked:
        day = price.since + dt.timedelta(days=days)
        at = dt.datetime(day.year, day.month, day.day, 23, 59, tzinfo=dt.UTC).timestamp()
        charge = Charge(rollouts=1, judge_prompt_tokens=tokens)
        accountant.add("settle", "test" if test else "dev", charge, at)
        so_far = wanted[test]
        wanted[test] = None if days < 0 or so_far is None else so_far + tokens * price.prompt / 1e6
    money = money_of(together([accountant.account(), Accountant().account()]))
    for found, due in ((money.judge_usd, wanted[False]), (money.judge_test_usd, wanted[True])):
        assert found == (None if due is None else pytest.approx(due))


def test_every_run_has_the_price_of_its_own_judge() -> None:
    day = dt.datetime(2026, 10, 1, tzinfo=dt.UTC).timestamp()
    known, unknown = Accountant("gpt-5.4-mini"), Accountant("a-judge-of-mine")
    known.add("settle", "dev", Charge(rollouts=1, judge_sampled_tokens=10**6), day)
    assert money_of(known.account()).judge_usd == pytest.approx(4.5)
    unknown.add("settle", "test", Charge(rollouts=1, judge_prompt_tokens=1), day)
    money = money_of(together([known.account(), unknown.account()]))
    assert (money.judge_usd, money.judge_test_usd) == (pytest.approx(4.5), None)
    for wrong in (float("1e300"), -1e300):
        late = Accountant("gpt-5.4-mini")
        late.add("settle", "dev", Charge(rollouts=1, judge_prompt_tokens=1), wrong)
        assert money_of(late.account()).judge_usd is None
