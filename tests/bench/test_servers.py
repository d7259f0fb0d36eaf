"""Several servers, overload and stalls: who is asked, how much at a time, and when again."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bench_fakes import Clock
from chat_server import HANG_UP, SILENCE, Answer, Script, Server, serve
from test_openai import HI, dead_port, pure

from whale_bench import EvalPlan, evaluate
from whale_bench.models.http_retry import Pace, Patience
from whale_bench.models.openai import OpenAIBackend
from whale_bench.models.server import Server as Address
from whale_envs import InfrastructureError, UsageError

QUICK = Patience(backoff_s=0.005)


@asynccontextmanager
async def several(
    *scripts: Script, patience: Patience = QUICK
) -> AsyncIterator[tuple[OpenAIBackend, list[Server]]]:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serve(script)) for script in scripts]
        backend = OpenAIBackend("m", base_url=[s.url for s in servers], patience=patience)
        yield await stack.enter_async_context(backend), servers


async def ask(backend: OpenAIBackend, number: int) -> list[str]:
    request = [msgspec.structs.replace(HI, seed=i + 1) for i in range(number)]
    return [g.text for g in await asyncio.gather(*map(backend.generate, request))]


def slow(seconds: float) -> Any:
    async def before(payload: dict[str, Any]) -> None:
        await asyncio.sleep(seconds)

    return before


def fine(payload: dict[str, Any], n: int) -> str:
    return "yes"


# --- balance --------------------------------------------------------------------------------------


async def test_the_server_with_the_fewest_in_flight_is_asked() -> None:
    async with several(fine, fine, fine) as (backend, servers):
        for server in servers:
            server.before = slow(0.05)
        await ask(backend, 30)
        assert [len(server.requests) for server in servers] == [10, 10, 10]
        gate = asyncio.Event()

        async def held(payload: dict[str, Any]) -> None:
            await gate.wait()

        servers[0].before = held
        waiting = asyncio.gather(*(backend.generate(HI) for _ in range(3)))  # one of them on the held one
        while [server.in_flight for server in backend._servers.all] != [1, 0, 0]:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        for _ in range(6):
            await backend.generate(HI)
        assert len(servers[0].requests) == 11
        gate.set()
        await waiting


async def test_addresses_that_are_given_twice_are_one_server() -> None:
    async with serve(fine) as server:
        backend = OpenAIBackend("m", base_url=(server.url, server.url))
        assert backend.base_url == server.url


@pytest.mark.parametrize("fault", [HANG_UP, Answer(500, "broken"), b"<html>"])
async def test_a_server_that_fails_is_rested_and_the_others_answer(fault: Any) -> None:
    async with several(lambda p, n: fault, fine) as (backend, (bad, good)):
        began = time.monotonic()
        for _ in range(40):
            await ask(backend, 1)
        assert time.monotonic() - began < 20
        assert len(good.requests) == 40
        assert len(bad.requests) < 25
        assert f"{bad.url} failed and was rested" in " ".join(backend.warnings())
        assert good.url not in " ".join(backend.warnings())


async def test_a_rested_server_is_tried_again_and_used_once_it_answers() -> None:
    async with several(lambda p, n: HANG_UP if n < 3 else "back", fine) as (backend, (bad, _)):
        found: list[str] = []
        while "back" not in found:
            found += await ask(backend, 4)
        assert len(bad.requests) > 3


async def test_a_request_fails_only_when_all_servers_do() -> None:
    async with several(lambda p, n: HANG_UP, lambda p, n: Answer(500, "no")) as (backend, servers):
        with pytest.raises(InfrastructureError, match=f"{servers[0].url}, {servers[1].url} failed 8 times"):
            await ask(backend, 1)
        assert [len(server.requests) for server in servers] == [4, 4]


@pytest.mark.parametrize("status", [401, 404])
async def test_a_server_that_loses_key_or_model_in_the_middle_is_rested_too(status: int) -> None:
    async with several(lambda p, n: Answer(status, "gone") if n > 2 else "yes", fine) as (backend, (bad, _)):
        for _ in range(20):
            assert await ask(backend, 2) == ["yes", "yes"]
        assert len(bad.requests) < 15


async def test_a_probe_asks_every_server_and_names_the_wrong_one() -> None:
    async with serve(fine) as good, serve(fine, probe=lambda p, n: Answer(404, "no")) as bad:
        async with OpenAIBackend("m", base_url=[good.url, bad.url], patience=QUICK) as backend:
            with pytest.raises(UsageError, match=bad.url):
                await backend.probe()
        assert (len(good.probes), good.requests) == (1, [])


async def test_one_server_that_is_down_at_the_start_stops_nothing(tmp_path: Path) -> None:
    dead = f"http://127.0.0.1:{dead_port()}/v1"
    async with serve(pure) as server:
        plan = EvalPlan(domain="chess_puzzles", model="openai/m", base_url=(dead, server.url), n=4)
        async with OpenAIBackend("m", base_url=plan.base_url, patience=QUICK) as backend:
            summary = await evaluate(plan, tmp_path / "run", backend=backend)
    assert summary.complete
    assert any(dead in warning for warning in summary.warnings)
    async with OpenAIBackend("m", base_url=[dead, dead.replace("/v1", "/v2")], patience=QUICK) as backend:
        with pytest.raises(InfrastructureError, match=r"v1 failed 3 times; .*v2 failed 3 times; "):
            await backend.probe()


async def test_each_server_gets_its_own_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key-1")
    async with serve(fine) as a, serve(fine) as b:
        urls = [a.url.replace("http://", "http://name:pass@"), b.url]
        async with OpenAIBackend("m", base_url=urls) as backend:
            await ask(backend, 2)
    assert a.headers[0]["Authorization"] == "Basic bmFtZTpwYXNz"
    assert b.headers[0]["Authorization"] == "Bearer key-1"


# --- waits that servers ask for -------------------------------------------------------------------


async def test_a_server_that_asks_for_a_wait_is_passed_over_by_all_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)

    def busy(after: int, waits: float) -> Script:
        return lambda p, n: "yes" if n >= after else Answer(429, "slow", {"Retry-After": str(waits)})

    async with several(busy(99, 20), busy(3, 1), patience=Patience()) as (backend, (long, short)):
        assert await ask(backend, 1) == ["yes"]
        assert (len(long.requests), len(short.requests)) == (1, 4)
        assert clock.waits == pytest.approx([1.0] * 3)
        assert await ask(backend, 5) == ["yes"] * 5  # new ones, too, go to the other
        assert (len(long.requests), len(short.requests)) == (1, 9)


async def test_new_requests_wait_as_long_as_the_only_server_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    script: Script = lambda p, n: "yes" if n else Answer(503, "slow", {"Retry-After": "30"})  # noqa: E731
    async with several(script, patience=Patience()) as (backend, (server,)):
        sent: list[float] = []

        async def note(payload: dict[str, Any]) -> None:
            sent.append(clock.monotonic())

        server.before = note
        first = asyncio.ensure_future(backend.generate(HI))
        while not backend._servers.all[0].not_before:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert await ask(backend, 3) == ["yes"] * 3
        assert (await first).text == "yes"
    assert min(sent[1:]) - sent[0] >= 30 - 1e-6


async def test_requests_in_the_queue_of_a_server_that_asks_for_a_wait_are_not_forgotten() -> None:
    busy = Answer(429, "slow", {"Retry-After": "0.05"})
    async with several(lambda p, n: busy if n % 3 == 0 else "yes", patience=Patience()) as (backend, _):
        backend._servers.all[0].limit = 1.0
        tasks = [asyncio.ensure_future(backend.generate(HI)) for _ in range(12)]
        while not backend._servers.all[0].not_before:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        for task in tasks[::3]:
            task.cancel()
        found = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
    assert [isinstance(one, asyncio.CancelledError) for one in found] == [True, False, False] * 4


async def test_time_in_our_own_queue_uses_up_no_patience() -> None:
    patience = Patience(backoff_s=0.001, give_up_s=0.3)
    async with several(fine, patience=patience) as (backend, (server,)):
        server.before, backend._servers.all[0].limit = slow(0.05), 1.0
        assert await ask(backend, 15) == ["yes"] * 15  # the last one is sent after more than 0.3 s
        assert backend.seconds()["held back"] > patience.give_up_s


# --- overload -------------------------------------------------------------------------------------


async def test_a_rate_limited_server_still_answers_everything() -> None:
    async with serve(fine) as server:
        now = 0

        def script(payload: dict[str, Any], n: int) -> Any:
            return Answer(429, "slow down") if now > 4 else "yes"

        async def count(payload: dict[str, Any]) -> None:
            nonlocal now
            now += 1
            await asyncio.sleep(0.02)
            asyncio.get_running_loop().call_soon(lower)

        def lower() -> None:
            nonlocal now
            now -= 1

        server.script, server.before = script, count
        async with OpenAIBackend("m", base_url=server.url, patience=Patience(backoff_s=0.05)) as backend:
            assert await ask(backend, 200) == ["yes"] * 200
            [told] = backend.warnings()
            assert told.startswith(f"{server.url} was overloaded ")
            assert backend.seconds()["held back"] > 0
            refusals = len(server.requests) - 200
        assert refusals < 800  # of the first round already 195


def test_what_is_in_flight_halves_once_a_round_trip_and_grows_by_one() -> None:
    server = Address.at("http://a/v1")
    server.in_flight, sent = 64, time.monotonic()
    for _ in range(6):
        server.overloaded(sent)
    assert server.limit == float("inf")  # accidents, so far
    for _ in range(58):
        server.overloaded(sent)
    assert server.limit == 32
    sent = time.monotonic()
    for _ in range(8):
        server.overloaded(sent)
    assert (server.limit, server.overloads) == (16, 72)
    for _ in range(16):
        server.answered()
    assert 16.9 < server.limit < 17
    for _ in range(80):
        server.overloaded(time.monotonic())
    assert (server.limit, server.least) == (1, 1)


async def test_a_cancelled_request_passes_its_turn_on() -> None:
    async with serve(fine) as server, OpenAIBackend("m", base_url=server.url) as backend:
        server.before = slow(0.1)
        backend._servers.all[0].limit = 1.0
        tasks = [asyncio.ensure_future(backend.generate(HI)) for _ in range(6)]
        await asyncio.sleep(0.02)
        tasks[1].cancel()
        tasks[3].cancel()
        await asyncio.sleep(0.1)
        tasks[2].cancel()  # it may be its turn just now
        found = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
    cancelled = [isinstance(one, asyncio.CancelledError) for one in found]
    assert cancelled[1:4] == [True, True, True]
    assert [cancelled[i] for i in (0, 4, 5)] == [False, False, False]


# --- stalls ---------------------------------------------------------------------------------------


def test_a_pace_is_known_from_sixteen_answers_and_bounds_the_longest_reply() -> None:
    pace, patience = Pace(), Patience(stall_s=1.0, stall_paces=3.0)
    for _ in range(15):
        pace.add(1.0, 100)
    pace.add(1.0, None)
    assert pace.stalled_after(patience, 1000) is None
    pace.add(1.0, 100)
    assert pace.stalled_after(patience, 1000) == pytest.approx(30.0)
    assert pace.stalled_after(patience, 1) == 1.0
    assert pace.stalled_after(patience, None) is None
    for _ in range(5):  # a few that stalled and came in the end change nothing
        pace.add(600.0, 1)
    for _ in range(59):
        pace.add(1.0, 100)
    assert pace.stalled_after(patience, 1000) == pytest.approx(30.0)


async def test_a_stalled_request_is_sent_again_and_a_slow_one_is_waited_for() -> None:
    patience = Patience(backoff_s=0.0, stall_s=0.3)
    async with serve(fine) as server, OpenAIBackend("m", base_url=server.url, patience=patience) as backend:
        backend._servers._pace._slow = 0.001  # seconds a token
        server.script = lambda p, n: SILENCE if n == 0 else "yes"
        began = time.monotonic()
        assert await ask(backend, 1) == ["yes"]
        assert 0.25 < time.monotonic() - began < 5
        server.script, server.before = fine, slow(1.0)  # it became slow: twice the patience each time
        assert await ask(backend, 1) == ["yes"]
