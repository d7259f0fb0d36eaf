r"""Judges the moves of a chess puzzle under both profiles at once.

    >>> from whale_envs.chess_puzzles.examples import load_examples
    >>> puzzle = load_examples("mini", "dev")[0]
    >>> verify(puzzle, "\n".join(puzzle.gold[::2])).reward
    1.0

One action is one attempt at a move, in this order (reference §4.3): text without a readable move
costs a format retry or ends as "malformed"; a move that is not legal costs an illegal-move retry or
ends as "illegal"; a legal move that is not the solution's ends as "wrong_move", never retried; the
solution's move is played, the stored reply follows, and the end of the line is "solved".

* `standard`: moves are read as `notation.read_move` does and compared as moves; any checkmate
  solves the puzzle, at any of the solver's plies.
* `paper`: an action is one lower-case UCI move, compared with the stored one; another mate is wrong,
  and so is a legal move written as UCI never writes it (castling as king takes rook).

The profile in force decides what happens on the board. The other profile's reward is reported too
as long as both would have done the same with every action; from the first action on which they
part, it is None (diverged), except where the episode ends there under both, and so both are known:
as "solved" and "wrong_move" on another mate, or with the last retry spent on what only one can read.

Not covered: partial credit (there is none), and engine evaluation of moves off the line.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import chess

from whale_envs.chess_puzzles.examples import ChessPuzzle
from whale_envs.chess_puzzles.notation import Reading, read_move, strict_uci
from whale_envs.core import Profile, Transition, Verdict
from whale_envs.errors import UsageError

Fate = Literal["solution", "mate", "wrong_move", "illegal", "malformed"]

DEFAULT_RETRIES = {"format_retry_budget": 1, "illegal_retry_budget": 1}
"""Published retry budgets, per episode."""


class PuzzleGame:
    """One puzzle in play: the board, the place in the line, what was spent. Mutable.

    Args:
        format_retry_budget: actions without a readable move that are forgiven, per episode.
        illegal_retry_budget: illegal moves that are forgiven, per episode.
    """

    def __init__(
        self,
        puzzle: ChessPuzzle,
        *,
        profile: Profile = "standard",
        format_retry_budget: int = DEFAULT_RETRIES["format_retry_budget"],
        illegal_retry_budget: int = DEFAULT_RETRIES["illegal_retry_budget"],
    ) -> None:
        self.puzzle = puzzle
        self.profile: Profile = profile
        self.retries_left = {"malformed": format_retry_budget, "illegal": illegal_retry_budget}
        self.board = _opening_board(puzzle.fen, puzzle.trigger).copy(stack=False)
        self.ply = 0
        """Index into the line of the move that is due; even plies are the solver's."""
        self.played: list[str] = []
        """Moves on the board since the puzzle began, UCI, both sides."""
        self.correct_moves = 0
        self.retries = 0
        self.stop_condition = ""
        self.answer: str | None = None
        self.rewards: dict[Profile, float | None] = {"standard": 0.0, "paper": 0.0}

    def play(self, action: str) -> Transition:
        """Applies one action; the transition's observation is left to the environment."""
        reading = read_move(self.board, action)
        fates = self._fates(reading, action)
        self._compare(fates)
        fate = fates[self.profile]
        if fate in ("malformed", "illegal"):
            return self._refuse(fate, reading)
        move = self._move_of(reading, action)
        self.answer = move.uci()
        if fate == "wrong_move":
            return self._end("wrong_move", f"{self.answer} is not the solution.")
        self.board.push(move)
        self.played.append(self.answer)
        self.correct_moves += 1
        self.ply += 1
        if fate == "mate" or self.ply >= len(self.puzzle.gold):
            return self._end("solved", f"{self.answer} solves the puzzle.")
        reply = self.puzzle.gold[self.ply]
        self.board.push(chess.Move.from_uci(reply))
        self.played.append(reply)
        self.ply += 1
        if self.ply >= len(self.puzzle.gold):
            return self._end("solved", f"{self.answer} solves the puzzle.")
        return Transition("", "ok", f"{self.answer} is right. The opponent replied {reply}.")

    def verdict(self, stop_condition: str) -> Verdict:
        """The verdict if the episode ends here for that reason."""
        reward = self.rewards[self.profile] or 0.0
        return Verdict(
            reward=reward,
            reason=stop_condition,
            answer=self.answer,
            format_ok=stop_condition not in ("malformed", "illegal") and self.answer is not None,
            standard=self.rewards["standard"],
            paper=self.rewards["paper"],
        )

    def _fates(self, reading: Reading, action: str) -> dict[Profile, Fate]:
        gold = chess.Move.from_uci(self.puzzle.gold[self.ply])
        standard: Fate
        if reading.move is None:
            standard = "illegal" if reading.kind == "illegal" else "malformed"
        elif reading.move == gold:
            standard = "solution"
        else:
            standard = "mate" if self._mates(reading.move) else "wrong_move"
        return {"standard": standard, "paper": self._paper_fate(action, gold)}

    def _paper_fate(self, action: str, gold: chess.Move) -> Fate:
        uci = strict_uci(action)
        if uci is None:
            return "malformed"
        if uci == gold.uci():
            return "solution"
        return "wrong_move" if self._legal_as_written(uci) else "illegal"

    def _legal_as_written(self, uci: str) -> bool:
        return uci[:2] != uci[2:4] and chess.Move.from_uci(uci) in self.board.legal_moves

    def _compare(self, fates: dict[Profile, Fate]) -> None:
        """Settles what this action means to either profile; None once they part."""
        standard, paper = fates["standard"], fates["paper"]
        other: Profile = "paper" if self.profile == "standard" else "standard"
        for profile, fate in fates.items():
            if fate in ("solution", "mate") and self._ends(fate) and self.rewards[profile] is not None:
                self.rewards[profile] = 1.0
        if standard != paper and not (self._ends(standard) and self._ends(paper)):
            self.rewards[other] = None

    def _ends(self, fate: Fate) -> bool:
        if fate == "solution":
            return self.ply + 2 >= len(self.puzzle.gold)
        return self.retries_left.get(fate, 0) == 0

    def _mates(self, move: chess.Move) -> bool:
        self.board.push(move)
        mate = self.board.is_checkmate()
        self.board.pop()
        return mate

    def _move_of(self, reading: Reading, action: str) -> chess.Move:
        if self.profile == "paper":
            return chess.Move.from_uci(action.strip())
        assert reading.move is not None
        return reading.move

    def _refuse(self, fate: Literal["malformed", "illegal"], reading: Reading) -> Transition:
        what = {"malformed": "No move could be read", "illegal": "Illegal move"}[fate]
        quoted = f" {reading.text!r}" if reading.text else ""
        feedback = f"{what}{quoted}: {reading.detail or 'write one legal move as UCI'}."
        if not self.retries_left[fate]:
            return self._end(fate, feedback)
        self.retries_left[fate] -= 1
        self.retries += 1
        return Transition("", fate, feedback + " Try again.")

    def _end(self, stop_condition: str, feedback: str) -> Transition:
        self.stop_condition = stop_condition
        return Transition(
            "", "ok" if stop_condition == "solved" else stop_condition, feedback, stop_condition
        )


@lru_cache(maxsize=1024)  # parsing a FEN costs as much as a turn, and samples share it
def _opening_board(fen: str, trigger: str) -> chess.Board:
    board = chess.Board(fen)
    board.push(chess.Move.from_uci(trigger))
    return board


def verify(
    puzzle: ChessPuzzle,
    response: str | Sequence[str],
    *,
    profile: Profile = "standard",
    max_turns: int = 9,
    **retry_budgets: int,
) -> Verdict:
    """The verdict an episode would reach on these actions (a string holds one a line). Pure, total.

    Actions after the end are not read. An episode that they leave open is "unfinished", or
    "max_turns" where they use up the turns.
    """
    actions = response.split("\n") if isinstance(response, str) else response
    for action in actions:
        if not isinstance(action, str):
            raise UsageError(f"an action is a string, got {type(action).__name__}")
    game = PuzzleGame(puzzle, profile=profile, **retry_budgets)
    for action in actions[:max_turns]:
        if done := game.play(action).ended:
            return game.verdict(done)
    return game.verdict("max_turns" if len(actions) >= max_turns else "unfinished")
