"""Makes the hook calls of scored rollouts again, in another order and fresh processes, and compares.

    finding = await replay_calls(source, "chess_puzzles", rollouts)     # None where nothing differs

A harness that kept something from call to call, or looked at a clock, answered rollouts that nobody can play
again; a check with a scripted model sees only its first turns. Here every answer is compared byte for byte:

1. in one fresh worker, with what the rollouts recorded, their calls interleaved at random;
2. in another, with what the first one answered, state included, all calls shuffled.

That costs no rollout and no model, and at most `MOST_CALLS` calls; rollouts are drawn by seed until these are
spent. The order of sets and `hash` are the same in every worker, so a harness may go by them.

Not covered: a harness that recognises a replay, or that differs more rarely than once in the calls made; the
call with which a rollout ended without a step, such as one that failed or stopped.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from whale_bench.harness.base import Act, Ask, Nudge, Reply, Turn, View
from whale_bench.harness.dry_run import line_of
from whale_bench.harness.findings import Finding
from whale_bench.harness.host import HarnessHost, HostDecision, ProcessHarness
from whale_bench.models.base import Message
from whale_bench.records import Rollout
from whale_bench.replies import said_in
from whale_envs import RolloutError, get_domain
from whale_envs.errors import UsageError
from whale_envs.seeding import derive_rng, derive_seed

MOST_CALLS = 1_024
"""Hook calls of one replay, both passes together; a call of h0 costs a worker some 0.07 ms of CPU."""

_AROUND = 60


class _Made(NamedTuple):
    """A call and the answer that it must get."""

    view: View
    reply: Reply | None
    answer: bytes
    state: bytes


async def replay_calls(
    source: str,
    domain: str,
    rollouts: Sequence[Rollout],
    *,
    name: str = "candidate.py",
    token_budget: int | None = None,
    calls: int = MOST_CALLS,
    seed: int = 0,
    unsafe: bool = False,
) -> Finding | None:
    """The first call that is answered otherwise now, by hook, file and line; None where there is none.

    Args:
        source: of the harness that played.
        domain: where.
        rollouts: that it played, in any number and order.
        name: what findings call the file.
        token_budget: as the task had it; None is the domain's.
        calls: most hook calls to make.
        seed: of the choice of rollouts and the order of calls.
        unsafe: run it even where it cannot be confined.

    Raises:
        HarnessFileError: the source cannot be loaded.
        UsageError: a rollout was played by another harness, or it would not be confined here.
    """
    first, second = (ProcessHarness(name, source=source, unsafe=unsafe) for _ in range(2))
    if other := next((row for row in rollouts if row.harness_id != first.harness_id), None):
        raise UsageError(f"rollout {other.key!r} was played by {other.harness_id}, not {first.harness_id}")
    budget = get_domain(domain).budget(token_budget)
    rng = derive_rng("replay-calls", seed, domain)
    async with first, second:
        turns = _max_turns(domain, first)
        chosen = [_recorded(row, turns, budget) for row in rng.sample(rollouts, len(rollouts))]
        made: list[_Made] = []
        found = await _interleaved(first, chosen, rng, calls // 2, made)
        rng.shuffle(made)
        for call in [] if found else made:
            answer, state = await _answer(second, call.view, call.reply)
            if answer != call.answer:
                found = _difference(second, call.reply, call.answer, answer, "in another order")
            elif state != call.state:
                found = _difference(second, call.reply, call.state, state, "in another order, in its state,")
            if found is not None:
                break
    return None if found is None else Finding(domain, found)


async def _interleaved(
    harness: HarnessHost,
    rollouts: list[Iterator[tuple[View, Reply | None, bytes]]],
    rng: Any,
    most: int,
    made: list[_Made],
) -> str | None:
    """Plays the rollouts' calls beside one another; fills `made`, and says what differed."""
    waiting, running = (
        list(rollouts),
        list[tuple[Iterator[tuple[View, Reply | None, bytes]], dict[str, Any]]](),
    )
    while len(made) < most and (waiting or running):
        if waiting and len(running) < _BESIDE:
            running.append((waiting.pop(), {}))
            continue
        at = rng.randrange(len(running))
        calls, state = running[at]
        recorded = next(calls, None)
        if recorded is None:
            del running[at]
            continue
        view, reply, expected = recorded
        view.state = msgspec.json.decode(msgspec.json.encode(state))
        answer, kept = await _answer(harness, view, reply)
        if answer != expected:
            return _difference(harness, reply, expected, answer, "than it did in a scored rollout")
        made.append(_Made(view, reply, answer, kept))
        running[at] = (calls, msgspec.json.decode(kept))
    return None


_BESIDE = 8
"""Rollouts that are played at a time, so that calls of several lie between two of one."""


def _recorded(row: Rollout, max_turns: int, budget: int | None) -> Iterator[tuple[View, Reply | None, bytes]]:
    """The calls of a rollout as the engine made them, without state, and their answers."""
    seed = derive_seed("harness", row.seed, row.example_id, row.sample)
    turns: tuple[Turn, ...] = ()
    observation, sampled = row.opening, 0
    for number, segment in enumerate(row.segments):
        left = None if budget is None else budget - sampled
        view = View(row.domain, row.opening, observation, turns, max_turns, left, seed)
        yield view, None, msgspec.json.encode(segment.messages)
        sampled += segment.sampled_tokens or 0
        if number >= len(row.steps):
            return
        step = row.steps[number]
        reasoning, text = said_in(segment)
        reply = Reply(text, reasoning, segment.tool_calls, segment.finish_reason)
        decision = Nudge(step.observation) if step.action is None else Act(step.action)
        yield msgspec.structs.replace(view), reply, msgspec.json.encode(decision)
        turns += (Turn(reply, step.action, step.observation, step.feedback, step.event),)
        observation = observation if step.action is None else step.observation


async def _answer(harness: HarnessHost, view: View, reply: Reply | None) -> tuple[bytes, bytes]:
    """What it decides, and its state afterwards, in bytes; of a failure, its words."""
    try:
        decision, state = await harness.call(view, reply)
    except RolloutError as error:
        return f"{error.reason}: {error.detail}".encode(), b""
    return _bytes(decision), msgspec.json.encode(state)


def _bytes(decision: HostDecision) -> bytes:
    if not isinstance(decision, Ask):
        return msgspec.json.encode(decision)
    try:
        return msgspec.json.encode(msgspec.convert(decision.messages, tuple[Message, ...]))
    except msgspec.ValidationError as error:
        return str(error).encode()


def _max_turns(domain: str, harness: HarnessHost) -> int:
    from whale_bench.engine import env_options  # the engine imports the host

    default: int = get_domain(domain).module.ENV.DEFAULTS["max_turns"]
    return env_options(domain, harness).get("max_turns", default)


def _difference(harness: HarnessHost, reply: Reply | None, then: bytes, now: bytes, how: str) -> str:
    hook = "messages" if reply is None else "read"
    one, other = then.decode("utf-8", "replace"), now.decode("utf-8", "replace")
    at = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    start = max(0, at - _AROUND // 2)
    return (
        f"{harness.name}:{line_of(harness.source, hook)}: {hook} answers a recorded call otherwise {how}: "
        f"{one[start : start + _AROUND]!r} then, {other[start : start + _AROUND]!r} now"
    )
