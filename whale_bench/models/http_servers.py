"""`Servers` that are asked by posting JSON: connections, time-outs, stalls.

    servers = HttpServers(["http://a:8000/v1"], Patience(), lasting=of_template)
    await servers.open(key)
    found = await servers.post("/chat/completions", body, read)    # a Generation, or a `Refusal`
    await servers.close()

Connection errors, time-outs and stalls (`http_retry.py`) are attempts without an answer.

Not covered: who is asked and how often, see `servers.py`.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from whale_bench.models.base import Generation
from whale_bench.models.http_retry import Pace, Patience, retry_after
from whale_bench.models.server import Answer, Broken, Refusal, Server
from whale_bench.models.servers import Servers

Read = Callable[[bytes], Generation | None]
"""The reply in the body of an answer; None where there is none."""

_MOST_TIMEOUTS = 256


class HttpServers(Servers):
    """See the module's docstring; arguments as of `Servers`."""

    def __init__(self, urls: Sequence[str], patience: Patience, *, lasting: Callable[[bytes], bool]) -> None:
        super().__init__(urls, patience, lasting=lasting)
        self._pace = Pace()
        self._failures: tuple[type[Exception], ...] = ()
        self._unreached: tuple[type[Exception], ...] = ()
        self._timeout: Any = None
        self._timeouts: dict[float, Any] = {}
        """By their total, which most requests share."""

    @property
    def is_open(self) -> bool:
        return self._timeout is not None

    async def open(self, key: str) -> None:
        """Opens connections; a server without a user name in its address gets `key`, unless empty."""
        import aiohttp  # a model client: loaded when it is used

        patience = self.patience
        self._timeout = aiohttp.ClientTimeout
        timeout = aiohttp.ClientTimeout(
            patience.answer_s, sock_connect=patience.connect_s, sock_read=patience.silence_s
        )
        for server in self.all:
            headers = {"Content-Type": "application/json"}
            if key and not server.has_user:
                headers["Authorization"] = f"Bearer {key}"
            server.session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),  # the engine bounds what is in flight
                headers=headers,
                timeout=timeout,
            )
        self._unreached = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
        self._failures = (aiohttp.ClientError, asyncio.TimeoutError, ConnectionError)

    async def close(self) -> None:
        for server in self.all:
            if server.session is not None:
                await server.session.close()

    async def post(
        self,
        route: str,
        body: bytes,
        read: Read,
        *,
        max_tokens: int | None = None,
        only: Server | None = None,
        attempts: int | None = None,
    ) -> Generation | Refusal:
        """What the servers make of a request.

        Args:
            route: behind the address, with its slash.
            body: JSON.
            read: see `Read`.
            max_tokens: the most that `body` asks for, for telling a stall.
            only: as of `ask`.
            attempts: as of `ask`.

        Raises:
            InfrastructureError: every attempt failed.
        """

        async def send(server: Server, stalls: int) -> Generation | Answer | Broken:
            return await self._send(server, route, body, read, self._limits(stalls, max_tokens))

        return await self.ask(send, only=only, attempts=attempts)

    def _limits(self, stalls: int, max_tokens: int | None) -> dict[str, Any]:
        """Time limits of an attempt, where others than the session's; twice as long after each stall."""
        patience = self.patience
        bound = self._pace.stalled_after(patience, max_tokens)
        if bound is None:
            return {}
        total = min(bound * 2.0**stalls, patience.answer_s)
        if total not in self._timeouts:
            if len(self._timeouts) >= _MOST_TIMEOUTS:
                self._timeouts.clear()
            silence = None if total <= patience.silence_s else patience.silence_s  # a timer that never rings
            self._timeouts[total] = self._timeout(total, sock_connect=patience.connect_s, sock_read=silence)
        return {"timeout": self._timeouts[total]}

    async def _send(
        self, server: Server, route: str, body: bytes, read: Read, limits: dict[str, Any]
    ) -> Generation | Answer | Broken:
        """One attempt."""
        sent_at = time.monotonic()
        try:
            async with server.session.post(server.url + route, data=body, **limits) as response:
                data = await response.read()
                status, headers = response.status, response.headers
        except self._failures as error:
            words = " ".join(str(error).split())[:300]
            problem = f"{type(error).__name__}: {words}" if words else type(error).__name__
            unconnected = isinstance(error, self._unreached)
            timed_out = isinstance(error, asyncio.TimeoutError) and not unconnected
            return Broken(problem, timed_out, unconnected=unconnected)
        if not 200 <= status < 300:
            return Answer(status, data, retry_after(headers))
        generation = read(data)
        if generation is None:
            return Answer(status, data)
        self._pace.add(time.monotonic() - sent_at, generation.usage.sampled_tokens)
        return generation
