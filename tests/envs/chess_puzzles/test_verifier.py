"""Judging a puzzle's moves under both profiles (O-13, O-14, O-15, O-16)."""

from functools import cache
from random import Random
from typing import Any

import chess
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_envs import PROFILES, Verdict, load_examples, make_env
from whale_envs.chess_puzzles import ChessPuzzle, make_puzzle, verify
from whale_envs.chess_puzzles.verifier import PuzzleGame

from .positions import BACK_RANK, CASTLES, MATES_EARLY, PROMOTES, TWO_MATES

both_profiles = pytest.mark.parametrize("profile", PROFILES)


def judge(row: dict[str, str], *actions: str, **options: Any) -> Verdict:
    return verify(make_puzzle(row), actions, **options)


def outcome(row: dict[str, str], *actions: str, **options: Any) -> tuple[str, float | None, float | None]:
    """(stop condition, standard reward, paper reward)."""
    verdict = judge(row, *actions, **options)
    assert verdict.reward == getattr(verdict, options.get("profile", "standard"))
    return verdict.reason, verdict.standard, verdict.paper


# --- the line (O-13) -----------------------------------------------------------------------------


@both_profiles
def test_the_line_in_uci_solves_the_puzzle_under_both(profile: Any) -> None:
    assert outcome(BACK_RANK, "a1a8", "a8d8", profile=profile) == ("solved", 1.0, 1.0)


def test_the_opponents_move_is_on_the_board_before_the_solver_moves() -> None:
    game = PuzzleGame(make_puzzle(BACK_RANK))
    assert game.board.fen() == "6k1/3r1ppp/8/8/8/7p/5PPP/R5K1 w - - 0 2"
    assert game.board.turn == chess.WHITE


@both_profiles
def test_the_opponents_move_given_again_is_illegal(profile: Any) -> None:
    options = {"profile": profile, "illegal_retry_budget": 0}
    assert outcome(BACK_RANK, "h4h3", **options) == ("illegal", 0.0, 0.0)


@both_profiles
def test_the_first_right_move_alone_does_not_solve_the_puzzle(profile: Any) -> None:
    verdict = judge(BACK_RANK, "a1a8", profile=profile)
    assert (verdict.reason, verdict.reward, verdict.answer) == ("unfinished", 0.0, "a1a8")


def test_the_stored_reply_is_played_by_the_environment() -> None:
    game = PuzzleGame(make_puzzle(BACK_RANK))
    assert game.play("a1a8").feedback == "a1a8 is right. The opponent replied d7d8."
    assert game.played == ["a1a8", "d7d8"]
    assert game.board.fen() == "R2r2k1/5ppp/8/8/8/7p/5PPP/6K1 w - - 2 3"


@both_profiles
def test_a_line_that_ends_with_the_opponents_reply_is_solved_by_the_move_before(profile: Any) -> None:
    row = {**BACK_RANK, "Moves": "h4h3 a1a8 d7d8"}
    assert outcome(row, "a1a8", profile=profile) == ("solved", 1.0, 1.0)


def test_actions_after_the_end_are_not_read() -> None:
    assert outcome(BACK_RANK, "a1a8", "a8d8", "a8d8", "nonsense") == ("solved", 1.0, 1.0)
    assert outcome(BACK_RANK, "a1a7", "a1a8", "a8d8") == ("wrong_move", 0.0, 0.0)


def test_a_string_holds_one_action_a_line() -> None:
    assert verify(make_puzzle(BACK_RANK), "a1a8\na8d8") == judge(BACK_RANK, "a1a8", "a8d8")


@both_profiles
@pytest.mark.parametrize(("turns", "reason"), [(1, "max_turns"), (2, "solved"), (9, "solved")])
def test_a_line_that_does_not_fit_the_turns_is_cut_off(profile: Any, turns: int, reason: str) -> None:
    assert judge(BACK_RANK, "a1a8", "a8d8", profile=profile, max_turns=turns).reason == reason


# --- other mates (O-14) --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "standard", "paper"),
    [
        ("a1a8", ("solved", 1.0, 1.0), ("solved", 1.0, 1.0)),
        ("b1b8", ("solved", 1.0, 0.0), ("wrong_move", 1.0, 0.0)),
        ("g2h3", ("wrong_move", 0.0, 0.0), ("wrong_move", 0.0, 0.0)),
    ],
)
def test_another_mate_is_right_in_the_standard_profile_only(action: str, standard: Any, paper: Any) -> None:
    assert outcome(TWO_MATES, action, profile="standard") == standard
    assert outcome(TWO_MATES, action, profile="paper") == paper


def test_another_mate_does_not_make_the_profiles_diverge() -> None:
    verdict = judge(TWO_MATES, "b1b8")
    assert (verdict.correct, verdict.diverged, verdict.answer) == (True, False, "b1b8")


def test_a_mate_at_an_earlier_ply_solves_the_puzzle() -> None:
    assert outcome(MATES_EARLY, "g2h3", "a2a8") == ("unfinished", 0.0, 0.0)
    assert outcome(MATES_EARLY, "a2a8") == ("solved", 1.0, 0.0)
    assert outcome(MATES_EARLY, "a2a8", profile="paper") == ("wrong_move", 1.0, 0.0)


def test_a_move_that_wins_without_mating_is_wrong() -> None:
    row = {"FEN": "q4rk1/5ppp/8/8/7p/8/5PPP/RR4K1 b - - 0 1", "Moves": "h4h3 b1b7"}
    assert outcome(row, "a1a8") == ("wrong_move", 0.0, 0.0)


def test_a_stalemate_is_no_mate() -> None:
    row = {"FEN": "8/k7/2K5/4Q3/8/8/8/8 b - - 0 1", "Moves": "a7a8 e5e8 a8a7 e8e7"}
    assert outcome(row, "e5c7") == ("wrong_move", 0.0, 0.0)


def test_every_mating_move_at_the_last_ply_of_every_small_puzzle_is_right() -> None:
    others = 0
    for puzzle in load_examples("chess_puzzles", "small", "weight")[:1200]:
        if len(puzzle.gold) > 1:
            continue
        board = PuzzleGame(puzzle).board
        for move in list(board.legal_moves):
            board.push(move)
            mate, uci = board.is_checkmate(), board.pop().uci()
            verdict = verify(puzzle, [uci])
            assert verdict.correct == (mate or uci == puzzle.gold[0])
            assert verify(puzzle, [uci], profile="paper").correct == (uci == puzzle.gold[0])
            others += verdict.correct and uci != puzzle.gold[0]
    assert others > 5


# --- notation in a puzzle (O-15) -----------------------------------------------------------------


@pytest.mark.parametrize("written", ["e1c1", "h1h1", "e1a1"])
def test_a_castling_solution_is_solved_however_source_and_solver_write_it(written: str) -> None:
    row = {**CASTLES, "Moves": f"h7h6 {written.replace('h1h1', 'e1a1')}"}
    for action in ("e1c1", "e1a1", "O-O-O", "0-0-0", "E1C1 ", "e1c1."):
        assert judge(row, action).reason == "solved"


def test_castling_as_king_takes_rook_is_legal_but_not_the_move_in_the_paper_profile() -> None:
    assert outcome(CASTLES, "e1a1", profile="paper")[::2] == ("wrong_move", 0.0)
    assert outcome(CASTLES, "e1a1") == ("solved", 1.0, 0.0)


@both_profiles
@pytest.mark.parametrize("action", ["0000", "e1e1"])
def test_a_null_move_is_illegal_in_both_profiles_and_leaves_the_board(profile: Any, action: str) -> None:
    game = PuzzleGame(make_puzzle(CASTLES), profile=profile)
    before = game.board.fen()
    assert game.play(action).event == "illegal"
    assert (game.board.fen(), game.played, game.ply) == (before, [], 0)
    assert game.rewards == {"standard": 0.0, "paper": 0.0}


@pytest.mark.parametrize("action", ["a7a8", "a8", "a8=Q", "a7a8q", "a7a8Q"])
def test_a_promotion_is_solved_with_or_without_its_suffix(action: str) -> None:
    assert judge(PROMOTES, action, "a8e4").reason == "solved"


def test_a_missing_suffix_is_illegal_in_the_paper_profile() -> None:
    assert outcome(PROMOTES, "a7a8", "a7a8q", "a8e4", profile="paper") == ("solved", None, 1.0)
    assert outcome(PROMOTES, "a7a8", "a7a8", profile="paper") == ("illegal", None, 0.0)
    assert outcome(PROMOTES, "a7a8", "a8e4") == ("solved", 1.0, None)


def test_the_wrong_promotion_is_a_wrong_move() -> None:
    for action in ("a7a8r", "a8=N"):
        assert judge(PROMOTES, action).reason == "wrong_move"


# --- thinking, and what is refused (O-16) --------------------------------------------------------


def test_a_move_in_the_thinking_is_not_played() -> None:
    game = PuzzleGame(make_puzzle(BACK_RANK))
    game.play("<think>a1a7? No. d7d8 then.</think> My move: a1a8")
    assert game.played == ["a1a8", "d7d8"]


@both_profiles
@pytest.mark.parametrize(
    ("action", "event"),
    [
        ("a1a9", "malformed"),
        ("a1h8", "illegal"),
        ("", "malformed"),
        ("I resign", "malformed"),
        ("\x00", "malformed"),
        ("\ud800", "malformed"),
        ("x" * 50_000, "malformed"),
        ("d7d8", "illegal"),
        ("a8a1", "illegal"),
        ("e2e4", "illegal"),
    ],
    ids=lambda value: ascii(value)[:12],
)
def test_a_refused_action_changes_nothing_but_a_retry(profile: Any, action: str, event: str) -> None:
    game = PuzzleGame(make_puzzle(BACK_RANK), profile=profile)
    before = game.board.fen()
    done = game.play(action)
    assert (done.event, done.ended, game.retries) == (event, "", 1)
    assert (game.board.fen(), game.played, game.correct_moves) == (before, [], 0)
    assert done.feedback.endswith(" Try again.")
    assert len(done.feedback) < 250
    assert game.play(action).ended == event


def test_feedback_says_what_was_wrong() -> None:
    said = {a: PuzzleGame(make_puzzle(TWO_MATES)).play(a).feedback for a in ("a1h8", "R", "a1a8 b1b8", "--")}
    assert said == {
        "a1h8": "Illegal move 'a1h8': this move is not legal here. Try again.",
        "R": "No move could be read: no move was found. Try again.",
        "a1a8 b1b8": "No move could be read: more than one move was given. Try again.",
        "--": "Illegal move '--': passing is not a move. Try again.",
    }
    assert PuzzleGame(make_puzzle(TWO_MATES)).play("a1a2").feedback == "a1a2 is not the solution."


@both_profiles
@pytest.mark.parametrize("budget", [0, 1, 2, 10])
@pytest.mark.parametrize(("kind", "action"), [("format", "hm"), ("illegal", "a1h8")])
def test_each_retry_budget_is_exact_and_its_own(profile: Any, budget: int, kind: str, action: str) -> None:
    budgets = {"format_retry_budget": 0, "illegal_retry_budget": 0, f"{kind}_retry_budget": budget}
    options = {"profile": profile, "max_turns": 18, **budgets}
    assert outcome(TWO_MATES, *[action] * budget, "a1a8", **options) == ("solved", 1.0, 1.0)
    reason = {"format": "malformed", "illegal": "illegal"}[kind]
    assert outcome(TWO_MATES, *[action] * (budget + 1), "a1a8", **options) == (reason, 0.0, 0.0)


def test_a_retry_counts_as_a_turn() -> None:
    assert judge(BACK_RANK, "a1h8", "a1a8", "a8d8", max_turns=2).reason == "max_turns"


def test_retries_are_counted_for_the_episode_and_not_for_the_move() -> None:
    assert judge(BACK_RANK, "hm", "a1a8", "hm", "a8d8").reason == "malformed"


def test_a_wrong_move_is_never_retried() -> None:
    options = {"format_retry_budget": 10, "illegal_retry_budget": 10}
    assert judge(TWO_MATES, "a1a2", "a1a8", **options).reason == "wrong_move"


@pytest.mark.parametrize(
    ("actions", "format_ok", "answer"),
    [
        (["a1a8"], True, "a1a8"),
        (["a1a2"], True, "a1a2"),
        (["hm", "hm"], False, None),
        (["a1h8", "a1h8"], False, None),
        ([], False, None),
    ],
)
def test_the_verdict_says_what_was_read(actions: list[str], format_ok: bool, answer: str | None) -> None:
    verdict = judge(TWO_MATES, *actions)
    assert (verdict.format_ok, verdict.answer) == (format_ok, answer)


# --- where the profiles part ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "actions", "expected"),
    [
        (BACK_RANK, ["Ra8+", "a8d8"], ("solved", 1.0, None)),
        (BACK_RANK, ["a1a8", "Rxd8#"], ("solved", 1.0, None)),
        (BACK_RANK, ["[a1a8]", "a8d8"], ("solved", 1.0, None)),
        (BACK_RANK, ["A1A8", "A8D8"], ("solved", 1.0, None)),
        (BACK_RANK, ["Ra7"], ("wrong_move", 0.0, None)),
        (BACK_RANK, ["--", "a1a8", "a8d8"], ("solved", 1.0, None)),
        (BACK_RANK, [" a1a8\n", "a8d8"], ("solved", 1.0, 1.0)),
        (BACK_RANK, ["hm", "a1h8", "a1a8", "a8d8"], ("solved", 1.0, 1.0)),
        (TWO_MATES, ["Rb8#"], ("solved", 1.0, None)),
        (PROMOTES, ["a7a8"], ("unfinished", 0.0, None)),
        (CASTLES, ["O-O-O"], ("solved", 1.0, None)),
    ],
)
def test_the_paper_profile_is_unknown_from_the_action_it_would_have_refused(
    row: dict[str, str], actions: list[str], expected: tuple[str, float, float | None]
) -> None:
    assert outcome(row, *actions) == expected
    assert judge(row, *actions).diverged == (expected[2] is None)


def test_the_standard_profile_is_unknown_from_the_action_that_the_paper_refused() -> None:
    assert outcome(BACK_RANK, "Ra8+", "a1a8", "a8d8", profile="paper") == ("solved", None, 1.0)


def test_what_ends_the_episode_under_both_leaves_both_known() -> None:
    spent = {"format_retry_budget": 0, "illegal_retry_budget": 0}
    assert outcome(TWO_MATES, "Ra8#", **spent) == ("solved", 1.0, 0.0)
    assert outcome(TWO_MATES, "Ra8#", **spent, profile="paper") == ("malformed", 1.0, 0.0)
    assert outcome(TWO_MATES, "hm", "Rb8#") == ("solved", 1.0, 0.0)
    assert outcome(TWO_MATES, "Ra2", **spent) == ("wrong_move", 0.0, 0.0)
    assert outcome(BACK_RANK, "Ra8+", "a8d8", **spent) == ("solved", 1.0, None)


# --- properties over real puzzles and arbitrary actions ------------------------------------------


@cache
def puzzles() -> tuple[ChessPuzzle, ...]:
    """A few dozen of every kind: long and short, with promotions, castling and several mates."""
    held = load_examples("chess_puzzles", "small", "weight")
    promotions = [p for p in held if any(len(uci) == 5 for uci in p.gold[::2])][:15]
    castling = [p for p in held if {"e1g1", "e1c1", "e8g8", "e8c8"} & set(p.gold[::2])][:5]
    mates = [p for p in held if len(p.gold) == 1][:15]
    ours = [make_puzzle(row) for row in (BACK_RANK, TWO_MATES, CASTLES, PROMOTES, MATES_EARLY)]
    return (*promotions, *castling, *mates, *held[:15], *ours)


KINDS = (
    "gold",
    "gold",
    "gold",
    "san",
    "upper",
    "cut",
    "tag",
    "other",
    "mate",
    "illegal",
    "junk",
    "null",
    "thought",
)


def act(game: PuzzleGame, kind: str, rng: Random) -> str:
    """An action of that kind in a game."""
    gold, board = chess.Move.from_uci(game.puzzle.gold[game.ply]), game.board
    legal = sorted(board.legal_moves, key=chess.Move.uci)
    if kind == "mate":
        mates = [move for move in legal if "#" in board.san(move)]
        return rng.choice(mates or legal).uci()
    texts = {
        "gold": gold.uci(),
        "san": board.san(gold),
        "upper": gold.uci().upper(),
        "cut": gold.uci()[:4],
        "tag": f"<move>{gold.uci()}</move>",
        "other": rng.choice(legal).uci(),
        "illegal": rng.choice(["a1h7", "b1b1", "h8a2q"]),
        "junk": rng.choice(["", "hm", "\ud800", "a9", "e2e4 e2e3"]),
        "null": rng.choice(["0000", "--"]),
        "thought": f"<think>{rng.choice(legal).uci()}</think>{gold.uci()}",
    }
    return texts[kind]


def script(puzzle: ChessPuzzle, kinds: list[str], seed: int, budgets: dict[str, Any]) -> list[str]:
    """Actions of these kinds, each fitting the position that the standard profile has reached."""
    game, rng, actions = PuzzleGame(puzzle, **budgets), Random(seed), []
    for kind in kinds:
        actions.append(act(game, kind, rng))
        if game.play(actions[-1]).ended:
            break
    return actions


def paper_by_hand(puzzle: ChessPuzzle, actions: list[str], turns: int, formats: int, illegals: int) -> float:
    """The published transition order, written again without our reader."""
    board, line = chess.Board(puzzle.fen), list(puzzle.gold)
    board.push_uci(puzzle.trigger)
    for action in actions[:turns]:
        word = action.strip()
        squares = len(word) in (4, 5) and word[:2] in chess.SQUARE_NAMES and word[2:4] in chess.SQUARE_NAMES
        if word != "0000" and not (squares and word[4:] in ("", "q", "r", "b", "n")):
            if not formats:
                return 0.0
            formats -= 1
        elif word == "0000" or word[:2] == word[2:4] or not board.is_legal(chess.Move.from_uci(word)):
            if not illegals:
                return 0.0
            illegals -= 1
        elif word != line.pop(0):
            return 0.0
        else:
            board.push_uci(word)
            if not line:
                return 1.0
            board.push_uci(line.pop(0))
            if not line:
                return 1.0
    return 0.0


CASES = st.tuples(
    st.integers(0, 54),
    st.lists(st.sampled_from(KINDS), max_size=9),
    st.integers(0, 9),
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(1, 9),
)


def unpack(
    case: tuple[int, list[str], int, int, int, int],
) -> tuple[ChessPuzzle, list[str], dict[str, int], int]:
    number, kinds, seed, formats, illegals, turns = case
    puzzle = puzzles()[number % len(puzzles())]
    budgets = {"format_retry_budget": formats, "illegal_retry_budget": illegals}
    return puzzle, script(puzzle, kinds, seed, budgets), budgets, turns


@settings(max_examples=300)
@given(CASES)
def test_a_profile_that_is_not_diverged_is_what_its_own_run_gives(case: Any) -> None:
    puzzle, actions, budgets, turns = unpack(case)
    runs = {p: verify(puzzle, actions, profile=p, max_turns=turns, **budgets) for p in PROFILES}
    for run in runs.values():
        assert run.standard in (None, runs["standard"].reward)
        assert run.paper in (None, runs["paper"].reward)
    assert runs["standard"].standard == runs["standard"].reward
    assert runs["paper"].paper == runs["paper"].reward
    assert runs["standard"].reward >= runs["paper"].reward, "the paper profile is never the kinder one"


@settings(max_examples=300)
@given(CASES)
def test_the_paper_profile_is_the_published_transition_order(case: Any) -> None:
    puzzle, actions, budgets, turns = unpack(case)
    ours = verify(puzzle, actions, profile="paper", max_turns=turns, **budgets)
    assert ours.reward == paper_by_hand(puzzle, actions, turns, *budgets.values())


@settings(max_examples=200)
@given(CASES, st.sampled_from(PROFILES))
def test_the_verifier_says_what_an_episode_says(case: Any, profile: Any) -> None:
    puzzle, actions, budgets, turns = unpack(case)
    env = make_env("chess_puzzles", examples=[puzzle], profile=profile, max_turns=turns, **budgets)
    env.reset()
    verdict = None
    for action in actions:
        _, reward, terminated, truncated, info = env.step(action)
        assert not (terminated and truncated)
        if terminated or truncated:
            verdict = info["verdict"]
            assert reward == verdict.reward
            break
    verdict = verdict or env.truncate("unfinished")
    assert verify(puzzle, actions, profile=profile, max_turns=turns, **budgets) == verdict


@settings(max_examples=300)
@given(
    st.integers(0, 54),
    st.lists(st.text(st.characters(), max_size=20) | st.text("abcdefgh12345678q ", max_size=6)),
)
def test_the_verifier_is_total_on_arbitrary_text(number: int, actions: list[str]) -> None:
    puzzle = puzzles()[number % len(puzzles())]
    profile: Any
    for profile in PROFILES:
        verdict = verify(puzzle, actions, profile=profile)
        assert 0 <= verdict.reward <= 1
        assert verdict == verify(puzzle, actions, profile=profile)


def test_verifying_leaves_the_puzzle_for_the_next_sample() -> None:
    puzzle = make_puzzle(BACK_RANK)
    verify(puzzle, ["a1a8", "a8d8"])
    assert PuzzleGame(puzzle).board.fen() == "6k1/3r1ppp/8/8/8/7p/5PPP/R5K1 w - - 0 2"
