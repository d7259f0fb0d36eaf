"""What `whale-bench view` does once its options are read: write a page or serve, and open the browser.

    show(Path("runs/demo"), out=None, browser=True)

Progress goes to standard error; the page's path, or the server's address, to standard output.

Not covered: parsing options, exit codes.
"""

import asyncio
import contextlib
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from whale_bench.view.index import Progress as Report
from whale_bench.view.loopback import stop_signal
from whale_bench.view.page import write_report
from whale_bench.view.server import ViewServer, find_runs
from whale_envs.errors import UsageError


def show(folder: Path, *, out: Path | None, browser: bool) -> None:
    """Writes a run's page to `out`, or into its folder, and opens it."""
    if not (folder / "run.toml").is_file() and folder.is_dir() and find_runs(folder):
        raise UsageError(f"{folder} holds several runs: name one of them, or give --serve")
    with _progress("reading the run") as report:
        written = write_report(folder, out or folder / "report.html", progress=report)
    if written.shown < written.of:
        _say(f"the page holds {written.shown:,} of {written.of:,} rollouts; --serve shows all")
    _say(f"{written.size / 1e6:.1f} MB, {written.shown:,} rollouts")
    sys.stdout.write(f"{written.path}\n")
    sys.stdout.flush()
    if browser:
        _browse(written.path.resolve().as_uri())


def serve(folder: Path, *, port: int, browser: bool) -> None:
    """Serves a run or a folder of runs until Ctrl-C or SIGTERM."""
    asyncio.run(_serve(folder, port, browser=browser))


async def _serve(folder: Path, port: int, *, browser: bool) -> None:
    async with ViewServer(folder, port) as server:
        stop = stop_signal()
        _say("serving to this machine; Ctrl-C stops it")
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        if browser:
            await asyncio.to_thread(_browse, server.url)
        await stop.wait()


def _browse(url: str) -> None:
    try:
        opened = webbrowser.open(url)
    except webbrowser.Error:
        opened = False
    if not opened:
        _say("no browser could be opened; the address stands above")


@contextmanager
def _progress(label: str) -> Iterator[Report]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _say(line: str) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.write(f"{line}\n")
