"""What a weight run is to do (`WeightPlan`), read from a TOML file or a shipped recipe.

    steps = 3
    [agent]                     # what `whale-bench eval` takes, but for split, k and seed
    domain = "math_python"
    model = "local/smollm2"
    tier = "small"
    harness = "mine.py"         # beside this file
    [filter]                    # optional: of which problems, for training and `dev` alike
    families = ["largest_of_three"]
    [recipe]                    # what differs from the paper's, see recipe.py
    prompts = 16
    lr = 3e-5
    [dev]                       # optional: when to evaluate on `dev`, see dev.py
    every = 5

    plan = read_plan(find_recipe("demo/weight_only"))

Not covered: recipes that build on one another.
"""

import tomllib
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from whale_baselines.dev import DevPlan
from whale_baselines.recipe import Recipe, recipe_of
from whale_bench.plan import EvalPlan
from whale_envs.errors import UnknownNameError, UsageError

_OURS = {
    "split": "weight is what is trained on",
    "k": "samples of the recipe",
    "seed": "seed of the recipe",
    "families": "they stand in [filter]",
}
"""Fields of an evaluation that a weight run decides otherwise."""
_TABLES = ("agent", "filter", "recipe", "dev")


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """What a file says."""

    agent: EvalPlan
    """On the examples to train on."""
    recipe: Recipe
    steps: int
    dev: DevPlan | None = None

    @property
    def dev_agent(self) -> EvalPlan | None:
        """The same agent on the examples to evaluate on."""
        return None if self.dev is None else replace(self.agent, split="dev", n=self.dev.n, k=self.dev.k)


def find_recipe(name: str | Path) -> Path:
    """The file of that path, or the shipped recipe of that name, such as "demo/weight_only".

    Raises:
        UnknownNameError: there is neither.
    """
    path = Path(name)
    if path.is_file() or path.suffix == ".toml":
        return path
    folder = Path(str(files("whale_baselines") / "recipes"))
    shipped = {str(found.relative_to(folder).with_suffix("")): found for found in folder.rglob("*.toml")}
    if str(name) not in shipped:
        raise UnknownNameError("file or recipe", str(name), sorted(shipped))
    return shipped[str(name)]


def read_plan(path: Path) -> WeightPlan:
    """The plan in a TOML file.

    Raises:
        UsageError: it cannot be read, or says what cannot be; names the file.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    try:
        return _plan(content, path.parent)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _plan(content: dict[str, Any], folder: Path) -> WeightPlan:
    if unknown := sorted(content.keys() - {"steps", *_TABLES}):
        named = ", ".join(f"[{name}]" for name in _TABLES)
        raise UsageError(f"unknown {', '.join(unknown)}; valid: steps, {named}")
    steps = content.get("steps")
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise UsageError(f"steps must be a whole number from 1, got {steps!r}")
    for name in _TABLES:
        if not isinstance(content.get(name, {}), dict):
            raise UsageError(f"[{name}] is a table, got {content[name]!r}")
    agent = _agent(content.get("agent", {}), folder)
    recipe = recipe_of(content.get("recipe", {}))
    families = _only(content, "filter", ("families",)).get("families")
    if isinstance(families, list):
        families = tuple(families)
    plan = EvalPlan(**agent, families=families, split="weight", k=recipe.samples, seed=recipe.seed)
    dev = None
    if "dev" in content:
        dev = DevPlan(**_only(content, "dev", [field.name for field in fields(DevPlan)]))
    return WeightPlan(plan, recipe, steps, dev)


def _agent(given: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The fields of [agent], its harness found beside the file."""
    agent = dict(given)
    known = {field.name for field in fields(EvalPlan)} - _OURS.keys()
    for name in agent:
        if name not in known:
            hint = f": {_OURS[name]}" if name in _OURS else f"; valid: {', '.join(sorted(known))}"
            raise UsageError(f"[agent] has no {name!r}{hint}")
    for name in ("domain", "model"):
        if name not in agent:
            raise UsageError(f"[agent] lacks {name!r}")
    if isinstance(agent.get("harness"), str):
        agent["harness"] = str(folder / agent["harness"])
    if isinstance(agent.get("base_url"), list):
        agent["base_url"] = tuple(agent["base_url"])
    return agent


def _only(content: dict[str, Any], table: str, known: "list[str] | tuple[str, ...]") -> dict[str, Any]:
    """A table that has these fields at most."""
    given: dict[str, Any] = content.get(table, {})
    for name in given:
        if name not in known:
            raise UsageError(f"[{table}] has no {name!r}; valid: {', '.join(known)}")
    return given
