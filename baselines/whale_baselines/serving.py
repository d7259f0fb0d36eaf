"""Who is served in a run: its weights, present and earlier, and the harness around them.

    serving = Serving(backend, folder / "weights", phase, base)
    async with serving.served(weights_id) as backend: ...

    agents = Agents(plan, folder / "harnesses")
    agent = await agents.of(harness, backend)

Training keeps its newest checkpoints only. An agent that dev may select, and that test is to see at the
end of the run, must not be lost with them: the weights of an evaluated agent are linked into `weights/` (a
hard link costs no space while the checkpoint is there). Earlier weights are served from there by a second
backend where the first one shares the trainer's memory, and by a reload, and a reload back, elsewhere.

Not covered: weights of a server that nobody here trains, of which there is only one kind.
"""

import os
import shutil
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from whale_baselines.history import Harness, harness_path
from whale_baselines.loss import logprobs_of
from whale_baselines.play import twelve
from whale_baselines.rsft_loop import Phase
from whale_baselines.search.admit import open_harness
from whale_baselines.weights import load_model
from whale_bench.engine import Agent
from whale_bench.models import Backend, load_backend
from whale_bench.models.base import Reloadable, names_weights
from whale_bench.models.folder import HASHED
from whale_bench.models.openai_reload import ReloadedServer
from whale_bench.plan import EvalPlan
from whale_envs.errors import InfrastructureError

_HALF = ".half-written-"


@dataclass(slots=True)
class Serving:
    """The backend of a run, and what it has served."""

    backend: Backend
    root: Path
    """Folder of kept weights."""
    phase: Phase | None
    """None where nothing is trained."""
    base: Path | None
    """Folder of the weights that the run began with; None where nothing is trained."""

    def keep(self, weights_id: str) -> None:
        """Links the weights of the newest checkpoint into `root`, if these are they and not the base's.

        Raises:
            InfrastructureError: they cannot be written.
        """
        place = self._place(weights_id)
        if self.phase is None or weights_id == self.phase.now.state.base_id or place.exists():
            return
        folder, state = self.phase.now
        if state.weights_id != weights_id:
            return
        half = place.with_name(f"{_HALF}{place.name}")
        try:
            shutil.rmtree(half, ignore_errors=True)
            half.mkdir(parents=True)
            for path in sorted(folder.iterdir()):
                if path.is_file() and path.suffix in HASHED:
                    _link(path, half / path.name)
            half.rename(place)
        except OSError as error:
            raise InfrastructureError(f"{place}: cannot be written: {error}") from error

    def prune(self, wanted: Iterable[str]) -> None:
        """Deletes what is kept of other weights than these."""
        names = {twelve(weights_id) for weights_id in wanted}
        for path in self.root.iterdir() if self.root.exists() else ():
            if path.name not in names:
                shutil.rmtree(path, ignore_errors=True)

    def folder_of(self, weights_id: str) -> Path | None:
        """Where these weights lie; None where they are not there any more."""
        if self.phase is not None and weights_id == self.phase.now.state.base_id:
            return self.base
        place = self._place(weights_id)
        return place if place.exists() else None

    @asynccontextmanager
    async def served(self, weights_id: str) -> AsyncIterator[Backend]:
        """A backend that serves these weights; afterwards the run's own serves what it did before.

        Raises:
            InfrastructureError: they are not there any more.
        """
        if names_weights(self.backend.weights_id, weights_id):
            yield self.backend
            return
        folder = self.folder_of(weights_id)
        if folder is None or self.phase is None:
            raise InfrastructureError(
                f"weights {weights_id} are neither served nor in {self.root}, so they cannot be evaluated"
            )
        own = self.backend
        if isinstance(own, ReloadedServer):  # the trainer's log-probabilities would be of later weights
            await own.reload(folder, logprobs=partial(_logprobs_in, folder))
        elif getattr(own, "shares", False) or not isinstance(own, Reloadable):
            async with load_backend(f"local/{folder.resolve()}") as other:
                yield _checked(other, weights_id)
            return
        else:
            await own.reload(folder)
        try:
            yield _checked(own, weights_id)
        finally:
            await own.reload(self.phase.now.folder)

    def _place(self, weights_id: str) -> Path:
        return self.root / twelve(weights_id)


@dataclass(slots=True)
class Agents:
    """Opens a harness of the run, one at a time; a context manager."""

    plan: EvalPlan
    """The agent, but for its harness."""
    folder: Path
    """Of a run, whose `harnesses/` they are in."""
    _agent: Agent | None = None
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def of(self, harness: Harness, backend: Backend) -> Agent:
        """The agent of this harness on that backend, until another harness is asked for."""
        if self._agent is None or self._agent.harness_id != harness.harness_id:
            await self.aclose()
            path = harness_path(self.folder, harness.harness_id)
            self._agent = await open_harness(self.plan, backend, path, self._stack)
        return replace(self._agent, backend=backend)

    async def aclose(self) -> None:
        self._agent = None
        await self._stack.aclose()


def _logprobs_in(folder: Path, prompts: Sequence[tuple[int, ...]]) -> list[float]:
    """Those of the weights in a folder, which are loaded for it."""
    return logprobs_of(load_model(folder), prompts)


def _checked(backend: Backend, weights_id: str) -> Backend:
    if not names_weights(backend.weights_id, weights_id):
        raise InfrastructureError(f"{backend.weights_id} is served in place of {weights_id}")
    return backend


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copyfile(source, target)
