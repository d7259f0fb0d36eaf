"""Faults on purpose: a run through them equals one without, and every key is charged once."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench_fakes import lines, plain, results, settled, wait_for

from whale_bench import EvalPlan, evaluate
from whale_bench.ledger import Ledger
from whale_bench.models.http_retry import Patience
from whale_bench.models.openai import OpenAIBackend

SERVER = Path(__file__).resolve().parent.parent.parent / "benchmarks" / "faulty_server.py"
PATIENCE = Patience(backoff_s=0.02, stall_s=0.5)
N, K = 50, 8
QUIET = subprocess.DEVNULL


@contextmanager
def faulty(*options: str) -> Iterator[str]:
    """The address of a server with these options."""
    with subprocess.Popen(
        [sys.executable, str(SERVER), *options], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.kill()


def plan(url: str, **changes: Any) -> EvalPlan:
    fields: dict[str, Any] = {"n": N, "k": K, "concurrency": 64, "max_tokens": 64, **changes}
    return EvalPlan(domain="chess_puzzles", model="openai/m", base_url=url, **fields)


async def evaluated(url: str, folder: Path, **changes: Any) -> dict[str, Any]:
    async with OpenAIBackend("m", base_url=url, patience=PATIENCE) as backend:
        summary = await evaluate(plan(url, **changes), folder, backend=backend)
    assert summary.complete
    return {name: value for name, value in plain(summary).items() if name != "warnings"}


async def test_four_hundred_rollouts_through_every_fault_equal_those_without(tmp_path: Path) -> None:
    with faulty() as url:
        whole = await evaluated(url, tmp_path / "whole")
    began = time.monotonic()
    with faulty("--share", "0.05", "--stall", "3", "--retry-after", "0.2") as url:
        assert await evaluated(url, tmp_path / "run") == whole
    assert time.monotonic() - began < 60
    assert results(tmp_path / "run") == results(tmp_path / "whole")
    assert settled(tmp_path / "run") == settled(tmp_path / "whole")
    assert len(settled(tmp_path / "run")) == N * K
    with Ledger(tmp_path / "run" / "ledger.sqlite", readonly=True) as ledger:
        assert ledger.charged() == ledger.executed()
        assert ledger.open_reservations() == []


def test_a_server_that_is_killed_and_comes_back_leaves_no_mark(tmp_path: Path) -> None:
    options = ["-n", "25", "-k", str(K), "-c", "8", "--max-tokens", "64"]
    command = [sys.executable, "-m", "whale_bench.cli", "eval", "chess_puzzles", "-m", "openai/m", *options]
    with faulty("--latency", "0.02") as url:
        subprocess.run([*command, "--base-url", url, "--out", tmp_path / "whole"], check=True, stdout=QUIET)
        port = url.removesuffix("/v1").rpartition(":")[2]
    with ExitStack() as stack:
        server = stack.enter_context(ExitStack())
        server.enter_context(faulty("--latency", "0.02", "--port", port))
        run = [*command, "--base-url", url, "--out", tmp_path / "run"]
        client = stack.enter_context(subprocess.Popen(run, stdout=QUIET, stderr=QUIET))
        for stop in (40, 120):
            assert wait_for(lambda stop=stop: lines(tmp_path / "run") >= stop, client)  # type: ignore[misc]
            server.close()
            time.sleep(0.7)
            server.enter_context(faulty("--latency", "0.02", "--port", port))
        assert client.wait() == 0
    assert results(tmp_path / "run") == results(tmp_path / "whole")
    assert settled(tmp_path / "run") == settled(tmp_path / "whole")
    with Ledger(tmp_path / "run" / "ledger.sqlite", readonly=True) as ledger:
        assert ledger.charged() == ledger.executed()


async def test_a_server_with_little_room_finishes_and_is_told_of(tmp_path: Path) -> None:
    with faulty("--room", "3", "--latency", "0.01") as url:
        async with OpenAIBackend("m", base_url=url, patience=PATIENCE) as backend:
            summary = await evaluate(plan(url, n=25), tmp_path / "run", backend=backend)
    assert summary.complete
    assert "was overloaded" in summary.warnings[0]
    assert summary.seconds["held back"] > 0
