"""The server: what it answers, whom it refuses, and the page in front of it."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from whale_bench.view.server import ViewServer, run_id
from whale_envs.errors import UsageError


@pytest.fixture
async def server(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ViewServer]:
    monkeypatch.setenv("WHALE_CACHE", str(tmp_path / "cache"))
    shutil.copytree(runs, tmp_path / "runs")
    async with ViewServer(tmp_path / "runs") as server:
        yield server


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as client:
        yield client


async def get(client: aiohttp.ClientSession, url: str | URL, **options: Any) -> tuple[int, Any]:
    async with client.get(url, **options) as answer:
        return answer.status, await answer.json()


async def test_runs_are_listed_and_opened(server: ViewServer, client: aiohttp.ClientSession) -> None:
    _, found = await get(client, f"{server.url}/api/runs")
    assert [run["name"] for run in found["runs"]] == ["search_qa", "math_python", "chess_puzzles"]
    base = f"{server.url}/api/runs/{found['runs'][0]['id']}"
    assert (await get(client, f"{base}/progress"))[0] == 200
    status, overview = await get(client, f"{base}/overview")
    assert (status, overview["summary"]["domain"]) == (200, "search_qa")
    assert (await get(client, f"{base}/progress"))[1]["done"]
    _, page = await get(client, f"{base}/rollouts", params={"limit": "3", "sort": "turns", "desc": "true"})
    assert (page["total"], len(page["rows"])) == (32, 3)
    _, examples = await get(client, f"{base}/examples")
    assert examples["total"] == 8
    key = page["rows"][0]["key"]
    _, replay = await get(client, f"{base}/rollout", params={"key": key})
    assert replay["replay"]["key"] == key
    assert (await get(client, f"{base}/rollout", params={"key": "no"}))[1] == {"replay": None}


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"])
async def test_only_get_is_answered(server: ViewServer, client: aiohttp.ClientSession, method: str) -> None:
    async with client.request(method, f"{server.url}/api/runs") as answer:
        assert answer.status == 405


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "", "[::1]:{port}"])
async def test_another_host_name_is_refused(
    server: ViewServer, client: aiohttp.ClientSession, host: str
) -> None:
    port = server.url.rpartition(":")[2]
    for path in ("/", "/api/runs"):
        async with client.get(server.url + path, headers={"Host": host.format(port=port)}) as answer:
            assert answer.status == 403
            assert "error" in await answer.json()


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "/../../etc/passwd", "/api/runs/..%2F..%2Fetc/overview", "/api/runs/../../x/overview",
     "/api/runs/%2e%2e/overview", "/static/app.js", "/api/runs/0000000000000000/rollout?key=../run.toml"],
)  # fmt: skip
async def test_no_path_leads_to_a_file(server: ViewServer, path: str) -> None:
    port = int(server.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400"))
    assert b"root:" not in answer


@pytest.mark.parametrize(
    "query", ["limit=x", "sort=nothing", "outcome=all", "desc=perhaps", f"offset={10**20}", f"offset={2**63}"]
)
async def test_a_wrong_query_is_refused_in_a_sentence(
    server: ViewServer, client: aiohttp.ClientSession, query: str
) -> None:
    _, found = await get(client, f"{server.url}/api/runs")
    status, body = await get(client, f"{server.url}/api/runs/{found['runs'][0]['id']}/rollouts?{query}")
    assert status == 400
    assert body["error"]


@pytest.mark.parametrize(
    "query",
    [f"offset={2**63 - 1}", f"offset=-{10**20}", f"limit={10**20}", f"limit=-{10**20}", "group=%00",
     "text=%ff", "text=%ed%a0%80", "stop=%ed%b0%80&example=%00", "group==&text=%25"],
)  # fmt: skip
async def test_an_odd_query_finds_what_it_can(
    server: ViewServer, client: aiohttp.ClientSession, query: str
) -> None:
    _, found = await get(client, f"{server.url}/api/runs")
    for rows in ("rollouts", "examples"):
        url = f"{server.url}/api/runs/{found['runs'][0]['id']}/{rows}?{query}"
        status, body = await get(client, URL(url, encoded=True))
        assert status == 200
        assert len(body["rows"]) <= body["total"] <= 32


async def test_runs_of_several_models_are_found_a_folder_deeper(
    server: ViewServer, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    (runs / "both").mkdir()
    (runs / "math_python").rename(runs / "both" / "model-a")
    shutil.copytree(runs / "search_qa", runs / "both" / "model-b")
    shutil.copytree(runs / "search_qa", runs / "both" / "too" / "deep")
    (runs / "search_qa" / "inside").mkdir()
    shutil.copy(runs / "search_qa" / "run.toml", runs / "search_qa" / "inside")
    _, found = await get(client, f"{server.url}/api/runs")
    names = ["search_qa", "chess_puzzles", "both/model-b", "both/model-a"]
    assert [run["name"] for run in found["runs"]] == names
    status, overview = await get(client, f"{server.url}/api/runs/{found['runs'][-1]['id']}/overview")
    assert (status, overview["summary"]["domain"]) == (200, "math_python")


async def test_the_page_is_under_a_policy(server: ViewServer, client: aiohttp.ClientSession) -> None:
    async with client.get(server.url) as answer:
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "connect-src 'self'" in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_a_run_that_changes_is_read_again_and_a_broken_one_says_so(
    server: ViewServer, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    run = tmp_path / "runs" / "math_python"
    part = run / "rollouts-0000.jsonl"
    base = f"{server.url}/api/runs/{run_id(run)}"
    assert (await get(client, f"{base}/rollouts"))[1]["total"] == 32
    whole = part.read_bytes()
    part.write_bytes(b"".join(whole.splitlines(keepends=True)[:5]))
    answers = await asyncio.gather(*(get(client, f"{base}/rollouts") for _ in range(8)))
    assert {body["total"] for _, body in answers} == {5}
    part.write_bytes((tmp_path / "runs" / "search_qa" / "rollouts-0000.jsonl").read_bytes())
    status, body = await get(client, f"{base}/rollouts")
    assert (status, "another run" in body["error"]) == (409, True)
    part.write_bytes(whole)
    assert (await get(client, f"{base}/rollouts"))[1]["total"] == 32


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder of runs"):
        ViewServer(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="got 70000"):
        ViewServer(tmp_path, 70_000)
