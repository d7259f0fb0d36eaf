"""The little HTTP server: framing however the bytes arrive, order, bounds, and clients that leave."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_envs.retrieval import listener as module
from whale_envs.retrieval.listener import MAX_HEAD, Answer, Ask, Later, Listener

MOST = 2**20


def echo(ask: Ask) -> Answer:
    return Answer(200, b"%s %s %s" % (ask.method.encode(), ask.path.encode(), ask.body))


def refuse(status: int, message: str) -> Answer:
    return Answer(status, message.encode())


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., Any]]:
    opened: list[Listener] = []

    async def start(handle: Callable[[Ask], Answer | Later] = echo) -> tuple[Listener, int]:
        listener = Listener(handle, refuse, MOST)
        opened.append(listener)
        return listener, await listener.start("127.0.0.1", 0)

    yield start
    for listener in opened:
        await listener.stop(5.0)


async def exchange(port: int, *pieces: bytes) -> bytes:
    """Sends the pieces one by one; all that comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        return await reader.read()
    except ConnectionError:
        return await reader.read()
    finally:
        writer.close()


def bodies(answers: bytes) -> list[bytes]:
    """The bodies of a stream of answers."""
    found = []
    while answers:
        head, _, rest = answers.partition(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        found.append(rest[:length])
        answers = rest[length:]
    return found


POST = b"POST /a?x=1 HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"
CHUNKED = b"POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nde\r\n1\r\nf\r\n0\r\n\r\n"
LAST = b"GET /z HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"


@settings(max_examples=40, deadline=None)
@given(cuts=st.lists(st.integers(0, len(POST + CHUNKED + LAST)), max_size=8))
def test_however_the_bytes_arrive_the_answers_are_the_same(cuts: list[int]) -> None:
    stream = POST + CHUNKED + LAST
    ends = [0, *sorted(cuts), len(stream)]
    pieces = [stream[a:b] for a, b in itertools.pairwise(ends) if a < b]

    async def run() -> bytes:
        listener = Listener(echo, refuse, MOST)
        port = await listener.start("127.0.0.1", 0)
        try:
            return await exchange(port, *pieces)
        finally:
            await listener.stop(5.0)

    assert bodies(asyncio.run(run())) == [b"POST /a abc", b"POST /c def", b"GET /z "]


async def test_pipelined_requests_are_answered_in_their_order(serve: Any) -> None:
    open_answers: list[tuple[Ask, asyncio.Future[bytes]]] = []

    def slow(ask: Ask) -> Later:
        found: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        open_answers.append((ask, found))
        return Later(found, lambda done: Answer(200, done.result()))

    _, port = await serve(slow)
    task = asyncio.create_task(exchange(port, POST + POST.replace(b"/a", b"/b") + LAST))
    for path in ("/a", "/b", "/z"):
        while not open_answers:  # noqa: ASYNC110 (nothing tells)
            await asyncio.sleep(0)
        (ask, found) = open_answers.pop()
        assert ask.path == path
        assert not open_answers
        found.set_result(path.encode())
    assert bodies(await task) == [b"/a", b"/b", b"/z"]


async def test_thousands_of_pipelined_requests_are_no_recursion(serve: Any) -> None:
    _, port = await serve()
    request = b"GET /h HTTP/1.1\r\nHost: h\r\n\r\n"
    answers = await exchange(port, request * 5_000 + LAST)
    assert bodies(answers) == [b"GET /h "] * 5_000 + [b"GET /z "]


async def test_http_1_0_and_close_end_the_connection(serve: Any) -> None:
    _, port = await serve()
    answer = await exchange(port, b"GET /old HTTP/1.0\r\n\r\n")
    assert bodies(answer) == [b"GET /old "]
    assert b"Connection: close" in answer


async def test_a_head_request_has_no_body(serve: Any) -> None:
    _, port = await serve()
    answer = await exchange(port, b"HEAD /h HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    assert answer.endswith(b"\r\n\r\n")
    assert b"Content-Length: 8" in answer


async def test_a_client_that_asks_before_it_sends_is_told_to_go_on(serve: Any) -> None:
    _, port = await serve()
    head = b"POST /e HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nConnection: close\r\n"
    head += b"Content-Length: 2\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head)
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"ok")
    assert bodies(await reader.read()) == [b"POST /e ok"]
    writer.close()


@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        ([b"nonsense\r\n\r\n"], b"400"),
        ([b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"], b"400"),  # a TLS handshake
        ([b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"], b"400"),
        ([b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n"], b"400"),
        ([b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MOST + 1)], b"413"),
        ([b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"]
         + [b"10000\r\n" + b"x" * 65_536 + b"\r\n"] * 17, b"413"),
        ([b"GET / HTTP/1.1\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n"], b"400"),
        ([b"GET / HTTP/1.1\r\nX: "] + [b"a" * 1_024] * (MAX_HEAD // 1_024 + 2), b"431"),
        ([b"GET /" + b"a" * 1_024] + [b"a" * 1_024] * (MAX_HEAD // 1_024 + 2), b"431"),
    ],
)  # fmt: skip
async def test_what_is_no_request_is_refused_once(
    serve: Any, monkeypatch: pytest.MonkeyPatch, pieces: list[bytes], status: bytes
) -> None:
    monkeypatch.setattr(module, "LINGER_S", 0.05)
    _, port = await serve(lambda ask: pytest.fail("there is nothing to handle") if ask.body else echo(ask))
    answer = await exchange(port, *pieces)
    refusals = answer[answer.index(b"HTTP/1.1 " + status) :]
    assert refusals.count(b"Content-Type") == 1
    assert b"Connection: close" in refusals


async def test_whoever_hangs_up_is_not_answered(serve: Any) -> None:
    asked: asyncio.Future[asyncio.Future[bytes]] = asyncio.get_running_loop().create_future()

    def never(ask: Ask) -> Later:
        found: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        asked.set_result(found)
        return Later(found, lambda done: Answer(200, done.result()))

    listener, port = await serve(never)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(POST)
    found = await asked
    writer.close()
    with pytest.raises(asyncio.CancelledError):
        await found
    while listener.connections:  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0)


async def test_a_connection_that_does_nothing_is_closed(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)
    _, port = await serve()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /slow HTTP/1.1\r\nContent-Length: 5\r\n\r\nab")  # and the rest never comes
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()


async def test_a_client_that_fetches_nothing_gets_no_more_and_is_closed(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled = 0

    def large(ask: Ask) -> Answer:
        nonlocal handled
        handled += 1
        return Answer(200, b"x" * 8_000_000)

    monkeypatch.setattr(module, "PATIENCE_S", 0.2)
    listener, port = await serve(large)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1_024)
    writer.write(b"GET /h HTTP/1.1\r\nHost: h\r\n\r\n" * 50)
    while not listener.connections:  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0)
    while listener.connections:  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0.01)
    assert handled < 5
    writer.close()
    assert reader is not None


async def test_a_stop_lets_answers_finish_and_ends_the_rest(serve: Any) -> None:
    founds: list[asyncio.Future[bytes]] = []

    def later(ask: Ask) -> Later:
        founds.append(asyncio.get_running_loop().create_future())
        return Later(founds[-1], lambda done: Answer(200, done.result()))

    listener, port = await serve(later)
    served, stuck = (asyncio.create_task(exchange(port, POST)) for _ in range(2))
    _, idle = await asyncio.open_connection("127.0.0.1", port)
    while len(founds) < 2 or len(listener.connections) < 3:  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0)
    stop = asyncio.create_task(listener.stop(0.2))
    await asyncio.sleep(0)
    founds[0].set_result(b"in time")
    await stop
    assert founds[1].cancelled()
    nothing, answer = sorted([await served, await stuck])
    assert (nothing, b"in time" in answer) == (b"", True)
    idle.close()
