"""Joining searches: everybody gets their own answer, alone or among many, and failures stay apart."""

import asyncio
import random

import pytest

from whale_envs.errors import InfrastructureError
from whale_envs.retrieval.base import Hit
from whale_envs.retrieval.coalesce import MAX_HITS, MAX_QUERIES, Coalescer

from .echo import Echo, echo_hits


@pytest.mark.parametrize("seed", range(8))
async def test_everyone_gets_the_answers_to_their_own_queries_in_order(seed: int) -> None:
    rng = random.Random(seed)
    echo = Echo()
    coalescer = Coalescer(echo.search)

    async def client(number: int) -> None:
        for turn in range(4):
            k = rng.choice([1, 2, 3, 1_000])
            queries = [f"{number}.{turn}.{i}" for i in range(rng.choice([0, 1, 1, 2, 40, 300]))]
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)
            assert await coalescer.search(queries, k) == [echo_hits(query, k) for query in queries]

    await asyncio.gather(*(client(number) for number in range(64)))
    assert max(map(len, echo.searches)) <= MAX_QUERIES
    assert coalescer.queries == sum(map(len, echo.searches))
    assert coalescer.searches == len(echo.searches)


async def test_what_comes_together_is_searched_together() -> None:
    echo = Echo()
    coalescer = Coalescer(echo.search)
    await asyncio.gather(*(coalescer.search([f"{i}"], 3) for i in range(100)))
    assert [len(queries) for queries in echo.searches] == [100]


async def test_different_k_are_searched_apart_in_the_order_they_came() -> None:
    echo = Echo()
    coalescer = Coalescer(echo.search)
    await asyncio.gather(*(coalescer.search([f"{i}"], 1 + i % 2) for i in range(6)))
    assert echo.searches == [["0", "2", "4"], ["1", "3", "5"]]


async def test_a_lone_caller_never_waits() -> None:
    coalescer = Coalescer(Echo().search)
    for turn in range(200):  # with the window of 5 ms this would take a second
        await coalescer.search([f"{turn}"], 1)
        assert coalescer._enough is None


async def test_callers_who_were_joined_are_waited_for() -> None:
    echo = Echo()
    coalescer = Coalescer(echo.search)

    async def client(number: int) -> None:
        for turn in range(5):
            await coalescer.search([f"{number}.{turn}"], 1)
            for _ in range(number):  # they come back one after the other
                await asyncio.sleep(0)

    await asyncio.gather(*(client(number) for number in range(8)))
    assert [len(queries) for queries in echo.searches] == [8] * 5


async def test_a_large_request_lets_others_in_between() -> None:
    echo = Echo()
    coalescer = Coalescer(echo.search)
    large = asyncio.create_task(coalescer.search([f"l{i}" for i in range(10 * MAX_QUERIES)], 1))
    await asyncio.sleep(0)
    await coalescer.search(["small"], 1)
    assert "small" in echo.searches[1]
    assert len(await large) == 10 * MAX_QUERIES


async def test_a_large_k_makes_smaller_searches() -> None:
    echo = Echo()
    await Coalescer(echo.search).search([f"{i}" for i in range(100)], 1_000)
    assert max(map(len, echo.searches)) * 1_000 <= MAX_HITS


@pytest.mark.parametrize("bad", ["poison", "bug"])
async def test_only_the_guilty_fail(bad: str) -> None:
    coalescer = Coalescer(Echo().search)
    queries = [f"{i}" for i in range(20)]
    queries[3] = queries[11] = bad
    answers = await asyncio.gather(*(coalescer.search([q], 2) for q in queries), return_exceptions=True)
    for query, answer in zip(queries, answers, strict=True):
        if query == bad:
            assert isinstance(answer, InfrastructureError)
            assert bad in str(answer)
        else:
            assert answer == [echo_hits(query, 2)]
    assert await coalescer.search(["later"], 2) == [echo_hits("later", 2)]


async def test_a_retriever_that_is_down_is_not_asked_for_each_caller() -> None:
    asked = 0

    async def down(queries: list[str], k: int) -> list[list[Hit]]:
        nonlocal asked
        asked += 1
        raise InfrastructureError("down")

    coalescer = Coalescer(down)
    answers = await asyncio.gather(*(coalescer.search(["q"], 1) for _ in range(200)), return_exceptions=True)
    assert {str(answer) for answer in answers} == {"down"}
    assert asked < 10


async def test_too_few_lists_are_a_failure() -> None:
    async def short(queries: list[str], k: int) -> list[list[Hit]]:
        return [[]]

    with pytest.raises(InfrastructureError, match="1 lists of hits for 2 queries"):
        await Coalescer(short).search(["a", "b"], 1)


async def test_callers_who_leave_are_not_searched_for() -> None:
    release = asyncio.Event()
    searches: list[list[str]] = []

    async def slow(queries: list[str], k: int) -> list[list[Hit]]:
        searches.append(queries)
        await release.wait()
        return [[] for _ in queries]

    coalescer = Coalescer(slow)
    tasks = [asyncio.create_task(coalescer.search([f"{i}"], 1)) for i in range(1)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    tasks += [asyncio.create_task(coalescer.search([f"{i}"], 1)) for i in (1, 2)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.sleep(0)
    release.set()
    assert await tasks[2] == [[]]
    assert searches == [["0"], ["2"]]
    assert await tasks[0] == [[]]
    with pytest.raises(asyncio.CancelledError):
        await tasks[1]
