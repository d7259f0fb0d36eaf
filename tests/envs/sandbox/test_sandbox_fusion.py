# ruff: noqa: E501 - an answer in a line
"""The HTTP backend, against a small server of our own that speaks SandboxFusion's protocol."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from whale_envs.errors import InfrastructureError, UsageError
from whale_envs.sandbox import Sandbox
from whale_envs.sandbox.fusion import FusionSandbox

from .load import slowness

Answer = Callable[[dict], Awaitable[web.Response]]


class Server:
    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.asked: list[dict] = []
        self.first: list[Answer] = []
        """Answers to give before the real ones."""

    async def run_code(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        if self.first:
            return await self.first.pop(0)(body)
        result = await self.sandbox.run(body["code"], timeout_s=body["run_timeout"])
        finished = result.status != "timed_out"
        code = result.exit_code if result.exit_code is not None else -(result.signal or 9)
        return web.json_response(
            {
                "status": "Success" if result.ok else "Failed",
                "message": "",
                "compile_result": None,
                "run_result": {
                    "status": "Finished" if finished else "TimeLimitExceeded",
                    "execution_time": result.seconds,
                    "return_code": code if finished else None,
                    "stdout": result.stdout,
                    "stderr": result.stderr,
                },
                "executor_pod_name": None,
                "files": {},
            }
        )


@pytest.fixture
async def server(sandbox: Sandbox) -> AsyncIterator[tuple[Server, str]]:
    served = Server(sandbox)
    app = web.Application()
    app.router.add_post("/run_code", served.run_code)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield served, f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.mark.parametrize(
    "code",
    [
        "print(6*7)",
        "x = 1",
        "1/0",
        "def f(:",
        "while True: pass",
        "import os\nos._exit(3)",
        "print('é' * 9000)",
    ],
)
async def test_it_answers_as_the_local_one(server: tuple[Server, str], sandbox: Sandbox, code: str) -> None:
    limit = 0.5 * slowness()
    async with FusionSandbox(server[1]) as fusion:
        far = await fusion.run(code, timeout_s=limit)
    near = await sandbox.run(code, timeout_s=limit)
    assert (far.status, far.text, far.exit_code) == (near.status, near.text, near.exit_code)
    assert server[0].asked[0]["language"] == "python"
    assert server[0].asked[0]["memory_limit_MB"] == 1024


async def test_a_signal_is_a_crash(server: tuple[Server, str]) -> None:
    async with FusionSandbox(server[1]) as fusion:
        result = await fusion.run("import ctypes\nctypes.string_at(0)")
    assert (result.status, result.signal) == ("crashed", 11)


async def failing(_: dict) -> web.Response:
    return web.Response(status=503, text="busy")


async def sandbox_error(_: dict) -> web.Response:
    return web.json_response({"status": "SandboxError", "message": "no pod", "run_result": None})


async def nonsense(_: dict) -> web.Response:
    return web.Response(text="<html>")


async def surrogates(_: dict) -> web.Response:
    text = '{"status": "Success", "run_result": {"status": "Finished", "return_code": 0, "stdout": "a\\ud800b", "stderr": "", "execution_time": NaN}}'
    return web.Response(text=text)


async def odd_bytes(_: dict) -> web.Response:
    head = b'{"status": "Success", "run_result": {"status": "Finished", "return_code": 0, "stdout": "a'
    return web.Response(body=head + b'\xffb"}}')


async def deep(_: dict) -> web.Response:
    return web.Response(text="[" * 100_000)


@pytest.mark.parametrize(("answer", "text"), [(surrogates, "a?b"), (odd_bytes, "a\ufffdb")])
async def test_odd_text_of_a_server_is_replaced(
    server: tuple[Server, str], answer: Answer, text: str
) -> None:
    server[0].first = [answer]
    async with FusionSandbox(server[1], pause_s=0.001) as fusion:
        result = await fusion.run("1")
        fusion.forget_session("none")
    assert (result.status, result.text, result.seconds) == ("finished", text, 0.0)


async def refusing(_: dict) -> web.Response:
    return web.Response(status=404, text="no such page")


async def test_a_server_that_fails_now_and_then_is_asked_again(server: tuple[Server, str]) -> None:
    server[0].first = [failing, sandbox_error, failing]
    async with FusionSandbox(server[1], pause_s=0.001) as fusion:
        assert (await fusion.run("print(1)")).text == "1\n"
    assert len(server[0].asked) == 4


@pytest.mark.parametrize(
    ("answer", "times"), [(failing, 4), (sandbox_error, 4), (nonsense, 1), (refusing, 1), (deep, 1)]
)
async def test_a_server_that_fails_is_an_infrastructure_error(
    server: tuple[Server, str], answer: Answer, times: int
) -> None:
    server[0].first = [answer] * 9
    async with FusionSandbox(server[1], pause_s=0.001) as fusion:
        with pytest.raises(InfrastructureError):
            await fusion.run("print(1)")
    assert len(server[0].asked) == times


async def test_a_server_that_is_not_there(server: tuple[Server, str]) -> None:
    async with FusionSandbox("http://127.0.0.1:9", pause_s=0.001) as fusion:
        with pytest.raises(InfrastructureError, match="failed 4 times"):
            await fusion.run("print(1)")


async def test_many_calls_at_once(server: tuple[Server, str]) -> None:
    async with FusionSandbox(server[1], concurrent=10) as fusion:
        results = await asyncio.gather(*(fusion.run(f"print({i})") for i in range(50)))
    assert [r.text for r in results] == [f"{i}\n" for i in range(50)]


async def test_misuse(server: tuple[Server, str]) -> None:
    with pytest.raises(UsageError, match="http"):
        FusionSandbox("sandbox:8080")
    async with FusionSandbox(server[1]) as fusion:
        with pytest.raises(UsageError, match="session"):
            await fusion.run("1", session="a")
        assert (await fusion.run('print("\ud800")')).status == "finished"
