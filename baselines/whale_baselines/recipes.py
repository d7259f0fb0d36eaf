"""Recipes: TOML files that say everything about a run, each as its difference from another one.

    recipe = load_recipe("paper/search_qa/whale")       # shipped; or a path to a file of one's own
    recipe.schedule.iterations                          # 6
    differences(recipe, load_recipe("paper/search_qa/fst"))     # {"search.prompt_only": (False, True)}

    # my.toml
    base = "demo/math_python/whale"
    [schedule]
    iterations = 4

`base` names another recipe, whose tables this one's are laid over, key by key. Every key is checked in
every file, so that a misspelt one is never a default. Two methods of a domain share its base and differ
in a few lines, and these lines are all that differs between their runs.

Not covered: where they stand (`recipe_files.py`), running one (`alternate.py`), what it takes (`plan.py`).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from whale_baselines.recipe import Recipe as TrainerRecipe
from whale_baselines.recipe import recipe_of
from whale_baselines.recipe_files import read_recipe
from whale_baselines.schedule import Schedule, steps_per_epoch
from whale_baselines.search.recipe import SearchRecipe
from whale_baselines.search.sources import clean, source_id
from whale_baselines.settings import (
    DevSettings,
    EstimateSettings,
    FilterSettings,
    ScheduleSettings,
    schedule_of,
    table,
)
from whale_bench.plan import EvalPlan
from whale_bench.store import ADDRESSES
from whale_envs import SPLITS, get_domain
from whale_envs.errors import UnknownNameError, UsageError

SIMULATED = "simulated"
"""In place of a domain, for the simulated learner."""

_DECIDED = {"split": "[dev] and the operators choose it", "k": "samples of [recipe] and [dev]",
            "seed": "seed of [recipe]", "n": "counts of [filter]",
            "families": "groups of [filter]"}  # fmt: skip
"""Fields of an evaluation that other tables decide."""

_AGENT = tuple(sorted({field.name for field in fields(EvalPlan)} - _DECIDED.keys()))
_TABLES = ("agent", "recipe", "search", "proposer", "schedule", "dev", "filter", "estimate")
_NO_MATTER = (*ADDRESSES, "directory", "concurrency")
"""Fields of [agent] that say where something is, or how much of it at once."""
_MOST_BASES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecipe:
    """A resolved recipe."""

    name: str
    agent: Mapping[str, Any]
    """Fields of `EvalPlan`; of a simulated one only the domain."""
    recipe: TrainerRecipe
    search: SearchRecipe
    proposer: Mapping[str, Any]
    """The proposer's own settings."""
    schedule: ScheduleSettings
    dev: DevSettings
    filter: FilterSettings
    estimate: EstimateSettings

    @property
    def domain(self) -> str:
        return str(self.agent["domain"])

    @property
    def simulated(self) -> bool:
        """Whether it is a fixture, which no ranking takes."""
        return self.domain == SIMULATED

    @property
    def recipe_id(self) -> str:
        """Hash of what decides a run: not its name, rates of estimates, or where files and servers are."""
        kept = asdict(self)
        del kept["name"], kept["estimate"]
        kept["agent"] = {key: value for key, value in self.agent.items() if key not in _NO_MATTER}
        if "harness" in self.agent:
            kept["agent"]["harness"] = _file_id(Path(self.agent["harness"]))
        return f"sha256:{hashlib.sha256(msgspec.json.encode(kept, order='sorted')).hexdigest()}"

    def with_seed(self, seed: int) -> "RunRecipe":
        """The same with every seed set."""
        return replace(self, recipe=replace(self.recipe, seed=seed), search=replace(self.search, seed=seed))

    def eval_plan(self, split: str, k: int) -> EvalPlan:
        """The agent on a split, as an evaluation takes it; the filter is not in it."""
        return EvalPlan(**self.agent, split=split, k=k, seed=self.recipe.seed)

    def examples(self, split: str) -> int:
        """How many examples of a split there are, the filter's counts applied; nothing is loaded."""
        if self.simulated:
            from whale_baselines.simulated.world import EXAMPLES

            return EXAMPLES[split]
        count: int | None = getattr(self.filter, split)
        sizes = get_domain(self.domain).module.SIZES[self.agent.get("tier", "mini")]
        return int(sizes[split]) if count is None else count

    def plan_schedule(self) -> Schedule:
        """The schedule, with the budget's costs."""
        trainer, search = self.recipe, self.search
        per_epoch = self.schedule.steps_per_epoch or (
            1 if self.schedule.kind == "harness_only"
            else steps_per_epoch(self.examples("weight"), trainer.prompts)
        )  # fmt: skip
        iteration = search.slots * (search.examples + search.smoke)
        costs = (trainer.prompts * trainer.samples, search.examples, iteration)
        return schedule_of(self.schedule, per_epoch, costs)


def load_recipe(name: str) -> RunRecipe:
    """The recipe of that name or in that file.

    Raises:
        UsageError: there is none, it cannot be read, or it says what cannot be.
    """
    place, content = read_recipe(name)
    tables = _merged(name, place, content, 0)
    try:
        return _resolved(name, tables)
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from error


def recipe_from_tables(name: str, tables: Mapping[str, Mapping[str, Any]]) -> RunRecipe:
    """A recipe from its tables as they stand in a run's settings.

    Raises:
        UsageError: they say what cannot be.
    """
    return _resolved(name, tables)


def differences(a: RunRecipe, b: RunRecipe) -> dict[str, tuple[Any, Any]]:
    """What two recipes do not share: "table.key" to the value in each, in order."""
    left, right = _flat(a), _flat(b)
    return {
        key: (left.get(key), right.get(key))
        for key in sorted(left.keys() | right.keys())
        if left.get(key) != right.get(key)
    }


def decisive(a: RunRecipe, b: RunRecipe) -> dict[str, tuple[Any, Any]]:
    """Those of `differences` that make it another run; the text of a harness file is not among them."""
    no_matter = {f"agent.{name}" for name in (*_NO_MATTER, "harness")}
    return {
        key: both
        for key, both in differences(a, b).items()
        if key not in no_matter and not key.startswith("estimate.")
    }


def _flat(recipe: RunRecipe) -> dict[str, Any]:
    return {
        f"{table_name}.{key}": value
        for table_name, values in asdict(recipe).items()
        if table_name != "name"
        for key, value in values.items()
    }


def _resolved(name: str, tables: Mapping[str, Mapping[str, Any]]) -> RunRecipe:
    agent = dict(tables.get("agent", {}))
    if isinstance(agent.get("base_url"), list):
        agent["base_url"] = tuple(agent["base_url"])
    for key in ("domain",) if agent.get("domain") == SIMULATED else ("domain", "model"):
        if key not in agent:
            raise UsageError(f"[agent] lacks {key!r}")
    trainer = recipe_of(dict(tables.get("recipe", {})))
    if agent["domain"] != SIMULATED:
        EvalPlan(**agent, split="weight", k=trainer.samples, seed=trainer.seed)  # it checks the values
        get_domain(agent["domain"])
    found = RunRecipe(
        name=name,
        agent=agent,
        recipe=trainer,
        search=table(SearchRecipe, tables.get("search", {}), "search"),
        proposer=dict(tables.get("proposer", {})),
        schedule=table(ScheduleSettings, tables.get("schedule", {}), "schedule"),
        dev=table(DevSettings, tables.get("dev", {}), "dev"),
        filter=table(FilterSettings, tables.get("filter", {}), "filter"),
        estimate=table(EstimateSettings, tables.get("estimate", {}), "estimate"),
    )
    _check_counts(found)
    _check_temperature(found)
    found.plan_schedule()
    return found


def _check_temperature(recipe: RunRecipe) -> None:
    """Whether training takes the logits as sampling does."""
    if recipe.simulated or recipe.schedule.kind == "harness_only":
        return
    sampled, trained = recipe.eval_plan("weight", 1).temperature, recipe.recipe.temperature
    if sampled != trained:
        raise UsageError(
            f"temperature of [agent] is {sampled} and of [recipe] {trained}: the loss divides logits by what "
            "sampling divides them by, so set both alike"
        )


def _check_counts(recipe: RunRecipe) -> None:
    if recipe.dev.samples < 1:
        raise UsageError(f"[dev] samples must be at least 1, got {recipe.dev.samples}")
    counts = {split: getattr(recipe.filter, split) for split in SPLITS}
    if recipe.filter.groups and None in counts.values():
        raise UsageError(f"[filter] by groups says how many of each split there are, got {counts}")
    if recipe.simulated or recipe.schedule.kind == "weight_only":
        return
    there = recipe.examples("harness")
    if recipe.search.examples > there:
        raise UsageError(f"[search] examples is {recipe.search.examples}, and the harness split has {there}")


def _merged(name: str, place: Path, content: dict[str, Any], depth: int) -> dict[str, dict[str, Any]]:
    """The tables of a recipe laid over those of its base."""
    if depth > _MOST_BASES:
        raise UsageError(f"{name}: more than {_MOST_BASES} bases in a row; does one name itself?")
    _check_keys(name, content)
    below: dict[str, dict[str, Any]] = {}
    if (base := content.get("base")) is not None:
        below = _merged(base, *read_recipe(base), depth + 1)
    above = {key: value for key, value in content.items() if key != "base"}
    if isinstance(harness := above.get("agent", {}).get("harness"), str):
        above["agent"] = above["agent"] | {"harness": str(place.parent / harness)}
    return {key: {**below.get(key, {}), **above.get(key, {})} for key in below.keys() | above.keys()}


def _check_keys(name: str, content: Mapping[str, Any]) -> None:
    place = name
    known = {
        "agent": _AGENT,
        "recipe": tuple(get_type_hints(TrainerRecipe)),
        "search": tuple(get_type_hints(SearchRecipe)),
        "proposer": (),
        "schedule": tuple(get_type_hints(ScheduleSettings)),
        "dev": tuple(get_type_hints(DevSettings)),
        "filter": tuple(get_type_hints(FilterSettings)),
        "estimate": tuple(get_type_hints(EstimateSettings)),
    }
    if not isinstance(content.get("base", ""), str):
        raise UsageError(f"{place}: base is the name of a recipe, got {content['base']!r}")
    for key, values in content.items():
        if key == "base":
            continue
        if key not in known:
            raise UnknownNameError(f"table in {place}:", key, ["base", *_TABLES])
        if not isinstance(values, dict):
            raise UsageError(f"{place}: [{key}] is a table, got {values!r}")
        for field in values if key != "proposer" else ():  # which checks its own
            if key == "agent" and field in _DECIDED:
                raise UsageError(f"{place}: [agent] has no {field!r}: {_DECIDED[field]}")
            if field not in known[key]:
                raise UnknownNameError(f"key in {place}, [{key}]:", field, known[key], most=30)


def _file_id(path: Path) -> str:
    try:
        return source_id(clean(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
