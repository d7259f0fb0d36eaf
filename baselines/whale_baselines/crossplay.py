"""Plays every kept weights of a run with every harness that it accepted: the cross-play matrix.

    matrix = asyncio.run(crossplay(Path("runs/whale")))
    matrix.gap()                                        # how much better weights do with their own harness
    write_crossplay(matrix, Path("runs/whale"), Path("crossplay.html"))

For a run with `keep = "points"` in [dev], whose weights are all there; of another one what it kept. Rollouts
are the evaluator's: they stand in the run's folder and ledger under the purpose `dev`, and a pair that
the run itself evaluated is not played again.

Not covered: weights on a server; the split `test`.
"""

from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from whale_baselines.curves import CrossPlay
from whale_baselines.filters import filtered
from whale_baselines.history import History
from whale_baselines.page import document, static, text
from whale_baselines.play import Jobs, Progress, jobs_of, no_progress, twelve
from whale_baselines.recipes import RunRecipe
from whale_baselines.run_recipe import recipe_in
from whale_baselines.serving import Agents
from whale_bench.engine import Task
from whale_bench.evaluation import open_resources
from whale_bench.ledger import Ledger
from whale_bench.models import Backend, load_backend
from whale_bench.statistics import Score, mean_at_k
from whale_bench.store import RunStore
from whale_bench.view.page import write_page
from whale_envs.errors import InfrastructureError, UsageError

SHADES = 9


async def crossplay(folder: Path, *, progress: Progress = no_progress) -> CrossPlay:
    """The matrix on dev, with as many samples as the run's evaluations have.

    Raises:
        UsageError: the folder is no run of a real model here, or has no evaluation yet.
        InfrastructureError: rollouts are missing; the same call goes on.
    """
    recipe, history = recipe_in(folder), History(folder, readonly=True)
    plan = recipe.eval_plan("dev", recipe.dev.samples)
    points = [point for point in history.points if point.split == "dev"]
    if recipe.simulated or not points:
        raise UsageError(f"{folder} has no evaluation of a real model yet")
    weights = [
        one for one in dict.fromkeys(p.weights_id for p in points) if _name(recipe, folder, one, history)
    ]
    harnesses = list(dict.fromkeys(point.harness_id for point in points))
    examples = filtered(plan.domain, plan.tier, "dev", recipe.filter)
    ids, samples = examples.ids, range(recipe.dev.samples)
    rows: list[tuple[Score, ...]] = []
    async with AsyncExitStack() as stack:
        resources = await open_resources(plan, stack)
        task = Task(plan.domain, examples, plan.profile, plan.max_tokens, plan.token_budget, resources)
        store = stack.enter_context(RunStore.open(folder))
        ledger = stack.enter_context(Ledger(folder / "ledger.sqlite"))
        jobs = Jobs(store, ledger, recipe.recipe.seed, plan.concurrency, progress)
        agents = Agents(plan, folder)
        stack.push_async_callback(agents.aclose)
        for weights_id in weights:
            row: list[Score] = []
            async with _backend(recipe, folder, weights_id, history) as backend:
                for harness_id in harnesses:
                    agent = await agents.of(history.harness(harness_id), backend)
                    done = await jobs.play(jobs_of("dev", agent, task, ids, samples, weights_id=weights_id))
                    rewards = [record.verdict.reward for record in done.values()]
                    row.append(
                        mean_at_k(
                            [rewards[at : at + len(samples)] for at in range(0, len(rewards), len(samples))]
                        )
                    )
            rows.append(tuple(row))
    return CrossPlay(
        weights=tuple(weights),
        harnesses=tuple(harnesses),
        scores=tuple(rows),
        partner={point.weights_id: point.harness_id for point in points},
    )


def write_crossplay(matrix: CrossPlay, folder: Path, out: Path) -> Path:
    """Writes the matrix as a heat map, one page; beside it the run's folder gets crossplay.json."""
    style = static("whale_baselines", "comparison.css")
    where = folder.resolve().name
    page = document(f"Cross-play: {where}", where, "\n".join(_body(matrix)), style=style)
    write_page(msgspec.json.encode(matrix), folder / "crossplay.json")
    write_page(page.encode(), out)
    return out


def _body(matrix: CrossPlay) -> Iterator[str]:
    gap = matrix.gap()
    yield '<div class="heading"><h1>Cross-play on dev</h1></div>'
    told = (
        "there is nothing to compare" if gap is None else f"{gap.mean:+.1%} [{gap.low:+.1%}, {gap.high:+.1%}]"
    )
    yield f"<p>Co-adaptation gap, own harness less the others: {told}.</p>"
    yield '<p class="note">Rows: weights, oldest first. Columns: harnesses. Outlined: as in the run.</p>'
    yield '<div class="scroll" tabindex="0" role="region" aria-label="Matrix"><table class="heat"><thead><tr>'
    yield '<th scope="col">Weights</th>'
    for harness_id in matrix.harnesses:
        yield f'<th scope="col">{text(twelve(harness_id))}</th>'
    yield "</tr></thead><tbody>"
    most = max((score.mean for row in matrix.scores for score in row), default=0.0) or 1.0
    for weights_id, row in zip(matrix.weights, matrix.scores, strict=True):
        yield f'<tr><th scope="row">{text(twelve(weights_id))}</th>'
        for harness_id, score in zip(matrix.harnesses, row, strict=True):
            own = " own" if matrix.partner.get(weights_id) == harness_id else ""
            shade = round(SHADES * score.mean / most)
            yield f'<td class="heat{shade}{own}">{score.mean:.1%}<br>± {score.stderr:.1%}</td>'
        yield "</tr>"
    yield "</tbody></table></div>"


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
