"""The rollout engine: `rollout` is the only way a rollout happens.

Evaluation, training and harness search all call it, so what is searched is what is trained and
tested.

    agent = Agent(backend, harness)                      # or an OwnAgent, which decides by itself
    record = await rollout(task, agent, examples.by_id(example_id), sample=0, seed=7, key="test:…:0")

One coroutine per rollout, on one event loop; retrieval, tools and slow verification are awaited.
Failures: what the model, the harness or an own agent does wrong ends the rollout as a zero-reward
record with a typed `stop_condition`; `InfrastructureError` (as `LostRolloutError`, with what was used
until then) and `UsageError` go to the caller, who leaves the rollout missing or stops the run.

Not covered: scheduling many rollouts, and the ledger, see `evaluation.py`.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import msgspec

from whale_bench.agents.host import OwnAgent, ProcessLostError
from whale_bench.agents.protocol import Opening
from whale_bench.harness.base import Act, Ask, Nudge, Reply, Stop, Turn, View
from whale_bench.harness.choice import is_fair_choice
from whale_bench.harness.host import HarnessHost
from whale_bench.harness.provenance import is_sampled
from whale_bench.ledger import CACHED, COUNTED, Charge, parts
from whale_bench.models.base import (
    Backend,
    CostlyRefusalError,
    Generation,
    Message,
    Request,
    Sampling,
    TokenBackend,
    UnansweredError,
    Usage,
)
from whale_bench.models.splice import splice
from whale_bench.records import Rollout, Segment, Step
from whale_bench.text import scrub, scrub_all
from whale_envs import ExampleSet, RolloutError, UnknownNameError, Verdict, get_domain, make_env
from whale_envs.core import Example, Profile, TextEnv
from whale_envs.errors import HarnessError, InfrastructureError, ModelError
from whale_envs.seeding import derive_seed
from whale_envs.text import split_thinking

DEFAULT_SAMPLING = Sampling()
NOTHING = Usage()


@dataclass(frozen=True, slots=True)
class Task:
    """What is played: a domain's examples under a profile and the rollout's limits."""

    domain: str
    examples: ExampleSet[Any]
    profile: Profile = "standard"
    max_tokens: int | None = None
    """Most sampled tokens per turn; a harness may ask for fewer."""
    token_budget: int | None = None
    """Most sampled tokens per rollout; None is the domain's published budget."""
    resources: Mapping[str, Any] = field(default_factory=dict)
    """What all rollouts share and the environment takes as options, such as an interpreter; before the
    harness's options of the same name."""


@dataclass(frozen=True, slots=True)
class Agent:
    """A model with its sampling, and a harness."""

    backend: Backend
    harness: HarnessHost
    sampling: Sampling = DEFAULT_SAMPLING

    @property
    def weights_id(self) -> str:
        return self.backend.weights_id

    @property
    def harness_id(self) -> str:
        return self.harness.harness_id

    @property
    def fixture(self) -> bool:
        return self.backend.fixture

    @property
    def default_concurrency(self) -> int:
        return self.backend.default_concurrency

    @property
    def source(self) -> str:
        return self.harness.source

    def env_options(self, domain: str) -> dict[str, int]:
        return env_options(domain, self.harness)

    async def probe(self) -> None:
        """Finds out before any rollout whether the model can be had at all."""
        await self.backend.probe()

    def seconds(self) -> dict[str, float]:
        return self.backend.seconds()

    def warnings(self) -> list[str]:
        return self.backend.warnings()


class LostRolloutError(InfrastructureError):
    """A server or worker failed in the middle of a rollout.

    Attributes:
        used: what that had cost so far.
        again: it should be played again at once; at most once for each key.
    """

    used = Charge(rollouts=1)
    again = False


def env_options(domain: str, harness: HarnessHost) -> dict[str, int]:
    """The harness's options for the environment, held within the environment's bounds.

    Raises:
        UnknownNameError: an option that the environment does not have.
    """
    bounds = get_domain(domain).module.ENV.BOUNDS
    asked = dict(harness.settings.env_options)
    if harness.settings.max_turns is not None:
        asked["max_turns"] = harness.settings.max_turns
    for name in asked:
        if name not in bounds:
            raise UnknownNameError(f"ENV_OPTIONS of {harness.name}", name, sorted(bounds))
    return {name: min(max(value, bounds[name][0]), bounds[name][1]) for name, value in asked.items()}


@dataclass(slots=True)
class _Progress:
    """A rollout in flight."""

    env: TextEnv
    view: View
    budget: int | None
    own: bool = False
    """Whether an own agent plays, whose calls of a model may be unknown."""
    segments: list[Segment] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    cut: bool = False
    """Whether the last reply was cut off."""
    asking: bool = False
    """Whether the model has been asked and has not replied."""
    unanswered: Usage = NOTHING
    """Of a call that the server failed, or refused, for good."""

    @property
    def sampled(self) -> int:
        return sum(s.sampled_tokens or 0 for s in self.segments)

    @property
    def lost(self) -> tuple[int, int]:
        """(prompt, sampled) tokens of attempts that came to nothing."""
        calls: list[Segment | Usage] = [*self.segments, self.unanswered]
        return sum(c.lost_prompt_tokens for c in calls), sum(c.lost_sampled_tokens for c in calls)

    def cached(self) -> dict[str, Any]:
        """Prompt tokens from and into the server's cache, where it said how many."""
        calls = [*self.segments, self.unanswered]
        told = {name: [getattr(call, name) for call in calls] for name in CACHED}
        return {name: sum(n or 0 for n in each) for name, each in told.items() if set(each) != {None}}

    @property
    def metered(self) -> bool:
        """Whether all calls are known; of an own agent, that it acted but called nothing is not believed."""
        return not self.own or bool(self.segments)

    @property
    def tokens_left(self) -> int | None:
        return None if self.budget is None else self.budget - self.sampled

    def over_budget(self, request: Request) -> bool:
        """Whether the last reply, the answer to `request`, was ended by the budget or broke it."""
        left = self.tokens_left
        if left is None:
            return False
        if self.segments[-1].sampled_tokens is None:  # not counted: `left` is still what it was
            return self.cut and request.max_tokens == left
        return left < 0 or (left == 0 and self.cut)

    def used(self) -> Charge:
        """What the rollout has cost so far; nobody knows the tokens of a call without an answer."""
        tokens = [(s.prompt_tokens, s.sampled_tokens) for s in self.segments]
        counters = self.env.counters()
        lost_prompt, lost_sampled = self.lost
        return Charge(
            rollouts=1,
            prompt_tokens=sum(prompt or 0 for prompt, _ in tokens) + lost_prompt,
            sampled_tokens=self.sampled + lost_sampled,
            model_calls=len(tokens),
            unmetered_tokens=self.asking or not self.metered or any(None in pair for pair in tokens),
            **parts(counters, COUNTED),
            **parts(self.cached(), CACHED),
        )


async def rollout(
    task: Task, agent: Agent | OwnAgent, example: Example, *, sample: int, seed: int, key: str
) -> Rollout:
    """Plays one example to its end.

    Args:
        task: the domain, its examples and the limits.
        agent: who plays.
        example: one of the task's.
        sample: number of this sample among the example's k.
        seed: the run's seed; the rollout's own are hashed from it, the example and the sample.
        key: unique name of the rollout in its run.

    Raises:
        LostRolloutError: a server or worker failed after its retries; the rollout is missing.
        UsageError: a setting can never work.
    """
    began = time.perf_counter()
    given = {**agent.env_options(task.domain), **task.resources}
    env = make_env(task.domain, examples=task.examples, profile=task.profile, **given)
    opening, _ = env.reset(options={"example_id": example.id})
    domain = get_domain(task.domain)
    budget = domain.token_budget if task.token_budget is None else task.token_budget
    view = View(
        domain=task.domain,
        opening=opening,
        observation=opening,
        max_turns=env.max_turns,
        seed=derive_seed("harness", seed, example.id, sample),
    )
    now = _Progress(env, view, budget, own=isinstance(agent, OwnAgent))
    error = ""
    try:
        if isinstance(agent, OwnAgent):
            verdict = await _play_own(task, agent, now, key)
        else:
            verdict = await _play(task, agent, now, sample=sample, seed=seed, example=example)
    except RolloutError as failure:
        verdict, error = env.truncate(failure.reason), failure.detail
        if isinstance(failure, CostlyRefusalError):
            now.unanswered = failure.usage
    except InfrastructureError as failure:
        if isinstance(failure, UnansweredError):
            now.unanswered = failure.usage
        lost = LostRolloutError(str(failure))
        lost.used = msgspec.structs.replace(now.used(), seconds=time.perf_counter() - began)
        lost.again = isinstance(failure, ProcessLostError)
        raise lost from failure
    finally:
        env.close()
    counters = env.counters()
    known = [s for s in now.segments if s.sampled_tokens is not None]
    prompts = [s.prompt_tokens for s in now.segments if s.prompt_tokens is not None]
    sampled = now.sampled if now.metered and len(known) == len(now.segments) else None
    lost_prompt, lost_sampled = now.lost
    known_of = now.used() if sampled is None or len(prompts) < len(now.segments) else None
    caps = ("max_turns", "assistant_token_budget", "context_length")
    return Rollout(
        key=key,
        domain=task.domain,
        example_id=example.id,
        sample=sample,
        seed=seed,
        harness_id=agent.harness_id,
        weights_id=agent.weights_id,
        opening=opening,
        segments=tuple(now.segments),
        steps=tuple(now.steps),
        verdict=verdict,
        stop_condition=verdict.reason,
        truncated=now.cut or verdict.reason in caps,
        error=error,
        metrics={**counters, **now.cached(), **({} if sampled is None else {"sampled_tokens": sampled})},
        groups=example.groups,
        metered=now.metered,
        prompt_tokens=sum(prompts) + lost_prompt
        if now.metered and len(prompts) == len(now.segments)
        else None,
        sampled_tokens=None if sampled is None else sampled + lost_sampled,
        known_prompt_tokens=None if known_of is None else known_of.prompt_tokens,
        known_sampled_tokens=None if known_of is None else known_of.sampled_tokens,
        tool_calls=int(counters.get("tool_calls", 0)),
        seconds=time.perf_counter() - began,
    )


async def _play(
    task: Task, agent: Agent, now: _Progress, *, sample: int, seed: int, example: Example
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
            messages=_to_messages(decision.messages),
            tools=tuple(agent.harness.settings.tools) if agent.harness.settings.tool_mode == "native" else (),
            sampling=agent.sampling,
            max_tokens=_least(agent.harness.settings.max_tokens, task.max_tokens, left),
            seed=derive_seed("sample", seed, example.id, sample, len(now.segments)),
            host=now.env if agent.backend.fixture else None,
        )
        if isinstance(agent.backend, TokenBackend):
            request = splice(agent.backend, request, now.segments[-1] if now.segments else None)
        now.asking = True
        generation = _clean(await agent.backend.generate(request))
        now.asking = False
        now.segments.append(_segment(request, generation))
        if generation.finish_reason in ("content_filter", "context_length"):
            raise ModelError(generation.finish_reason, generation.text[:200])
        now.cut = generation.finish_reason == "length"
        if now.over_budget(request):
            return now.env.truncate("assistant_token_budget")
        verdict = await _act(agent, now, generation)
        if verdict is not None:
            return verdict


async def _play_own(task: Task, agent: OwnAgent, now: _Progress, key: str) -> Verdict:
    """Actions of an own agent until the episode ends; returns the verdict."""
    view, env = now.view, now.env
    opening = Opening(task.domain, view.opening, view.max_turns, view.seed, _tools(task))
    async with agent.play(key, opening, now.segments) as session:
        action = await session.begin()
        while True:
            calls = len(now.segments)  # what it calls while the environment is at work is of the next
            observation, _, terminated, truncated, info = await env.astep(action)
            now.steps.append(Step(action, observation, info["event"], info["feedback"], calls))
            if terminated or truncated:
                verdict: Verdict = info["verdict"]
                return verdict
            action = await session.observe(observation, info["event"], info["feedback"])


def _tools(task: Task) -> list[dict[str, Any]]:
    """Schemas of what an own agent may call."""
    if not get_domain(task.domain).tools or task.resources.get("closed_book"):
        return []
    return [import_module(f"whale_envs.{task.domain}.tools").SCHEMA]


async def _act(agent: Agent, now: _Progress, generation: Generation) -> Verdict | None:
    """Lets the harness read the reply and does what it decides; the verdict where that ends it."""
    view, env = now.view, now.env
    said = [generation.text, *_arguments(generation)]
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
    observation, _, terminated, truncated, info = await env.astep(decision.action)
    now.steps.append(Step(decision.action, observation, info["event"], info["feedback"], len(now.segments)))
    if terminated or truncated:
        verdict: Verdict = info["verdict"]
        return verdict
    view.observation = observation
    view.turns += (Turn(reply, decision.action, observation, info["feedback"], info["event"]),)
    return None


def _clean(generation: Generation) -> Generation:
    """Text that can be written down, with whatever stands in thinking tags taken for reasoning.

    Done here and for every backend, so that harness, provenance rule and environment all see the same
    final text, and a move or an answer in the model's thinking is none.
    """
    thinking, text = split_thinking(scrub(generation.text))
    return msgspec.structs.replace(
        generation,
        text=text,
        raw_text=scrub(generation.raw_text or generation.text),
        reasoning="\n".join(filter(None, (scrub(generation.reasoning), thinking))),
        tool_calls=scrub_all(generation.tool_calls) if generation.tool_calls else (),
    )


def _arguments(generation: Generation) -> list[str]:
    """The arguments of the tool calls, as sampled, and the texts in them."""
    functions = [call.get("function") for call in generation.tool_calls]
    found = [function.get("arguments") for function in functions if isinstance(function, dict)]
    texts = [value if isinstance(value, str) else str(value) for value in found if value is not None]
    for text in tuple(texts):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue
        texts += [v for v in value.values() if isinstance(v, str)] if isinstance(value, dict) else []
    return texts


def _segment(request: Request, generation: Generation) -> Segment:
    usage = generation.usage
    thinking, text = split_thinking(generation.raw_text)
    return Segment(
        messages=request.messages,
        tools=request.tools,
        text=generation.raw_text,
        finish_reason=generation.finish_reason,
        tool_calls=generation.tool_calls,
        prompt_ids=generation.prompt_ids,
        sampled_ids=generation.sampled_ids,
        logprobs=generation.logprobs,
        prompt_tokens=usage.prompt_tokens,
        sampled_tokens=usage.sampled_tokens,
        seed=request.seed,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        lost_prompt_tokens=usage.lost_prompt_tokens,
        lost_sampled_tokens=usage.lost_sampled_tokens,
        reply=None if text == generation.text else generation.text,
        reasoning=None if thinking == generation.reasoning else generation.reasoning,
    )


def _to_messages(chat: list[dict[str, Any]]) -> tuple[Message, ...]:
    try:
        return msgspec.convert(chat, tuple[Message, ...])
    except msgspec.ValidationError as error:
        raise HarnessError("harness_error", f"messages: {error}") from error


def _least(*caps: int | None) -> int | None:
    given = [cap for cap in caps if cap is not None]
    return max(1, min(given)) if given else None
