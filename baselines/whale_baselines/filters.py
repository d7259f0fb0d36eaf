"""The examples that a recipe names: those of its groups, and the first so many of them.

    examples = filtered("math_python", "small", "weight", recipe.filter)

Not covered: sampling from several tiers, and filters by what a model can solve.
"""

from typing import Any

from whale_baselines.settings import FilterSettings
from whale_envs import ExampleSet, load_examples
from whale_envs.errors import UnknownNameError, UsageError


def filtered(domain: str, tier: str, split: str, settings: FilterSettings) -> ExampleSet[Any]:
    """The examples of a split that pass, in the split's order.

    Raises:
        UnknownNameError: no example has such a group, or none that value.
        UsageError: fewer pass than the recipe says there are.
    """
    examples = load_examples(domain, tier, split)
    kept = list(examples)
    for group, values in (settings.groups or {}).items():
        found = {example.id: {value for name, value in example.groups if name == group} for example in kept}
        every = {value for example in examples for name, value in example.groups if name == group}
        if not every:
            names = sorted({name for example in examples for name, _ in example.groups})
            raise UnknownNameError(f"group of {examples.name}", group, names)
        for value in values:
            if value not in every:
                raise UnknownNameError(f"{group} of {examples.name}", value, sorted(every), most=40)
        kept = [example for example in kept if found[example.id] & set(values)]
    count: int | None = getattr(settings, split)
    if count is not None and count > len(kept):
        raise UsageError(f"{len(kept)} examples of {examples.name} pass the filter, fewer than its {count}")
    return ExampleSet(kept[:count], name=examples.name)
