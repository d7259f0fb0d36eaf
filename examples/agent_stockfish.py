"""Stockfish as an own agent: what an engine without a language model makes of the puzzles.

whale-bench eval chess_puzzles --model agent:examples/agent_stockfish.py:Agent

Needs the engine (Debian: apt-get install stockfish). It searches a fixed number of nodes in one thread, so
that equal positions give equal moves.
"""

import os
import re
import shutil

import chess
import chess.engine

NODES = 20_000


class Agent:
    def __init__(self):
        path = shutil.which("stockfish", path=f"{os.environ.get('PATH', '')}:/usr/games")
        if path is None:
            raise RuntimeError("there is no stockfish: apt-get install stockfish")
        self.engine = chess.engine.SimpleEngine.popen_uci(path)

    def reset(self, info):
        pass

    def act(self, observation):
        board = chess.Board(re.search(r"^FEN: (.+)$", observation, re.MULTILINE)[1])
        # A game of its own each time: the engine forgets what it has seen, and repeats itself.
        return self.engine.play(board, chess.engine.Limit(nodes=NODES), game=object()).move.uci()

    def close(self):
        self.engine.quit()
