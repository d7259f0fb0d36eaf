"""A run that is too large to be indexed at once: what is shown until it is, kills, runs that go on."""

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.sync_api import Browser
from test_view_page import Watched, audit, overflow

from whale_bench.store import RunStore
from whale_bench.view import build, live
from whale_bench.view.data import Overview
from whale_bench.view.index import Query, RunIndex
from whale_bench.view.live import LiveRun
from whale_bench.view.server import ViewServer
from whale_envs.errors import UsageError


@pytest.fixture
def run(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that counts as large, of which ten rollouts are shown first."""
    monkeypatch.setenv("WHALE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(live, "SMALL", 0)
    monkeypatch.setattr(live, "FIRST", 10)
    return Path(shutil.copytree(runs / "math_python", tmp_path / "run"))


@contextlib.contextmanager
def held(run: Path) -> Iterator[None]:
    """Nobody can build the run's index meanwhile."""
    path = build.place_of(run).with_suffix(".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server, in a thread, for the browser is driven from this one."""
    ready, loop, urls = threading.Event(), asyncio.new_event_loop(), list[str]()
    over = asyncio.Event()

    async def serve() -> None:
        async with ViewServer(folder) as server:
            urls.append(server.url)
            ready.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(60)
    try:
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


@pytest.fixture
def builders(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.subprocess.Process]:
    """The processes that were started to build an index."""
    started: list[asyncio.subprocess.Process] = []
    start = asyncio.create_subprocess_exec

    async def recorded(*command: Any, **options: Any) -> asyncio.subprocess.Process:
        started.append(await start(*command, **options))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", recorded)
    return started


async def begun(builders: list[asyncio.subprocess.Process]) -> None:
    while not builders:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.01)


async def finished(run: LiveRun) -> RunIndex:
    """The index of all rollouts."""
    assert run._building is not None
    await asyncio.wait({run._building})
    return await run.index()


async def test_the_first_rollouts_answer_until_all_are_read(run: Path) -> None:
    rollouts = list(RunStore.open(run).rollouts())
    seen = LiveRun(run)
    with held(run):
        index = await seen.index()
        assert not seen.done
        assert [row.key for row in index.rows(Query()).rows] == [r.key for r in rollouts[:10]]
        assert index.rollout(rollouts[3].key) == rollouts[3]
        assert b'"first":10' in index.overview_json
    index = await finished(seen)
    assert seen.done
    assert seen.read == seen.total == (run / "rollouts-0000.jsonl").stat().st_size
    assert index.rows(Query()).total == len(rollouts)
    await seen.close()
    with RunIndex.open(run, cached=False) as alone:
        assert alone.overview_json == index_json(run)


def index_json(run: Path) -> bytes:
    index = RunIndex.reuse(run)
    assert index is not None
    with index:
        return index.overview_json


async def test_what_is_said_first_stays_true_when_all_are_read(run: Path) -> None:
    seen = LiveRun(run)
    with held(run):
        first = msgspec.json.decode((await seen.index()).overview_json)
    whole = msgspec.json.decode((await finished(seen)).overview_json)
    await seen.close()
    assert first["summary"] == whole["summary"]
    assert first["groups"] == whole["groups"] != []
    assert first["histograms"] == [whole["histograms"][-1]]
    assert first.keys() - whole.keys() == {"first"}
    assert "first" not in Overview.__struct_fields__


async def test_a_killed_builder_is_started_again_and_leaves_nothing(
    run: Path, builders: list[asyncio.subprocess.Process]
) -> None:
    build.place_of(run).parent.mkdir(parents=True)
    half = build.place_of(run).with_suffix(".half-built")
    half.write_bytes(b"SQLite format 3\x00 and what a kill left of it")
    seen = LiveRun(run)
    with held(run):
        await seen.index()
        await begun(builders)
        builders[0].kill()
        await builders[0].wait()
    assert (await finished(seen)).rows(Query()).total == 32
    assert [builder.returncode for builder in builders] == [-signal.SIGKILL, 0]
    assert not half.exists()
    await seen.close()


async def test_a_builder_that_is_killed_each_time_is_an_error(
    run: Path, builders: list[asyncio.subprocess.Process]
) -> None:
    seen = LiveRun(run)
    with held(run):
        await seen.index()
        while seen._building is not None and not seen._building.done():
            for (
                builder
            ) in builders:  # not its kill(): that would collect one that has ended before asyncio does
                with contextlib.suppress(ProcessLookupError):
                    if builder.returncode is None:
                        os.kill(builder.pid, signal.SIGKILL)
            await asyncio.sleep(0.01)
        with pytest.raises(UsageError, match="killed each time, last by 9"):
            await seen.index()
    assert len(builders) == 1 + live.RESTARTS
    await seen.close()


async def test_closing_ends_the_builder(run: Path, builders: list[asyncio.subprocess.Process]) -> None:
    seen = LiveRun(run)
    with held(run):
        await seen.index()
        await begun(builders)
        await seen.close()
        assert builders[0].returncode is not None


async def test_a_builder_ends_when_nobody_reads_what_it_says(run: Path) -> None:
    """As it is where the server was killed."""
    read, write = os.pipe()
    os.close(read)
    command = (sys.executable, "-m", "whale_bench.view.build", str(run))
    builder = await asyncio.create_subprocess_exec(*command, stdout=write, stderr=asyncio.subprocess.PIPE)
    os.close(write)
    _, complaints = await builder.communicate()
    assert (builder.returncode, complaints) == (1, b"")


async def test_a_run_that_goes_on_is_answered_from_the_index_that_is_there(run: Path, runs: Path) -> None:
    part = run / "rollouts-0000.jsonl"
    lines = part.read_bytes().splitlines(keepends=True)
    part.write_bytes(b"".join(lines[:20]))
    seen = LiveRun(run)
    await seen.index()
    assert (await finished(seen)).rows(Query()).total == 20
    with held(run):
        with part.open("ab") as file:
            file.writelines(lines[20:])
        assert (await seen.index()).rows(Query()).total == 20
        assert not seen.done
    assert (await finished(seen)).rows(Query()).total == 32
    (run / "rollouts-0001.jsonl").write_bytes((runs / "search_qa" / "rollouts-0000.jsonl").read_bytes())
    await seen.index()
    with pytest.raises(UsageError, match="is of another run"):
        await finished(seen)
    await seen.close()


@pytest.mark.parametrize(("scheme", "width", "summary"), [("light", 1280, True), ("dark", 320, False)])
def test_the_page_shows_the_beginning_and_then_all(
    run: Path, browser: Browser, shots: Path, scheme: Any, width: int, summary: bool
) -> None:
    if not summary:
        (run / "summary.json").unlink()
    viewport: Any = {"width": width, "height": 900}
    with contextlib.ExitStack() as lock, served(run) as url:
        lock.enter_context(held(run))
        watch = Watched(browser.new_page(viewport=viewport, color_scheme=scheme))
        page = watch.open(url)
        status = page.locator(".reading [role=status]")
        status.get_by_text("Until all rollouts are read").wait_for()
        page.locator(".found").get_by_text("10 rollouts").wait_for()
        assert page.locator("progress").is_visible()
        assert page.locator(".score").count() == (2 if summary else 0)
        assert audit(page) == []
        assert overflow(page) <= 0
        page.screenshot(path=shots / f"reading-{scheme}.png", full_page=True)
        page.get_by_label("Outcome").select_option("failed")
        page.locator("a.task").first.click()  # a replay of one that is read
        page.locator(".replay").wait_for()
        page.keyboard.press("Escape")
        page.get_by_label("Search text").focus()
        lock.close()
        status.get_by_text("All rollouts are read").wait_for()
        assert page.get_by_label("Outcome").input_value() == "failed"
        assert page.evaluate("document.activeElement.id") == "filter-text"
        with RunIndex.open(run, cached=False) as index:
            failed = index.rows(Query(outcome="failed")).total
        page.locator(".found").get_by_text(f"{failed} rollouts").wait_for()
        assert page.locator(".score").count() == 2
        assert not page.locator("progress").is_visible()
        assert audit(page) == []
        assert overflow(page) <= 0
        page.close()
    assert watch.complaints == []
