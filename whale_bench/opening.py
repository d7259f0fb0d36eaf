"""Opens what an evaluation plays with, as its plan says: examples, agent, tools, judge.

    async with AsyncExitStack() as stack:
        agent = await open_agent(plan, None, stack)
        resources = await open_resources(plan, stack)

What cannot be is refused here, before there is a run folder.

Not covered: the run itself, see `evaluation.py`; whether servers answer, which `probe` asks.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from whale_bench.agents.host import OwnAgent
from whale_bench.agents.names import is_own_agent, read_name
from whale_bench.engine import Agent, env_options
from whale_bench.harness.check import check_rollouts
from whale_bench.harness.host import load_harness
from whale_bench.models import Backend, Message, TokenBackend, load_backend
from whale_bench.models.registry import LOADED, one_address
from whale_bench.plan import EvalPlan
from whale_envs import ExampleSet, UnknownNameError, UsageError, get_domain, load_examples
from whale_envs.paths import cache_dir

TOOL_OPTIONS = {
    "code_interpreter": ("python_url", "unsafe_python"),
    "search": ("retriever", "index", "retriever_url", "closed_book", "judge", "judge_url"),
}
"""Settings of a plan that only environments with a tool take."""


def planned_examples(plan: EvalPlan) -> ExampleSet[Any]:
    """The examples that a plan is of.

    Raises:
        UsageError: there are fewer than it asks for, or none of a family.
    """
    examples = load_examples(plan.domain, plan.tier, plan.split)
    if plan.families is not None:
        examples = of_families(examples, plan.families)
    if plan.n is not None and plan.n > len(examples):
        raise UsageError(f"{examples.name} has {len(examples)} examples, fewer than the {plan.n} asked for")
    return examples[: plan.n]


def of_families(examples: ExampleSet[Any], families: Sequence[str]) -> ExampleSet[Any]:
    """Those of `examples` that belong to one of `families`, in their order.

    Raises:
        UsageError: a family has no example among them, or they have no families at all.
    """
    if not any(name == "family" for example in examples for name, _ in example.groups):
        raise UsageError(f"the examples of {examples.name} have no families: leave the filter out")
    chosen = of_groups(examples, {"family": families})
    return ExampleSet(chosen, name=f"{examples.name} ({', '.join(families)})")


def of_groups(examples: ExampleSet[Any], groups: Mapping[str, Sequence[str]]) -> list[Any]:
    """Those of `examples` that have, of each group, one of its values; in their order.

    Raises:
        UnknownNameError: no example has such a group, or none that value.
    """
    kept = list(examples)
    for group, values in groups.items():
        has = {example.id: {value for name, value in example.groups if name == group} for example in examples}
        every = sorted(set().union(*has.values()))
        if not every:
            names = sorted({name for example in examples for name, _ in example.groups})
            raise UnknownNameError(f"group of {examples.name}", group, names)
        for value in values:
            if value not in every:
                raise UnknownNameError(f"{group} of {examples.name}", value, every, most=len(every))
        kept = [example for example in kept if has[example.id] & set(values)]
    return kept


def check_tool_options(plan: EvalPlan) -> None:
    """Refuses options of a tool that the environment does not have."""
    for tool, options in TOOL_OPTIONS.items():
        given = [name for name in options if getattr(plan, name)]
        if given and tool not in get_domain(plan.domain).tools:
            named = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise UsageError(f"{plan.domain} has no tool {tool}: leave out {named}")


def check_model(plan: EvalPlan) -> None:
    """Refuses a model's name or settings that cannot be, as far as that shows without its weights.

    Raises:
        UsageError: says what is wrong.
    """
    if is_own_agent(plan.model):
        read_name(plan.model, plan.directory)
    elif not plan.model.startswith(LOADED):  # these are loaded when their turn comes
        backend = load_backend(plan.model, base_url=plan.base_url, tokenizer=plan.tokenizer)
        backend.check_sampling(plan.sampling())


async def open_agent(plan: EvalPlan, backend: Backend | None, stack: AsyncExitStack) -> Agent | OwnAgent:
    """Who plays, open until `stack` closes."""
    if is_own_agent(plan.model):
        own = OwnAgent(
            plan.model,
            base_url=one_address(plan.model, plan.base_url),
            seconds=plan.agent_seconds,
            directory=plan.directory,
        )
        await stack.enter_async_context(own)
        own.env_options(plan.domain)
        return own
    harness = await stack.enter_async_context(load_harness(plan.domain, plan.harness))
    env_options(plan.domain, harness)
    if plan.harness is not None:
        await check_rollouts(harness, plan.domain)
    if backend is None:
        backend = await stack.enter_async_context(
            load_backend(
                plan.model, base_url=plan.base_url, tokenizer=plan.tokenizer, directory=plan.directory
            )
        )
    backend.check_sampling(plan.sampling())
    agent = Agent(backend, harness, plan.sampling())
    if isinstance(backend, TokenBackend):
        _check_template(backend, agent)
    return agent


async def open_resources(plan: EvalPlan, stack: AsyncExitStack) -> dict[str, Any]:
    """What all rollouts share, open until `stack` closes."""
    check_tool_options(plan)
    tools = get_domain(plan.domain).tools
    resources: dict[str, Any] = {}
    if "code_interpreter" in tools:
        from whale_envs.math_python.tools import open_interpreter
        from whale_envs.math_python.verifier import warm_up

        await asyncio.to_thread(warm_up)
        interpreter = open_interpreter(url=plan.python_url, unsafe=plan.unsafe_python)
        resources["interpreter"] = await stack.enter_async_context(interpreter)
    if "search" in tools:
        resources |= await _search_resources(plan, stack)
    return resources


async def _search_resources(plan: EvalPlan, stack: AsyncExitStack) -> dict[str, Any]:
    """The retriever, unless the run is closed-book, and the judge, if it has one."""
    from whale_envs.search_qa.retrievers import open_retriever

    resources: dict[str, Any] = {}
    where = [name for name in ("retriever", "index", "retriever_url") if getattr(plan, name)]
    if not plan.closed_book:
        retriever = open_retriever(
            plan.retriever or "bm25", tier=plan.tier, index=plan.index, url=plan.retriever_url
        )
        resources["retriever"] = await stack.enter_async_context(retriever)
    elif where:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in where)
        raise UsageError(f"a closed-book run searches nothing: leave out {named}")
    else:
        resources["closed_book"] = 1
    if plan.judge is not None:
        from whale_bench.judge import LLMJudge
        from whale_bench.models.openai import is_address

        if plan.judge_url is not None and not is_address(plan.judge_url):
            raise UsageError(
                f"--judge-url must be an address such as http://127.0.0.1:8000/v1, got {plan.judge_url!r}"
            )
        model = load_backend(plan.judge, base_url=plan.judge_url, directory=plan.directory)
        if plan.judge_url is not None:
            model.address_from = "--judge-url"
        judge = LLMJudge(model, cache_dir() / "judge.sqlite")
        resources["judge"] = await stack.enter_async_context(judge)
        await judge.probe()
    elif plan.judge_url is not None:
        raise UsageError("--judge-url is the server of --judge, which is not given")
    return resources


def _check_template(backend: TokenBackend, agent: Agent) -> None:
    """Whether the model's own chat template has what harness and plan ask of it."""
    settings, kwargs = agent.harness.settings, agent.sampling.chat_template_kwargs
    native = settings.tool_mode == "native" and settings.tools
    if not native and not kwargs:
        return
    chat = (Message("user", "Which tools are there?"),)
    plain = backend.render(chat, (), kwargs)  # refuses a switch that it does not have
    if native and backend.render(chat, tuple(settings.tools), kwargs) == plain:
        raise UsageError(
            f"{agent.harness.name} has TOOL_MODE 'native', "
            f"but the chat template of {backend.name} shows no tools"
        )
