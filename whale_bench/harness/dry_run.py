"""Short rollouts of a harness with a scripted model, and the same calls made again.

    exchanges = await check_rollouts(harness, "chess_puzzles")      # HarnessFileError at the first fault
    await replay(other, "chess_puzzles", exchanges)                 # in a process that has seen none of them

The model replies with an ordinary action, with several of them, with a call of the domain's tool as h0
reads one, with nothing, and with nonsense. Every call is made twice, which must give the same answer.

Not covered: the tool's own work; what a tool call gets here is made up.
"""

import ast
import copy
import re
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import msgspec

from whale_bench.harness.base import Act, Ask, Reply, Stop, Turn, View
from whale_bench.harness.choice import is_fair_choice
from whale_bench.harness.host import HarnessHost, HostDecision
from whale_bench.harness.provenance import is_sampled
from whale_envs import RolloutError, ToolCall, make_env, parse_action
from whale_envs.core import TextEnv
from whale_envs.errors import HarnessFileError, UnknownNameError
from whale_envs.seeding import derive_rng, derive_seed

REPLIES = ("", "I am not sure. <b>{}</b> \u2654 [ ]")
"""Replies of the scripted model, after actions of the environment, one and then several at a time."""

_SEVERAL = 6

TOOL_REPLIES = {
    "math_python": "I compute.\n```python\nprint(6 * 7)\n```",
    "search_qa": "<search>capital of France</search>",
}
"""One more, of a domain with a tool: a call in the form that its h0 reads."""

_TURNS = 2


class Exchange(NamedTuple):
    """One call of a dry run and its answer."""

    view: View
    reply: Reply | None
    decision: HostDecision
    state: dict[str, object]


async def check_rollouts(harness: HarnessHost, domain: str) -> list[Exchange]:
    """Plays a short rollout of the domain with each scripted reply; returns every call and answer.

    Raises:
        HarnessFileError: the first fault, with file and line.
    """
    from whale_bench.engine import env_options  # the engine imports the host

    try:
        options = env_options(domain, harness)
    except UnknownNameError as error:
        raise HarnessFileError(f"{harness.name}:{line_of(harness.source, 'ENV_OPTIONS')}: {error}") from error
    exchanges: list[Exchange] = []
    said = [*REPLIES, *([TOOL_REPLIES[domain]] if domain in TOOL_REPLIES else [])]
    for say in (_an_action, _several, *(lambda _env, _rng, text=text: text for text in said)):
        await _dry_run(harness, domain, say, options, exchanges)
    return exchanges


async def replay(harness: HarnessHost, domain: str, exchanges: list[Exchange]) -> None:
    """Makes the calls again, shuffled.

    Raises:
        HarnessFileError: an answer is not what it was.
    """
    shuffled = list(exchanges)
    derive_rng("check", 1, domain).shuffle(shuffled)
    for exchange in shuffled:
        await _compare(harness, exchange, "answered otherwise in another process or order")


def check_provenance(harness: HarnessHost, exchanges: list[Exchange]) -> None:
    """HarnessFileError where the harness acted with what the scripted model did not say."""
    for exchange in exchanges:
        decision, reply, view = exchange.decision, exchange.reply, exchange.view
        if reply is None or not isinstance(decision, Act):
            continue
        acts = (
            f"{harness.name}:{line_of(harness.source, 'read')}: read acts with {decision.action!r:.60}, which"
        )
        if not is_sampled(decision.action, [reply.text]):
            raise HarnessFileError(f"{acts} does not stand in the reply {reply.text!r:.60}")
        chess = view.domain == "chess_puzzles"
        if chess and not is_fair_choice(decision.action, [reply.text], view.observation):
            raise HarnessFileError(f"{acts} it chooses among the moves of the reply {reply.text!r:.60}")


def line_of(source: str, name: str) -> int:
    """Where `class Harness` sets that name or defines that method; else where it begins, else 1."""
    try:
        classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 1
    for harness in [node for node in classes if node.name == "Harness"]:
        for statement in harness.body:
            if isinstance(statement, ast.FunctionDef):
                names = {statement.name}
            else:
                names = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
            if name in names:
                return statement.lineno
        return harness.lineno
    return 1


def _an_action(env: TextEnv, rng: Random) -> str:
    return env.random_action(rng)


def _several(env: TextEnv, rng: Random) -> str:
    actions = dict.fromkeys(env.random_action(rng) for _ in range(_SEVERAL))
    return "\n".join(f"{action} [{action}] <move>{action}</move>" for action in actions)


async def _dry_run(
    harness: HarnessHost,
    domain: str,
    say: Callable[[TextEnv, Random], str],
    options: dict[str, int],
    exchanges: list[Exchange],
) -> None:
    env = make_env(domain, split="dev", **options)
    opening, info = env.reset(options={"example_id": env.examples[0].id})
    view = View(domain, opening, opening, max_turns=env.max_turns, seed=derive_seed("check", 0))
    rng = derive_rng("check", 0)
    for _ in range(min(_TURNS, env.max_turns)):
        reply = Reply(say(env, rng))
        decision = await _twice(harness, view, None, exchanges)
        if isinstance(decision, Stop):
            return
        decision = await _twice(harness, view, reply, exchanges)
        if isinstance(decision, Stop | Ask):
            return
        if isinstance(decision, Act) and isinstance(parse_action(decision.action), ToolCall):
            turn = Turn(reply, decision.action, "42\n", "The call was made.", "ok")
            view.observation = turn.observation
        elif isinstance(decision, Act):
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
    decision, state = await _call(harness, view, reply)
    exchanges.append(Exchange(asked, reply, decision, state))
    await _compare(harness, exchanges[-1], "answered the same call in two ways")
    view.state = copy.deepcopy(state)
    return decision


async def _compare(harness: HarnessHost, first: Exchange, difference: str) -> None:
    decision, state = await _call(harness, _snapshot(first.view), first.reply)
    if (decision, state) != (first.decision, first.state):
        hook = "messages" if first.reply is None else "read"
        before, after = (first.decision, decision) if decision != first.decision else (first.state, state)
        place = f"{harness.name}:{line_of(harness.source, hook)}"
        raise HarnessFileError(f"{place}: {hook} {difference}: {before!r:.100} and {after!r:.100}")


async def _call(harness: HarnessHost, view: View, reply: Reply | None) -> tuple[HostDecision, dict[str, Any]]:
    try:
        return await harness.call(view, reply)
    except RolloutError as error:
        said = error.detail or str(error)
        if not re.match(rf"{re.escape(harness.name)}:\d+: ", said):
            line = line_of(harness.source, "messages" if reply is None else "read")
            said = f"{harness.name}:{line}: {said.removeprefix(f'{harness.name}: ')}"
        raise HarnessFileError(said) from error


def _snapshot(view: View) -> View:
    return msgspec.structs.replace(view, state=copy.deepcopy(view.state))
