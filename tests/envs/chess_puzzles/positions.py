"""Positions to test on: every one of the mini tier, and random games from openings with all special moves."""

from collections.abc import Iterator
from functools import cache
from random import Random

import chess

from whale_envs import SPLITS, load_examples

BACK_RANK = {"FEN": "6k1/3r1ppp/8/8/7p/8/5PPP/R5K1 b - - 0 1", "Moves": "h4h3 a1a8 d7d8 a8d8"}  # O-13
TWO_MATES = {"FEN": "6k1/5ppp/8/8/7p/8/5PPP/RR4K1 b - - 0 1", "Moves": "h4h3 a1a8"}  # O-14
CASTLES = {"FEN": "3k4/7p/8/8/8/8/8/R3K3 b Q - 0 1", "Moves": "h7h6 e1c1"}  # O-15
PROMOTES = {"FEN": "7k/P5pp/8/8/8/8/8/6K1 b - - 0 1", "Moves": "h7h6 a7a8q h8h7 a8e4"}
MATES_EARLY = {"FEN": "6k1/5ppp/8/8/7p/8/R4PPP/R5K1 b - - 0 1", "Moves": "h4h3 g2h3 h7h6 a2a8 g8h7 a8h8"}

STARTS = (
    chess.STARTING_FEN,
    "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1",
    "r3k2r/8/8/8/8/8/8/R3K2R b KQkq - 3 9",
    "r3k3/8/8/8/8/8/8/4K2R w Kq - 0 1",
    "n1n5/PPPk4/8/8/8/8/4Kppp/5N1N b - - 0 1",
    "8/PPPPk3/8/8/8/8/3Kpppp/8 w - - 0 1",
    "4k3/pppppppp/8/PPPPPPPP/pppppppp/8/PPPPPPPP/4K3 w - - 0 1",
    "8/8/8/K2pP2r/8/8/8/4k3 w - d6 0 2",
    "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1",
    "3q4/3r4/3k4/8/3K4/3R4/8/3Q4 w - - 0 1",
    "6k1/8/8/Q1Q5/8/Q7/8/4K3 w - - 0 1",
    "4k3/8/2n1n3/8/3P4/2N1N3/8/2B1KB2 w - - 0 1",
    "4rrk1/8/8/8/8/8/3BB3/R3K2R w KQ - 0 1",
    "7k/3P4/8/8/8/8/1K6/3r4 w - - 0 1",
)


@cache
def mini() -> tuple[str, ...]:
    """FENs of every position of the lines of the mini tier."""
    fens = []
    for split in SPLITS:
        for puzzle in load_examples("chess_puzzles", "mini", split):
            board = chess.Board(puzzle.fen)
            for uci in (puzzle.trigger, *puzzle.gold):
                board.push_uci(uci)
                fens.append(board.fen())
    return tuple(fens)


def played(games: int, plies: int = 40) -> Iterator[chess.Board]:
    """Boards of random games from every start, the same each time; not copied, so leave them as they are."""
    for start in STARTS:
        for game in range(games):
            rng, board = Random(f"{start}/{game}"), chess.Board(start)
            for _ in range(plies):
                yield board
                moves = sorted(board.legal_moves, key=chess.Move.uci)
                if not moves:
                    break
                special = [m for m in moves if m.promotion or board.is_castling(m) or board.is_en_passant(m)]
                board.push(rng.choice(special if special and rng.random() < 0.5 else moves))
