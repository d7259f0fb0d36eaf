"""The contract's parts: actions, examples, verdicts, seeds, errors, the cache folder."""

import json
import os
import pickle
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_envs import errors
from whale_envs.core import (
    Example,
    ExampleSet,
    FinalResponse,
    InfoFloat,
    InfoInt,
    ToolCall,
    Verdict,
    content_id,
    parse_action,
)
from whale_envs.errors import DataError, EpisodeError, UnknownNameError, UsageError
from whale_envs.paths import cache_dir
from whale_envs.seeding import derive_rng, derive_seed
from whale_envs.testing import EchoEnv, echo_example

ANY_TEXT = st.text(st.characters(), max_size=60)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)

# --- actions -------------------------------------------------------------------------------------


@given(ANY_TEXT | st.builds("{{{}}}".format, ANY_TEXT))
def test_every_text_is_an_action(text: str) -> None:
    action = parse_action(text)
    assert isinstance(action, ToolCall) or action == FinalResponse(text)


@given(
    st.text(max_size=20), st.dictionaries(st.text(max_size=8), JSON, max_size=3), st.sampled_from(["", " \n"])
)
def test_every_tool_call_is_read_back(tool: str, arguments: dict[str, Any], around: str) -> None:
    text = around + json.dumps({"tool": tool, "arguments": arguments}) + around
    assert parse_action(text) == ToolCall(tool, arguments)


@given(JSON)
def test_json_that_is_no_tool_call_is_the_final_response(value: Any) -> None:
    text = json.dumps(value)
    assert parse_action(text) == FinalResponse(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"tool": "search"}',
        '{"tool": 1, "arguments": {}}',
        '{"tool": "search", "arguments": "Oslo"}',
        '{"tool": "search", "arguments": {}, "more": 1}',
        '[{"tool": "search", "arguments": {}}]',
        'First {"tool": "search", "arguments": {}}',
        "{'tool': 'search', 'arguments': {}}",
        '{"a":' * 100_000 + "1" + "}" * 100_000,
        '{"tool": "t", "arguments": {"n": ' + "9" * 10_000 + "}}",
        "  keeps its spaces \n",
    ],
    ids=lambda text: text[:30],
)
def test_whatever_is_no_well_formed_call_stays_as_the_model_wrote_it(text: str) -> None:
    assert parse_action(text) == FinalResponse(text)


# --- examples and verdicts -----------------------------------------------------------------------


def examples(*words: str) -> ExampleSet[Any]:
    return ExampleSet([echo_example(word) for word in words], name="words")


def test_an_example_set_keeps_its_order_and_finds_by_id() -> None:
    held = examples("b", "a", "c")
    assert [e.words for e in held] == [("b",), ("a",), ("c",)]
    assert held.by_id(held.ids[2]) is held[2] is held[-1]
    assert (len(held), repr(held)) == (3, "ExampleSet('words', 3 examples)")
    assert held[0] in held


def test_a_slice_is_an_example_set() -> None:
    held = examples("b", "a", "c")[1:]
    assert isinstance(held, ExampleSet)
    assert held.ids == examples("a", "c").ids


def test_two_examples_with_one_id_are_refused() -> None:
    with pytest.raises(DataError, match=r"example 'echo-\w{16}' stands twice in words"):
        examples("a", "b", "a")


@pytest.mark.parametrize(
    "wrong", ["nothing", 7, None, ["a"], "x" * 100_000, "\ud800"], ids=lambda v: ascii(v)[:9]
)
def test_an_unknown_id_is_quoted_shortly_whatever_it_is(wrong: Any) -> None:
    with pytest.raises(UnknownNameError, match="unknown example id in words") as error:
        examples("a").by_id(wrong)
    assert len(str(error.value)) < 400


def test_an_example_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        examples("a")[0].gold = ("b",)


def test_gold_and_source_do_not_show_in_a_repr() -> None:
    shown = repr(Example(id="x-1", gold="SECRET", source="SECRET"))
    assert "SECRET" not in shown


def test_ids_are_hashes_of_the_content() -> None:
    assert content_id("echo", "a", "b") == "echo-f04cdced9736a69d"
    assert content_id("echo", "ab") != content_id("echo", "a", "b") != content_id("echo", "b", "a")


def test_the_same_examples_can_be_given_as_a_plain_list() -> None:
    env = EchoEnv(examples=[echo_example("a"), echo_example("b")])
    assert env.reset(options={"example_id": echo_example("b").id})[0] == "Say: b"


def test_an_environment_without_examples_is_refused() -> None:
    with pytest.raises(DataError, match="no examples in the given examples"):
        EchoEnv(examples=[])


@pytest.mark.parametrize(
    ("reward", "standard", "paper", "correct", "diverged"),
    [(1.0, 1.0, 1.0, True, False), (1.0, 1.0, None, True, True), (0.0, None, 0.0, False, True)],
)
def test_a_verdict_says_whether_the_profiles_parted(
    reward: float, standard: float | None, paper: float | None, correct: bool, diverged: bool
) -> None:
    verdict = Verdict(reward, "solved", standard=standard, paper=paper)
    assert (verdict.correct, verdict.diverged) == (correct, diverged)


def test_numbers_in_info_are_numbers() -> None:
    assert json.dumps([InfoInt(3), InfoFloat(0.5)]) == "[3, 0.5]"
    assert InfoInt(2) + 1 == 3


# --- episodes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, 13, True, "3", 2.0, -1])
def test_an_option_out_of_bounds_is_quoted_with_the_bounds(value: Any) -> None:
    with pytest.raises(UsageError, match=f"max_turns must be an integer from 1 to 12, got {value!r}"):
        EchoEnv(max_turns=value)


def test_a_right_answer_on_the_last_turn_is_terminated_only() -> None:
    env = EchoEnv(examples=[echo_example("a")], max_turns=3)
    env.reset()
    flags = [env.step(action)[2:4] for action in ("", "", "a")]
    assert flags == [(False, False), (False, False), (True, False)]


def test_a_tool_call_on_the_last_turn_is_truncated_only() -> None:
    env = EchoEnv(examples=[echo_example("a")], max_turns=3)
    env.reset()
    call = '{"tool": "t", "arguments": {}}'
    flags = [env.step(call)[2:4] for _ in range(3)]
    assert flags == [(False, False), (False, False), (False, True)]
    with pytest.raises(EpisodeError, match=r"after the end \(max_turns\)"):
        env.step("a")


def test_a_refused_reset_changes_nothing() -> None:
    env = EchoEnv(split="weight")
    served = [env.reset(seed=3 if i == 0 else None)[1]["example_id"] for i in range(3)]
    env.reset(seed=3)
    for wrong in ({"example_id": "no"}, {"other": 1}):
        with pytest.raises(UnknownNameError):
            env.reset(seed=99, options=wrong)
    assert [env.reset()[1]["example_id"] for _ in range(2)] == served[1:]


def test_unseeded_environments_differ() -> None:
    served = [[env.reset()[1]["example_id"] for _ in range(24)] for env in (EchoEnv(), EchoEnv())]
    assert served[0] != served[1]


def test_an_example_asked_for_by_id_is_served() -> None:
    env = EchoEnv(split="dev")
    for example in env.examples:
        assert env.reset(options={"example_id": example.id})[1]["example_id"] == example.id


def test_truncate_ends_the_episode_with_its_reason() -> None:
    env = EchoEnv()
    env.reset(seed=0)
    assert env.truncate("token_budget").reason == "token_budget"
    with pytest.raises(EpisodeError, match=r"after the end \(token_budget\)"):
        env.step("a")
    with pytest.raises(EpisodeError, match=r"truncate\('again'\) was called outside an episode"):
        env.truncate("again")


def test_threads_step_their_own_environments_side_by_side() -> None:
    found: list[int] = []

    def play(seed: int) -> None:
        env = EchoEnv()
        env.reset(seed=seed)
        while not (step := env.step(env.oracle_action()))[2]:
            pass
        found.append(step[4]["correct"])

    threads = [threading.Thread(target=play, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == [1] * 8


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_steps_and_leaves_its_parents_loop_alone() -> None:
    env = EchoEnv()
    env.reset(seed=0)
    env.step("")
    child = os.fork()
    if not child:
        signal.alarm(20)  # a hang kills the child
        os._exit(0 if env.step("")[4]["turn"] == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert env.step("")[4]["turn"] == 2


# --- seeds ---------------------------------------------------------------------------------------


def test_seeds_are_stable() -> None:
    assert derive_seed("doc", 7, 0) == 3852506056197917054
    assert derive_seed("doc", 7, "a") == derive_seed("doc", 7, "a") != derive_seed("doc", 7, "b")
    assert derive_rng("doc", 7).random() == derive_rng("doc", 7).random()


PARTS = st.lists(st.integers() | st.text("a\x1f\\s:", max_size=3), max_size=3)
ARGUMENTS = st.tuples(st.text("ab\x1f\\", max_size=3), st.integers(0, 3), PARTS)


@given(ARGUMENTS, ARGUMENTS)
def test_a_seed_depends_on_every_argument(one: tuple[Any, ...], two: tuple[Any, ...]) -> None:
    seeds = [derive_seed(namespace, seed, *index) for namespace, seed, index in (one, two)]
    assert (seeds[0] == seeds[1]) == (one == two)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_neighbouring_seeds_and_indices_never_meet() -> None:
    seeds = {derive_seed("env", seed, index) for seed in range(50) for index in range(50)}
    assert len(seeds) == 2_500


def test_a_seed_index_may_be_any_text() -> None:
    assert derive_seed("doc", 1, "\ud800") != derive_seed("doc", 1, "\udfff")


# --- errors and paths ----------------------------------------------------------------------------

RAISED = [
    UnknownNameError("split", "tset", ["test", "dev"]),
    errors.HarnessError("harness_error", "line 3"),
    errors.ModelError("content_filter"),
    DataError("bad row"),
    errors.InfrastructureError("down"),
    errors.ContractError("One.\nTwo."),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_every_error_survives_pickling(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
    assert str(type(error)(again)) == str(error), "Gymnasium raises type(value) again"


def test_the_branches_of_the_error_tree_do_not_overlap() -> None:
    tree = {e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.WhaleError)}
    branches = (UsageError, errors.RolloutError, errors.InfrastructureError, errors.ContractError)
    for error in tree - {errors.WhaleError}:
        assert sum(issubclass(error, branch) for branch in branches) == 1
        assert error.__name__ in (errors.__doc__ or "")


def test_a_rollout_error_gives_its_reason_apart() -> None:
    error = errors.HarnessError("harness_error", "line 3")
    assert (error.reason, error.detail, str(error)) == ("harness_error", "line 3", "harness_error: line 3")
    assert str(errors.ModelError("content_filter")) == "content_filter"


def test_an_unknown_name_comes_with_the_nearest_valid_one() -> None:
    said = str(UnknownNameError("split", "tset", ["weight", "test"]))
    assert said == "unknown split 'tset'; did you mean 'test'? Valid: weight, test."
    assert str(UnknownNameError("x", 1, [])) == "unknown x 1. Valid: none."
    assert "… (6605 in all)" in str(UnknownNameError("id", "x", range(6605), most=3))


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"WHALE_CACHE": "/a/b"}, "/a/b"),
        ({"WHALE_CACHE": "", "XDG_CACHE_HOME": "/c"}, "/c/whale-envs"),
        ({"HOME": "/home/me"}, "/home/me/.cache/whale-envs"),
        ({"HOME": "/home/me", "WHALE_CACHE": "~/here"}, "/home/me/here"),
    ],
)
def test_the_cache_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    for name in ("WHALE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_dir() == Path(expected)
