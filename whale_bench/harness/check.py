"""Checks a harness file against the contract, without a real model.

    findings = asyncio.run(check_harness("mine.py"))

A finding is one line with file and line. Checked: the file loads and its constants have the right
types; its options exist in the environment; a few rollouts of each domain in which a scripted model
replies with an ordinary action, nothing, and nonsense run without a fault; the same calls get the
same answers when made twice, and when made in another order in another process; what it acts with
stands in the reply.

Not covered: hostile files, and harnesses that behave differently only later in a rollout.
"""

import copy
from pathlib import Path
from typing import NamedTuple

import msgspec

from whale_bench.harness.base import Act, Ask, Reply, Stop, Turn, View
from whale_bench.harness.host import HarnessHost, HostDecision, ProcessHarness
from whale_bench.harness.provenance import is_sampled
from whale_envs import DOMAINS, RolloutError, make_env
from whale_envs.errors import HarnessFileError, UnknownNameError
from whale_envs.seeding import derive_rng, derive_seed


class Finding(NamedTuple):
    """Something in a harness file that breaks the contract."""

    domain: str
    """Where it showed; empty where it is the file itself."""
    message: str
    """With file and line."""


class Exchange(NamedTuple):
    """One call of a dry run and its answer."""

    view: View
    reply: Reply | None
    decision: HostDecision
    state: dict[str, object]


REPLIES = ("an ordinary action", "", "I am not sure. <b>{}</b> \u2654 [ ]")
"""Replies the scripted model gives in turn; the first stands for an action of the environment."""


async def check_harness(path: str | Path, domains: tuple[str, ...] | None = None) -> list[Finding]:
    """Findings about a harness file; none means that the contract holds as far as this looks.

    Args:
        path: the file.
        domains: where to try it; None tries it wherever the environment has all of its ENV_OPTIONS,
            and if there is no such environment, everywhere.
    """
    findings = []
    try:
        async with ProcessHarness(Path(path)) as harness, ProcessHarness(Path(path)) as other:
            for domain in domains or fitting_domains(harness):
                try:
                    exchanges = await check_rollouts(harness, domain)
                    _check_provenance(harness, exchanges)
                    await _replay(other, domain, exchanges)
                except HarnessFileError as error:
                    findings.append(Finding(domain, str(error)))
    except HarnessFileError as error:
        findings.append(Finding("", str(error)))
    return findings


def fitting_domains(harness: HarnessHost) -> tuple[str, ...]:
    """The domains whose environment has all of the harness's options, else all domains."""
    options = harness.settings.env_options.keys()
    fitting = tuple(name for name, d in DOMAINS.items() if options <= d.module.ENV.BOUNDS.keys())
    return fitting or tuple(DOMAINS)


async def check_rollouts(harness: HarnessHost, domain: str) -> list[Exchange]:
    """Plays a short rollout of the domain with each scripted reply; returns every call and answer.

    Raises:
        HarnessFileError: the first fault, with file and line.
    """
    from whale_bench.engine import env_options  # the engine imports the host

    try:
        options = env_options(domain, harness)
    except UnknownNameError as error:
        raise HarnessFileError(f"{harness.name}:1: {error}") from error
    exchanges: list[Exchange] = []
    try:
        for reply in REPLIES:
            await _dry_run(harness, domain, reply, options, exchanges)
    except RolloutError as error:
        raise HarnessFileError(error.detail or str(error)) from error
    return exchanges


async def _dry_run(
    harness: HarnessHost, domain: str, text: str, options: dict[str, int], exchanges: list[Exchange]
) -> None:
    env = make_env(domain, split="dev", **options)
    opening, info = env.reset(options={"example_id": env.examples[0].id})
    view = View(domain, opening, opening, max_turns=env.max_turns, seed=derive_seed("check", 0))
    rng = derive_rng("check", 0)
    for _ in range(min(2, env.max_turns)):
        reply = Reply(env.random_action(rng) if text == REPLIES[0] else text)
        decision = await _twice(harness, view, None, exchanges)
        if isinstance(decision, Stop):
            return
        decision = await _twice(harness, view, reply, exchanges)
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


async def _twice(
    harness: HarnessHost, view: View, reply: Reply | None, exchanges: list[Exchange]
) -> HostDecision:
    asked = _snapshot(view)
    decision, state = await harness.call(view, reply)
    exchanges.append(Exchange(asked, reply, decision, state))
    await _compare(harness, exchanges[-1], "answered the same call in two ways")
    view.state = copy.deepcopy(state)
    return decision


async def _compare(harness: HarnessHost, first: Exchange, difference: str) -> None:
    decision, state = await harness.call(_snapshot(first.view), first.reply)
    if (decision, state) != (first.decision, first.state):
        hook = "messages" if first.reply is None else "read"
        before, after = (first.decision, decision) if decision != first.decision else (first.state, state)
        raise HarnessFileError(f"{harness.name}:1: {hook} {difference}: {before!r:.100} and {after!r:.100}")


def _snapshot(view: View) -> View:
    return msgspec.structs.replace(view, state=copy.deepcopy(view.state))


async def _replay(harness: HarnessHost, domain: str, exchanges: list[Exchange]) -> None:
    """Makes the calls again, shuffled, in a process that has seen none of them."""
    shuffled = list(exchanges)
    derive_rng("check", 1, domain).shuffle(shuffled)
    try:
        for exchange in shuffled:
            await _compare(harness, exchange, "answered otherwise in another process or order")
    except RolloutError as error:
        raise HarnessFileError(error.detail or str(error)) from error


def _check_provenance(harness: HarnessHost, exchanges: list[Exchange]) -> None:
    for exchange in exchanges:
        decision, reply = exchange.decision, exchange.reply
        if reply is not None and isinstance(decision, Act) and not is_sampled(decision.action, [reply.text]):
            raise HarnessFileError(
                f"{harness.name}:1: read acts with {decision.action!r:.60}, "
                f"which does not stand in the reply {reply.text!r:.60}"
            )
