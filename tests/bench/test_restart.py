"""New weights by a restart: real processes, one at a time, of the right folder, and none left behind."""

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import folder_server
import pytest
from tiny_model import TEMPLATE, train_tokenizer

from whale_bench.models import kept_process, openai_restart
from whale_bench.models.base import names_weights
from whale_bench.models.folder import hash_folder
from whale_bench.models.openai_restart import RestartedServer
from whale_envs import InfrastructureError, UsageError

SERVER = folder_server.__file__
HOST = (
    "import sys, time; sys.path.insert(0, sys.argv[1]); import test_restart; test_restart.host(*sys.argv[2:])"
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer, and weights that nobody loads."""
    folder = tmp_path_factory.mktemp("restart") / "base"
    folder.mkdir()
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    texts = {"config.json": {}, "tokenizer_config.json": settings, "tokenizer.json": train_tokenizer()}
    for name, content in texts.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.fixture(scope="module")
def other(base: Path) -> Path:
    folder = Path(shutil.copytree(base, base.with_name("other")))
    weights = folder / "model.safetensors"
    weights.write_bytes(b"other weights")
    return folder


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def command_of(*how: Any) -> str:
    return shlex.join([sys.executable, SERVER, "{folder}", "{port}", *map(str, how)])


@contextlib.asynccontextmanager
async def restarted(base: Path, port: int, command: str) -> AsyncIterator[RestartedServer]:
    backend = RestartedServer(
        "policy", str(base), command, logprobs=partial(folder_server.logprobs_of, base),
        base_url=f"http://127.0.0.1:{port}/v1",
    )  # fmt: skip
    async with backend:
        yield backend


def pids_of(port: int) -> list[int]:
    """Living processes that were started for this port."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if (
                str(port).encode() in words
                and SERVER.encode() in words
                and not is_over(int(path.parent.name))
            ):
                found.append(int(path.parent.name))
    return found


def is_over(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


async def over(*pids: int) -> bool:
    """Whether these processes are gone, in a while."""
    for _ in range(300):
        if all(map(is_over, pids)):
            return True
        await asyncio.sleep(0.1)
    return False


async def test_each_weights_get_a_server_of_their_own_and_one_is_left_at_a_time(
    base: Path, other: Path, port: int
) -> None:
    async with restarted(base, port, command_of()) as backend:
        await backend.probe()
        assert pids_of(port) == []
        assert names_weights(await backend.reload(base), hash_folder(base))
        first = pids_of(port)
        assert len(first) == 2  # the server, and what keeps it
        weights_id = await backend.reload(other, logprobs=partial(folder_server.logprobs_of, other))
        assert names_weights(weights_id, hash_folder(other))
        assert all(map(is_over, first))
        assert len(pids_of(port)) == 2
    assert pids_of(port) == []


async def test_a_server_of_other_weights_than_it_was_started_on_stops_the_run(
    base: Path, other: Path, port: int, tmp_path: Path
) -> None:
    async with restarted(base, port, command_of("old", tmp_path)) as backend:
        await backend.reload(base)
        with pytest.raises(InfrastructureError, match="serves other weights"):
            await backend.reload(other, logprobs=partial(folder_server.logprobs_of, other))
        assert names_weights(backend.weights_id, hash_folder(base))
    assert pids_of(port) == []


async def test_a_server_that_ends_before_it_answers_is_quoted(base: Path, port: int) -> None:
    async with restarted(base, port, command_of("broken")) as backend:
        with pytest.raises(InfrastructureError, match=r"ended with 1 before.*out of memory, says the server"):
            await backend.reload(base)


async def test_a_child_that_will_not_end_ends_with_its_server(base: Path, port: int, tmp_path: Path) -> None:
    async with restarted(base, port, command_of("child", tmp_path)) as backend:
        await backend.reload(base)
        child = int((tmp_path / "child").read_text())
        assert not is_over(child)
    assert is_over(child)
    assert pids_of(port) == []


@contextlib.contextmanager
def somebody(port: int) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", port), folder_server.Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


async def test_an_address_where_somebody_answers_is_refused(
    base: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_restart, "LEAVES_S", 0.0)
    with somebody(port):
        async with restarted(base, port, command_of()) as backend:
            for attempt in (backend.probe(), backend.reload(base)):
                with pytest.raises(UsageError, match="somebody answers at"):
                    await attempt
    assert pids_of(port) == []


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("vllm serve here", "names no {folder}"),
        ("no-such-program {folder}", "no such program"),
        ("python '{folder}", "cannot be read"),
    ],
)
def test_a_command_that_cannot_be_is_refused(base: Path, command: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        RestartedServer("policy", str(base), command, logprobs=lambda _: [])


def host(base: str, port: str, *how: str) -> None:
    """A process that serves, says so and waits to be killed."""

    async def serve() -> None:
        async with restarted(Path(base), int(port), command_of(*how)) as backend:
            await backend.reload(base)
            print("serving", flush=True)
            await asyncio.sleep(600)

    asyncio.run(serve())


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends the processes of a dead one")
@pytest.mark.parametrize("killed", ["host", "keeper"])
async def test_nothing_outlives_a_killed_process(base: Path, port: int, killed: str) -> None:
    here = str(Path(__file__).parent)
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOST, here, str(base), str(port), stdout=asyncio.subprocess.PIPE
    )
    assert running.stdout is not None
    try:
        assert await running.stdout.readline() == b"serving\n"
        pids = pids_of(port)
        keeper = next(pid for pid in pids if str(kept_process.__file__) in cmdline(pid))
        os.kill(running.pid if killed == "host" else keeper, signal.SIGKILL)
        assert await over(*pids)
    finally:
        with contextlib.suppress(ProcessLookupError):
            running.kill()
        await running.wait()


def cmdline(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()
