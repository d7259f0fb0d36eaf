"""What a mechanism is, and a plan: the mechanisms of one harness with their parameters.

    plan = {"box_reminder": {"wording": 1}, "turn_budget": {"turns": 3}}
    source = write("math_python", plan)
    read_plan(source, "math_python") == plan

A plan stands in the first line of the file that it was written to, so that a child can be made from the
file alone. A file without such a line, or whose line this library cannot have written, has the empty plan.

Not covered: which mechanisms there are, see `library.py`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias

from whale_baselines.proposers.draft import Draft

Params: TypeAlias = dict[str, Any]
Plan: TypeAlias = dict[str, Params]
"""Parameters by the mechanism's name."""

MARK = "# mutate: "

KEYS = "keys"
"""The parameter that names worked examples."""
MOST_EXAMPLES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """One way in which a harness may differ from h0."""

    name: str
    summary: str
    """What it does, as a sentence; `{parameter}` is replaced."""
    why: str
    """Why it should help, so that its score can refute it."""
    write: Callable[[Draft, Params], None]
    """Adds it to a draft."""
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values of each parameter, but of `keys`."""
    examples: bool = False
    """Whether it shows worked examples, and so has the parameter `keys`."""
    weight: int = 1
    """How many times as often it is added as others."""

    def draw(self, rng: Random, pool: Mapping[str, Any]) -> Params:
        """Parameters at random."""
        params = {name: rng.choice(values) for name, values in self.choices.items()}
        return {KEYS: _draw_keys(rng, pool), **params} if self.examples else params

    def vary(self, rng: Random, params: Params, pool: Mapping[str, Any]) -> Params:
        """The same parameters but for one, where there is another value for it."""
        others = [
            {**params, name: value}
            for name, values in self.choices.items()
            for value in values
            if value != params[name]
        ]
        if self.examples and (not others or rng.random() < 0.5):
            others = [{**params, KEYS: _draw_keys(rng, pool)}]
        return rng.choice(others) if others else params

    def admits(self, params: Any, pool: Mapping[str, Any]) -> bool:
        """Whether these are parameters of it, with examples that are at hand."""
        names = {*self.choices, *([KEYS] if self.examples else [])}
        if not isinstance(params, dict) or params.keys() != names:
            return False
        if self.examples:
            keys = params[KEYS]
            if not isinstance(keys, list) or not all(isinstance(key, str) and key in pool for key in keys):
                return False
            if not 0 < len(keys) <= MOST_EXAMPLES or len(set(keys)) < len(keys):
                return False
        return all(
            any(value is v or (type(value) is type(v) and value == v) for v in self.choices[name])
            for name, value in params.items()
            if name != KEYS
        )

    def say(self, params: Params) -> str:
        """The summary with these parameters."""
        text = self.summary
        for name, value in params.items():
            text = text.replace(f"{{{name}}}", str(len(value) if name == KEYS else value))
        return text


def _draw_keys(rng: Random, pool: Mapping[str, Any]) -> list[str]:
    return rng.sample(sorted(pool), rng.randint(1, min(MOST_EXAMPLES, len(pool))))


def header_of(plan: Plan) -> str:
    """The first line of a file."""
    return MARK + json.dumps({"mechanisms": plan}, sort_keys=True, separators=(",", ":"))


def plan_in(source: str) -> Any:
    """What stands in the first line of a file; None without such a line."""
    first = source.split("\n", 1)[0]
    if not first.startswith(MARK):
        return None
    try:
        found = json.loads(first.removeprefix(MARK))
    except (ValueError, RecursionError):
        return None
    return found.get("mechanisms") if isinstance(found, dict) else None
