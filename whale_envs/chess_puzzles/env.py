"""`whale/ChessPuzzles-v0`: solve a Lichess puzzle move by move.

Description: the agent plays the side to move of a real puzzle until the stored line is complete;
the opponent's replies are played by the environment.

Action Space: `UnicodeText`. Every action is one move, read as `notation.read_move` says.

Observation Space: `UnicodeText`. Task, side to move, FEN, board, the opponent's last move, accepted
moves, move number and all legal moves, each as bracketed UCI and SAN; after a refused action also
what was wrong with it.

Starting State: the position after the opponent's first listed move.

Reward: 1 for the complete line (or, in the standard profile, any checkmate), else 0. No partial
credit.

Episode End: terminated as "solved", "wrong_move", "illegal" or "malformed" (see `verifier.py`);
truncated as "max_turns". A retry counts as a turn.

Information: beside the common keys, `solved` (1 once the puzzle is solved), `correct_moves`
(solver's moves accepted), `retries` (refused actions that were forgiven) and `legal_rate` (as
published: 0 if an illegal move ended the episode, else 1).

Arguments: tier, split, profile, max_turns (9, at most 18), format_retry_budget and
illegal_retry_budget (1 each, at most 10, per episode).

Version History: v0, first version.

Not covered: judging moves (`verifier.py`), reading them (`notation.py`), rendering as an image.
"""

from random import Random
from typing import ClassVar

import msgspec

from whale_envs.chess_puzzles.examples import ChessPuzzle, load_examples
from whale_envs.chess_puzzles.notation import describe_board, legal_moves
from whale_envs.chess_puzzles.verifier import DEFAULT_RETRIES, PuzzleGame
from whale_envs.core import ExampleSet, TextEnv, Transition, Verdict

ENV_ID = "whale/ChessPuzzles-v0"


class ChessPuzzlesEnv(TextEnv):
    """See the module's docstring."""

    domain = "chess_puzzles"
    suspends = False
    DEFAULTS: ClassVar = {"max_turns": 9, **DEFAULT_RETRIES}
    BOUNDS: ClassVar = {
        "max_turns": (1, 18),
        "format_retry_budget": (0, 10),
        "illegal_retry_budget": (0, 10),
    }
    _game: PuzzleGame

    @classmethod
    def _load(cls, tier: str, split: str) -> ExampleSet[ChessPuzzle]:
        return load_examples(tier, split)

    def _begin(self, example: ChessPuzzle) -> str:
        budgets = {name: self.options[name] for name in DEFAULT_RETRIES}
        self._game = PuzzleGame(example, profile=self.profile, **budgets)
        return observe(self._game)

    async def _advance(self, action: str) -> Transition:
        done = self._game.play(action)
        refused = done.event in self._game.retries_left and not done.ended
        observation = observe(self._game) + (f"\n\nFeedback:\n{done.feedback}" if refused else "")
        return msgspec.structs.replace(done, observation=observation)

    def _judge(self, stop_condition: str) -> Verdict:
        return self._game.verdict(stop_condition)

    def _counters(self) -> dict[str, float]:
        game = self._game
        return {
            "solved": int(game.stop_condition == "solved"),
            "correct_moves": game.correct_moves,
            "retries": game.retries,
            "legal_rate": 0.0 if game.stop_condition == "illegal" else 1.0,
        }

    def oracle_action(self) -> str:
        return self._game.puzzle.gold[self._game.ply]

    def random_action(self, rng: Random) -> str:
        moves = sorted(move.uci() for move in self._game.board.legal_moves)
        return rng.choice(moves)


_seen: dict[tuple[str, ...], str] = {}
"""Position texts by puzzle and moves played: the samples of an example see the same positions."""

_SEEN_MOST = 4096


def observe(game: PuzzleGame) -> str:
    """What the agent is shown of a game, without feedback on its last action."""
    key = (game.puzzle.id, *game.played)
    text = _seen.get(key)
    if text is None:
        if len(_seen) >= _SEEN_MOST:
            _seen.clear()
        text = _seen[key] = _describe(game)
    return text


def _describe(game: PuzzleGame) -> str:
    board, replies = game.board, game.played[1::2]
    fen, rows = describe_board(board)
    ranks = "\n".join(f"{8 - i} {' '.join(row)}" for i, row in enumerate(rows))
    moves = ", ".join([f"[{uci}] {san}" for uci, san in legal_moves(board)])
    return (
        f"Chess puzzle: find the winning line, one move at a time.\n"
        f"Side to move: {'White' if board.turn else 'Black'}\n"
        f"FEN: {fen}\n{ranks}\n  a b c d e f g h\n"
        f"Opponent's last move: {replies[-1] if replies else game.puzzle.trigger}\n"
        f"Your moves so far: {' '.join(game.played[::2]) or 'none'}\n"
        f"Move number: {game.ply // 2 + 1}\n"
        f"Legal moves: {moves or 'none'}"
    )
