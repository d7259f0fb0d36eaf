"""The same tool on a cluster: a client for servers that speak SandboxFusion's `/run_code`.

    async with FusionSandbox("http://sandbox:8080") as sandbox:
        result = await sandbox.run("print(6*7)", timeout_s=5)

Calls and results are as `client.Sandbox` has them, but for sessions: the protocol has none, so that
asking for one raises UsageError. A server that cannot be reached, or answers with an error of its
own, is tried again and then raises InfrastructureError; a program's failure is a result.

Not covered: what confines a program over there; that is the server's business.
"""

import asyncio
import json
import math
from typing import TYPE_CHECKING, Any, Self

import msgspec

from whale_envs.bodies import read_at_most
from whale_envs.errors import InfrastructureError, UsageError
from whale_envs.sandbox.client import TIMEOUT_S
from whale_envs.sandbox.results import RunResult, Status

if TYPE_CHECKING:
    import aiohttp

_TRIES = 4
_FIRST_PAUSE_S = 0.25
_GRACE_S = 30.0
_MOST_ANSWER = 64 * 2**20
_TIMED_OUT = "TimeLimitExceeded"


class _Run(msgspec.Struct):
    """SandboxFusion's report on one process; fields that we do not use are ignored."""

    status: str = ""
    stdout: str | None = None
    stderr: str | None = None
    return_code: int | None = None
    execution_time: float | None = None


class _Answer(msgspec.Struct):
    status: str
    message: str | None = None
    run_result: _Run | None = None


class FusionSandbox:
    """Runs programs on a server; use within one event loop.

    Args:
        url: of the server, without `/run_code`.
        memory_mb: limit of each call, as the server understands it.
        concurrent: calls at once.
        pause_s: before the first repetition; doubles with each.
    """

    def __init__(
        self, url: str, *, memory_mb: int = 1024, concurrent: int = 128, pause_s: float = _FIRST_PAUSE_S
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"the sandbox server's address must begin with http:// or https://, got {url!r}")
        self._url = url.rstrip("/") + "/run_code"
        self._memory_mb, self._pause_s = memory_mb, pause_s
        self._slots = asyncio.Semaphore(concurrent)
        self._session: aiohttp.ClientSession | None = None
        self._decoder = msgspec.json.Decoder(_Answer)

    async def run(self, code: str, *, session: str | None = None, timeout_s: float = TIMEOUT_S) -> RunResult:
        """As `client.Sandbox.run`.

        Raises:
            UsageError: a session was asked for.
            InfrastructureError: the server failed, after retries.
        """
        if session is not None:
            raise UsageError(f"a SandboxFusion server keeps no sessions, got session={session!r}")
        body = {
            "code": code.encode("utf-8", "replace").decode(),
            "language": "python",
            "run_timeout": timeout_s,
            "memory_limit_MB": self._memory_mb,
        }
        async with self._slots:
            return _result(await self._ask(body, timeout_s), timeout_s)

    def forget_session(self, session: str) -> None:
        """Nothing to do: there are no sessions."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _ask(self, body: dict[str, Any], timeout_s: float) -> _Run:
        pause, trouble = self._pause_s, ""
        for attempt in range(_TRIES):
            if attempt:
                await asyncio.sleep(pause)
                pause *= 2
            raw, trouble = await self._post(body, timeout_s)
            if trouble:
                continue
            try:
                answer = self._read(raw)
            except (ValueError, RecursionError) as error:
                raise InfrastructureError(f"{self._url}: not an answer of SandboxFusion: {error}") from error
            if answer.status != "SandboxError" and answer.run_result is not None:
                return answer.run_result
            trouble = f"{answer.status}: {answer.message or 'no message'}"
        raise InfrastructureError(f"{self._url} failed {_TRIES} times: {trouble}")

    def _read(self, raw: bytes) -> _Answer:
        """The strict reader first; Python's own takes lone surrogates too, which programs do print."""
        try:
            return self._decoder.decode(raw)
        except msgspec.DecodeError:
            return msgspec.convert(json.loads(raw.decode("utf-8", "replace")), _Answer)

    async def _post(self, body: dict[str, Any], timeout_s: float) -> tuple[bytes, str]:
        """(answer, "") or (b"", why not)."""
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        limit = aiohttp.ClientTimeout(total=timeout_s + _GRACE_S)
        try:
            async with self._session.post(self._url, json=body, timeout=limit) as response:
                if response.status == 200:
                    return await _read(response), ""
                said = (await _read(response))[:500].decode("utf-8", "replace")
                if 400 <= response.status < 500 and response.status not in (408, 425, 429):
                    raise InfrastructureError(f"{self._url} answered {response.status}: {said}")
                return b"", f"HTTP {response.status}: {said}"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return b"", f"{type(error).__name__}: {error}"


async def _read(response: "aiohttp.ClientResponse") -> bytes:
    body = await read_at_most(response.content, _MOST_ANSWER)
    if body is None:
        raise InfrastructureError(f"{response.url} answered with more than {_MOST_ANSWER >> 20} MB")
    return body


def _result(run: _Run, timeout_s: float) -> RunResult:
    code = run.return_code
    seconds = run.execution_time or 0.0
    status: Status = "finished"
    if run.status == _TIMED_OUT:
        status = "timed_out"
    elif code is not None and code < 0:
        status = "crashed"
    return RunResult(
        status=status,
        stdout=_clean(run.stdout),
        stderr=_clean(run.stderr),
        exit_code=code if status == "finished" else None,
        signal=-code if status == "crashed" and code is not None else None,
        seconds=seconds if math.isfinite(seconds) else 0.0,
        limit=f"{timeout_s:g} s" if status == "timed_out" else "",
    )


def _clean(text: str | None) -> str:
    return (text or "").encode("utf-8", "replace").decode()
