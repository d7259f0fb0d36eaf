"""Checks a harness file against the contract, without a real model.

    findings = asyncio.run(check_harness("mine.py"))

A finding is one line with file and line. Checked: the file loads and its constants have the right
types; its options exist in the environment; a few rollouts of each domain in which a scripted model
replies with an ordinary action, nothing, and nonsense run without a fault; the same calls made
twice give the same answers.

Not covered: hostile files, and harnesses that behave differently only later in a rollout.
"""

from pathlib import Path
from typing import NamedTuple

from whale_bench.harness.base import Act, Ask, Reply, Stop, Turn, View
from whale_bench.harness.host import HarnessHost, HostDecision, ProcessHarness
from whale_envs import DOMAINS, RolloutError, make_env
from whale_envs.errors import HarnessFileError, UnknownNameError
from whale_envs.seeding import derive_rng, derive_seed


class Finding(NamedTuple):
    """Something in a harness file that breaks the contract."""

    domain: str
    """Where it showed; empty where it is the file itself."""
    message: str
    """With file and line."""


REPLIES = ("an ordinary action", "", "I am not sure. <b>{}</b> \u2654 [ ]")
"""Replies the scripted model gives in turn; the first stands for an action of the environment."""


async def check_harness(path: str | Path, domains: tuple[str, ...] = tuple(DOMAINS)) -> list[Finding]:
    """Findings about a harness file; none means that the contract holds as far as this looks."""
    findings = []
    try:
        async with ProcessHarness(Path(path)) as harness:
            for domain in domains:
                try:
                    await check_rollouts(harness, domain)
                except HarnessFileError as error:
                    findings.append(Finding(domain, str(error)))
    except HarnessFileError as error:
        findings.append(Finding("", str(error)))
    return findings


async def check_rollouts(harness: HarnessHost, domain: str) -> None:
    """Plays a short rollout of the domain with each scripted reply.

    Raises:
        HarnessFileError: the first fault, with file and line.
    """
    from whale_bench.engine import env_options  # the engine imports the host

    try:
        options = env_options(domain, harness)
    except UnknownNameError as error:
        raise HarnessFileError(f"{harness.name}:1: {error}") from error
    try:
        for reply in REPLIES:
            await _dry_run(harness, domain, reply, options)
    except RolloutError as error:
        raise HarnessFileError(error.detail or str(error)) from error


async def _dry_run(harness: HarnessHost, domain: str, text: str, options: dict[str, int]) -> None:
    env = make_env(domain, split="dev", **options)
    opening, info = env.reset(options={"example_id": env.examples[0].id})
    view = View(domain, opening, opening, max_turns=env.max_turns, seed=derive_seed("check", 0))
    rng = derive_rng("check", 0)
    for _ in range(min(2, env.max_turns)):
        reply = Reply(env.random_action(rng) if text == REPLIES[0] else text)
        decision = await _twice(harness, view, None)
        if isinstance(decision, Stop):
            return
        decision = await _twice(harness, view, reply)
        if isinstance(decision, Stop | Ask):
            return
        if isinstance(decision, Act):
            observation, _, terminated, truncated, info = await env.astep(decision.action)
            if terminated or truncated:
                return
            turn = Turn(reply, decision.action, observation, info["feedback"], info["event"])
            view.observation = observation
        else:
            turn = Turn(reply, None, decision.message, decision.message, "nudge")
        view.turns += (turn,)


async def _twice(harness: HarnessHost, view: View, reply: Reply | None) -> HostDecision:
    before = dict(view.state)
    first, state = await harness.call(view, reply)
    view.state = before
    second, again = await harness.call(view, reply)
    if (first, state) != (second, again):
        hook = "messages" if reply is None else "read"
        answers = f"{first!r:.100} and {second!r:.100}"
        raise HarnessFileError(f"{harness.name}:1: {hook} answered the same call in two ways: {answers}")
    view.state = state
    return first
