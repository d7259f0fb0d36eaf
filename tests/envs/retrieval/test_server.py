"""The server: the protocol, what it refuses, failures, load, and its stop."""

import asyncio
import io
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from whale_envs.errors import UsageError
from whale_envs.retrieval import Hit, Passage
from whale_envs.retrieval.coalesce import MAX_HITS
from whale_envs.retrieval.server import MAX_BODY, MAX_QUERIES, RetrieverServer

from .echo import Echo

ROOT = Path(__file__).resolve().parents[3]


class Client:
    def __init__(self, server: RetrieverServer, session: aiohttp.ClientSession) -> None:
        self.server, self.session = server, session

    async def post(self, body: Any, **options: Any) -> tuple[int, Any]:
        data: Any = body if isinstance(body, bytes) else json.dumps(body).encode()
        if body == b"too large":
            data = io.BytesIO(b" " * (MAX_BODY + 1))
        async with self.session.post(f"{self.server.url}/retrieve", data=data, **options) as response:
            assert response.content_type == "application/json"
            return response.status, await response.json()


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
async def client(echo: Echo) -> AsyncIterator[Client]:
    async with RetrieverServer(echo, passages=12) as server, aiohttp.ClientSession() as session:
        yield Client(server, session)


async def test_an_answer_with_scores_has_documents_in_wrappers(client: Client) -> None:
    assert await client.post({"queries": ["a", "b"], "topk": 1, "return_scores": True}) == (
        200,
        {
            "result": [
                [{"document": {"id": "0", "contents": "1\na|0", "title": "1", "text": "a|0"}, "score": 1.0}],
                [{"document": {"id": "0", "contents": "1\nb|0", "title": "1", "text": "b|0"}, "score": 1.0}],
            ]
        },
    )


async def test_an_answer_without_scores_has_plain_documents_three_by_default(client: Client) -> None:
    status, answer = await client.post({"queries": ["a"]})
    assert status == 200
    assert answer["result"][0][0] == {"id": "0", "contents": "3\na|0", "title": "3", "text": "a|0"}
    assert len(answer["result"][0]) == 3


async def test_no_queries_have_no_answers(client: Client) -> None:
    assert await client.post({"queries": []}) == (200, {"result": []})


async def test_the_other_addresses(client: Client) -> None:
    await client.post({"queries": ["a", "b"]})
    async with client.session.get(f"{client.server.url}/health") as response:
        assert (response.status, await response.json()) == (200, {"status": "ok"})
    async with client.session.get(f"{client.server.url}/info") as response:
        info = await response.json()
    assert info == {
        "name": "echo",
        "retriever_id": "sha256:e0",
        "passages": 12,
        "default_topk": 3,
        "max_topk": 1000,
        "queries": 2,
        "searches": 1,
    }
    async with client.session.get(f"{client.server.url}/nowhere") as response:
        assert response.status == 404
        assert "POST /retrieve" in (await response.json())["error"]
    async with client.session.get(f"{client.server.url}/retrieve") as response:
        assert response.status == 405
        assert "POST" in (await response.json())["error"]


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"", 400, "JSON"),
        (b"\xff\xfe", 400, "JSON"),
        (b"<html>", 400, "JSON"),
        (b'{"queries": ["a"]', 400, "JSON"),
        (b'{"queries": [], "x": ' + b"[" * 100_000, 400, "JSON"),
        (b'{"queries": ["\xed\xa0\x80"]}', 400, "JSON"),
        ([], 422, "object"),
        ({}, 422, "queries"),
        ({"queries": "a"}, 422, "array"),
        ({"queries": [None]}, 422, "str"),
        ({"queries": ["a"], "topk": "3"}, 422, "topk"),
        ({"queries": ["a"], "topk": True}, 422, "topk"),
        ({"queries": ["a"], "return_scores": 1}, 422, "return_scores"),
        ({"queries": ["a"], "topk": 0}, 400, "from 1 to 1000, got 0"),
        ({"queries": ["a"], "topk": -1}, 400, "got -1"),
        ({"queries": ["a"], "topk": 1001}, 400, "got 1001"),
        ({"queries": ["a"], "topk": 10**4000}, 400, "huge"),
        ({"queries": ["a"] * (MAX_QUERIES + 1)}, 400, str(MAX_QUERIES)),
        ({"queries": ["a"] * 100, "topk": 1000}, 400, str(MAX_HITS)),
        ({"queries": ["a"], "max_doc_tokens": 0}, 400, "max_doc_tokens"),
        ({"queries": ["a"], "max_doc_tokens": 5, "tokenizer_name": "gpt2"}, 400, "gpt2"),
        (b"too large", 413, "8 MB"),
    ],
)
async def test_bad_requests_are_refused_with_a_reason(
    client: Client, echo: Echo, body: Any, status: int, says: str
) -> None:
    got, answer = await client.post(body)
    assert got == status
    assert says in answer["error"]
    assert len(answer["error"]) < 400
    assert not echo.searches
    assert (await client.post({"queries": ["a"]}))[0] == 200


async def test_a_body_that_grows_without_saying_so_is_refused(client: Client) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY // 65_536 + 1):
            yield b" " * 65_536

    async with client.session.post(f"{client.server.url}/retrieve", data=pieces()) as response:
        assert response.status == 413


async def test_lone_surrogates_in_a_query_are_taken(client: Client, echo: Echo) -> None:
    assert (await client.post(b'{"queries": ["a\\ud800b"]}'))[0] == 503 or echo.searches == [["a\ud800b"]]
    assert echo.searches == [["a\ud800b"]]


async def test_lone_surrogates_in_a_passage_are_replaced(client: Client, echo: Echo) -> None:
    echo.answer = lambda query, k: [Hit(Passage("1", "", "x\ud800y\U0001f642"), 0.5)]
    _, answer = await client.post({"queries": ["a"], "return_scores": True})
    assert answer["result"][0][0]["document"]["text"] == "x\ufffdy\U0001f642"


@pytest.mark.parametrize(
    ("limit", "title", "text", "contents"),
    [
        (1, "Old", "", "Old"),
        (2, "Old Town", "", "Old Town"),
        (4, "Old Town", "a small", "Old Town\na small"),
        (99, "Old Town", "a small place.", "Old Town\na small place."),
    ],
)
async def test_passages_are_cut_by_words(
    client: Client, echo: Echo, limit: int, title: str, text: str, contents: str
) -> None:
    echo.answer = lambda query, k: [Hit(Passage("1", "Old Town", "a small place."), 0.5)]
    body = {"queries": ["a"], "max_doc_tokens": limit, "tokenizer_name": "words"}
    _, answer = await client.post(body)
    assert answer["result"] == [[{"id": "1", "title": title, "text": text, "contents": contents}]]


async def test_a_tokenizer_that_has_nothing_to_count_is_no_matter(client: Client) -> None:
    assert (await client.post({"queries": ["a"], "tokenizer_name": "gpt2"}))[0] == 200


async def test_a_failure_of_the_retriever_is_503_and_of_that_request_only(client: Client) -> None:
    queries = ["a", "poison", "b", "bug", "c"]
    answers = await asyncio.gather(*(client.post({"queries": [query]}) for query in queries))
    assert [status for status, _ in answers] == [200, 503, 200, 503, 200]
    assert answers[1][1] == {"error": "the retriever failed: a poisoned query"}
    assert "KeyError: 'bug'" in answers[3][1]["error"]


async def test_a_search_that_blocks_its_thread_stalls_no_connection(client: Client, echo: Echo) -> None:
    echo.gate = threading.Event()
    slow = asyncio.create_task(client.post({"queries": ["a"]}))
    await echo.asked()
    async with client.session.get(f"{client.server.url}/health") as response:
        assert response.status == 200
    waiting = [asyncio.create_task(client.post({"queries": [f"{i}"], "topk": 1})) for i in range(80)]
    while len(client.server._coalescer._waiting) < 80:  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0)
    echo.gate.set()
    assert (await slow)[0] == 200
    for i, (status, answer) in enumerate(await asyncio.gather(*waiting)):
        assert (status, answer["result"][0][0]["text"]) == (200, f"{i}|0")
    assert list(map(len, echo.searches)) == [1, 80]


async def test_a_stop_answers_what_is_in_flight_and_closes_the_retriever(echo: Echo) -> None:
    echo.gate = threading.Event()
    async with aiohttp.ClientSession() as session:
        async with RetrieverServer(echo) as server:
            task = asyncio.create_task(Client(server, session).post({"queries": ["a"]}))
            await echo.asked()
            assert (echo.opened, echo.closed) == (1, 0)
            asyncio.get_running_loop().call_later(0.05, echo.gate.set)
        status, answer = await task
        assert (status, len(answer["result"][0])) == (200, 3)
        assert echo.closed == 1
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get(f"{server.url}/health")


@pytest.mark.parametrize("port", [-1, 65_536, True, "80"])
def test_a_port_that_is_none_is_misuse(port: Any) -> None:
    with pytest.raises(UsageError, match="port"):
        RetrieverServer(Echo(), port=port)


async def test_an_address_that_cannot_be_had_is_misuse_and_leaves_no_thread(echo: Echo) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageError, match=r"cannot listen at '127\.0\.0\.1'"):
            await RetrieverServer(echo, port=taken.getsockname()[1]).__aenter__()
    with pytest.raises(UsageError, match="cannot listen at 'no such host"):
        await RetrieverServer(echo, "no such host").__aenter__()
    assert (echo.opened, echo.closed) == (2, 2)
    assert not [thread for thread in threading.enumerate() if thread.name == "retriever"]


async def test_a_retriever_that_cannot_be_opened_says_why() -> None:
    class Broken(Echo):
        async def __aenter__(self) -> Any:
            raise UsageError("no index at X")

    broken = Broken()
    with pytest.raises(UsageError, match="no index at X"):
        await RetrieverServer(broken).__aenter__()
    assert broken.closed == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "retriever"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_server_after_what_is_in_flight(number: signal.Signals) -> None:
    code = (
        "import asyncio\n"
        "from tests.envs.retrieval.echo import Echo\n"
        "from whale_envs.retrieval.server import serve\n"
        "asyncio.run(serve(Echo(blocks_s=0.4), passages=12))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        url = process.stdout.readline().strip()
        host, _, port = url.removeprefix("http://").partition(":")
        said = process.stderr.readline()
        assert said == f"serving echo (sha256:e0, 12 passages) at {url}; Ctrl-C stops it\n"
        body = b'{"queries": ["a"]}'
        with socket.create_connection((host, int(port))) as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert sock.recv(4096).startswith(b"HTTP/1.1 200")
            sock.sendall(
                b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
            )
            with socket.create_connection((host, int(port))) as other:  # by now the request has been read
                other.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                assert other.recv(4096).startswith(b"HTTP/1.1 200")
            process.send_signal(number)
            assert sock.recv(4096).startswith(b"HTTP/1.1 200")
        assert process.wait(30) == 0
        assert process.stderr.read() == "stopping: finishing what is in flight\n"
