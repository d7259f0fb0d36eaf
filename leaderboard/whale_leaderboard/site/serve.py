"""Serves a built site to this machine's browser alone.

    async with SiteServer(Path("site")) as server:
        server.url                                      # "http://127.0.0.1:" and a free port

It listens at the loopback address, gives files below the folder and nothing else, follows no links, and
refuses a request whose Host is not its own address, so that no web page gets at it through a name of its own.

Not covered: other machines; building.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from whale_bench.view.loopback import HEADERS, LoopbackServer, stop_signal
from whale_envs import UsageError
from whale_leaderboard.results import RESULTS


def serve(folder: Path, port: int, say: Callable[[str], None]) -> None:
    """Serves until Ctrl-C or SIGTERM; says the address once it listens."""
    asyncio.run(_serve(folder, port, say))


class SiteServer(LoopbackServer):
    """Serves while it is open.

    Args:
        folder: of a site.
        port: 0 takes a free one, see `url`.

    Raises:
        UsageError: the folder holds no site, or the port is none.
    """

    def __init__(self, folder: Path, port: int = 0) -> None:
        super().__init__(port)
        if not (folder / RESULTS).is_file():
            raise UsageError(f"{folder} holds no site; whale-leaderboard build makes one")
        self._folder = folder

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/", self._index)
        app.router.add_static("/", self._folder, follow_symlinks=False, show_index=False)
        return app

    async def _index(self, _request: web.Request) -> web.StreamResponse:
        return web.FileResponse(self._folder / "index.html")

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if not self.for_us(request):
            raise web.HTTPMisdirectedRequest(text="this server has another address")
        try:
            response = await handler(request)
        except web.HTTPException as error:
            error.headers.update(HEADERS)
            raise
        response.headers.update(HEADERS)
        return response


async def _serve(folder: Path, port: int, say: Callable[[str], None]) -> None:
    async with SiteServer(folder, port) as server:
        stop = stop_signal()
        say(server.url)
        await stop.wait()
