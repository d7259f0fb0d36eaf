"""Plays every kept weights of a run with every harness that it accepted: the cross-play matrix.

    matrix = asyncio.run(crossplay(Path("runs/whale")))
    matrix.gap                                          # how much better weights do with their own harness

    runs/whale/crossplay/
        run.toml, rollouts-*.jsonl, ledger.sqlite       # an account of its own
        matrix.json                                     # `CrossPlay`, see curves.py
        index.html                                      # crossplay_page.py

For a run with `keep = "points"` in [dev], whose weights are all there; of another one what it kept. It is
analysis after the run, on examples of dev, and chooses nothing: the run's own folder and ledger stay as they
are. Whoever does choose an agent from it has spent these rollouts on that agent, and packs the folder
beside the run's. A pair that the run itself evaluated is not played again.

Not covered: weights on a server; the split `test`.
"""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec

from whale_baselines.curves import CrossPlay, cross_play
from whale_baselines.evaluator import by_example, means_of
from whale_baselines.filters import filtered
from whale_baselines.history import History
from whale_baselines.play import Jobs, Progress, jobs_of, no_progress, twelve
from whale_baselines.recipes import RunRecipe
from whale_baselines.run_recipe import recipe_in
from whale_baselines.serving import Agents
from whale_bench.engine import Agent, Task
from whale_bench.evaluation import open_resources
from whale_bench.ledger import Ledger
from whale_bench.models import Backend, load_backend
from whale_bench.store import RunStore, write_whole
from whale_envs.errors import InfrastructureError, UsageError

FOLDER, MATRIX = "crossplay", "matrix.json"
"""Of a run's folder, and in it."""
KIND = "crossplay"
"""In run.toml."""


async def crossplay(folder: Path, *, progress: Progress = no_progress) -> CrossPlay:
    """The matrix on dev, with as many samples as the run's evaluations have; also writes it.

    Raises:
        UsageError: the folder is no run of a real model here, or has no evaluation yet.
        InfrastructureError: rollouts are missing; the same call goes on.
    """
    recipe, history = recipe_in(folder), History(folder, readonly=True)
    points = [point for point in history.points if point.split == "dev"]
    if recipe.simulated:
        raise UsageError(f"{folder} is simulated: there are no weights to play")
    if not points:
        raise UsageError(f"{folder} has no evaluation yet")
    plan = recipe.eval_plan("dev", recipe.dev.samples)
    weights = [
        one for one in dict.fromkeys(p.weights_id for p in points) if _name(recipe, folder, one, history)
    ]
    harnesses = list(dict.fromkeys(point.harness_id for point in points))
    examples = filtered(plan.domain, plan.tier, "dev", recipe.filter)
    rows: list[list[list[float]]] = []
    async with AsyncExitStack() as stack:
        resources = await open_resources(plan, stack)
        task = Task(plan.domain, examples, plan.profile, plan.max_tokens, plan.token_budget, resources)
        store = stack.enter_context(_store(folder))
        ledger = stack.enter_context(Ledger(store.folder / "ledger.sqlite"))
        jobs = Jobs(store, ledger, recipe.recipe.seed, plan.concurrency, progress)
        playing = _Playing(jobs, task, recipe.dev.samples, _known(folder))
        agents = Agents(plan, folder)
        stack.push_async_callback(agents.aclose)
        for weights_id in weights:
            async with _backend(recipe, folder, weights_id, history) as backend:
                rows.append(
                    [
                        await playing.means(await agents.of(history.harness(one), backend), weights_id)
                        for one in harnesses
                    ]
                )
    matrix = cross_play(weights, harnesses, rows, {point.weights_id: point.harness_id for point in points})
    text = msgspec.json.format(msgspec.json.encode(matrix), indent=2)
    write_whole(folder / FOLDER / MATRIX, text + b"\n")
    return matrix


def matrix_of(folder: Path) -> CrossPlay | None:
    """The matrix of a run, where it was played; None where not.

    Raises:
        UsageError: its file is damaged.
    """
    path = folder / FOLDER / MATRIX
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=CrossPlay)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}; `crossplay` writes it anew") from error


class _Playing(NamedTuple):
    """Who plays, and what was played before."""

    jobs: Jobs
    task: Task
    samples: int
    known: Mapping[str, float]
    """Rewards of the run's own evaluations, by key."""

    async def means(self, agent: Agent, weights_id: str) -> list[float]:
        """The mean reward of the agent's samples on each example."""
        samples, ids = range(self.samples), self.task.examples.ids
        wanted = jobs_of("dev", agent, self.task, ids, samples, weights_id=weights_id)
        missing = {key: job for key, job in wanted.items() if key not in self.known}
        done = await self.jobs.play(missing)
        rewards = [self.known[key] if key in self.known else done[key].verdict.reward for key in wanted]
        return means_of(by_example(rewards, self.samples))


def _store(folder: Path) -> RunStore:
    """The folder of the cross-play, with the run's settings."""
    place = folder / FOLDER
    if (place / "run.toml").exists():
        return RunStore.open(place)
    settings = RunStore.open(folder).settings
    kept = {name: value for name, value in settings.items() if name not in ("format", "settings_id")}
    return RunStore.create(place, kept | {"kind": KIND}, None)


def _known(folder: Path) -> dict[str, float]:
    return {
        row.key: row.verdict.reward for row in RunStore.open(folder).outcomes() if row.key.startswith("dev:")
    }


def _name(recipe: RunRecipe, folder: Path, weights_id: str, history: History) -> str:
    """The backend that serves these weights, as `load_backend` takes it; empty where they are gone."""
    place = folder / "weights" / twelve(weights_id)
    if place.is_dir():
        return f"local/{place.resolve()}"
    model = str(recipe.agent["model"])
    return model if weights_id == history.start.weights_id else ""


def _backend(recipe: RunRecipe, folder: Path, weights_id: str, history: History) -> Backend:
    name, agent = _name(recipe, folder, weights_id, history), recipe.agent
    backend = load_backend(
        name,
        base_url=agent.get("base_url"),
        tokenizer=agent.get("tokenizer"),
        directory=agent.get("directory"),
    )
    if backend.weights_id != weights_id:
        raise InfrastructureError(f"{name} is {backend.weights_id}, and the run had {weights_id}")
    return backend
