"""One or several servers of one model: who is asked next, how much at a time, and when again.

    servers = Servers(["http://a/v1", "http://b/v1"], Patience(), lasting=of_template)
    found = await servers.ask(send)    # a Generation, or a `Refusal`; `send(server, stalls)` is one attempt

A request goes to the server with the fewest in flight. Attempts without an answer (`Broken`), 408, 409,
425, 429, 5xx and answers that are no reply are made again, at once where another server was not tried
yet, and as late as a server asks for. A server that fails three times in a row is rested, for longer each
time, and tried again; a request fails when its attempts are used up, on whichever servers.

A server that is overloaded (429, 503, 529, time-outs for a fifth of its answers) gets less at a time:
half of what it had in flight, at most once per round trip, and one more for each round of answers after
that.

Not covered: the traffic (`http_servers.py`, `anthropic_api.py`); what a refusal means
(`openai_reply.py`); sessions that stay with one server.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from whale_bench.models.base import Generation
from whale_bench.models.http_retry import Patience
from whale_bench.models.openai_reply import message_of
from whale_envs.errors import InfrastructureError

_RETRIED = {408, 409, 425, 429}
_OVERLOADED = {429, 503, 529}
_ELSEWHERE = {401, 403, 404, 405}
"""Refusals that are about the server, where another one may answer."""

_FAILURES_TO_REST = 3
_HOT, _LATEST = 0.2, 1 / 32
"""The share of overloads from which a server is asked for less, and what each answer adds to it. Below
that they are accidents: halving at each would leave a server with one in twenty almost idle."""

_NAMED_WAIT_S = 1.0
"""A 429 that asks for at least this is a queue, no failure: it costs no attempt."""


class Refusal(NamedTuple):
    """An answer that asking again would not change."""

    status: int
    body: bytes
    address: str
    settled: bool
    """Whether there were replies before, so that the settings were right then."""


class Answer(NamedTuple):
    """What a server said that is no reply."""

    status: int
    body: bytes
    wait: float | None = None
    """Seconds that it asks to wait."""
    final: bool = False
    """Whether it says that asking again is no use."""


class Broken(NamedTuple):
    """An attempt without an answer, or with a part of one."""

    problem: str
    timed_out: bool = False
    status: int = 0
    """Of the error that an answer broke off with."""


Send = Callable[["Server", int], Awaitable[Generation | Answer | Broken]]
"""One attempt at a server, after so many that timed out."""


@dataclass(slots=True, eq=False)
class Server:
    """One address and how it is doing."""

    url: str
    address: str
    """The same without user name and password."""
    has_user: bool
    session: Any = None
    replied: bool = False
    """Whether a reply ever came."""
    in_flight: int = 0
    limit: float = float("inf")
    """Most requests in flight; no bound until the server is overloaded."""
    cut_at: float = 0.0
    failures: int = 0
    """In a row."""
    rests: int = 0
    rests_until: float = 0.0
    heat: float = 0.0
    """Share of overloads among the last answers, the latest counting most."""
    overloads: int = 0
    least: int = 0
    """The lowest that `limit` ever was."""
    rested: int = 0

    @classmethod
    def at(cls, url: str) -> Self:
        url = url.rstrip("/")
        parts = urlsplit(url)
        user, _, host = parts.netloc.rpartition("@")
        return cls(url, parts._replace(netloc=host).geturl(), bool(user))

    def answered(self) -> None:
        """A reply came: room for one more per round of them."""
        self.replied = True
        self.failures = self.rests = 0
        self.heat *= 1.0 - _LATEST
        self.limit += 1.0 / self.limit

    def overloaded(self, sent_at: float) -> None:
        """Half as many from now on, unless this is rare or was sent before the last such cut."""
        self.overloads += 1
        self.heat += (1.0 - self.heat) * _LATEST
        if self.heat >= _HOT and sent_at >= self.cut_at:
            self.cut_at, self.heat = time.monotonic(), 0.0
            self.limit = max(1.0, min(self.limit, self.in_flight) / 2)
            self.least = min(self.least or int(self.limit), int(self.limit))

    def failed(self, patience: Patience) -> None:
        now = time.monotonic()
        self.failures += 1
        if self.failures >= _FAILURES_TO_REST and now >= self.rests_until:
            self.rests += 1
            self.rested += 1
            self.rests_until = now + min(patience.rest_s, patience.backoff_s * 2.0 ** min(self.rests, 30))


@dataclass(slots=True)
class _Try:
    """A request and what its attempts have come to."""

    send: Send
    only: Server | None
    began: float = field(default_factory=time.monotonic)
    attempts: int = 0
    stalls: int = 0
    tried: set[str] = field(default_factory=set)
    """Servers since the last wait."""
    wait: float | None = None
    """What the last server asked for."""
    over: bool = False
    """Whether the last server said that asking again is no use."""
    problem: str = "no attempt was made"


class Servers:
    """See the module's docstring.

    Args:
        urls: addresses up to and with the version.
        patience: how long to wait.
        lasting: whether the body of a 5xx answer is a refusal all the same.
    """

    def __init__(self, urls: Sequence[str], patience: Patience, *, lasting: Callable[[bytes], bool]) -> None:
        self.all = [Server.at(url) for url in dict.fromkeys(urls)]
        self.patience = patience
        self.held_back_s = 0.0
        """Summed over requests that waited for an overloaded server."""
        self._lasting = lasting
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def addresses(self) -> str:
        return ", ".join(server.address for server in self.all)

    def warnings(self) -> list[str]:
        """How the servers fared, where that was not well."""
        told = []
        for server in self.all:
            if server.least:
                told.append(
                    f"{server.address} was overloaded {server.overloads} times, "
                    f"so it was asked as few as {server.least} at a time"
                )
            if server.rested and len(self.all) > 1:
                told.append(f"{server.address} failed and was rested {server.rested} times")
        return told

    async def ask(
        self, send: Send, *, only: Server | None = None, attempts: int | None = None
    ) -> Generation | Refusal:
        """What the servers make of a request.

        Args:
            send: makes one attempt.
            only: ask this one alone.
            attempts: instead of the patience's.

        Raises:
            InfrastructureError: every attempt failed.
        """
        now, most = _Try(send, only), attempts or self.patience.attempts
        while now.attempts < most and time.monotonic() - now.began < self.patience.give_up_s:
            server = only or self._choose(now.tried) or await self._slot(now.tried)
            server.in_flight += 1
            try:
                found = await self._attempt(server, now)
            finally:
                server.in_flight -= 1
                if self._waiting:
                    self._wake()
            if found is not None:
                return found
            if now.over:
                break
            now.tried.add(server.url)
            if now.attempts < most and (only or not self._untried(now.tried)):
                now.tried.clear()
                await asyncio.sleep(self.patience.pause(now.attempts) if now.wait is None else now.wait)
        where = only.address if only else self.addresses
        raise InfrastructureError(f"{where} failed {now.attempts} times; last: {now.problem}")

    async def _attempt(self, server: Server, now: _Try) -> Generation | Refusal | None:
        """One attempt; None where another may do better."""
        sent_at, now.wait = time.monotonic(), None
        found = await now.send(server, now.stalls)
        if isinstance(found, Generation):
            server.answered()
            return found
        if isinstance(found, Broken):
            now.attempts += 1
            now.stalls += found.timed_out
            now.problem = found.problem
            if found.timed_out or found.status in _OVERLOADED:
                server.overloaded(sent_at)
            if found.status not in _OVERLOADED:
                server.failed(self.patience)
            return None
        if found.status == 200:
            now.problem = f"an answer that is no completion: {found.body[:200]!r}"
        elif self._lasts(server, now, found.status, found.body):
            asked = [server] if now.only else self.all
            return Refusal(found.status, found.body, server.address, any(s.replied for s in asked))
        else:
            now.problem = f"HTTP {found.status}: {message_of(found.body)}"
        if found.status in _OVERLOADED:
            server.overloaded(sent_at)
        else:
            server.failed(self.patience)
        now.over = found.final
        now.wait = None if found.wait is None else min(found.wait, self.patience.most_wait_s)
        if found.status != 429 or now.wait is None or now.wait < _NAMED_WAIT_S:
            now.attempts += 1
        return None

    def _lasts(self, server: Server, now: _Try, status: int, data: bytes) -> bool:
        """Whether another attempt would come to the same."""
        if status in _RETRIED:
            return False
        if status in _ELSEWHERE and not now.only and any(s.replied for s in self.all if s is not server):
            return False
        return status < 500 or self._lasting(data)

    def _choose(self, tried: set[str]) -> Server | None:
        """The server to ask next; None where all that are awake are full."""
        if len(self.all) == 1:
            return self.all[0] if self.all[0].in_flight < self.all[0].limit else None
        now = time.monotonic()
        awake = [s for s in self.all if s.rests_until <= now] or [min(self.all, key=lambda s: s.rests_until)]
        free = [server for server in awake if server.in_flight < server.limit]
        return min(free, key=lambda s: (s.url in tried, s.in_flight)) if free else None

    def _untried(self, tried: set[str]) -> bool:
        if len(self.all) == 1:
            return False
        now = time.monotonic()
        return any(s.url not in tried and s.rests_until <= now for s in self.all)

    async def _slot(self, tried: set[str]) -> Server:
        """Waits until a server has room."""
        began = time.monotonic()
        while (server := self._choose(tried)) is None:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
                else:  # it was this one's turn
                    self._wake()
                raise
        self.held_back_s += time.monotonic() - began
        return server

    def _wake(self) -> None:
        """Lets as many go on as there is room for."""
        room = sum(max(0.0, server.limit - server.in_flight) for server in self.all)
        while self._waiting and room > 0:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
            room -= 1
