"""The turns of a rollout, until its episode ends: of a model under a harness, and of an own agent.

    verdict = await play(task, agent, now, sample=0, seed=7, example=example)
    verdict = await play_own(task, own_agent, now, key)

`now`, a `Progress`, gets every segment and step as it is made, so that what was used is known whenever a
turn fails. The provenance rule is held here: an action counts only if it stands in this turn's sampled text.

Not covered: what becomes of failures, see `engine.py`.
"""

from importlib import import_module
from typing import Any

from whale_bench.agents.host import OwnAgent
from whale_bench.agents.protocol import Opening
from whale_bench.harness.base import Act, Ask, Nudge, Reply, Stop, Turn
from whale_bench.harness.choice import is_fair_choice
from whale_bench.harness.provenance import is_sampled
from whale_bench.models.base import Generation, Request, TokenBackend
from whale_bench.models.splice import splice
from whale_bench.progress import Progress
from whale_bench.records import Step
from whale_bench.replies import arguments_of, cleaned, segment_of, to_messages
from whale_bench.task import Agent, Task
from whale_envs import Verdict, get_domain
from whale_envs.core import Example
from whale_envs.errors import HarnessError, ModelError
from whale_envs.seeding import derive_seed


async def play(
    task: Task, agent: Agent, now: Progress, *, sample: int, seed: int, example: Example
) -> Verdict:
    """Turns until the episode ends; returns the verdict."""
    view = now.view
    while True:
        view.tokens_left = left = now.tokens_left
        if len(view.turns) >= now.env.max_turns:
            return now.env.truncate("max_turns")
        if left is not None and left <= 0:
            return now.env.truncate("assistant_token_budget")
        decision, view.state = await agent.harness.call(view)
        if isinstance(decision, Stop):
            return now.env.truncate("harness_stop")
        assert isinstance(decision, Ask)
        request = Request(
            messages=to_messages(decision.messages),
            tools=agent.tools,
            sampling=agent.sampling,
            max_tokens=agent.max_tokens(task, left),
            seed=derive_seed("sample", seed, example.id, sample, len(now.segments)),
            host=now.env if agent.backend.fixture else None,
        )
        if isinstance(agent.backend, TokenBackend):
            request = splice(agent.backend, request, now.segments[-1] if now.segments else None)
        now.asking = True
        generation = cleaned(await agent.backend.generate(request))
        now.asking = False
        now.segments.append(segment_of(request, generation))
        if generation.finish_reason in ("content_filter", "context_length"):
            raise ModelError(generation.finish_reason, generation.text[:200])
        now.cut = generation.finish_reason == "length"
        if now.over_budget(request):
            return now.env.truncate("assistant_token_budget")
        verdict = await _act(agent, now, generation)
        if verdict is not None:
            return verdict


async def play_own(task: Task, agent: OwnAgent, now: Progress, key: str) -> Verdict:
    """Actions of an own agent until the episode ends; returns the verdict."""
    view = now.view
    opening = Opening(task.domain, view.opening, view.max_turns, view.seed, _tools(task))
    async with agent.play(key, opening, now.segments) as session:
        action = await session.begin()
        while True:
            calls = len(now.segments)  # what it calls while the environment is at work is of the next
            observation, ended, info = await now.step(action)
            now.steps.append(Step(action, observation, info["event"], info["feedback"], calls))
            if ended:
                verdict: Verdict = info["verdict"]
                return verdict
            action = await session.observe(observation, info["event"], info["feedback"])


def _tools(task: Task) -> list[dict[str, Any]]:
    """Schemas of what an own agent may call."""
    if not get_domain(task.domain).tools or task.resources.get("closed_book"):
        return []
    return [import_module(f"whale_envs.{task.domain}.tools").SCHEMA]


async def _act(agent: Agent, now: Progress, generation: Generation) -> Verdict | None:
    """Lets the harness read the reply and does what it decides; the verdict where that ends it."""
    view, env = now.view, now.env
    said = [generation.text, *arguments_of(generation)]
    reply = Reply(generation.text, generation.reasoning, generation.tool_calls, generation.finish_reason)
    decision, view.state = await agent.harness.call(view, reply)
    if isinstance(decision, Stop):
        return env.truncate("harness_stop")
    if isinstance(decision, Nudge):
        now.steps.append(Step(None, decision.message, "nudge", decision.message, len(now.segments)))
        view.turns += (Turn(reply, None, decision.message, decision.message, "nudge"),)
        return None
    assert isinstance(decision, Act)
    if not is_sampled(decision.action, said):
        raise HarnessError("provenance", f"{decision.action!r:.200} is not in the text sampled this turn")
    if view.domain == "chess_puzzles" and not is_fair_choice(decision.action, said, view.observation):
        raise HarnessError(
            "provenance", f"{decision.action!r:.200} is chosen among moves that the reply lists"
        )
    observation, ended, info = await now.step(decision.action)
    now.steps.append(Step(decision.action, observation, info["event"], info["feedback"], len(now.segments)))
    if ended:
        verdict: Verdict = info["verdict"]
        return verdict
    view.observation = observation
    view.turns += (Turn(reply, decision.action, observation, info["feedback"], info["event"]),)
    return None
