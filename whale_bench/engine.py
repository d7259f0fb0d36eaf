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

import time

import msgspec

from whale_bench.agents.host import OwnAgent, ProcessLostError
from whale_bench.harness.base import View
from whale_bench.ledger import Charge
from whale_bench.models.base import CostlyRefusalError, UnansweredError
from whale_bench.progress import Progress
from whale_bench.records import Rollout
from whale_bench.task import Agent, Task, env_options
from whale_bench.turns import play, play_own
from whale_envs import RolloutError, make_env
from whale_envs.core import Example
from whale_envs.errors import InfrastructureError
from whale_envs.seeding import derive_seed

__all__ = ["Agent", "LostRolloutError", "Task", "env_options", "rollout"]


class LostRolloutError(InfrastructureError):
    """A server or worker failed in the middle of a rollout.

    Attributes:
        used: what that had cost so far.
        again: it should be played again at once; at most once for each key.
    """

    used = Charge(rollouts=1)
    again = False


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
    view = View(
        domain=task.domain,
        opening=opening,
        observation=opening,
        max_turns=env.max_turns,
        seed=derive_seed("harness", seed, example.id, sample),
    )
    now = Progress(env, view, task.budget, own=isinstance(agent, OwnAgent))
    error = ""
    try:
        if isinstance(agent, OwnAgent):
            verdict = await play_own(task, agent, now, key)
        else:
            verdict = await play(task, agent, now, sample=sample, seed=seed, example=example)
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
        env_seconds=now.env_seconds,
    )
