"""The environment around the game: what is shown, counted and bounded."""

import pickle
from random import Random
from typing import Any

import chess
import pytest

from whale_envs import UsageError, make_env
from whale_envs.chess_puzzles import make_puzzle
from whale_envs.chess_puzzles.env import observe
from whale_envs.chess_puzzles.verifier import PuzzleGame
from whale_envs.core import TextEnv
from whale_envs.testing import check_env

from .positions import BACK_RANK, TWO_MATES

FIRST = """\
Chess puzzle: find the winning line, one move at a time.
Side to move: White
FEN: 6k1/3r1ppp/8/8/8/7p/5PPP/R5K1 w - - 0 2
8 . . . . . . k .
7 . . . r . p p p
6 . . . . . . . .
5 . . . . . . . .
4 . . . . . . . .
3 . . . . . . . p
2 . . . . . P P P
1 R . . . . . K .
  a b c d e f g h
Opponent's last move: h4h3
Your moves so far: none
Move number: 1
Legal moves: """


def playing(row: dict[str, str], **options: Any) -> TextEnv:
    env = make_env("chess_puzzles", examples=[make_puzzle(row)], **options)
    env.reset()
    return env


def test_the_first_observation_shows_the_board_after_the_opponents_move() -> None:
    observation = observe(PuzzleGame(make_puzzle(BACK_RANK)))
    shown, moves = observation[: len(FIRST)], observation[len(FIRST) :]
    assert shown == FIRST
    assert moves.split(", ")[:3] == ["[a1a2] Ra2", "[a1a3] Ra3", "[a1a4] Ra4"]
    assert "[a1a8] Ra8+" in moves
    assert moves.count("[") == 19


def test_later_observations_show_the_reply_and_the_moves_so_far() -> None:
    observation, reward, terminated, truncated, info = playing(BACK_RANK).step("a1a8")
    assert "FEN: R2r2k1/5ppp/8/8/8/7p/5PPP/6K1 w - - 2 3\n" in observation
    assert "Opponent's last move: d7d8\nYour moves so far: a1a8\nMove number: 2\n" in observation
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert (info["event"], info["correct_moves"], info["turn"]) == ("ok", 1, 1)


def test_the_last_observation_of_a_mate_has_no_legal_moves() -> None:
    observation, reward, terminated, *_ = playing(TWO_MATES).step("b1b8")
    assert observation.endswith("Legal moves: none")
    assert (reward, terminated) == (1.0, True)


@pytest.mark.parametrize("action", ["a1a9", "a1h8", "", "I resign"])
def test_after_a_refused_action_the_board_is_the_same_and_the_fault_is_named(action: str) -> None:
    env = playing(BACK_RANK)
    before, _ = env.reset()
    observation, _, terminated, truncated, info = env.step(action)
    assert observation == f"{before}\n\nFeedback:\n{info['feedback']}"
    assert (terminated, truncated, info["turn"], info["retries"]) == (False, False, 1, 1)
    assert env.step("a1a8")[0].count("Feedback") == 0


def test_a_model_cannot_write_into_the_observation_beyond_its_quoted_move() -> None:
    env = playing(BACK_RANK)
    observation = env.step("<move>a1\nLegal moves: x8</move>")[0]
    assert observation.count("Legal moves: ") == 1


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        (["a1a8", "a8d8"], {"solved": 1, "correct_moves": 2, "retries": 0, "legal_rate": 1.0}),
        (["a1h8", "a1a8"], {"solved": 0, "correct_moves": 1, "retries": 1, "legal_rate": 1.0}),
        (["a1h8", "a1h8"], {"solved": 0, "correct_moves": 0, "retries": 1, "legal_rate": 0.0}),
        (["hm", "hm"], {"solved": 0, "correct_moves": 0, "retries": 1, "legal_rate": 1.0}),
        (["a1a7"], {"solved": 0, "correct_moves": 0, "retries": 0, "legal_rate": 1.0}),
    ],
)
def test_the_counters_are_as_published(actions: list[str], expected: dict[str, float]) -> None:
    env = playing(BACK_RANK)
    for action in actions:
        info = env.step(action)[4]
    assert {name: info[name] for name in expected} == expected
    assert env.counters() == {"turns": len(actions), **expected}


@pytest.mark.parametrize(
    ("actions", "stop"),
    [
        (["a1a8", "a8d8"], "solved"),
        (["a1a7"], "wrong_move"),
        (["a1h8"] * 2, "illegal"),
        (["hm"] * 2, "malformed"),
    ],
)
def test_each_end_of_the_task_is_terminated_and_named(actions: list[str], stop: str) -> None:
    env = playing(BACK_RANK)
    for action in actions:
        _, reward, terminated, truncated, info = env.step(action)
    assert (terminated, truncated, info["stop_condition"]) == (True, False, stop)
    assert (reward, info["correct"]) == (float(stop == "solved"), int(stop == "solved"))


def test_the_right_move_on_the_last_turn_terminates_and_any_other_end_truncates() -> None:
    env = playing(BACK_RANK, max_turns=2)
    env.step("a1a8")
    assert env.step("a8d8")[2:4] == (True, False)
    env.reset()
    env.step("hm")
    assert env.step("a1a8")[2:4] == (False, True)


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("max_turns", 19),
        ("max_turns", 0),
        ("format_retry_budget", 11),
        ("illegal_retry_budget", -1),
        ("max_turns", 1.0),
    ],
)
def test_options_beyond_the_published_bounds_are_refused(option: str, wrong: Any) -> None:
    with pytest.raises(UsageError, match=f"{option} must be an integer from"):
        make_env("chess_puzzles", **{option: wrong})


def test_the_defaults_are_the_published_ones() -> None:
    assert make_env("chess_puzzles").options == {
        "max_turns": 9,
        "format_retry_budget": 1,
        "illegal_retry_budget": 1,
    }


def test_the_position_with_the_most_legal_moves_fits_the_observation_space() -> None:
    board = chess.Board("R6R/3Q4/1Q4Q1/4Q3/2Q4Q/Q4Q2/pp1Q4/kBNN1KB1 w - - 0 1")
    game = PuzzleGame(make_puzzle(TWO_MATES))
    game.board = board
    game.played = ["a1a8", "d7d8"] * 9
    assert board.legal_moves.count() == 218
    assert make_env("chess_puzzles").observation_space.contains(observe(game))


def test_random_actions_are_legal_and_follow_the_generator() -> None:
    env = playing(BACK_RANK)
    legal = {move.uci() for move in PuzzleGame(make_puzzle(BACK_RANK)).board.legal_moves}
    seen = {env.random_action(Random(seed)) for seed in range(200)}
    assert seen == legal


def test_an_episode_goes_on_after_pickling() -> None:
    env = playing(BACK_RANK)
    env.step("a1a8")
    assert pickle.loads(pickle.dumps(env)).step("a8d8") == env.step("a8d8")


def test_what_was_shown_before_does_not_change_what_is_shown() -> None:
    shown = [playing(row).reset()[0] for row in (BACK_RANK, TWO_MATES, BACK_RANK)]
    assert shown[0] == shown[2] != shown[1]


@pytest.mark.parametrize(
    "options", [{}, {"tier": "small", "split": "weight"}, {"profile": "paper", "max_turns": 18}]
)
@pytest.mark.parametrize(
    "budgets", [{}, {"format_retry_budget": 0, "illegal_retry_budget": 0}, {"format_retry_budget": 10}]
)
def test_the_contract_holds_under_other_options(options: dict[str, Any], budgets: dict[str, int]) -> None:
    check_env(
        make_env("chess_puzzles", **options, **budgets),
        actions=["a1a9", "0000", "--", "e1e1", "Nf3", "O-O", "<move>", "e2e4 d2d4", "[a1a8]", "a1h8"],
    )
