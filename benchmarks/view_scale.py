"""How fast a large run opens: `whale-bench view --serve` at first and later, and the page in one file.

    python benchmarks/view_scale.py [--rollouts 100000] [--domain chess_puzzles]

Makes a run of a scripted fixture with the command's own code, then repeats its lines under new keys until
there are enough, as if each were another example. Measured over HTTP, from a process's first import: the
first table, with and without an index; the whole index, which a process of its own builds; further pages,
filters and replays; the one-file page with its sample. Each part runs in a process of its own.
"""

import argparse
import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def make(folder: Path, domain: str, rollouts: int) -> None:
    """A run of `rollouts` lines, from one of 400."""
    import msgspec
    import tomli_w

    from whale_bench import EvalPlan, Rollout, RunStore, evaluate
    from whale_bench.store import settings_id

    k = 8
    asyncio.run(evaluate(EvalPlan(domain=domain, model="scripted/noisy-oracle:0.8", n=50, k=k), folder))
    store = RunStore.open(folder)
    rows: list[Rollout] = list(store.rollouts())
    settings = {**store.settings, "n": rollouts // k}
    settings["settings_id"] = settings_id(settings)
    (folder / "run.toml").write_text(tomli_w.dumps(settings))
    (folder / "summary.json").unlink()
    encoder = msgspec.json.Encoder()
    with (folder / "rollouts-0000.jsonl").open("wb") as part:
        for number in range(rollouts):
            row = rows[number % len(rows)]
            example = f"{row.example_id}-{number // len(rows)}"
            key = f"test:{example}:{row.sample}"
            part.write(encoder.encode(msgspec.structs.replace(row, key=key, example_id=example)) + b"\n")


def _say(what: str, began: float) -> None:
    """How long `what` took, and the CPU of this process and of those it started."""
    of_children = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"  {what}: {time.perf_counter() - began:.2f} s, {time.process_time():.2f} s CPU, "
        f"and {of_children.ru_utime + of_children.ru_stime:.2f} s of the process that indexed"
    )


async def first_table(folder: Path) -> None:
    """What the page asks for until its first table stands, then what a reader asks for."""
    began = time.perf_counter()
    import aiohttp

    from whale_bench.view.server import ViewServer, run_id

    async with ViewServer(folder) as server, aiohttp.ClientSession() as client:
        base = f"{server.url}/api/runs/{run_id(folder)}"

        async def ask(path: str, **params: str) -> dict[str, object]:
            async with client.get(f"{base}/{path}", params=params) as answer:
                assert answer.status == 200, await answer.text()
                found: dict[str, object] = await answer.json()
                return found

        async with client.get(server.url) as answer:
            await answer.read()
        await ask("overview")
        page = await ask("rollouts", limit="50")
        _say(f"first table, of {page['total']:,} rollouts", began)
        slowest = 0.0
        while not (await ask("progress"))["done"]:
            await asyncio.sleep(0.25)
            asked = time.perf_counter()
            await ask("rollouts", limit="50")
            slowest = max(slowest, time.perf_counter() - asked)
        await ask("overview")
        page = await ask("rollouts", limit="50")
        _say(f"table of all {page['total']:,} rollouts", began)
        print(f"  slowest answer meanwhile: {1e3 * slowest:.0f} ms")
        for name, path, params in (
            ("page 1,000", "rollouts", {"offset": "50000", "limit": "50"}),
            ("sorted by tokens", "rollouts", {"sort": "tokens", "desc": "true"}),
            ("failed, with text", "rollouts", {"outcome": "failed", "text": "g2h1"}),
            ("by example", "examples", {"sort": "solved"}),
            ("a replay", "rollout", {"key": page["rows"][7]["key"]}),  # type: ignore[index]
        ):
            began = time.perf_counter()
            await ask(path, **params)
            print(f"  {name}: {1e3 * (time.perf_counter() - began):.0f} ms")


def one_file(folder: Path) -> None:
    from whale_bench.view.page import write_report

    began = time.perf_counter()
    written = write_report(folder, folder / "report.html")
    print(
        f"  page with {written.shown:,} of {written.of:,} rollouts: "
        f"{time.perf_counter() - began:.2f} s, {written.size / 1e6:.2f} MB"
    )


def part(name: str, folder: Path) -> None:
    if name == "serve":
        asyncio.run(first_table(folder))
    else:
        one_file(folder)
    print(f"  CPU in all: {time.process_time():.1f} s")
    print(f"  greatest memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--domain", default="chess_puzzles")
    parser.add_argument("--part", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        part(options.part[0], Path(options.part[1]))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        make(folder, options.domain, options.rollouts)
        size = (folder / "rollouts-0000.jsonl").stat().st_size
        print(f"{options.rollouts:,} rollouts of {options.domain}, {size / 1e6:,.0f} MB")
        environment = {**os.environ, "WHALE_CACHE": f"{scratch}/cache"}
        for title, name in (
            ("--serve, no index yet", "serve"),
            ("--serve, later", "serve"),
            ("one file", "page"),
        ):
            print(title, flush=True)
            command = [sys.executable, __file__, "--part", name, str(folder)]
            subprocess.run(command, check=True, env=environment)
        index = next((Path(scratch) / "cache" / "view").glob("*.sqlite"))
        print(f"index: {index.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
