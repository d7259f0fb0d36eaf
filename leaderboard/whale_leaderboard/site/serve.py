"""Serves a built site to this machine's browser alone.

    async with SiteServer(Path("site")) as server:
        server.url                                      # "http://127.0.0.1:" and a free port

It listens at the loopback address, gives files below the folder and nothing else, follows no links, and
refuses a request whose Host is not its own address, so that no web page gets at it through a name of its own.

Not covered: other machines; building.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from aiohttp import web

from whale_envs import UsageError
from whale_leaderboard.results import RESULTS

HOST = "127.0.0.1"

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}


def serve(folder: Path, port: int, say: Callable[[str], None]) -> None:
    """Serves until Ctrl-C or SIGTERM; says the address once it listens."""
    asyncio.run(_serve(folder, port, say))


class SiteServer:
    """Serves while it is open.

    Args:
        folder: of a site.
        port: 0 takes a free one, see `url`.

    Raises:
        UsageError: the folder holds no site, or the port is none.
    """

    def __init__(self, folder: Path, port: int = 0) -> None:
        if not 0 <= port <= 65_535:
            raise UsageError(f"a port is a number from 0 to 65535, got {port}")
        if not (folder / RESULTS).is_file():
            raise UsageError(f"{folder} holds no site; whale-leaderboard build makes one")
        self._folder, self._port = folder, port
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}"

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/", self._index)
        app.router.add_static("/", self._folder, follow_symlinks=False, show_index=False)
        self._runner = web.AppRunner(app, access_log=None)
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

    async def _index(self, _request: web.Request) -> web.StreamResponse:
        return web.FileResponse(self._folder / "index.html")

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.host not in {f"{HOST}:{self._port}", f"localhost:{self._port}"}:
            raise web.HTTPMisdirectedRequest(text="this server has another address")
        try:
            response = await handler(request)
        except web.HTTPException as error:
            error.headers.update(_HEADERS)
            raise
        response.headers.update(_HEADERS)
        return response


async def _serve(folder: Path, port: int, say: Callable[[str], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with SiteServer(folder, port) as server:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        say(server.url)
        await stop.wait()
