"""A run as a server has it: its first rollouts at once, all of them as soon as they are indexed.

    run = LiveRun(Path("runs/demo"))
    index = await run.index()                    # of all rollouts, or of the first ones until then
    run.done, run.read, run.total                # how far the index is, in bytes
    await run.close()

A large run is indexed by a process of its own, so that questions are answered meanwhile; one that is killed
is started again. Where the run's files change later, the index that is there answers until the next one is.
Small runs are indexed before the first answer.

Not covered: what is asked, see `server.py`; calls of one run that overlap.
"""

import asyncio
import os
import sys
from pathlib import Path

import msgspec

from whale_bench.store import RunStore
from whale_bench.view.index import RunIndex
from whale_envs.errors import UsageError

SMALL = 16 * 2**20
"""Bytes of rollouts up to which a run is indexed in a moment, in this process."""

FIRST = 500
"""Rollouts of the beginning of a run that can be looked at before all are read."""

RESTARTS = 2
"""How often the process that indexes is started again after a kill."""


class _Said(msgspec.Struct):
    """A line of `build.py`."""

    read: int = 0
    total: int = 0
    error: str = ""


class LiveRun:
    """A run and its index, begun by the first question."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read = self.total = 0
        """Bytes, while the index is built."""
        self._first: RunIndex | None = None
        self._whole: RunIndex | None = None
        self._building: asyncio.Task[RunIndex] | None = None

    @property
    def done(self) -> bool:
        """Whether there is an index of all rollouts, as far as is known."""
        return self._whole is not None and self._building is None

    async def index(self) -> RunIndex:
        """The best index that there is now; the caller reads it before the next call.

        Raises:
            UsageError: the run cannot be read; the next call begins anew.
        """
        if self._building is None and not await self._is_good():
            found = await asyncio.to_thread(RunIndex.reuse, self.folder)
            if found is not None:
                self._replace(found)
            else:
                self.read = self.total = 0
                self._building = asyncio.create_task(self._build())
        if self._building is not None and (self._building.done() or await asyncio.to_thread(self._is_small)):
            await self._take(self._building)
        return self._whole or await self._beginning()

    async def close(self) -> None:
        if self._building is not None:
            self._building.cancel()
            (ended,) = await asyncio.gather(self._building, return_exceptions=True)
            if isinstance(ended, RunIndex):
                ended.close()
        for index in (self._first, self._whole):
            if index is not None:
                index.close()
        self._building = self._first = self._whole = None

    async def _is_good(self) -> bool:
        """Whether the index is one of the files as they are."""
        whole = self._whole
        return whole is not None and not await asyncio.to_thread(lambda: whole.stale)

    def _is_small(self) -> bool:
        try:
            return sum(part.stat().st_size for part in RunStore.open(self.folder).parts()) <= SMALL
        except OSError as error:
            raise UsageError(f"{self.folder}: cannot be read: {error}") from error

    async def _take(self, building: asyncio.Task[RunIndex]) -> None:
        try:
            self._replace(await asyncio.shield(building))
        finally:
            if building.done():
                self._building = None

    def _replace(self, whole: RunIndex) -> None:
        for index in (self._first, self._whole):
            if index is not None:
                index.close()
        self._first, self._whole = None, whole

    async def _beginning(self) -> RunIndex:
        if self._first is None:
            self._first = await asyncio.to_thread(RunIndex.first, self.folder, FIRST)
        return self._first

    async def _build(self) -> RunIndex:
        if await asyncio.to_thread(self._is_small):
            return await asyncio.to_thread(RunIndex.open, self.folder, progress=self._progress)
        await self._build_apart()
        found = await asyncio.to_thread(RunIndex.reuse, self.folder, stale=True)  # the run may be going on
        if found is None:
            raise UsageError(f"{self.folder}: its index is gone as soon as it was built")
        return found

    def _progress(self, read: int, total: int) -> None:
        self.read, self.total = read, total

    async def _build_apart(self) -> None:
        """Has the index built by a process of its own."""
        for _ in range(1 + RESTARTS):
            code = await self._run_builder()
            if code >= 0:
                break
        else:
            raise UsageError(
                f"{self.folder}: the process that reads the run is killed each time, last by {-code}"
            )
        if code:
            raise UsageError(f"{self.folder}: the process that reads the run ended with exit code {code}")

    async def _run_builder(self) -> int:
        path = os.pathsep.join(
            entry for entry in sys.path if entry
        )  # as this process imports, but not from cwd
        builder = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "whale_bench.view.build", str(self.folder.resolve())),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # a Ctrl-C in the terminal is for the server, which ends it
        )
        assert builder.stdout is not None
        try:
            async for line in builder.stdout:
                said = msgspec.json.decode(line, type=_Said)
                if said.error:
                    raise UsageError(said.error)
                self._progress(said.read, said.total)
            return await builder.wait()
        finally:
            if builder.returncode is None:
                builder.kill()
                await builder.wait()
