"""inspect_ai's own viewer, as it is installed, shows an exported log in a real browser."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from bench_fakes import record
from playwright.sync_api import Browser, expect

from whale_bench import RunStore
from whale_bench.export import export
from whale_bench.records import Step

SETTINGS = {
    "model": "agent:mine.py:act", "domain": "chess_puzzles", "env_id": "whale/ChessPuzzles-v0",
    "tier": "mini", "split": "test", "profile": "standard", "fixture": False, "seed": 0,
    "harness_id": "h", "weights_id": "w",
    "versions": {"whale-envs": "0", "python": "3"}, "n": 2, "k": 1,
}  # fmt: skip


def exported(folder: Path) -> Path:
    """A log of two rollouts of an own agent, one of them unmetered."""
    steps = (Step("e2e4", "Black plays e7e5.", "ok", "f"), Step("d1h5", "Solved.", "ok", "f"))
    with RunStore.create(folder / "run", SETTINGS, None) as store:
        store.append(record("test:first:0", opening="Find the win.", steps=steps, metered=False))
        store.append(record("test:second:0", reward=0.0))
    (folder / "logs").mkdir()
    export(folder / "run", "inspect", folder / "logs" / "run.eval")
    return folder / "logs"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_inspect_view_shows_the_run_and_what_an_agent_saw_and_did(browser: Browser, tmp_path: Path) -> None:
    logs, url = exported(tmp_path), f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "inspect_ai", "view", "start", "--log-dir", str(logs)]
    command += ["--host", "127.0.0.1", "--port", url.rpartition(":")[2]]
    own = {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, env={**os.environ, **own}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        try:
            assert server.stdout is not None
            assert any("Running on" in line for line in server.stdout)
            page, asked, broken = browser.new_page(), list[str](), list[str]()
            page.set_default_timeout(60_000)
            page.on("request", lambda request: asked.append(request.url))
            page.on("pageerror", lambda error: broken.append(str(error)))
            page.goto(f"{url}/#/tasks/run.eval")
            page.get_by_text("first", exact=True).first.click()
            for words in ("Find the win.", "e2e4", "Black plays e7e5.", "d1h5", "Solved."):
                expect(page.get_by_text(words).first).to_be_visible(timeout=60_000)
            page.close()
        finally:
            server.terminate()
    assert broken == []
    assert [one for one in asked if not one.startswith((url, "data:", "blob:"))] == []
