"""What authors of environments test with: the checker of our contract, and the smallest environment.

    check_env(gymnasium.make("whale/ChessPuzzles-v0").unwrapped)      # raises ContractError

    class MyEnv(TextEnv): ...
    check_env(MyEnv(), actions=["an action of my domain that should not raise"])

`check_env` begins with Gymnasium's own checker, then plays short episodes on copies of the
environment, made with the same options and a few of its examples; the environment that it is given
is only reset. `EchoEnv` is a multi-turn environment with an asynchronous core, for tests of whatever
runs environments.

Not covered: that the verifier is right (only that it accepts gold), and Gymnasium's vector classes,
whose tests need processes.
"""

import asyncio
import copy
import dataclasses
import pickle
import re
import warnings
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random
from typing import Any, ClassVar, NamedTuple

import gymnasium
from gymnasium.utils.env_checker import check_env as check_gymnasium

from whale_envs.core import (
    PROFILES,
    SPLITS,
    Example,
    ExampleSet,
    InfoFloat,
    InfoInt,
    TextEnv,
    ToolCall,
    Transition,
    Verdict,
    content_id,
    parse_action,
)
from whale_envs.errors import ContractError, EpisodeError, UsageError

ODD_ACTIONS = (
    "", " \n", "x" * 50_000, "\ud800", "a\x00b", "♞🤖", "{not json", '{"tool": 1, "arguments": []}',
    '{"tool": "no such tool", "arguments": {"q": null}}', "[" * 2_000, "<think>only thought",
)  # fmt: skip
"""Actions that no environment may raise at."""

MOST_TURNS = 64
"""No scripted episode of the checker is longer; a bound on the checker, not on environments."""

ALWAYS = {"example_id": str, "turn": InfoInt, "event": str, "feedback": str}
AT_THE_END = {"stop_condition": str, "correct": InfoInt, "verdict": Verdict}
"""What `info` holds, with types."""


class Step(NamedTuple):
    """What a reset (with reward 0 and neither flag) or a step returned."""

    observation: Any
    reward: Any
    terminated: Any
    truncated: Any
    info: dict[str, Any]

    @property
    def ended(self) -> bool:
        return bool(self.terminated or self.truncated)


def check_env(env: gymnasium.Env[Any, Any], *, actions: Sequence[str] = ()) -> None:
    """Checks an environment against the contract of `whale_envs.core`.

    Args:
        env: of a class derived from `TextEnv` whose constructor takes `TextEnv`'s arguments.
        actions: odd actions of the domain, tried beside `ODD_ACTIONS`.

    Raises:
        ContractError: with one sentence for each violation, one a line.
    """
    if not isinstance(env, TextEnv):
        raise ContractError(f"{type(env).__name__} is not derived from TextEnv; pass env.unwrapped.")
    case = _Case(env, (*ODD_ACTIONS, *actions))
    found: list[str] = []
    for check in _CHECKS:
        try:
            found += check(case)
        except Exception as error:  # noqa: BLE001 - whatever it raises is the finding
            found.append(f"{check.__doc__} It broke off with {type(error).__name__}: {str(error)[:300]}")
    if found:
        raise ContractError("\n".join(dict.fromkeys(found)))


@dataclasses.dataclass(frozen=True)
class _Case:
    env: TextEnv
    actions: Sequence[str]

    def remake(self, **changes: Any) -> TextEnv:
        """A fresh environment of the same class and options, over the first few examples."""
        base = {"examples": self.env.examples[:4], "profile": self.env.profile, **self.env.options}
        return type(self.env)(**{**base, **changes})


# --- the checks: each yields a sentence for each violation ---------------------------------------


def _check_gymnasium(case: _Case) -> Iterator[str]:
    """Gymnasium's own checker is content."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_gymnasium(case.env)
    for warning in caught:
        if "not having a spec" not in str(warning.message):  # an environment need not be registered
            yield f"Gymnasium's checker warns: {warning.message}"


def _check_episodes(case: _Case) -> Iterator[str]:
    """Each step of ordinary and odd episodes is as the contract says."""
    env = case.remake()
    for example in env.examples:
        yield from _episode(env, example, env.oracle_action)
        rng = Random(0)
        yield from _episode(env, example, partial(env.random_action, rng))
    for action in case.actions:
        yield from _episode(env, env.examples[0], partial(str, action))


def _check_oracle(case: _Case) -> Iterator[str]:
    """The oracle solves the examples under both profiles."""
    for profile in PROFILES:
        env = case.remake(profile=profile)
        for example in env.examples:
            verdict = _play(env, example)[-1].info.get("verdict")
            if verdict is None or (verdict.reward, verdict.standard, verdict.paper) != (1, 1, 1):
                yield f"The oracle does not solve {example.id} under {profile}: {verdict!r}."


def _check_turn_cap(case: _Case) -> Iterator[str]:
    """The turn cap is exact."""
    for example in case.remake().examples:
        turns = len(_play(case.remake(), example)) - 1
        last = _play(case.remake(max_turns=turns), example)[-1]
        if (last.terminated, last.truncated) != (True, False):
            yield f"Solved on the last of {turns} turns, {example.id} must be terminated only."
        if turns <= case.env.BOUNDS["max_turns"][0]:
            continue
        steps = _play(case.remake(max_turns=turns - 1), example)
        if len(steps) != turns or (steps[-1].terminated, steps[-1].truncated) != (False, True):
            yield f"Unfinished after the last of {turns - 1} turns, {example.id} must be truncated only."
        elif (steps[-1].info["stop_condition"], steps[-1].reward) != ("max_turns", 0):
            yield f"Cut off at the turn cap, {example.id} must stop as max_turns with reward 0."


def _check_misuse(case: _Case) -> Iterator[str]:
    """Misuse raises, and changes nothing."""
    env = case.remake()
    first = env.examples[0]
    yield from _must_raise(EpisodeError, "step before reset", env.step, "")
    yield from _must_raise(EpisodeError, "truncate before reset", env.truncate, "stopped")
    _reset(env, first)
    for options in ({"example_id": "no such id"}, {"example_id": 7}, {"no such option": 1}):
        yield from _must_raise(UsageError, f"reset with {options}", env.reset, seed=2, options=options)
    for action in (None, 7, b"bytes", ["a"]):
        yield from _must_raise(UsageError, f"the action {action!r}", env.step, action)
    if env.step(env.oracle_action())[4]["turn"] != 1:
        yield "A refused call changed the episode."
    _play(env, first)
    yield from _must_raise(EpisodeError, "step after the end", env.step, "")
    yield from _must_raise(EpisodeError, "truncate after the end", env.truncate, "stopped")
    _reset(env, first)
    if env.truncate("stopped").reason != "stopped":
        yield "truncate's verdict must give the stop condition as its reason."
    yield from _must_raise(EpisodeError, "step after truncate", env.step, "")
    wrong: list[dict[str, Any]] = [
        {"max_turns": 0},
        {"max_turns": 2.5},
        {"profile": "none"},
        {"no_option": 1},
    ]
    for option in wrong:
        yield from _must_raise(UsageError, f"the option {option}", case.remake, **option)


def _check_copies(case: _Case) -> Iterator[str]:
    """Equally seeded environments are equal, and so are pickled and deep copies of one."""
    env = case.remake()
    for example in env.examples[:2]:
        if _play(env, example) != _play(case.remake(), example):
            yield f"Two environments with the same seed differ on {example.id}."
    env.reset(seed=11)
    resets = [(c.reset(), _continue(c)) for c in _copies(env)]
    if any(other != resets[0] for other in resets):
        yield "A pickled or deep copy does not reset as the original does."
    _reset(env, env.examples[0])
    rests = [_continue(c) for c in _copies(env)]
    if any(other != rests[0] for other in rests):
        yield "A copy taken within an episode does not go on as the original does."


def _check_seeds(case: _Case) -> Iterator[str]:
    """Seeds are hashed: equal ones serve one sequence of examples, neighbours share none."""
    env = case.remake(examples=case.env.examples[:64])
    if len(env.examples) < 2:
        return
    here, again, beside = (
        [env.reset(seed=None if i else seed)[1]["example_id"] for i in range(48)] for seed in (5, 5, 6)
    )
    if here != again:
        yield "The same seed served two sequences of examples."
    if here == beside or here[1:] == beside[:-1] or here[:-1] == beside[1:]:
        yield "Neighbouring seeds serve the same sequence of examples, shifted or not."


def _check_gold(case: _Case) -> Iterator[str]:
    """Nothing before the end depends on gold: another example's gold changes nothing."""
    env = case.remake()
    for example in env.examples:
        other = next((e for e in env.examples if e.gold != example.gold), None)
        if other is None:
            return
        twin = dataclasses.replace(example, id=f"{example.id}-twin", gold=other.gold, source=other.source)
        seen = [_visible(case.remake(examples=[e]), case.actions) for e in (twin, example)]
        if any(a != b for a, b in zip(*seen, strict=True) if a is not None and b is not None):
            yield f"An observation, an info or a random action of {example.id} depends on its gold answer."
        for step in _play(env, example)[:-1]:
            if any(value in (example.gold, example.source) for value in step.info.values() if value != ""):
                yield f"An info of {example.id} holds its gold answer or its source before the end."


def _check_random_action(case: _Case) -> Iterator[str]:
    """Random actions are well formed, and a function of the generator."""
    env = case.remake()
    _reset(env, env.examples[0])
    one, same = (env.random_action(Random(3)) for _ in range(2))
    if one != same:
        yield "random_action differs for equal generators."
    if not env.action_space.contains(one) or env.step(one)[4]["event"] in ("malformed", "illegal"):
        yield f"random_action gave {_quote(one)}, which is not well formed."


def _check_event_loop(case: _Case) -> Iterator[str]:
    """An episode is the same inside a running event loop, off the main thread, and awaited."""
    env = case.remake()
    example = env.examples[0]

    async def stepped() -> list[Step]:
        return _play(env, example)

    async def awaited() -> list[Step]:
        steps = [_reset(env, example)]
        while not steps[-1].ended and len(steps) <= MOST_TURNS:
            steps.append(Step(*await env.astep(env.oracle_action())))
        return steps

    def run(main: Callable[[], Coroutine[Any, Any, list[Step]]]) -> list[Step]:
        return asyncio.run(main())

    expected = _play(case.remake(), example)
    with ThreadPoolExecutor(1) as thread:  # this thread may have a loop of its own already
        for name, main in (("step inside an event loop", stepped), ("astep", awaited)):
            if thread.submit(run, main).result() != expected:
                yield f"{name} does not give what step gives."


_CHECKS: tuple[Callable[[_Case], Iterator[str]], ...] = (
    _check_gymnasium,
    _check_episodes,
    _check_oracle,
    _check_turn_cap,
    _check_misuse,
    _check_copies,
    _check_seeds,
    _check_gold,
    _check_random_action,
    _check_event_loop,
)


# --- one episode ---------------------------------------------------------------------------------


def _episode(env: TextEnv, example: Example, choose: Callable[[], str]) -> Iterator[str]:
    steps = [_reset(env, example)]
    if not env.observation_space.contains(steps[0].observation):
        yield f"The observation space does not contain {_quote(steps[0].observation)}."
    while not steps[-1].ended and len(steps) <= MOST_TURNS:
        action = choose()
        try:
            steps.append(Step(*env.step(action)))
        except Exception as error:  # noqa: BLE001 - whatever it raises is the finding
            yield f"The action {_quote(action)} raised {type(error).__name__}: {str(error)[:200]}."
            return
        yield from _one_step(env, steps, action)
        yield from _one_info(steps[0].info, steps[-1])
        yield from _one_outcome(steps[-1])
    if not steps[-1].ended:
        yield f"An episode did not end within {MOST_TURNS} turns."


def _one_step(env: TextEnv, steps: Sequence[Step], action: str) -> Iterator[str]:
    now, turn = steps[-1], len(steps) - 1
    if not env.observation_space.contains(now.observation):
        yield f"The observation space does not contain {_quote(now.observation)}."
    if type(now.terminated) is not bool or type(now.truncated) is not bool:
        yield f"terminated and truncated must be bool, got {now.terminated!r} and {now.truncated!r}."
    if now.terminated and now.truncated:
        yield "A step was both terminated and truncated."
    if turn > env.max_turns:
        yield f"There was a turn beyond max_turns={env.max_turns}."
    if now.info.get("turn") != turn:
        yield f"info['turn'] is {now.info.get('turn')!r} after {turn} actions."
    if not re.fullmatch(r"[a-z][a-z0-9_]*", str(now.info.get("event"))):
        yield f"The event after {_quote(action)} is no typed word: {now.info.get('event')!r:.100}."


def _one_info(first: Mapping[str, Any], now: Step) -> Iterator[str]:
    expected = ALWAYS.keys() | first.keys() | (AT_THE_END.keys() if now.ended else set())
    if now.ended:  # counters that depend on the gold answer appear here only
        expected |= {name for name, value in now.info.items() if isinstance(value, InfoInt | InfoFloat)}
    if now.info.keys() != expected:
        yield f"info has the keys {sorted(now.info)} where {sorted(expected)} were expected."
    for key, value in now.info.items():
        known = (ALWAYS | AT_THE_END).get(key)
        if known is not None and type(value) is not known:
            yield f"info[{key!r}] must be {known.__name__}, got {value!r:.100}."
        if isinstance(value, bool | int | float) and type(value) not in (InfoInt, InfoFloat):
            yield f"info[{key!r}] is a bare {type(value).__name__}, which vector environments turn into 0."
        if key in first and type(value) is not type(first[key]):
            yield f"info[{key!r}] changes its type from {type(first[key]).__name__}."


def _one_outcome(now: Step) -> Iterator[str]:
    verdict = now.info.get("verdict")
    if not now.ended and now.reward != 0:
        yield f"The reward before the end is {now.reward!r}, not 0."
    if now.ended and isinstance(verdict, Verdict):
        if now.reward != verdict.reward or not 0 <= verdict.reward <= 1:
            yield f"The last reward is {now.reward!r}, the verdict's {verdict.reward!r}; both in [0, 1]."
        if (now.info["correct"], now.info["stop_condition"]) != (verdict.correct, verdict.reason):
            yield "info's correct and stop_condition are not the verdict's."


# --- private helpers -----------------------------------------------------------------------------


def _reset(env: TextEnv, example: Example) -> Step:
    observation, info = env.reset(seed=1, options={"example_id": example.id})
    return Step(observation, 0.0, False, False, info)


def _play(env: TextEnv, example: Example) -> list[Step]:
    return [_reset(env, example), *_continue(env)]


def _continue(env: TextEnv) -> list[Step]:
    steps: list[Step] = []
    while not (steps and steps[-1].ended) and len(steps) < MOST_TURNS:
        steps.append(Step(*env.step(env.oracle_action())))
    return steps


def _copies(env: TextEnv) -> list[TextEnv]:
    return [copy.deepcopy(env), pickle.loads(pickle.dumps(env)), env]  # noqa: S301 - our own bytes


def _visible(env: TextEnv, actions: Sequence[str]) -> list[Any]:
    """What can be seen of an example before its episode ends; None where an action ended it."""
    seen: list[Any] = []
    for action in actions:
        start = _reset(env, env.examples[0])
        seen.append(env.random_action(Random(2)))
        for step in (start, Step(*env.step(action))):
            info = {key: value for key, value in step.info.items() if key != "example_id"}
            seen.append(None if step.ended else (step.observation, step.reward, info))
    return seen


def _must_raise(
    kind: type[Exception], what: str, call: Callable[..., object], *args: Any, **kwargs: Any
) -> Iterator[str]:
    try:
        call(*args, **kwargs)
    except kind:
        return
    except Exception as error:  # noqa: BLE001 - the wrong exception is the finding
        yield f"{what} must raise {kind.__name__}, but raised {type(error).__name__}: {str(error)[:200]}."
    else:
        yield f"{what} must raise {kind.__name__}, but was accepted."


def _quote(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:60]}… ({len(str(value))} characters)"


# --- the smallest environment --------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EchoExample(Example):
    """Words to repeat, one a turn."""

    words: tuple[str, ...]
    gold: tuple[str, ...]


def echo_example(*words: str) -> EchoExample:
    """An example whose answer is to repeat the words, in order."""
    return EchoExample(id=content_id("echo", *words), words=words, gold=words)


class EchoEnv(TextEnv):
    """Repeat the words that you are shown, one a turn; the core really waits on an event loop.

    A wrong word ends the episode as "wrong_word"; a blank action is "malformed" and a tool call
    "unknown_tool", and both cost a turn only. Both profiles judge alike. The splits hold eight
    examples each, of one to three words.
    """

    domain = "echo"
    DEFAULTS: ClassVar = {"max_turns": 6}
    BOUNDS: ClassVar = {"max_turns": (1, 12)}
    _said: int = 0
    _wrong: bool = False

    @classmethod
    def _load(cls, tier: str, split: str) -> ExampleSet[EchoExample]:
        start = SPLITS.index(split) * 8
        numbers = range(start, start + 8)
        examples = [echo_example(*(f"word-{n}-{i} ♞" for i in range(1 + n % 3))) for n in numbers]
        return ExampleSet(examples, name=f"echo/{tier}/{split}")

    def _begin(self, example: EchoExample) -> str:  # noqa: ARG002 - the base class keeps it
        self._said, self._wrong = 0, False
        return self._ask()

    async def _advance(self, action: str) -> Transition:
        await asyncio.sleep(0)
        if isinstance(parse_action(action), ToolCall):
            return Transition(self._ask(), "unknown_tool", "There are no tools here.")
        word = action.strip()
        if not word:
            return Transition(self._ask(), "malformed", "Nothing was said.")
        if word != self._example.gold[self._said]:
            self._wrong = True
            return Transition("That was not the word.", "wrong_word", "Wrong.", "wrong_word")
        self._said += 1
        solved = "solved" if self._said == len(self._example.gold) else ""
        return Transition("Done." if solved else self._ask(), "ok", "Right.", solved)

    def _judge(self, stop_condition: str) -> Verdict:
        reward = float(self._said == len(self._example.gold))
        answer = " ".join(self._example.words[: self._said]) or None
        return Verdict(reward, stop_condition, answer, not self._wrong, standard=reward, paper=reward)

    def _counters(self) -> dict[str, float]:
        return {"said": self._said}

    def oracle_action(self) -> str:
        return str(self._example.gold[self._said])

    def random_action(self, rng: Random) -> str:
        words: list[str] = ["yes", "no", *self._example.words]
        return rng.choice(words)

    def _ask(self) -> str:
        return f"Say: {self._example.words[self._said]}"
