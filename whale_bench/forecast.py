"""What an evaluation will take at most, told before anything is loaded or asked: `eval --dry-run`.

    found = asyncio.run(forecast(EvalPlan(domain="chess_puzzles", model="openai/m"), None))
    found.sampled_tokens      # at most, by the rollout's token budget

Turns are limited. Under a harness a turn is a call of the model, and sampled tokens are limited by the budget
of a rollout and, where there is one, by that of a turn; both hold for servers that keep to `max_tokens`. An
own agent may ask for as many turns as the environment allows, which is only known once it has been started,
and call its models as it likes.

Not covered: prompt tokens, which nothing limits but the model's context; calls that fail and are
retried; money and time.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from whale_bench.agents.names import is_own_agent
from whale_bench.engine import env_options
from whale_bench.evaluation import EvalPlan
from whale_bench.harness.host import load_harness
from whale_bench.judge import ATTEMPTS
from whale_bench.opening import check_model, check_tool_options, planned_examples
from whale_bench.plan import plan_of
from whale_bench.store import RunStore
from whale_envs import get_domain


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """Of one run. From `turns` on numbers are "at most"; None where nothing limits them."""

    model: str
    domain: str
    tier: str
    split: str
    harness: str
    examples: int
    k: int
    finished: int
    """Rollouts that a resumed run has already."""
    rollouts: int
    """Still to run."""
    turns: int
    """Per rollout."""
    model_calls: int | None
    sampled_tokens_per_rollout: int | None
    sampled_tokens: int | None
    judge_calls: int
    """0 without a judge; answers that it knows already cost none."""


async def forecast(plan: EvalPlan | None, folder: Path | None) -> Forecast:
    """What a plan takes, or what is left of the run in a folder.

    Loads the examples and the harness, no weights, no index, and writes nothing.

    Raises:
        UsageError: the plan or the folder cannot be used.
    """
    finished = 0
    if plan is None:
        assert folder is not None, "a plan or a folder"
        store = RunStore.open(folder)
        plan = plan_of(store.settings, folder)
        finished = sum(1 for _ in store.outcomes())
    check_model(plan)
    check_tool_options(plan)
    examples = len(planned_examples(plan))
    domain = get_domain(plan.domain)
    rollouts = examples * plan.k - finished
    turns, calls, per_rollout, name = domain.module.ENV.BOUNDS["max_turns"][1], None, None, "of its own"
    if not is_own_agent(plan.model):
        async with load_harness(plan.domain, plan.harness) as harness:
            asked = {**domain.module.ENV.DEFAULTS, **env_options(plan.domain, harness)}
            turns = asked["max_turns"]
            calls = rollouts * turns
            per_turn = [cap for cap in (harness.settings.max_tokens, plan.max_tokens) if cap is not None]
            name = harness.name
        budget = domain.budget(plan.token_budget)
        per_rollout = min(budget, turns * min(per_turn)) if per_turn else budget
    return Forecast(
        model=plan.model,
        domain=plan.domain,
        tier=plan.tier,
        split=plan.split,
        harness=name,
        examples=examples,
        k=plan.k,
        finished=finished,
        rollouts=rollouts,
        turns=turns,
        model_calls=calls,
        sampled_tokens_per_rollout=per_rollout,
        sampled_tokens=None if per_rollout is None else rollouts * per_rollout,
        judge_calls=rollouts * ATTEMPTS if plan.judge else 0,
    )


def show_forecasts(runs: Sequence[tuple[EvalPlan | None, Path | None]], *, as_json: bool) -> None:
    """Prints what each run takes, side by side, and what all take together."""
    found = [asyncio.run(forecast(plan, folder)) for plan, folder in runs]
    if as_json:
        sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
        return
    first = found[0]
    table = Table(title=f"{first.domain}, {first.tier}/{first.split}: nothing has run")
    table.add_column("")
    for each in found:
        table.add_column(each.model, justify="right")
    for label, name in _SHOWN.items():
        values = [getattr(each, name) for each in found]
        if name not in _IF_ANY or any(values):
            table.add_row(label, *map(_cell, values))
    table.add_row("prompt tokens", *("not limited" for _ in found))
    Console().print(table)


def _cell(value: str | int | None) -> str:
    if value is None:
        return "not limited"
    return value if isinstance(value, str) else f"{value:,}"


_SHOWN = {
    "harness": "harness",
    "examples": "examples",
    "rollouts per example": "k",
    "finished already": "finished",
    "rollouts to run": "rollouts",
    "turns of a rollout, at most": "turns",
    "model calls, at most": "model_calls",
    "sampled tokens, at most": "sampled_tokens",
    "  per rollout": "sampled_tokens_per_rollout",
    "judge calls, at most": "judge_calls",
}
"""Rows by label."""

_IF_ANY = ("finished", "judge_calls")
"""Rows that are shown where one is not 0."""
