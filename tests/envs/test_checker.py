"""The checker finds what it should: each fake breaks one rule, and hears about that rule."""

import random
from random import Random
from typing import Any, ClassVar

import gymnasium
import pytest

from whale_envs.core import InfoInt, Transition, Verdict
from whale_envs.errors import ContractError, WhaleError
from whale_envs.spaces import UnicodeText
from whale_envs.testing import EchoEnv, check_env


class _Step(EchoEnv):
    """Lets a fake change what a step returns."""

    async def astep(self, action: str) -> Any:
        return self.change(action, *await super().astep(action))

    def change(self, action: str, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        return obs, reward, terminated, truncated, info


class RaisesOnSurrogates(EchoEnv):
    async def _advance(self, action: str) -> Transition:
        action.encode()
        return await super()._advance(action)


class RaisesOnLongActions(EchoEnv):
    async def _advance(self, action: str) -> Transition:
        if len(action) > 10_000:
            raise ValueError("too long for me")
        return await super()._advance(action)


class RaisesOnToolCalls(EchoEnv):
    async def _advance(self, action: str) -> Transition:
        if action.startswith('{"tool": "'):
            raise KeyError("no such tool")
        return await super()._advance(action)


class TalksOutsideItsSpace(EchoEnv):
    OBSERVATION_CHARS = 5


class UsesGymnasiumsText(EchoEnv):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.observation_space = gymnasium.spaces.Text(200)


class ForgetsAKey(_Step):
    def change(self, action: str, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        del info["feedback"]
        return obs, reward, terminated, truncated, info


class TellsCorrectEarly(_Step):
    def change(self, action: str, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        return obs, reward, terminated, truncated, {"correct": InfoInt(0), **info}


class NeverTellsCorrect(_Step):
    def change(self, action: str, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        info.pop("correct", None)
        return obs, reward, terminated, truncated, info


class CorrectIsABareInt(_Step):
    def change(self, action: str, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        if "correct" in info:
            info["correct"] = int(info["correct"])
        return obs, reward, terminated, truncated, info


class CounterIsABareInt(EchoEnv):
    def _info(self, event: str, feedback: str) -> dict[str, Any]:
        return {**super()._info(event, feedback), "said": self._said}


class CounterChangesItsType(EchoEnv):
    def _counters(self) -> dict[str, float]:
        return {"said": self._said / 2 if self._said else 0}


class EventIsASentence(EchoEnv):
    async def _advance(self, action: str) -> Transition:
        done = await super()._advance(action)
        return Transition(done.observation, f"Bad action {action[:5]}", done.feedback, done.ended)


class LosesCount(_Step):
    def change(self, action: str, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        return obs, reward, terminated, truncated, {**info, "turn": InfoInt(1)}


class BothFlags(_Step):
    def change(self, action: str, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        return obs, reward, terminated, terminated or truncated, info


class FlagsAreNumbers(_Step):
    def change(self, action: str, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        return obs, reward, int(terminated), int(truncated), info


class OneTurnTooMany(EchoEnv):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.options["max_turns"] += 1

    max_turns = property(lambda self: self.options["max_turns"] - 1)


class TruncatesTheSolved(_Step):
    def change(self, action: str, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        at_cap = terminated and info["turn"] >= self.max_turns
        return obs, reward, terminated and not at_cap, truncated or at_cap, info


class PaysEarly(_Step):
    def change(self, action: str, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        return obs, reward if terminated or truncated else 0.1, terminated, truncated, info


class PaysTooMuch(EchoEnv):
    def _judge(self, stop_condition: str) -> Verdict:
        return Verdict(2.0, stop_condition, standard=1.0, paper=1.0)


class RewardIsNotTheVerdicts(_Step):
    def change(self, action: str, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        return obs, 0.5 if terminated else reward, terminated, truncated, info


class StopConditionIsNotTheVerdicts(_Step):
    def change(self, action: str, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        return obs, reward, terminated, truncated, info | ({"stop_condition": "x"} if terminated else {})


class OracleIsWrong(EchoEnv):
    def oracle_action(self) -> str:
        return "no"


class PaperIsHarder(EchoEnv):
    def _judge(self, stop_condition: str) -> Verdict:
        done = super()._judge(stop_condition)
        return Verdict(
            0.0 if self.profile == "paper" else done.reward, stop_condition, standard=1.0, paper=1.0
        )


class StepsAfterTheEnd(EchoEnv):
    async def astep(self, action: str) -> Any:
        if self._verdict is not None:
            return "", 0.0, True, False, self._info("ok", "")
        return await super().astep(action)


class StepsBeforeReset(EchoEnv):
    async def astep(self, action: str) -> Any:
        if self._example is None:
            self.reset()
        return await super().astep(action)


class TakesAnyAction(EchoEnv):
    async def astep(self, action: str) -> Any:
        return await super().astep(str(action))


class TakesAnyOption(EchoEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        wanted = (options or {}).get("example_id")
        return super().reset(seed=seed, options={"example_id": wanted} if wanted in self.examples.ids else {})


class RaisesTheWrongThing(EchoEnv):
    async def astep(self, action: str) -> Any:
        if not isinstance(action, str):
            raise RuntimeError("what is this?")  # noqa: TRY004 - the wrong kind on purpose
        return await super().astep(action)


class TakesAnyBudget(EchoEnv):
    def __init__(self, **options: Any) -> None:
        kept = {k: v for k, v in options.items() if k in ("examples", "profile")}
        super().__init__(**kept, max_turns=min(max(int(options.get("max_turns", 6)), 1), 12))


class TruncateLosesTheReason(EchoEnv):
    def truncate(self, stop_condition: str) -> Verdict:
        return super().truncate("cut")


class IsRandom(EchoEnv):
    def _ask(self) -> str:
        return f"{super()._ask()} {random.random()}"


class KeepsStateInTheClass(EchoEnv):
    calls = 0

    def _ask(self) -> str:
        type(self).calls += 1
        return f"{super()._ask()} ({self.calls})"


class DoesNotPickle(EchoEnv):
    def __getstate__(self) -> Any:
        raise TypeError("I hold a socket")


class ForgetsTheSeed(EchoEnv):
    def __getstate__(self) -> Any:
        return {**self.__dict__, "_seed": 12345}


class AddsSeedAndIndex(EchoEnv):
    _base: int
    _count: int

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._count = 0 if seed is not None else self._count + 1
        self._base = seed if seed is not None else self._base
        if not options:
            options = {"example_id": self.examples.ids[(self._base + self._count) % len(self.examples)]}
        return super().reset(seed=seed, options=options)


class IgnoresTheSeed(EchoEnv):
    _count: int

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._count = 0 if seed is not None else self._count + 1
        if not options:
            options = {"example_id": self.examples.ids[self._count % len(self.examples)]}
        return super().reset(seed=seed, options=options)


class HintsInTheInfo(EchoEnv):
    def _info(self, event: str, feedback: str) -> dict[str, Any]:
        return {**super()._info(event, feedback), "hint": str(self._example.gold)}


class GoldInTheInfo(EchoEnv):
    def _info(self, event: str, feedback: str) -> dict[str, Any]:
        return {**super()._info(event, feedback), "gold": self._example.gold}


class GoldInTheObservation(EchoEnv):
    def _ask(self) -> str:
        return f"Say: {self._example.gold[self._said]}"


class GoldInTheCounters(EchoEnv):
    def _counters(self) -> dict[str, float]:
        return {"said": self._said, "words": sum(map(len, self._example.gold))}


class GoldInTheRandomAction(EchoEnv):
    def random_action(self, rng: Random) -> str:
        words: list[str] = [*self._example.gold, "no"]
        return rng.choice(words)


class RandomActionIsBlank(EchoEnv):
    def random_action(self, rng: Random) -> str:
        return " "


class RandomActionIsUnseeded(EchoEnv):
    def random_action(self, rng: Random) -> str:
        return f"{random.random()}"


class AwaitsAnotherWay(EchoEnv):
    async def astep(self, action: str) -> Any:
        obs, *rest = await super().astep(action)
        return (f"{obs} (awaited)", *rest)

    def step(self, action: str) -> Any:
        obs, *rest = super().step(action)
        return (obs.removesuffix(" (awaited)"), *rest)


class SaysItNeverWaits(EchoEnv):
    suspends = False


class NeverEnds(EchoEnv):
    async def _advance(self, action: str) -> Transition:
        self._turn = 0
        return Transition(self._ask(), "ok", "Again.")


class ShareTheirInfo(EchoEnv):
    shared: ClassVar[dict[str, Any]] = {}

    def _info(self, event: str, feedback: str) -> dict[str, Any]:
        self.shared.clear()
        self.shared.update(super()._info(event, feedback))
        return self.shared


class ForgetsTheGenerator(EchoEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        result = super().reset(seed=seed, options=options)
        self._np_random = None
        return result


class RendersNothing(EchoEnv):
    metadata: dict[str, Any] = {"render_modes": [], "render_fps": 1}  # noqa: RUF012 - as Gymnasium has it

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.render_mode = "ansi"


class RaisesOnIts(EchoEnv):
    async def _advance(self, action: str) -> Transition:
        if action == "peculiar":
            raise RuntimeError("not that")
        return await super()._advance(action)


BROKEN = [
    (RaisesOnSurrogates, "The action '\\ud800' raised UnicodeEncodeError"),
    (RaisesOnLongActions, "(50000 characters) raised ValueError: too long for me"),
    (RaisesOnToolCalls, "raised KeyError"),
    (TalksOutsideItsSpace, "The observation space does not contain 'Say: word-"),
    (UsesGymnasiumsText, "not within the observation space"),
    (ForgetsAKey, "info has the keys ['event', 'example_id', 'said', 'turn'] where"),
    (TellsCorrectEarly, "info has the keys ['correct', "),
    (NeverTellsCorrect, "where ['correct', "),
    (CorrectIsABareInt, "info['correct'] must be InfoInt, got "),
    (CounterIsABareInt, "info['said'] is a bare int, which vector environments turn into 0"),
    (CounterChangesItsType, "info['said'] changes its type from InfoInt"),
    (EventIsASentence, "is no typed word: 'Bad action"),
    (LosesCount, "info['turn'] is 1 after 2 actions"),
    (BothFlags, "both terminated and truncated"),
    (FlagsAreNumbers, "terminated and truncated must be bool, got 0 and 0"),
    (OneTurnTooMany, "There was a turn beyond max_turns="),
    (OneTurnTooMany, "must be truncated only"),
    (TruncatesTheSolved, "must be terminated only"),
    (PaysEarly, "The reward before the end is 0.1, not 0"),
    (PaysTooMuch, "both in [0, 1]"),
    (RewardIsNotTheVerdicts, "The last reward is 0.5, the verdict's"),
    (StopConditionIsNotTheVerdicts, "info's correct and stop_condition are not the verdict's"),
    (OracleIsWrong, "The oracle does not solve echo-"),
    (PaperIsHarder, "under paper: Verdict(reward=0.0"),
    (StepsAfterTheEnd, "step after the end must raise EpisodeError, but was accepted"),
    (StepsAfterTheEnd, "step after truncate must raise EpisodeError, but was accepted"),
    (StepsBeforeReset, "step before reset must raise EpisodeError, but was accepted"),
    (TakesAnyAction, "the action None must raise UsageError, but was accepted"),
    (TakesAnyOption, "reset with {'no such option': 1} must raise UsageError, but was accepted"),
    (TakesAnyOption, "reset with {'example_id': 'no such id'} must raise UsageError, but was accepted"),
    (RaisesTheWrongThing, "must raise UsageError, but raised RuntimeError: what is this?"),
    (TakesAnyBudget, "the option {'max_turns': 0} must raise UsageError, but was accepted"),
    (TakesAnyBudget, "the option {'no_option': 1} must raise UsageError, but was accepted"),
    (TruncateLosesTheReason, "truncate's verdict must give the stop condition"),
    (IsRandom, "Two environments with the same seed differ"),
    (KeepsStateInTheClass, "Two environments with the same seed differ"),
    (DoesNotPickle, "TypeError: I hold a socket"),
    (ForgetsTheSeed, "A pickled or deep copy does not reset as the original does"),
    (AddsSeedAndIndex, "Neighbouring seeds serve the same sequence"),
    (IgnoresTheSeed, "Neighbouring seeds serve the same sequence"),
    (HintsInTheInfo, "depends on its gold answer"),
    (GoldInTheInfo, "holds its gold answer or its source before the end"),
    (GoldInTheObservation, "depends on its gold answer"),
    (GoldInTheCounters, "depends on its gold answer"),
    (GoldInTheRandomAction, "depends on its gold answer"),
    (RandomActionIsBlank, "random_action gave ' ', which is not well formed"),
    (RandomActionIsUnseeded, "random_action differs for equal generators"),
    (AwaitsAnotherWay, "astep does not give what step gives"),
    (SaysItNeverWaits, "says that it never suspends"),
    (NeverEnds, "An episode did not end within"),
    (ShareTheirInfo, "share an object"),
    (ForgetsTheGenerator, "Gymnasium's own checker is content. It broke off with AssertionError"),
    (RendersNothing, "With no render_modes, expects the Env.render_mode to be None"),
]


@pytest.mark.parametrize(("broken", "complaint"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_environment_hears_what_is_wrong(broken: type[EchoEnv], complaint: str) -> None:
    with pytest.raises(ContractError) as error:
        check_env(broken())
    assert complaint in str(error.value)


def test_a_complaint_is_one_sentence_a_line() -> None:
    with pytest.raises(ContractError) as error:
        check_env(TakesAnyBudget())
    lines = str(error.value).split("\n")
    assert len(lines) == len(set(lines)) > 2
    assert all(line.endswith(".") for line in lines)


def test_a_wrapped_environment_is_refused_with_the_remedy() -> None:
    with pytest.raises(ContractError, match=r"pass env\.unwrapped"):
        check_env(gymnasium.wrappers.OrderEnforcing(EchoEnv()))


def test_the_domains_own_odd_actions_are_tried() -> None:
    check_env(RaisesOnIts())
    with pytest.raises(ContractError, match="The action 'peculiar' raised RuntimeError: not that"):
        check_env(RaisesOnIts(), actions=["peculiar"])


def test_a_contract_error_is_an_assertion_and_one_of_ours() -> None:
    assert issubclass(ContractError, AssertionError)
    assert issubclass(ContractError, WhaleError)


def test_an_environment_with_a_single_example_can_be_checked() -> None:
    check_env(EchoEnv(examples=EchoEnv().examples[:1]))


def test_a_bounded_observation_space_is_used_by_the_smallest_environment() -> None:
    assert EchoEnv().observation_space == UnicodeText(16_384)
