"""One or several servers of one model: who is asked next, how much at a time, and when again.

    servers = Servers(["http://a/v1", "http://b/v1"], Patience(), lasting=of_template)
    found = await servers.ask(send)    # a Generation, or a `Refusal`; `send(server, stalls)` is one attempt

A request goes to the server with the fewest in flight. Attempts without an answer (`Broken`), 408, 409,
425, 429, 5xx and answers that are no reply are made again, at once where another server was not tried
yet. A server that asks for a wait is asked nothing until then, by no request. A request fails when its
attempts are used up, on whichever servers, or `give_up_s` are over. An attempt that found nobody to connect
to costs time alone, so a server may be started anew meanwhile; time in our own queue costs nothing.

Not covered: how a server is doing (`server.py`); the traffic (`http_servers.py`, `anthropic_api.py`); what
a refusal means (`openai_reply.py`); sessions that stay with one server.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from whale_bench.models.base import Generation
from whale_bench.models.http_retry import Patience
from whale_bench.models.openai_reply import message_of
from whale_bench.models.server import Answer, Broken, Refusal, Server
from whale_envs.errors import InfrastructureError

_RETRIED = {408, 409, 425, 429}
_OVERLOADED = {429, 503, 529}
_ELSEWHERE = {401, 403, 404, 405}
"""Refusals that are about the server, where another one may answer."""

_NAMED_WAIT_S = 1.0
"""A 429 that asks for at least this is a queue, no failure: it costs no attempt."""

_AWAY_PAUSE_S = 15.0
"""Longest pause before a server that cannot be reached is asked again."""

Send = Callable[[Server, int], Awaitable[Generation | Answer | Broken]]
"""One attempt at a server, after so many that timed out."""


@dataclass(slots=True)
class _Try:
    """A request and what its attempts have come to."""

    send: Send
    only: Server | None
    most: int
    """Attempts."""
    gives_up_at: float
    """Later by as long as it stood in our queue."""
    patient: bool
    """Whether an attempt that found nobody to connect to costs none, and one that timed out is made again."""
    attempts: int = 0
    away: int = 0
    """Attempts that found nobody and cost none."""
    stalls: int = 0
    tried: set[str] = field(default_factory=set)
    """Servers since the last wait."""
    pause: float = 0.0
    """What the last attempt asks for before the next one, where no other server is left."""
    over: bool = False
    """Whether asking again is no use."""
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
            attempts: instead of the patience's; one that times out is then the last.

        Raises:
            InfrastructureError: every attempt failed.
        """
        deadline = time.monotonic() + self.patience.give_up_s
        now = _Try(send, only, attempts or self.patience.attempts, deadline, patient=attempts is None)
        while now.attempts < now.most and time.monotonic() < now.gives_up_at:
            server = only or await self._slot(now)
            if server is None:
                break
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
            if now.attempts < now.most and (only or not self._untried(now.tried)):
                now.tried.clear()
                await asyncio.sleep(now.pause)
        where = only.address if only else self.addresses
        raise InfrastructureError(f"{where} failed {now.attempts + now.away} times; last: {now.problem}")

    async def _attempt(self, server: Server, now: _Try) -> Generation | Refusal | None:
        """One attempt; None where another may do better."""
        sent_at = time.monotonic()
        found = await now.send(server, now.stalls)
        if isinstance(found, Generation):
            server.answered()
            return found
        if isinstance(found, Broken):
            self._broke(server, now, found, sent_at)
            return None
        if 200 <= found.status < 300:
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
        wait = None if found.wait is None else min(found.wait, self.patience.most_wait_s)
        if found.status != 429 or wait is None or wait < _NAMED_WAIT_S:
            now.attempts += 1
        if wait is None:
            now.pause = self.patience.pause(now.attempts)
        else:
            server.not_before = max(server.not_before, time.monotonic() + wait)
            now.pause = wait if now.only else 0.0  # else `_slot` waits, as it does for all other requests
        return None

    def _broke(self, server: Server, now: _Try, found: Broken, sent_at: float) -> None:
        """Takes note of an attempt without an answer."""
        now.problem = found.problem
        now.stalls += found.timed_out
        now.over = found.timed_out and not now.patient
        if found.unconnected and now.patient:
            now.away += 1
            now.pause = min(self.patience.pause(now.away), _AWAY_PAUSE_S)
        else:
            now.attempts += 1
            now.pause = self.patience.pause(now.attempts)
        if found.timed_out or found.status in _OVERLOADED:
            server.overloaded(sent_at)
        if found.status not in _OVERLOADED:
            server.failed(self.patience)

    def _lasts(self, server: Server, now: _Try, status: int, data: bytes) -> bool:
        """Whether another attempt would come to the same."""
        if status in _RETRIED:
            return False
        if status in _ELSEWHERE and not now.only and any(s.replied for s in self.all if s is not server):
            return False
        return status < 500 or self._lasting(data)

    def _choose(self, tried: set[str], at: float) -> Server | None:
        """The server to ask at this time; None where all that may be asked are full."""
        ready = [server for server in self.all if server.not_before <= at]
        awake = [s for s in ready if s.rests_until <= at] or sorted(ready, key=lambda s: s.rests_until)[:1]
        free = [server for server in awake if server.in_flight < server.limit]
        return min(free, key=lambda s: (s.url in tried, s.in_flight)) if free else None

    def _untried(self, tried: set[str]) -> bool:
        if len(self.all) == 1:
            return False
        now = time.monotonic()
        return any(s.url not in tried and max(s.rests_until, s.not_before) <= now for s in self.all)

    async def _slot(self, now: _Try) -> Server | None:
        """Waits until a server has room, and has asked for no wait; None where it is given up before."""
        while True:
            at = time.monotonic()
            if (server := self._choose(now.tried, at)) is not None:
                return server
            if at >= now.gives_up_at:
                return None
            ready_at = min(server.not_before for server in self.all)
            if ready_at > at:
                await asyncio.sleep(min(ready_at, now.gives_up_at) - at)
                continue
            await self._queue()
            queued = time.monotonic() - at
            now.gives_up_at += queued
            self.held_back_s += queued

    async def _queue(self) -> None:
        """Until there may be room, which a request in flight leaves in the end."""
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

    def _wake(self) -> None:
        """Lets as many go on as there is room for; all, where all servers ask for a wait, to wait so long."""
        now = time.monotonic()
        ready = [server for server in self.all if server.not_before <= now]
        room = sum(max(0.0, server.limit - server.in_flight) for server in ready)
        while self._waiting and (room > 0 or not ready):
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
            room -= 1
