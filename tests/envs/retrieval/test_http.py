"""The client: against our own server, and against servers of other kinds and moods."""

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_envs.errors import InfrastructureError, UsageError
from whale_envs.retrieval import Hit, Passage
from whale_envs.retrieval.base import clean_query
from whale_envs.retrieval.http import GARBAGE_TRIES, MAX_ANSWER, MAX_QUERIES, TRIES, HttpRetriever
from whale_envs.retrieval.server import RetrieverServer

from .echo import Echo, echo_hits

Handler = Callable[[web.BaseRequest], Any]


class Server:
    """Answers /retrieve with what stands in `answers`, the last one again and again."""

    def __init__(self) -> None:
        self.answers: list[Handler] = []
        self.info: Handler = lambda request: web.Response(status=404, text="<html>Not Found</html>")
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""
        self.slept: list[float] = []

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.headers.append(dict(request.headers))
        if request.path == "/info":
            return self.info(request)
        assert request.path == "/retrieve"
        self.asked.append(json.loads(await request.read()))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        response = answer(request)
        return await response if asyncio.iscoroutine(response) else response

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def client(self, url: str = "", **options: Any) -> HttpRetriever:
        return HttpRetriever(url or self.url, sleep=self.sleep, **options)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    served = Server()
    runner = web.ServerRunner(web.Server(served.handle), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    served.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield served
    await runner.cleanup()


def says(body: Any, status: int = 200, **headers: str) -> Handler:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return lambda request: web.Response(body=data, status=status, headers=headers)


def hangs_up(request: web.BaseRequest) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def breaks_off(request: web.BaseRequest) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"result": [[')
    assert request.transport is not None
    request.transport.close()
    return response


GOOD = says({"result": [[{"document": {"id": "7", "contents": "T\nx"}, "score": 2}]]})
HITS = [[Hit(Passage("7", "T", "x"), 2.0)]]

# --- with our own server ---------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('\n"\\\x00\u2028'), max_size=30)


def test_any_text_goes_there_and_back() -> None:
    @settings(max_examples=40)
    @given(
        queries=st.lists(st.text(max_size=20), max_size=5),
        hits=st.lists(
            st.builds(
                Hit, st.builds(Passage, TEXT, TEXT, TEXT), st.floats(allow_nan=False, allow_infinity=False)
            ),
            max_size=4,
        ),
    )
    def goes(queries: list[str], hits: list[Hit]) -> None:
        echo.answer = lambda query, k: [
            *hits,
            Hit(Passage("q", "", query.encode("utf-8", "replace").decode()), 0.0),
        ]
        found = runner.run(client.search(queries, 5))
        for query, these in zip(queries, found, strict=True):
            query = clean_query(query)
            assert these == ([*hits, Hit(Passage("q", "", query), 0.0)] if query else [])

    echo = Echo()
    with asyncio.Runner() as runner:
        server = runner.run(RetrieverServer(echo).__aenter__())
        client = HttpRetriever(server.url)
        runner.run(client.__aenter__())
        try:
            goes()
        finally:
            runner.run(client.__aexit__())
            runner.run(server.__aexit__())


async def test_many_clients_at_once_get_their_own_answers_in_order() -> None:
    echo = Echo()
    async with RetrieverServer(echo) as server:

        async def client(number: int) -> None:
            async with HttpRetriever(server.url) as retriever:
                for turn in range(4):
                    k = 1 + (number + turn) % 3
                    queries = [f"{number}.{turn}.{i}" for i in range(1 + number % 5)]
                    assert await retriever.search(queries, k) == [echo_hits(query, k) for query in queries]

        await asyncio.gather(*(client(number) for number in range(64)))
    assert sum(map(len, echo.searches)) == 4 * sum(1 + number % 5 for number in range(64))
    assert len(echo.searches) < 128  # of 256 requests


async def test_many_queries_go_in_several_requests_and_stay_in_order(server: Server) -> None:
    queries = [f"{i}" for i in range(2 * MAX_QUERIES + 5)]
    async with RetrieverServer(Echo()) as ours, HttpRetriever(ours.url) as retriever:
        assert await retriever.search(queries, 2) == [echo_hits(query, 2) for query in queries]
        assert await retriever.search(queries[:40], 1_000) == [
            echo_hits(query, 1_000) for query in queries[:40]
        ]


async def test_the_largest_queries_are_sent(server: Server) -> None:
    async with RetrieverServer(Echo()) as ours, HttpRetriever(ours.url) as retriever:
        found = await retriever.search(["\U0001f642" * 5_000] * 130, 1)
    assert {hits[0].passage.text for hits in found} == {"\U0001f642" * 1_024 + "|0"}


async def test_the_id_names_the_server_and_what_it_serves() -> None:
    async with RetrieverServer(Echo()) as server:
        retriever = HttpRetriever(server.url)
        assert retriever.retriever_id == f"remote:{server.url}"
        async with retriever:
            assert retriever.retriever_id == f"remote:{server.url}#sha256:e0"


async def test_one_poisoned_query_fails_its_own_call_only(server: Server) -> None:
    async with RetrieverServer(Echo()) as ours, server.client(ours.url) as retriever:
        calls = [retriever.search([query], 1) for query in ("a", "poison", "b")]
        a, poison, b = await asyncio.gather(*calls, return_exceptions=True)
    assert (a, b) == ([echo_hits("a", 1)], [echo_hits("b", 1)])
    assert isinstance(poison, InfrastructureError)
    assert "the retriever failed: a poisoned query" in str(poison)


# --- with servers of other kinds -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "passage", "score"),
    [
        ({"document": {"id": "1", "contents": '"T"\nx\ny'}, "score": 0.5}, Passage("1", "T", "x\ny"), 0.5),
        ({"document": {"id": 1, "contents": "T\nx"}, "score": 3}, Passage("1", "T", "x"), 3.0),
        (
            {"document": {"id": "1", "title": "T", "text": "x\ny"}, "score": -1},
            Passage("1", "T", "x\ny"),
            -1.0,
        ),
        (
            {"document": {"id": "1", "contents": "x", "extra": [1]}, "score": 0, "n": 1},
            Passage("1", "", "x"),
            0,
        ),
        ({"id": "1", "contents": '"A "B" C"\nx'}, Passage("1", 'A "B" C', "x"), 1.0),
        ({"id": "1", "title": None, "text": "x"}, Passage("1", "", "x"), 1.0),
        ({"id": "1", "contents": '"\nx'}, Passage("1", '"', "x"), 1.0),
    ],
)
async def test_both_shapes_and_both_kinds_of_contents_are_read(
    server: Server, item: dict[str, Any], passage: Passage, score: float
) -> None:
    server.answers = [says({"result": [[item]], "took": 3})]
    async with server.client() as retriever:
        assert await retriever.search(["q"], 3) == [[Hit(passage, score)]]
    assert server.asked == [{"queries": ["q"], "topk": 3, "return_scores": True}]


async def test_without_scores_and_ids_rank_and_contents_stand_for_them(server: Server) -> None:
    server.answers = [says({"result": [[{"contents": "T\nx"}, {"contents": "T\ny"}, {"contents": "T\nx"}]]})]
    async with server.client() as retriever:
        ((a, b, c),) = await retriever.search(["q"], 3)
    assert [hit.score for hit in (a, b, c)] == [1.0, 1 / 2, 1 / 3]
    assert a.passage.id == c.passage.id != b.passage.id
    assert re.fullmatch("sha256:[0-9a-f]{16}", a.passage.id)


async def test_queries_with_nothing_in_them_get_nothing_and_are_not_sent(server: Server) -> None:
    server.answers = [GOOD]
    async with server.client() as retriever:
        assert await retriever.search([], 3) == []
        assert await retriever.search(["", " \x00 ", "\ud800"], 3) == [[], [], []]
        assert server.asked == []
        assert await retriever.search(["", "a\ud800b", " "], 3) == [[], *HITS, []]
    assert server.asked[0]["queries"] == ["a b"]


@pytest.mark.parametrize(
    "trouble",
    [
        says(b"busy", 503),
        says(b"<html>", 502),
        says({"error": "slow down"}, 429),
        says(b"", 408),
        hangs_up,
        breaks_off,
        says(b"x" * 50, **{"Content-Encoding": "gzip"}),
    ],
)
async def test_trouble_is_tried_again_and_then_is_infrastructure(server: Server, trouble: Handler) -> None:
    server.answers = [trouble, trouble, trouble, GOOD]
    async with server.client() as retriever:
        assert await retriever.search(["q"], 1) == HITS
        assert len(server.asked) == TRIES
        server.answers = [trouble]
        with pytest.raises(
            InfrastructureError, match=f"{re.escape(server.url)}/retrieve failed {TRIES} times"
        ):
            await retriever.search(["q"], 1)
    for first, second, third in (server.slept[:3], server.slept[3:]):
        assert 0 < first < second < third < 2


async def test_retry_after_is_honoured_within_reason(server: Server) -> None:
    waits = ["7", "999999", "Wed, 21 Oct 2026 07:28:00 GMT"]
    server.answers = [*(says(b"", 429, **{"Retry-After": wait}) for wait in waits), GOOD]
    async with server.client() as retriever:
        assert await retriever.search(["q"], 1) == HITS
    assert server.slept[:2] == [7.0, 30.0]
    assert server.slept[2] < 2


async def test_silence_is_trouble(server: Server) -> None:
    async def never(request: web.BaseRequest) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    server.answers = [never, GOOD]
    async with server.client(timeout_s=0.2) as retriever:
        assert await retriever.search(["q"], 1) == HITS
        server.answers = [never]
        with pytest.raises(InfrastructureError, match=r"no answer within 0\.2 s"):
            await retriever.search(["q"], 1)


DOCUMENT = {"id": "1", "contents": "T\nx"}
GARBAGE: list[Any] = [
    b"",
    b"<html><body>Sign in</body></html>",
    b"{",
    b"\xff\xfe",
    [],
    {},
    {"result": None},
    {"result": []},
    {"result": [[], []]},
    {"result": [None]},
    {"result": [["T\nx"]]},
    {"result": [[None]]},
    {"result": [[DOCUMENT, DOCUMENT]]},
    {"result": [[{"document": DOCUMENT}]]},
    {"result": [[{"document": DOCUMENT, "score": "0.5"}]]},
    {"result": [[{"document": DOCUMENT, "score": None}]]},
    {"result": [[{"document": DOCUMENT, "score": math.nan}]]},
    {"result": [[{"document": DOCUMENT, "score": math.inf}]]},
    {"result": [[{"document": DOCUMENT, "score": True}]]},
    b'{"result": [[{"document": {"contents": "x"}, "score": 1e999}]]}',
    {"result": [[{"document": {"id": "1", "contents": None}, "score": 1}]]},
    {"result": [[{"document": {"id": "1", "title": "T"}, "score": 1}]]},
    {"result": [[{"document": {"id": "1", "contents": ["x"]}, "score": 1}]]},
    {"result": [[{"document": {"id": "1", "contents": "\ud800"}, "score": 1}]]},
    {"result": [[{"score": 1}]]},
    b'{"result": [[]], "x": ' + b"[" * 100_000,
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda value: str(value)[:60])
async def test_garbage_is_asked_for_once_more_then_is_infrastructure(server: Server, garbage: Any) -> None:
    server.answers = [says(garbage), GOOD]
    async with server.client() as retriever:
        assert await retriever.search(["q"], 1) == HITS
        server.answers = [says(garbage)]
        server.asked.clear()
        with pytest.raises(InfrastructureError, match="not an answer of a retrieval server") as error:
            await retriever.search(["q"], 1)
    assert len(server.asked) == GARBAGE_TRIES
    assert len(str(error.value)) < 600


async def test_an_answer_without_end_is_garbage(server: Server) -> None:
    async def endless(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(MAX_ANSWER // 2**20 + 2):
            await response.write(b" " * 2**20)
        return response

    server.answers = [endless, says(b" ", 200)]
    async with server.client() as retriever:
        with pytest.raises(InfrastructureError, match="failed 2 times"):
            await retriever.search(["q"], 1)


@pytest.mark.parametrize("status", [301, 307, 400, 401, 403, 404, 405, 413, 422])
async def test_a_refusal_is_misuse_and_is_not_tried_again(server: Server, status: int) -> None:
    server.answers = [says({"error": "no such thing"}, status)]
    async with server.client() as retriever:
        with pytest.raises(
            UsageError, match=f"{re.escape(server.url)}/retrieve .*HTTP {status}.*no such thing"
        ):
            await retriever.search(["q"], 1)
    assert len(server.asked) == 1


async def test_a_move_says_where_to(server: Server) -> None:
    server.answers = [says(b"", 308, Location="https://u:pw@there/retrieve?key=1")]
    async with server.client() as retriever:
        with pytest.raises(UsageError, match=r"moved to …@there/retrieve$"):
            await retriever.search(["q"], 1)


async def test_nobody_there_is_infrastructure_at_once() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    with pytest.raises(InfrastructureError, match=r"http://127\.0\.0\.1:9 could not be reached in 4 tries"):
        await HttpRetriever("http://127.0.0.1:9", sleep=sleep).__aenter__()
    assert len(slept) == TRIES - 1


async def test_a_server_that_goes_away_is_infrastructure_and_may_come_back() -> None:
    async def sleep(seconds: float) -> None: ...

    async with RetrieverServer(Echo()) as server:
        retriever = await HttpRetriever(server.url, sleep=sleep).__aenter__()
        assert await retriever.search(["a"], 1) == [echo_hits("a", 1)]
    try:
        with pytest.raises(InfrastructureError):
            await retriever.search(["a"], 1)
        async with RetrieverServer(Echo(), port=int(server.url.rpartition(":")[2])):
            assert await retriever.search(["a"], 1) == [echo_hits("a", 1)]
    finally:
        await retriever.__aexit__()


@pytest.mark.parametrize(
    "info",
    [
        says(b"", 404),
        says(b"x", 500),
        says(b"<html>"),
        says([]),
        says({"name": "x"}),
        says({"retriever_id": None}),
        says({"retriever_id": "a b"}),
        says({"retriever_id": "a\n"}),
        says({"retriever_id": "a" * 501}),
        says(b"[" * 100_000),
    ],
)
async def test_a_server_need_not_tell_about_itself(server: Server, info: Handler) -> None:
    server.info, server.answers = info, [GOOD]
    async with server.client() as retriever:
        assert retriever.retriever_id == f"remote:{server.url}"
        assert await retriever.search(["q"], 1) == HITS


@pytest.mark.parametrize("end", ["", "/", "/retrieve", "/retrieve/"])
async def test_the_address_may_name_the_call(server: Server, end: str) -> None:
    server.answers = [GOOD]
    async with server.client(server.url + end) as retriever:
        assert retriever.retriever_id == f"remote:{server.url}"
        assert await retriever.search(["q"], 1) == HITS


# --- secrets and misuse ----------------------------------------------------------------------------


async def test_a_password_is_sent_and_never_shown(server: Server) -> None:
    server.answers = [lambda request: web.Response(status=403, text=f"no: {request.headers} h\u00fcsh me")]
    retriever = server.client(server.url.replace("//", "//me:h%C3%BCsh@"))
    async with retriever:
        with pytest.raises(UsageError) as error:
            await retriever.search(["q"], 1)
    assert server.headers[-1]["Authorization"] == "Basic bWU6aMO8c2g="
    for shown in (
        str(error.value),
        repr(error.value),
        repr(retriever),
        retriever.retriever_id,
        retriever.url,
    ):
        assert not re.search("h\u00fcsh|h%C3%BCsh|bWU6aMO8c2g", shown)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:80",
        "ftp://x",
        "http://",
        "http://:80",
        "http://x:port",
        "http://x:0",
        "http://x:65536",
        "http://x:-1",
        "http://[::1",
        "http://x y",
        "http://x\n",
        "http://x/?key=secret",
        "http://x/#secret",
        "http://me:secret@",
        "http://me:sec/secret@x",
        "me:secret@x",
        "http://me:secret@x:port",
        None,
        7,
    ],
)
def test_an_address_that_is_none_is_misuse_and_its_secrets_are_not_shown(url: Any) -> None:
    with pytest.raises(UsageError, match="the retrieval server's address m") as error:
        HttpRetriever(url)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("k", [0, -1, 1_001, True, 2.0, "3", None])
async def test_a_bad_k_is_misuse(server: Server, k: Any) -> None:
    async with server.client() as retriever:
        with pytest.raises(UsageError, match="k must be"):
            await retriever.search(["q"], k)


async def test_a_string_for_a_list_is_misuse(server: Server) -> None:
    async with server.client() as retriever:
        with pytest.raises(UsageError, match="the string 'who'"):
            await retriever.search("who", 3)


async def test_it_is_used_while_open_only_and_opens_again(server: Server) -> None:
    server.answers = [GOOD]
    retriever = server.client()
    for _ in range(2):
        with pytest.raises(UsageError, match="async with"):
            await retriever.search(["q"], 1)
        async with retriever:
            assert await retriever.search(["q"], 1) == HITS
            with pytest.raises(UsageError, match="open already"):
                await retriever.__aenter__()
            assert await retriever.search(["q"], 1) == HITS


async def test_another_loop_is_told_so(server: Server) -> None:
    async with server.client() as retriever:
        with pytest.raises(UsageError, match="one event loop"):
            await asyncio.to_thread(asyncio.run, retriever.search(["q"], 1))
