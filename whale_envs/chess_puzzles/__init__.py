"""Chess Puzzles: examples, verifier and environment of the domain."""

from whale_envs.chess_puzzles.env import ENV_ID, ChessPuzzlesEnv
from whale_envs.chess_puzzles.examples import SIZES, ChessPuzzle, load_examples, make_puzzle
from whale_envs.chess_puzzles.verifier import verify

ENV = ChessPuzzlesEnv

__all__ = [
    "ENV",
    "ENV_ID",
    "SIZES",
    "ChessPuzzle",
    "ChessPuzzlesEnv",
    "load_examples",
    "make_puzzle",
    "verify",
]
