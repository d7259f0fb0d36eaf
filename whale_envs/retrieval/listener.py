"""A small HTTP/1.1 server for many little requests: bytes in, bytes out, no task for each.

    def handle(ask: Ask) -> Answer:
        return Answer(200, b"{}")

    listener = Listener(handle, refuse=lambda status, why: Answer(status, b"{}"), most=2**20)
    port = await listener.start("127.0.0.1", 0)
    await listener.stop(20.0)

A search takes some 200 microseconds; a general web server spends as much again on each request. This one
spends about a quarter of it. httptools (llhttp, the parser of Node.js) reads the requests: chunked bodies,
kept-alive and pipelined requests, HTTP/1.0. What a client may do is bounded: the size of head and body, the
time for a request to arrive and for an answer to be fetched. Whoever hangs up, its request is cancelled.

Not covered: TLS, upgrades, compressed bodies, answers in pieces, the Date header.
"""

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, NamedTuple, cast

import httptools

from whale_envs.errors import UsageError

MAX_HEAD = 16 * 2**10
"""Most bytes of a request's line and headers."""

PATIENCE_S = 75.0
"""Longest that a connection may do nothing, a request take to arrive, or an answer wait to be read."""

LINGER_S = 2.0
"""How long what a refused client still sends is thrown away, so that it can read why."""


class Ask(NamedTuple):
    """A request."""

    method: str
    path: str
    """Without the query."""
    body: bytes
    keep: bool
    """Whether the connection is kept for another request."""


class Answer(NamedTuple):
    """What it gets."""

    status: int
    body: bytes
    """JSON."""


class Later(NamedTuple):
    """An answer to come."""

    found: "asyncio.Future[Any]"
    """Cancelled when the client hangs up."""
    finish: "Callable[[asyncio.Future[Any]], Answer]"
    """Makes the answer once `found` is done and not cancelled."""


class Listener:
    """Serves one address.

    Args:
        handle: answers a request.
        refuse: the answer to what is no request, from a status and a sentence.
        most: most bytes of a request's body.
    """

    def __init__(
        self, handle: Callable[[Ask], Answer | Later], refuse: Callable[[int, str], Answer], most: int
    ) -> None:
        self.handle, self.refuse, self.most = handle, refuse, most
        self.connections: set[_Connection] = set()
        self.stopping = False
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the port.

        Raises:
            UsageError: the address cannot be had.
        """
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: _Connection(self), host, port, backlog=1_024)
        except UnicodeError as error:
            raise UsageError(f"cannot listen at {host!r}: {error}") from error
        except OSError as error:
            raise UsageError(f"cannot listen at {host!r}, port {port}: {error.strerror or error}") from error
        self._sweeper = loop.create_task(self._sweep())
        return cast("int", self._server.sockets[0].getsockname()[1])

    async def stop(self, grace_s: float) -> None:
        """Takes nothing new, and waits up to `grace_s` seconds for the answers in flight."""
        self.stopping = True
        if self._server is None or self._sweeper is None:
            return
        self._server.close()
        self._sweeper.cancel()
        for connection in tuple(self.connections):
            connection.close_if_idle()
        if ending := [connection.ended for connection in self.connections]:
            await asyncio.wait(ending, timeout=grace_s)
        if late := tuple(self.connections):
            for connection in late:
                connection.abort()
            await asyncio.wait([connection.ended for connection in late])
        with contextlib.suppress(asyncio.CancelledError):
            await self._sweeper

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(PATIENCE_S / 5)
            for connection in tuple(self.connections):
                connection.end_if_late()


class _RefusedError(Exception):
    """The parser's callbacks end a request with this."""


class _Connection(asyncio.Protocol):
    """One client: its requests are answered one after the other."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()
        """When the client was last known to be there."""
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._parser = httptools.HttpRequestParser(self)
        self._turns, self._head_bytes, self._in_head = 0, 0, True
        self._url, self._body = b"", bytearray()
        self._refused = False
        self._problem: tuple[int, str] | None = None
        self._waiting: deque[Ask] = deque()
        """Requests that came while another was being answered."""
        self._answering: asyncio.Future[Any] | None = None
        self._choked = False
        """Whether the client does not fetch its answers."""

    def abort(self) -> None:
        self._transport.abort()

    def close_if_idle(self) -> None:
        if self._answering is None and not self._waiting:
            self._transport.close()

    def end_if_late(self) -> None:
        if self._answering is None and self._loop.time() - self._since > PATIENCE_S:
            self._transport.abort()

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._listener.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's)
        self._listener.connections.discard(self)
        self._waiting.clear()
        if self._answering is not None:
            self._answering.cancel()
        self.ended.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._problem is not None:
            return
        turns = self._turns
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._problem = 400, "there is nothing here to upgrade to"
        except httptools.HttpParserError as error:
            if self._problem is None:  # else a callback has said what is wrong
                self._problem = (400, f"this is no HTTP/1.1 request: {error}")
        if self._in_head and self._turns == turns:  # a piece with the end of another request is not counted
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD:
                self._problem = 431, f"a head may have {MAX_HEAD} bytes at most"
        if self._problem is not None and self._answering is None:
            self._refuse()

    def pause_writing(self) -> None:
        self._choked = True

    def resume_writing(self) -> None:
        self._choked = False
        self._go_on()

    # What the parser calls

    def on_message_begin(self) -> None:
        self._since = self._loop.time()
        self._url, self._body = b"", bytearray()
        self._start_head()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        low = name.lower()
        if low == b"content-length" and int(value) > self._listener.most:
            self._too_large()
        if low == b"expect" and value.lower() == b"100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_headers_complete(self) -> None:
        self._in_head = False

    def on_body(self, body: bytes) -> None:
        self._body += body
        if len(self._body) > self._listener.most:
            self._too_large()

    def on_message_complete(self) -> None:
        self._start_head()
        keep = bool(self._parser.should_keep_alive())
        path = self._url.partition(b"?")[0].decode("ascii", "replace")
        ask = Ask(self._parser.get_method().decode(), path, bytes(self._body), keep)
        if self._answering is None and not self._waiting and not self._choked:
            self._handle(ask)
        else:
            self._waiting.append(ask)
            self._transport.pause_reading()

    def _start_head(self) -> None:
        self._turns += 1
        self._head_bytes, self._in_head = 0, True

    # Answers

    def _handle(self, ask: Ask) -> None:
        answer = self._listener.handle(ask)
        if isinstance(answer, Answer):
            self._write(ask, answer)
        else:
            self._answering = answer.found
            answer.found.add_done_callback(functools.partial(self._finish, ask, answer.finish))

    def _finish(self, ask: Ask, finish: Callable[[Any], Answer], found: "asyncio.Future[Any]") -> None:
        self._answering = None
        if found.cancelled():  # the client has hung up
            self._transport.abort()
            return
        self._write(ask, finish(found))
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self._answering is None and not self._choked:
            self._handle(self._waiting.popleft())
        if self._answering is None and not self._waiting:
            if self._problem is not None:
                self._refuse()
            elif not self._transport.is_closing():
                self._transport.resume_reading()

    def _write(self, ask: Ask, answer: Answer) -> None:
        if self._transport.is_closing():
            return
        keep = ask.keep and not self._listener.stopping
        self._transport.write(_head(answer, keep=keep) + (b"" if ask.method == "HEAD" else answer.body))
        self._since = self._loop.time()
        if not keep:
            self._waiting.clear()
            self._transport.close()

    def _too_large(self) -> None:
        self._problem = 413, f"a request may have {self._listener.most >> 20} MB at most"
        raise _RefusedError

    def _refuse(self) -> None:
        """Says why, and reads on for a while: a connection closed on unread bytes loses what was said."""
        if self._problem is None or self._refused or self._transport.is_closing():
            return
        self._refused = True
        answer = self._listener.refuse(*self._problem)
        self._transport.write(_head(answer, keep=False) + answer.body)
        self._transport.write_eof()
        self._since = self._loop.time()
        self._transport.resume_reading()
        self._loop.call_later(LINGER_S, self._transport.close)


def _head(answer: Answer, *, keep: bool) -> bytes:
    reason = HTTPStatus(answer.status).phrase.encode()
    lines = b"HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n"
    return lines % (answer.status, reason, len(answer.body), b"" if keep else b"Connection: close\r\n")
