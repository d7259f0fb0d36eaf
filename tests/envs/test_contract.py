"""Every registered environment keeps the contract: our checker, Gymnasium's, and vector environments."""

import asyncio
import subprocess
import sys
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as check_gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from whale_envs import DOMAINS, SPLITS, TextEnv, get_domain, load_examples, make_env
from whale_envs.errors import EpisodeError, UnknownNameError
from whale_envs.testing import EchoEnv, check_env

ENV_IDS = [domain.env_id for domain in DOMAINS.values()]
EMBEDDED = [(d.name, tier) for d in DOMAINS.values() for tier, what in d.tiers.items() if "embedded" in what]
MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]
STEPS = 9
ODD = "♞ \ud800 \x00 no action of any domain π"

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12 on, with threads

each_id = pytest.mark.parametrize("env_id", ENV_IDS)
each_domain = pytest.mark.parametrize("name", DOMAINS)


@each_id
def test_gymnasiums_checker_finds_nothing_and_warns_of_nothing(env_id: str) -> None:
    check_gymnasium(gymnasium.make(env_id).unwrapped)


@each_id
def test_our_checker_finds_nothing(env_id: str) -> None:
    check_env(gymnasium.make(env_id).unwrapped)


@each_id
def test_our_checker_finds_nothing_under_the_paper_profile(env_id: str) -> None:
    check_env(gymnasium.make(env_id, profile="paper").unwrapped)


def test_our_checker_finds_nothing_in_the_smallest_environment() -> None:
    check_env(EchoEnv())


async def test_the_checker_can_be_called_inside_an_event_loop() -> None:
    check_env(EchoEnv())


@each_id
def test_make_with_the_usual_wrappers_plays_an_episode_without_a_warning(env_id: str) -> None:
    env: Any = gymnasium.make(env_id, render_mode="ansi")
    observation, _ = env.reset(seed=0)
    assert env.render() == observation
    ended = False
    while not ended:
        observation, reward, terminated, truncated, info = env.step(env.unwrapped.oracle_action())
        ended = terminated or truncated
    assert (reward, info["correct"], env.render()) == (1.0, 1, observation)
    env.close()


@each_id
@pytest.mark.parametrize("prelude", ["", "import whale_envs; "])
def test_make_works_with_and_without_a_prior_import(env_id: str, prelude: str) -> None:
    name = env_id if prelude else f"whale_envs:{env_id}"
    code = f"import gymnasium; {prelude}env = gymnasium.make({name!r}); env.reset(seed=0); env.step('')"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@each_domain
def test_the_domains_class_says_the_same_as_the_suite(name: str) -> None:
    domain = get_domain(name)
    assert domain.module.ENV.domain == name
    assert domain.env_id == domain.module.ENV_ID
    assert domain.module.SIZES.keys() == domain.tiers.keys()
    assert all(tuple(sizes) == SPLITS for sizes in domain.module.SIZES.values())
    assert gymnasium.spec(domain.env_id).entry_point == f"whale_envs.{name}:ENV"


@each_domain
def test_the_docstring_has_gymnasiums_headings(name: str) -> None:
    doc = sys.modules[get_domain(name).module.ENV.__module__].__doc__ or ""
    headings = ("Description", "Action Space", "Observation Space", "Starting State", "Reward", "Episode End")
    for heading in (*headings, "Information", "Arguments", "Version History"):
        assert f"\n{heading}: " in doc


def test_the_suite_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        DOMAINS["mine"] = DOMAINS["chess_puzzles"]  # type: ignore[index]
    with pytest.raises(AttributeError):
        DOMAINS["chess_puzzles"].env_id = "Mine"  # type: ignore[misc]


@pytest.mark.parametrize(("name", "tier"), EMBEDDED)
def test_splits_have_their_documented_sizes_and_no_example_in_common(name: str, tier: str) -> None:
    splits = {split: load_examples(name, tier, split) for split in SPLITS}
    assert {split: len(held) for split, held in splits.items()} == dict(get_domain(name).module.SIZES[tier])
    ids = [example_id for held in splits.values() for example_id in held.ids]
    assert len(set(ids)) == len(ids)
    assert all(example_id.startswith(f"{name}-") for example_id in ids)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: load_examples("ches_puzzles"),
            "unknown environment 'ches_puzzles'; did you mean 'chess_puz",
        ),
        (lambda: load_examples("chess_puzzles", "tiny"), "unknown tier of chess_puzzles 'tiny'"),
        (lambda: load_examples("chess_puzzles", "mini", "train"), "unknown split 'train'"),
        (lambda: make_env("chess_puzzles", split="tset"), "unknown split 'tset'; did you mean 'test'"),
        (lambda: make_env("chess_puzzles", profile="loose"), "unknown profile 'loose'"),
        (lambda: make_env("chess_puzzles", turns=3), "unknown option of chess_puzzles 'turns'"),
        (lambda: make_env("chess_puzzles", render_mode="human"), "unknown render mode 'human'"),
    ],
)
def test_an_unknown_name_is_quoted_beside_the_valid_ones(call: Any, said: str) -> None:
    with pytest.raises(UnknownNameError) as error:
        call()
    assert str(error.value).startswith(said)
    assert "Valid: " in str(error.value)
    assert "\n" not in str(error.value)


# --- vector environments -------------------------------------------------------------------------


class Seen(NamedTuple):
    """One line of what a sub-environment should show."""

    action: str
    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    final: tuple[str, dict[str, Any]] | None = None


def alone(env: TextEnv, seed: int, mode: AutoresetMode) -> list[Seen]:
    """The same play without a vector environment; the first action is odd, the rest are gold."""
    observation, info = env.reset(seed=seed)
    lines, ended = [Seen("", observation, 0.0, False, False, info)], False
    for turn in range(STEPS):
        if ended and mode is AutoresetMode.NEXT_STEP:
            observation, info = env.reset()
            lines.append(Seen("not read", observation, 0.0, False, False, info))
            ended = False
            continue
        action = env.oracle_action() if turn else ODD
        observation, reward, terminated, truncated, info = env.step(action)
        ended, final = terminated or truncated, None
        if ended and mode is AutoresetMode.SAME_STEP:
            final, (observation, info) = (observation, info), env.reset()
        lines.append(Seen(action, observation, reward, terminated, truncated, info, final))
    return lines


def unbatch(infos: dict[str, Any], index: int) -> dict[str, Any]:
    """One sub-environment's info, by the masks; what is masked out must be no number."""
    info = {}
    for key, values in infos.items():
        if key.startswith("_"):
            continue
        if isinstance(values, dict):
            inner = unbatch(values, index)
            if infos[f"_{key}"][index]:
                info[key] = inner
        elif infos[f"_{key}"][index]:
            info[key] = values[index]
        else:
            assert values[index] is None, f"{key} reads {values[index]!r} where it is missing"
    return info


def assert_equal_to_alone(vector: VectorEnv[Any, Any, Any], makers: list[Any], mode: AutoresetMode) -> None:
    expected = [alone(make(), seed, mode) for seed, make in enumerate(makers)]
    observations, infos = vector.reset(seed=0)
    results = 0
    for t in range(STEPS + 1):
        lines = [lines[t] for lines in expected]
        if t:
            observations, rewards, terminated, truncated, infos = vector.step(tuple(s.action for s in lines))
            assert list(rewards) == [s.reward for s in lines]
            assert list(terminated) == [s.terminated for s in lines]
            assert list(truncated) == [s.truncated for s in lines]
        assert observations == tuple(s.observation for s in lines)
        assert observations in vector.observation_space
        for index, line in enumerate(lines):
            info = unbatch(infos, index)
            final = info.pop("final_obs", None), info.pop("final_info", None)
            assert info == line.info
            assert final == (line.final or (None, None))
            results += ("correct" in info) + ("correct" in (final[1] or {}))
    ends = sum(s.terminated or s.truncated for lines in expected for s in lines)
    assert results == ends > 0
    assert any(s.action == "not read" for s in expected[0]) == (mode is AutoresetMode.NEXT_STEP)
    vector.close()


@each_id
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["sync", "async"])
def test_make_vec_shows_what_single_environments_show(env_id: str, how: str, mode: AutoresetMode) -> None:
    vector = gymnasium.make_vec(
        f"whale_envs:{env_id}", num_envs=2, vectorization_mode=how, vector_kwargs={"autoreset_mode": mode}
    )
    assert_equal_to_alone(vector, [lambda: gymnasium.make(env_id).unwrapped] * 2, mode)


@each_id
@pytest.mark.parametrize("kwargs", [{}, {"vectorization_mode": "sync"}, {"vectorization_mode": "async"}])
def test_make_vec_with_default_arguments_gives_the_text(env_id: str, kwargs: dict[str, Any]) -> None:
    vector = gymnasium.make_vec(env_id, num_envs=1, **kwargs)
    observations, _ = vector.reset(seed=4)
    assert observations == (gymnasium.make(env_id).reset(seed=4)[0],)
    vector.close()


@each_id
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_async_workers_of_either_start_method_show_the_same(env_id: str, context: str) -> None:
    make_env("chess_puzzles").reset()
    vector = gymnasium.make_vec(
        env_id, num_envs=2, vectorization_mode="async", vector_kwargs={"context": context}
    )
    assert_equal_to_alone(vector, [lambda: gymnasium.make(env_id).unwrapped] * 2, AutoresetMode.NEXT_STEP)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", [{}, {"shared_memory": False}])
def test_a_core_that_waits_runs_in_forked_workers(mode: AutoresetMode, options: dict[str, Any]) -> None:
    env = EchoEnv()  # the parent's own event loop runs already when the workers are forked
    env.reset(seed=0)
    env.step("")
    vector = AsyncVectorEnv([EchoEnv] * 2, autoreset_mode=mode, context="fork", **options)
    assert_equal_to_alone(vector, [EchoEnv] * 2, mode)
    assert env.step("")[4]["turn"] == 2


@pytest.mark.parametrize("mode", MODES)
def test_episodes_of_different_lengths_each_give_their_result_once(mode: AutoresetMode) -> None:
    makers = [lambda: EchoEnv(max_turns=2), lambda: EchoEnv(max_turns=3)]
    assert_equal_to_alone(SyncVectorEnv(makers, autoreset_mode=mode), makers, mode)


def test_a_mean_over_the_masks_is_the_mean_over_the_episodes_that_ended() -> None:
    vector = SyncVectorEnv([lambda: EchoEnv(max_turns=1), lambda: EchoEnv(max_turns=4)])
    vector.reset(seed=0)
    infos = vector.step(("", ""))[4]
    assert infos["correct"].dtype == object
    assert list(infos["correct"]) == [0, None]
    assert np.mean([c for c, ended in zip(infos["correct"], infos["_correct"], strict=True) if ended]) == 0
    vector.close()


def test_a_batch_of_an_async_environment_does_not_change_later() -> None:
    vector = AsyncVectorEnv([EchoEnv] * 2, context="fork")
    first, _ = vector.reset(seed=0)
    kept = tuple(first)
    vector.step(("wrong", "wrong"))
    assert first == kept
    vector.close()


def test_without_copies_a_batch_of_an_async_environment_follows_the_memory() -> None:
    vector = AsyncVectorEnv([EchoEnv] * 2, context="fork", copy=False)
    live, _ = vector.reset(seed=0)
    assert live[0].startswith("Say: ")
    vector.step(("wrong", "wrong"))
    assert list(live) == ["That was not the word."] * 2
    vector.close()


@pytest.mark.filterwarnings("ignore:.*(Worker-0|Traceback|main process|Calling .close.).*:UserWarning")
def test_misuse_in_a_worker_comes_back_as_the_same_exception() -> None:
    vector = AsyncVectorEnv([EchoEnv], context="fork")
    with pytest.raises(UnknownNameError, match="unknown example id in echo/mini/test 'none'"):
        vector.reset(options={"example_id": "none"})
    vector.close(terminate=True)


@each_id
async def test_step_works_inside_a_running_event_loop(env_id: str) -> None:
    env: Any = gymnasium.make(env_id).unwrapped
    env.reset(seed=0)
    assert env.step(env.oracle_action())[4]["turn"] == 1


async def test_many_cores_wait_side_by_side() -> None:
    envs = [EchoEnv() for _ in range(20)]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
    steps = await asyncio.gather(*(env.astep(env.oracle_action()) for env in envs))
    assert all(info["event"] == "ok" for *_, info in steps)


def test_a_core_that_waits_though_it_says_it_does_not_is_found_out() -> None:
    class Liar(EchoEnv):
        suspends = False

    env = Liar()
    env.reset(seed=0)
    with pytest.raises(AssertionError, match="Liar says that it never suspends"):
        env.step("")


def test_a_refused_step_can_be_followed_by_a_good_one() -> None:
    env = EchoEnv()
    with pytest.raises(EpisodeError, match="before reset"):
        env.counters()
    env.reset(seed=0)
    assert env.counters() == {"turns": 0, "said": 0}


@pytest.mark.parametrize("domain", DOMAINS)
def test_gold_and_source_are_in_no_repr_of_an_example(domain: str) -> None:
    example = load_examples(domain, "mini", "dev")[0]
    assert "gold" not in repr(example)
    assert example.source not in repr(example)
