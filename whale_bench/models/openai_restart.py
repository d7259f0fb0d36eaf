"""A server here that gets new weights by being started anew, checked by a fingerprint.

    command = "vllm serve {folder} --served-model-name policy --host {host} --port {port}"
    backend = RestartedServer("policy", "models/base", command, logprobs=trainer.logprobs,
                              base_url="http://127.0.0.1:8000/v1")
    async with backend:
        await backend.reload("runs/weight/checkpoints/step-000001")     # ends the old one, starts another

For servers without a route for new weights. The first `reload` starts the first one. It is ready when it
lists its models; then it has to pass what a reloaded one has to (`openai_reload.py`). An address at which
somebody else answers is refused: what is asked there has to be what was started here.

A server ends with the backend, and with this process however that dies (`kept_process.py`). A resumed run
starts its own.

Not covered: servers on other machines, servers that outlive a run.
"""

import asyncio
import contextlib
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from whale_bench.models import kept_process
from whale_bench.models.base import Request
from whale_bench.models.openai_reload import Logprobs, ReloadedServer
from whale_bench.models.server import Server
from whale_envs.errors import InfrastructureError, UsageError

START_S = 1800.0
"""Longest that a server may take until it answers."""

LEAVES_S = kept_process.GRACE_S + 2
"""How long somebody who answers where a server is to be started may be one that is just ending."""

_POLL_S = 0.2
_TOLD = 2000
"""Characters of a failed server's last words that are shown."""

_LAUNCHER = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)
"""What a launcher of several training processes sets, and a server would take for its own."""


@dataclass(slots=True)
class _Running:
    process: asyncio.subprocess.Process
    log: IO[bytes]


class RestartedServer(ReloadedServer):
    """See the module's docstring.

    Args:
        model: name of the model on the server.
        folder: the folder that training begins with; its tokenizer renders chats.
        command: starts a server and stays; {folder}, {host} and {port} are filled in.
        logprobs: the trainer's own, of its weights as they are when it is called.
        base_url: where it will answer, or several addresses, each with a server of its own.

    Raises:
        UsageError: the command names no {folder}, or no program that is here.
    """

    def __init__(
        self,
        model: str,
        folder: str,
        command: str,
        *,
        logprobs: Logprobs,
        base_url: str | Sequence[str] | None = None,
    ) -> None:
        super().__init__(model, folder, logprobs=logprobs, base_url=base_url)
        self._words = _words(command)
        self._running: dict[str, _Running] = {}

    async def probe(self, like: Request | None = None) -> None:  # noqa: ARG002 - see `Backend`
        """Whether the addresses are free; there is no server yet.

        Raises:
            UsageError: somebody answers at one of them.
        """
        for server in self._servers.all:
            await self._check_free(server)

    async def __aexit__(self, *exc: object) -> None:
        try:
            await asyncio.gather(*map(self._stop, list(self._running)))
        finally:
            await super().__aexit__(*exc)

    async def _deliver(self, server: Server, folder: Path) -> None:
        await self._stop(server.address)
        await self._check_free(server)
        parts = urlsplit(server.url)
        filled = {"{folder}": str(folder), "{host}": str(parts.hostname), "{port}": str(parts.port or 80)}
        words = [_filled(word, filled) for word in self._words]
        log = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the server is there
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-s", str(kept_process.__file__), str(os.getpid()), *words,
            stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log, env=_environment(),
        )  # fmt: skip
        self._running[server.address] = _Running(process, log)
        try:
            async with asyncio.timeout(START_S):
                while await self._status(server) != 200:
                    if process.returncode is not None:
                        raise InfrastructureError(
                            f"the server for {server.address} ended with {process.returncode} before it "
                            f"answered: {shlex.join(words)}: {_last_words(log)}"
                        )
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            raise InfrastructureError(
                f"the server for {server.address} did not answer within {START_S:.0f} s: "
                f"{shlex.join(words)}: {_last_words(log)}"
            ) from error

    async def _stop(self, address: str) -> None:
        """Ends the server and all that it started; returns when it is gone."""
        running = self._running.pop(address, None)
        if running is None:
            return
        process = running.process
        assert process.stdin is not None
        process.stdin.close()  # which is how it is told
        try:
            async with asyncio.timeout(kept_process.GRACE_S + 10):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        running.log.close()

    async def _check_free(self, server: Server) -> None:
        """Waits for what a killed run may have left, which ends by itself."""
        ends_at = time.monotonic() + LEAVES_S
        while await self._status(server) is not None:
            if time.monotonic() >= ends_at:
                raise UsageError(
                    f"somebody answers at {server.address} already, where a server is to be started: end "
                    "that one, or name another base_url"
                )
            await asyncio.sleep(_POLL_S)

    async def _status(self, server: Server) -> int | None:
        """What asking for the list of models is answered with; None where nobody answers."""
        import aiohttp

        timeout = aiohttp.ClientTimeout(10)
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, ConnectionError):
            async with server.session.get(f"{server.url}/models", timeout=timeout) as response:
                found: int = response.status
                return found
        return None


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"server_command {command!r} cannot be read: {error}") from error
    if not any("{folder}" in word for word in words):
        raise UsageError(f"server_command names no {{folder}}, which holds the weights: {command!r}")
    if shutil.which(words[0]) is None:
        raise UsageError(f"server_command begins with {words[0]!r}, and there is no such program")
    return words


def _filled(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word


def _environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k not in _LAUNCHER and not k.startswith("ACCELERATE_")}


def _last_words(log: IO[bytes]) -> str:
    size = os.fstat(log.fileno()).st_size  # not by `seek`: the server writes where this file's position is
    told = os.pread(log.fileno(), _TOLD, max(0, size - _TOLD)).decode(errors="replace").strip()
    return told or "it said nothing"
