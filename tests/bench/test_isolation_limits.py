"""Limits of what a harness may answer with, and of the time that its calls may take together."""

import asyncio

import msgspec
import pytest
from bench_fakes import FILES, HEAD, play
from hypothesis import given
from hypothesis import strategies as st

from whale_bench.harness import host, spending
from whale_bench.harness.base import DECISION_BYTES, Act, Ask, Nudge, Reply, View
from whale_bench.harness.calls import Answer, Call, HarnessFault, check_answer
from whale_bench.harness.host import ProcessHarness
from whale_envs.errors import HarnessError
from whale_envs.sandbox.confined import Confined, Job, start

VIEW = View("chess_puzzles", "opening", "now", max_turns=9, seed=5)


async def said(harness: host.HarnessHost, text: str) -> str:
    decision, _ = await harness.call(VIEW, Reply(text))
    assert isinstance(decision, Act)
    return decision.action


LARGE = {
    "messages": "messages(self, view): return [{'role': 'user', 'content': %s * int(view.opening)}]",
    "an action": "read(self, reply, view): return Act(%s * int(view.opening))",
    "a nudge": "read(self, reply, view): return Nudge(%s * int(view.opening))",
}


@pytest.mark.parametrize("letter", ["é", "\0"])
@pytest.mark.parametrize("what", LARGE)
async def test_what_no_prompt_can_use_is_the_harnesss_fault_and_costs_no_worker(
    what: str, letter: str
) -> None:
    source = HEAD + f"class Harness(BaseHarness):\n    def {LARGE[what] % ascii(letter)}\n"
    reply = None if what == "messages" else Reply("x")
    most = DECISION_BYTES // (len(msgspec.json.encode(letter)) - 2)
    async with ProcessHarness("mine.py", source=source) as harness:
        assert await harness.call(View("d", str(most - 50), "o"), reply)
        for count in (most + 1, 20 * most):
            with pytest.raises(
                HarnessError, match=r"mine\.py:3: \w+ returned \d+ bytes, more than"
            ) as refused:
                await harness.call(View("d", str(count), "o"), reply)
            assert (refused.value.reason, harness.restarts) == ("harness_error", 0)


def test_a_large_answer_past_the_workers_checks_meets_the_hosts_own() -> None:
    for decision, reply in (
        (Act("x" * DECISION_BYTES), Reply("x")),
        (Nudge("x" * DECISION_BYTES), Reply("x")),
    ):
        with pytest.raises(HarnessFault, match="more than 1048576"):
            check_answer(Answer(decision, {}), Call(VIEW, reply))
    chat = [{"role": "user", "content": "x" * DECISION_BYTES}]
    with pytest.raises(HarnessFault, match="more than 1048576"):
        check_answer(Answer(Ask(chat), {}), Call(VIEW))


# --- how long it takes --------------------------------------------------------------------------------

WASTES = {
    "spins": "end = time.process_time() + 0.02\n        while time.process_time() < end: pass\n",
    "sleeps": "time.sleep(0.02)\n",
}


@pytest.mark.parametrize("how", WASTES)
async def test_many_slow_calls_are_refused_long_before_each_has_had_its_time(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = HEAD + (
        "import time\nclass Harness(BaseHarness):\n    def read(self, reply, view):\n        "
        f"{WASTES[how]}        return Act(reply.text)\n"
    )
    monkeypatch.setattr(spending, "FREE_CPU_SECONDS", 0.6 if how == "spins" else 1e9)
    monkeypatch.setattr(spending, "CALL_CPU_SECONDS", 0.002)
    monkeypatch.setattr(spending, "FREE_SECONDS", 0.5 if how == "sleeps" else 1e9)
    monkeypatch.setattr(spending, "CALL_SECONDS", 0.002)
    async with ProcessHarness("mine.py", source=source) as harness:
        told = await asyncio.gather(*(said(harness, str(i)) for i in range(180)), return_exceptions=True)
        refused = [answer for answer in told if isinstance(answer, HarnessError)]
        assert told[: 180 - len(refused)] == [str(i) for i in range(180 - len(refused))]
        assert len(refused) > 40  # at most what was in flight before it was known, and after it nobody
        assert {error.reason for error in refused} == {"harness_timeout"}
        unit = "s, more than" if how == "sleeps" else "s of CPU, more than"
        assert all(unit in error.detail for error in refused)
        row = await play(["e2e4"] * 9, harness)
        assert (row.stop_condition, row.verdict.reward) == ("harness_timeout", 0.0)


async def test_loading_again_and_again_is_counted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spending, "FREE_CPU_SECONDS", 0.0)
    monkeypatch.setattr(spending, "CALL_CPU_SECONDS", 0.0)
    monkeypatch.setattr(spending, "FREE_SECONDS", 0.0)
    monkeypatch.setattr(spending, "CALL_SECONDS", 0.001)
    async with ProcessHarness(FILES / "moody.py") as harness:
        told = [await asyncio.gather(said(harness, "die"), return_exceptions=True) for _ in range(9)]
        assert harness.restarts <= 2
    reasons = [error.reason for [error] in told if isinstance(error, HarnessError)]
    assert reasons[-1] == "harness_timeout"
    assert len(reasons) == 9


@given(st.lists(st.floats(0, 5), max_size=60), st.floats(0, 1))
def test_a_mean_within_the_bound_is_never_refused_and_one_beyond_it_is(
    times: list[float], cpu: float
) -> None:
    account, used = spending.Spending(), 0.0
    for number, seconds in enumerate(times * 20, start=1):
        used += seconds
        account.call(seconds, lambda: used * cpu)  # noqa: B023 - called at once
        over = used > spending.FREE_SECONDS + spending.CALL_SECONDS * number
        over |= used * cpu > spending.FREE_CPU_SECONDS + spending.CALL_CPU_SECONDS * number
        assert bool(account.refusal) == over
        if over:
            break


def test_what_a_harness_needs_is_far_from_the_bound() -> None:
    account = spending.Spending()
    for _ in range(100_000):
        account.call(0.004, lambda: 100.0)
    assert account.refusal == ""


async def test_the_cpu_of_a_worker_is_read_from_the_system() -> None:
    async with ProcessHarness(FILES / "moody.py", call_seconds=1.0) as harness:
        assert harness._worker is not None
        before = harness._worker.cpu_seconds()
        with pytest.raises(HarnessError):
            await said(harness, "spin")
        assert 0.0 < before < harness._spending._ended
    assert Confined.cpu_seconds(worker_that_ended()) == 0.0


def worker_that_ended() -> Confined:
    worker = start(Job("probe:serve", ("probe",), (str(FILES),)))
    worker.end()
    return worker
