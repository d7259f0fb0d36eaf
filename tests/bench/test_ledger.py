"""The account: who may write what, what the chain finds, and that its sums equal an independent count."""

import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench_fakes import BEGUN, begin_ledger
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from whale_bench.ledger import GENESIS, PURPOSES, Charge, Ledger
from whale_bench.store import RunStore
from whale_envs.errors import DataError, InfrastructureError, UsageError

ONE = Charge(rollouts=1, prompt_tokens=10, sampled_tokens=4, model_calls=2, tool_calls=1, seconds=0.5)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "ledger.sqlite") as opened:
        yield opened


def tampered(path: Path, *statements: str) -> Ledger:
    with sqlite3.connect(path) as db:
        for statement in statements:
            db.execute(statement)
    db.close()
    return Ledger(path, readonly=True)


def test_a_settled_key_cannot_be_reserved_again(ledger: Ledger) -> None:
    ledger.settle("a", ledger.reserve("a", "test"), ONE)
    with pytest.raises(UsageError, match="'a' is settled already"):
        ledger.reserve("a", "test")


def test_a_key_has_one_open_attempt_at_most(ledger: Ledger) -> None:
    ledger.reserve("a", "test")
    with pytest.raises(UsageError, match="'a' is reserved already"):
        ledger.reserve("a", "test")


@pytest.mark.parametrize("end", ["fail", "interrupt"])
def test_a_key_whose_attempt_came_to_nothing_may_be_tried_again(ledger: Ledger, end: str) -> None:
    attempt = ledger.reserve("a", "test")
    ledger.fail("a", attempt, ONE) if end == "fail" else ledger.interrupt("a", attempt)
    assert ledger.reserve("a", "test") == attempt + 1
    ledger.settle("a", attempt + 1, ONE)
    assert ledger.charged() == {"test": ONE}
    assert ledger.executed()["test"].rollouts == 2


def test_an_attempt_ends_once(ledger: Ledger) -> None:
    attempt = ledger.reserve("a", "test")
    ledger.settle("a", attempt, ONE)
    for end in (ledger.settle, ledger.fail, ledger.repeat):
        with pytest.raises(UsageError, match="has ended already"):
            end("a", attempt, ONE)


def test_what_was_never_reserved_cannot_be_settled(ledger: Ledger) -> None:
    with pytest.raises(UsageError, match="attempt 1 of rollout 'b' was never reserved"):
        ledger.settle("b", 1, ONE)


def test_an_unknown_purpose_is_refused_by_name(ledger: Ledger) -> None:
    with pytest.raises(UsageError, match=f"'fun'; valid: {', '.join(PURPOSES)}"):
        ledger.reserve("a", "fun")


def test_a_lost_record_is_made_anew_without_a_second_charge(ledger: Ledger) -> None:
    ledger.settle("a", ledger.reserve("a", "dev"), ONE)
    ledger.repeat("a", ledger.reserve("a", "dev", again=True), ONE)
    assert ledger.charged()["dev"].rollouts == 1
    assert ledger.executed()["dev"].rollouts == 2
    with pytest.raises(UsageError, match="'b' is not settled yet"):
        ledger.reserve("b", "dev", again=True)


def test_failed_and_interrupted_attempts_count_as_executed_and_not_as_charged(ledger: Ledger) -> None:
    ledger.settle("a", ledger.reserve("a", "test"), ONE)
    ledger.fail("b", ledger.reserve("b", "test"), Charge(rollouts=1, seconds=2.0))
    ledger.interrupt("c", ledger.reserve("c", "harness"))
    assert ledger.charged() == {"test": ONE}
    assert ledger.executed()["test"] == Charge(2, 10, 4, 2, 1, 2.5)
    assert ledger.totals("interrupted") == {"harness": Charge(rollouts=1, unmetered_tokens=True)}


def test_tokens_that_nobody_counted_are_flagged_in_the_sum(ledger: Ledger) -> None:
    ledger.settle("a", ledger.reserve("a", "test"), ONE)
    ledger.settle("b", ledger.reserve("b", "test"), Charge(rollouts=1, unmetered_tokens=True))
    assert ledger.charged()["test"].unmetered_tokens


def test_open_reservations_are_listed_in_order_after_a_reopening(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        for key in ("b", "a", "c"):
            ledger.reserve(key, "test")
        ledger.settle("a", 1, ONE)
    with Ledger(tmp_path / "l") as ledger:
        assert ledger.open_reservations() == [("b", 1), ("c", 1)]
        assert ledger.settled_keys() == {"a"}


def test_the_chain_goes_on_over_launches(tmp_path: Path) -> None:
    for key in "abc":
        with Ledger(tmp_path / "l") as ledger:
            ledger.settle(key, ledger.reserve(key, "test"), ONE)
    with Ledger(tmp_path / "l", readonly=True) as ledger:
        events = list(ledger.events())
        assert ledger.audit() == 6
    assert events[0].prev == GENESIS
    assert [e.prev for e in events[1:]] == [e.hash for e in events[:-1]]
    assert [e.seq for e in events] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("what", "statements"),
    [
        ("an edited charge", ["UPDATE events SET charge = replace(charge, '10', '1') WHERE seq = 4"]),
        ("an edited key", ["UPDATE events SET key = 'z' WHERE seq = 4"]),
        ("an edited hash", ["UPDATE events SET hash = prev WHERE seq = 4"]),
        ("a deletion", ["DELETE FROM events WHERE seq = 4"]),
        ("a deletion, renumbered", ["DELETE FROM events WHERE seq = 4",
                                    "UPDATE events SET seq = seq - 1 WHERE seq > 4"]),
        ("a deleted beginning", ["DELETE FROM events WHERE seq = 1"]),
        ("two events in the other order", ["UPDATE events SET seq = 99 WHERE seq = 3",
                                           "UPDATE events SET seq = 3 WHERE seq = 4",
                                           "UPDATE events SET seq = 4 WHERE seq = 99"]),
    ],
)  # fmt: skip
def test_an_audit_finds(tmp_path: Path, what: str, statements: list[str]) -> None:
    with Ledger(tmp_path / "l") as ledger:
        for key in "abcd":
            ledger.settle(key, ledger.reserve(key, "test"), ONE)
    with tampered(tmp_path / "l", *statements) as ledger, pytest.raises(DataError, match="does not follow"):
        ledger.audit()


def test_a_ledger_opened_to_read_refuses_to_write(tmp_path: Path) -> None:
    path = tmp_path / "odd name?#%41.sqlite"
    with Ledger(path) as ledger:
        ledger.reserve("a", "test")
    before = path.read_bytes()
    with Ledger(path, readonly=True) as ledger:
        assert [e.kind for e in ledger.events()] == ["reserve"]
        with pytest.raises(UsageError, match="to be read only"):
            ledger.reserve("b", "test")
        with pytest.raises(UsageError, match="to be read only"):
            ledger.settle("a", 1, ONE)
    assert path.read_bytes() == before


def test_reading_a_ledger_that_is_not_there_makes_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no ledger"):
        Ledger(tmp_path / "none", readonly=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("readonly", [False, True])
def test_a_file_that_is_no_ledger_is_named(tmp_path: Path, readonly: bool) -> None:
    (tmp_path / "l").write_text("hello, I am a text file " * 200)
    with pytest.raises(DataError, match="is no ledger, or damaged"):
        Ledger(tmp_path / "l", readonly=readonly)


@pytest.mark.parametrize("state", BEGUN)
def test_a_kill_while_a_ledger_is_made_leaves_an_empty_one(tmp_path: Path, state: str) -> None:
    begin_ledger(path := tmp_path / "l", state)
    before = path.read_bytes()
    for _ in range(2):
        with Ledger(path, readonly=True) as ledger:
            assert (ledger.audit(), ledger.charged(), ledger.open_reservations()) == (0, {}, [])
            with pytest.raises(UsageError, match="to be read only"):
                ledger.reserve("a", "test")
    assert path.read_bytes() == before
    with Ledger(path) as ledger:
        ledger.settle("a", ledger.reserve("a", "test"), ONE)
    with Ledger(path, readonly=True) as ledger:
        assert (ledger.audit(), ledger.settled_keys()) == (2, {"a"})


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("after", [(), ("VACUUM",), ("CREATE TABLE other (a)",)])
def test_a_ledger_that_lost_its_table_is_damaged(
    tmp_path: Path, readonly: bool, after: tuple[str, ...]
) -> None:
    with Ledger(tmp_path / "l") as ledger:
        ledger.settle("a", ledger.reserve("a", "test"), ONE)
    with sqlite3.connect(tmp_path / "l", isolation_level=None) as db:
        for statement in ("DROP TABLE events", *after):
            db.execute(statement)
    db.close()
    with pytest.raises(DataError, match="is no ledger, or damaged: no such table"):
        Ledger(tmp_path / "l", readonly=readonly)


def test_a_full_disk_is_an_infrastructure_failure_and_leaves_the_chain_whole(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        attempt = ledger.reserve("a", "test")
        ledger._db.execute("PRAGMA max_page_count = 1")
        with pytest.raises(InfrastructureError, match=r"l: cannot be written: database or disk is full"):
            ledger.reserve("b" * 100_000, "test")
        ledger._db.execute("PRAGMA max_page_count = 1000000")
        ledger.settle("a", attempt, ONE)
        assert ledger.audit() == ledger._seq


def test_no_step_of_a_rollout_reads_the_whole_ledger(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        steps: list[str] = []
        ledger._db.set_trace_callback(steps.append)
        ledger.fail("a", ledger.reserve("a", "test"), ONE)
        ledger.settle("a", ledger.reserve("a", "test"), ONE)
        with pytest.raises(UsageError, match="never reserved"):
            ledger.settle("b", 1, ONE)
        ledger._db.set_trace_callback(None)
        asked = [step for step in steps if step.lstrip().startswith(("SELECT", "WITH"))]
        assert len(asked) == 2  # one for a second attempt, and one for an attempt of another launch
        for step in asked:
            plan = [row[3] for row in ledger._db.execute(f"EXPLAIN QUERY PLAN {step}")]
            assert not [line for line in plan if line.startswith("SCAN e")], plan
            assert any("USING" in line and "INDEX one_" in line for line in plan)


def test_a_ledger_that_loses_its_table_while_open_is_named(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l") as ledger:
        with sqlite3.connect(tmp_path / "l") as db:
            db.execute("DROP TABLE events")
        db.close()
        with pytest.raises(DataError, match="l: is damaged: no such table"):
            ledger.audit()
        with pytest.raises(DataError, match="l: is damaged: no such table"):
            ledger.settled_keys()


def test_a_second_writer_is_refused_in_this_process_and_from_another(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path / "run", {}, "")
    code = (
        "import sys; from pathlib import Path; from whale_bench.store import RunStore\n"
        "with RunStore.open(Path(sys.argv[1])): pass"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    with store:
        with (
            pytest.raises(UsageError, match="is being written by another process"),
            RunStore.open(tmp_path / "run"),
        ):
            pass
        other = subprocess.run(command, capture_output=True, text=True, check=False)
        assert other.returncode != 0
        assert "is being written by another process" in other.stderr
    assert subprocess.run(command, check=False).returncode == 0


class Histories(RuleBasedStateMachine):
    """Random histories over few keys, beside a count that knows nothing of the ledger."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.ledger = Ledger(Path(self.folder.name) / "l")
        self.open: dict[str, tuple[int, str]] = {}
        self.attempts: Counter[str] = Counter()
        self.settled: set[str] = set()
        self.charged: Counter[tuple[str, str]] = Counter()
        self.executed: Counter[tuple[str, str]] = Counter()
        self.events = 0

    keys = st.sampled_from("abcdef")
    charges = st.builds(Charge, st.just(1), *[st.integers(0, 2**40)] * 4)

    @rule(key=keys, purpose=st.sampled_from(PURPOSES))
    def reserve(self, key: str, purpose: str) -> None:
        if key in self.open or key in self.settled:
            with pytest.raises(UsageError):
                self.ledger.reserve(key, purpose)
            return
        attempt = self.ledger.reserve(key, purpose)
        self.attempts[key] += 1
        assert attempt == self.attempts[key]
        self.open[key] = (attempt, purpose)
        self.events += 1

    @precondition(lambda self: self.settled)
    @rule(purpose=st.sampled_from(PURPOSES), data=st.data())
    def reserve_again(self, purpose: str, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.settled)))
        if key not in self.open:
            self.attempts[key] += 1
            self.open[key] = (self.ledger.reserve(key, purpose, again=True), purpose)
            self.events += 1

    @precondition(lambda self: self.open)
    @rule(data=st.data(), charge=charges, how=st.sampled_from(["end", "fail", "interrupt"]))
    def end(self, data: st.DataObject, charge: Charge, how: str) -> None:
        key = data.draw(st.sampled_from(sorted(self.open)))
        attempt, purpose = self.open.pop(key)
        if how == "interrupt":
            charge = Charge(rollouts=1, unmetered_tokens=True)
            self.ledger.interrupt(key, attempt)
        elif how == "fail":
            self.ledger.fail(key, attempt, charge)
        elif key in self.settled:
            self.ledger.repeat(key, attempt, charge)
        else:
            self.ledger.settle(key, attempt, charge)
            self.settled.add(key)
            self._count(self.charged, purpose, charge)
        self._count(self.executed, purpose, charge)
        self.events += 1

    @rule(key=keys, charge=charges)
    def settle_what_is_not_open(self, key: str, charge: Charge) -> None:
        if key not in self.open:
            with pytest.raises(UsageError):
                self.ledger.settle(key, self.attempts[key] or 1, charge)

    @invariant()
    def sums_equal_the_count(self) -> None:
        for counted, told in (
            (self.charged, self.ledger.charged()),
            (self.executed, self.ledger.executed()),
        ):
            names = ("rollouts", "prompt_tokens", "sampled_tokens", "model_calls", "tool_calls")
            sums = {(p, n): getattr(c, n) for p, c in told.items() for n in names}
            assert {k: v for k, v in sums.items() if v} == {k: v for k, v in counted.items() if v}

    @invariant()
    def the_chain_holds(self) -> None:
        assert self.ledger.audit() == self.events
        assert dict(self.ledger.open_reservations()) == {k: a for k, (a, _) in self.open.items()}
        assert self.ledger.settled_keys() == self.settled

    def _count(self, counter: Counter[tuple[str, str]], purpose: str, charge: Charge) -> None:
        for name in ("rollouts", "prompt_tokens", "sampled_tokens", "model_calls", "tool_calls"):
            counter[purpose, name] += getattr(charge, name)

    def teardown(self) -> None:
        self.ledger.close()
        self.folder.cleanup()


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, derandomize=True, database=None
)
