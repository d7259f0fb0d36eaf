"""The examples that a recipe names: those of its groups, and the first so many of them.

    examples = filtered("math_python", "small", "weight", recipe.filter)

Not covered: sampling from several tiers, and filters by what a model can solve.
"""

from typing import Any

from whale_baselines.settings import FilterSettings
from whale_bench.opening import of_groups
from whale_envs import ExampleSet, load_examples
from whale_envs.errors import UsageError


def filtered(domain: str, tier: str, split: str, settings: FilterSettings) -> ExampleSet[Any]:
    """The examples of a split that pass, in the split's order.

    Raises:
        UnknownNameError: no example has such a group, or none that value.
        UsageError: fewer pass than the recipe says there are.
    """
    examples = load_examples(domain, tier, split)
    kept = of_groups(examples, settings.groups or {})
    count: int | None = getattr(settings, split)
    if count is not None and count > len(kept):
        raise UsageError(f"{len(kept)} examples of {examples.name} pass the filter, fewer than its {count}")
    return ExampleSet(kept[:count], name=examples.name)
