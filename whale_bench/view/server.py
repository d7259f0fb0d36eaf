"""Serves the page for one run or a folder of runs, however large, to this machine's browser alone.

    async with ViewServer(Path("runs")) as server:
        server.url                                  # "http://127.0.0.1:" and a free port

    GET /                                 the page; it asks for the rest
    GET /api/runs                         {"runs": [{id, name, domain, model, n, k, score, state}]}
    GET /api/runs/ID/progress             {"done", "read", "total"} of the index
    GET /api/runs/ID/overview             data.Overview
    GET /api/runs/ID/rollouts?…           index.Page; the query is index.Query's fields
    GET /api/runs/ID/examples?…           index.ExamplePage
    GET /api/runs/ID/rollout?key=KEY      {"replay": replay.Replay or null}

Errors are {"error": sentence}. An ID stands for a folder that was found when runs were listed: no path
comes from a request. It listens at the loopback address, and a request whose Host is not that address is
refused, so that no web page gets at it through a name of its own. The first question about a run has it
indexed; about a large one, questions are answered from its first rollouts until that is done (`live.py`).

Not covered: other machines, authentication, writing of any kind.
"""

import asyncio
import hashlib
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
from aiohttp import web

from whale_bench.view.index import Query, RunIndex
from whale_bench.view.live import LiveRun
from whale_bench.view.loopback import HEADERS, LoopbackServer
from whale_bench.view.page import shell
from whale_bench.view.replay import replay_of
from whale_envs.errors import UsageError

_HEADERS = HEADERS | {"Cross-Origin-Opener-Policy": "same-origin"}


class ViewServer(LoopbackServer):
    """Serves while it is open.

    Args:
        folder: a run, or a folder with runs in it.
        port: 0 takes a free one, see `url`.
    """

    def __init__(self, folder: Path, port: int = 0) -> None:
        super().__init__(port)
        find_runs(folder)
        self._folder = folder
        self._open: dict[str, LiveRun] = {}
        self._found: dict[str, Path] = {}
        self._turn = asyncio.Lock()  # one index is read by one thread at a time

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/", self._page)
        app.router.add_get("/api/runs", self._runs)
        for name, answer in (
            ("progress", self._progress),
            ("overview", self._overview),
            ("rollouts", self._rollouts),
            ("examples", self._examples),
            ("rollout", self._rollout),
        ):
            app.router.add_get(f"/api/runs/{{id}}/{name}", answer)
        return app

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, trace)
        for run in self._open.values():
            await run.close()

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Refuses what is not this machine's browser asking this server, and words errors."""
        try:
            if not self.for_us(request):
                raise web.HTTPForbidden(reason=f"this server is asked as {self.url} only")
            if request.method != "GET":
                raise web.HTTPMethodNotAllowed(request.method, ["GET"])
            response = await handler(request)
        except web.HTTPException as error:
            response = _json({"error": error.reason}, status=error.status)
            if error.status == 405:
                response.headers["Allow"] = "GET"
        except (UsageError, msgspec.ValidationError) as error:
            status = 409 if isinstance(error, UsageError) else 400
            response = _json({"error": " ".join(str(error).split())}, status=status)
        response.headers.update(_HEADERS)
        return response

    async def _page(self, _: web.Request) -> web.Response:
        page = shell({"source": "server"}, title="whale-bench", connect="'self'")
        headers = {"Content-Security-Policy": f"{page.policy}; frame-ancestors 'none'"}
        return web.Response(text=page.html, content_type="text/html", headers=headers)

    async def _runs(self, _: web.Request) -> web.Response:
        runs = await asyncio.to_thread(find_runs, self._folder)
        self._found = {run_id(path): path for path in runs}
        return _json({"runs": await asyncio.to_thread(lambda: [listed(path, self._folder) for path in runs])})

    async def _progress(self, request: web.Request) -> web.Response:
        async with self._turn:
            run = await self._run(request)
            await run.index()
            return _json({"done": run.done, "read": run.read, "total": run.total})

    async def _overview(self, request: web.Request) -> web.Response:
        return _json(msgspec.Raw(await self._ask(request, lambda index: index.overview_json)))

    async def _rollouts(self, request: web.Request) -> web.Response:
        query = msgspec.convert(dict(request.query), Query, strict=False)
        return _json(await self._ask(request, lambda index: index.rows(query)))

    async def _examples(self, request: web.Request) -> web.Response:
        query = msgspec.convert(dict(request.query), Query, strict=False)
        return _json(await self._ask(request, lambda index: index.examples(query)))

    async def _rollout(self, request: web.Request) -> web.Response:
        key = request.query.get("key", "")
        rollout = await self._ask(request, lambda index: index.rollout(key))
        replay = None if rollout is None else await asyncio.to_thread(replay_of, rollout)
        return _json({"replay": replay})

    async def _ask(self, request: web.Request, question: Callable[[RunIndex], Any]) -> Any:
        """An index's answer, given in a thread."""
        async with self._turn:
            index = await (await self._run(request)).index()
            return await asyncio.to_thread(question, index)

    async def _run(self, request: web.Request) -> LiveRun:
        """The run that a request names."""
        name = request.match_info["id"]
        if name not in self._found:
            await self._runs(request)
        if name not in self._found:
            raise web.HTTPNotFound(reason="there is no such run here")
        return self._open.setdefault(name, LiveRun(self._found[name]))


def find_runs(folder: Path) -> list[Path]:
    """The runs that `folder` is or holds, itself or one folder deeper (several models), newest name first.

    Raises:
        UsageError: it is no folder, or cannot be read.
    """
    if (folder / "run.toml").is_file():
        return [folder]
    try:
        inside = [path for path in folder.iterdir() if path.is_dir()]
    except OSError as error:
        raise UsageError(f"{folder}: no folder of runs: {error.strerror}") from error
    found = []
    for path in inside:
        is_run = (path / "run.toml").is_file()
        found += [path] if is_run else [file.parent for file in path.glob("*/run.toml")]
    return sorted(found, reverse=True)


def run_id(folder: Path) -> str:
    """A name for a run's folder that can stand in an address."""
    return hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]


def listed(folder: Path, among: Path) -> dict[str, Any]:
    """A run as a list of those in `among` shows it, from its two small files alone."""
    settings, summary = _toml(folder / "run.toml"), _read_json(folder / "summary.json")
    score = summary.get("score")
    mean = score.get("mean") if isinstance(score, dict) else None
    state = "complete" if summary.get("complete") else "incomplete" if summary else "no summary yet"
    return {
        "id": run_id(folder),
        "name": folder.resolve().name if folder == among else folder.relative_to(among).as_posix(),
        "domain": str(settings.get("domain", "?")),
        "model": str(settings.get("model", "?")),
        "n": settings.get("n", 0),
        "k": settings.get("k", 0),
        "score": mean,
        "state": state if settings else "run.toml cannot be read",
    }


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _json(value: Any, *, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")
