"""A server for this machine's browser alone: it listens at the loopback address.

    class Pages(LoopbackServer):
        def application(self) -> web.Application: ...

    async with Pages(port=0) as server:
        server.url                                  # "http://127.0.0.1:" and a free port

`for_us` says whether a request's Host is that address; refuse one where it is not, and no web page gets at
the server through a name of its own. `HEADERS` keep what it gives from being framed, sniffed or kept.

Not covered: other machines, authentication.
"""

import abc
import asyncio
import signal
from types import TracebackType
from typing import Self

from aiohttp import web

from whale_envs.errors import UsageError

HOST = "127.0.0.1"

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}


class LoopbackServer(abc.ABC):
    """Serves while it is open.

    Args:
        port: 0 takes a free one, see `url`.

    Raises:
        UsageError: the port is none, or cannot be had.
    """

    def __init__(self, port: int = 0) -> None:
        if not 0 <= port <= 65_535:
            raise UsageError(f"a port is a number from 0 to 65535, got {port}")
        self._port = port
        self._runner: web.AppRunner | None = None

    @abc.abstractmethod
    def application(self) -> web.Application:
        """What is served."""

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}"

    def for_us(self, request: web.Request) -> bool:
        """Whether a request asks for this server by its own address."""
        return request.headers.get("Host") in (f"{HOST}:{self._port}", f"localhost:{self._port}")

    async def __aenter__(self) -> Self:
        self._runner = web.AppRunner(self.application(), access_log=None)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, HOST, self._port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise UsageError(f"cannot listen at {HOST}, port {self._port}: {error.strerror}") from error
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()


def stop_signal() -> asyncio.Event:
    """An event of the running loop that Ctrl-C and SIGTERM set from now on."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop
