"""Runs a recipe in a folder, or goes on with it: opens operators, store and ledger, then the one loop.

    asyncio.run(run_recipe(load_recipe("demo/harness_only"), Path("runs/harness"), operators=real_operators))
    asyncio.run(run_recipe(recipe_in(Path("runs/harness")), Path("runs/harness"), operators=real_operators))

    runs/harness/
        run.toml, harness.py    the resolved recipe, and h0
        rollouts-*.jsonl        every rollout of every purpose, as an evaluation writes them
        history.jsonl           every move and evaluation (history.py)
        harnesses/              sources of accepted harnesses
        archive/                of the search: every candidate (search/archive.py)
        archive.jsonl           its log (search/log.py)
        checkpoints/            of training, with metrics.jsonl (rsft_loop.py)
        weights/                of evaluated agents, as far as `keep` of [dev] says (serving.py)
        ledger.sqlite           the account
        summary.json            written at the end, and selected.py, the harness that dev selects

Whatever can be found wrong is found before there is a folder.

Not covered: the operators, which `operators` opens (`real_operators.py`, `simulated/opening.py`).
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from whale_baselines.alternate import (
    Evaluator,
    HarnessOperator,
    Report,
    WeightOperator,
    alternate,
    selected_on_dev,
)
from whale_baselines.curves import outcome_of, phase_lengths
from whale_baselines.history import Harness, History, Pair
from whale_baselines.play import Progress, no_progress
from whale_baselines.recipes import RunRecipe, decisive, recipe_from_tables
from whale_bench.ledger import Ledger
from whale_bench.plan import check_same
from whale_bench.store import ADDRESSES, RunStore, write_whole
from whale_envs import __version__
from whale_envs.errors import UsageError

KIND = "recipe"
"""In run.toml, of runs that were made here."""

_MOST_TOLD = 3
"""Settings that a refusal names."""


@dataclass(frozen=True, slots=True)
class Operators:
    """What the loop needs of a recipe."""

    trainer: WeightOperator | None
    search: HarnessOperator | None
    evaluator: Evaluator
    weights_id: str
    """Of the weights that the run begins with."""
    h0: Harness


class Opened(Protocol):
    """A recipe whose parts were found and opened; nothing of it is on the disk yet."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """What run.toml says besides the recipe."""
        ...

    @property
    def source(self) -> str | None:
        """Of h0; None where no agent runs it."""
        ...

    @property
    def explanation(self) -> Mapping[str, Any]:
        """Numbers for people, by name: what training takes."""
        ...

    async def operators(self, store: RunStore, ledger: Ledger, progress: Progress) -> Operators:
        """The operators on the run's folder, which is locked."""
        ...


OpenOperators = Callable[[RunRecipe], AbstractAsyncContextManager[Opened | None]]
"""Opens what a recipe needs, and closes it; None in a process that did its part in training meanwhile."""

Explained = Callable[[Mapping[str, Any]], bool]
"""Called with `Opened.explanation`; whether to go on."""


async def run_recipe(
    recipe: RunRecipe,
    folder: Path | None,
    *,
    operators: OpenOperators,
    report: Report | None = None,
    progress: Progress = no_progress,
    explained: Explained | None = None,
) -> None:
    """The whole run; where the folder holds it already, what is left of it.

    Args:
        recipe: what to run.
        folder: of the run; None where `explained` ends it.
        operators: opens the recipe's operators.
        report: called with each move and evaluation of this launch.
        progress: called as rollouts of real agents finish.
        explained: called once everything is open, before there is a folder.

    Raises:
        UsageError: the folder holds another run, or the recipe cannot be run.
        InfrastructureError: something is down; the same call goes on.
    """
    if folder is not None and (folder / "run.toml").exists():
        _check_recipe(recipe, folder)
    async with operators(recipe) as opened:
        if opened is None or (explained is not None and not explained(opened.explanation)):
            return
        if folder is None:
            raise UsageError("a run needs a folder: --out FOLDER")
        store = _open_store(recipe, folder, opened)
        with store, Ledger(folder / "ledger.sqlite") as ledger:
            history = History(folder)
            made = await opened.operators(store, ledger, progress)
            history.begin(Pair(made.weights_id, made.h0.harness_id), recipe.recipe_id)
            history.keep_harness(made.h0)
            await alternate(
                made.trainer,
                made.search,
                recipe.plan_schedule(),
                ledger,
                evaluator=made.evaluator,
                history=history,
                every=recipe.dev.every(),
                report=report,
            )
            _finish(recipe, store, history)


def recipe_in(folder: Path) -> RunRecipe:
    """The recipe of a run, from its folder alone.

    Raises:
        UsageError: the folder is no run of a recipe.
    """
    return recipe_of_run(RunStore.open(folder).settings, folder)


def seed_folders(place: Path) -> list[Path]:
    """The folder itself where it is a run's or nothing, else the runs that it holds, one a seed."""
    inside = sorted(path.parent for path in place.glob("*/run.toml"))
    return inside if inside and not (place / "run.toml").exists() else [place]


def recipe_of_run(settings: dict[str, Any], folder: Path) -> RunRecipe:
    """The recipe that a run's settings hold; h0 is the folder's copy, servers are where they were last.

    Raises:
        UsageError: they hold none.
    """
    if settings.get("kind") != KIND:
        raise UsageError(f"{folder} holds no run of a recipe")
    tables = dict(settings["tables"])
    agent = tables["agent"] | {name: settings[name] for name in ADDRESSES if name in settings}
    if "directory" in settings and Path(settings["directory"]).is_dir():
        agent["directory"] = settings["directory"]
    if "harness" in agent and (folder / "harness.py").is_file():
        agent["harness"] = str(folder / "harness.py")
    return recipe_from_tables(settings["name"], tables | {"agent": agent})


def _check_recipe(recipe: RunRecipe, folder: Path) -> None:
    found = recipe_in(folder)
    if found.recipe_id == recipe.recipe_id:
        return
    told = [f"{key} is {was!r} there and {now!r} here" for key, (was, now) in decisive(found, recipe).items()]
    more = f"; and {len(told) - _MOST_TOLD} more" if len(told) > _MOST_TOLD else ""
    raise UsageError(
        f"{folder} holds a run of {found.name} with other settings than {recipe.name}: "
        f"{'; '.join(told[:_MOST_TOLD]) or 'its harness file is another one'}{more}"
    )


def _open_store(recipe: RunRecipe, folder: Path, opened: Opened) -> RunStore:
    settings = dict(opened.settings) | _settings(recipe)
    if not (folder / "run.toml").exists():
        return RunStore.create(folder, settings, opened.source)
    store = RunStore.open(folder)
    check_same(store.settings, settings, folder)
    store.write_addresses(settings)
    if opened.source is not None:
        store.write_harness(opened.source)  # a kill may have come before `create` did
    return store


def _finish(recipe: RunRecipe, store: RunStore, history: History) -> None:
    selected = selected_on_dev(history)
    if selected is not None and not recipe.simulated:
        source = history.harness(selected.harness_id).source
        write_whole(store.folder / "selected.py", source.encode())
    store.write_summary(
        {
            "recipe": recipe.name,
            "domain": recipe.domain,
            "fixture": store.settings["fixture"],
            "outcome": outcome_of(history),
            "phases": [phase._asdict() for phase in phase_lengths(history.moves)],
        }
    )


def _settings(recipe: RunRecipe) -> dict[str, Any]:
    tables = asdict(recipe)
    name = tables.pop("name")
    tables["agent"] = {key: value for key, value in tables["agent"].items() if key not in ADDRESSES}
    fixture = {"fixture": True} if recipe.simulated else {}
    return fixture | {
        "kind": KIND,
        "name": name,
        "domain": recipe.domain,
        "seed": recipe.recipe.seed,
        "recipe_id": recipe.recipe_id,
        "versions": {"whale-envs": __version__},
        "tables": _without_none(tables),
    }


def _without_none(value: Any) -> Any:
    """As TOML can hold it."""
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return list(value) if isinstance(value, tuple) else value
