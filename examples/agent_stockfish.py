"""Stockfish as an own agent: what an engine without a language model makes of the puzzles.

whale-bench eval chess_puzzles --model agent:examples/agent_stockfish.py:Agent

Needs the engine (Debian: apt-get install stockfish). All rollouts of the process share one, which loads for a
second. It searches a fixed number of nodes in one thread and forgets what it has seen before each move, so
that equal positions give equal moves.
"""

import atexit
import os
import re
import shutil
import threading
from functools import cache

import chess
import chess.engine

NODES = 20_000
LOCK = threading.Lock()


@cache
def engine():
    path = shutil.which("stockfish", path=f"{os.environ.get('PATH', '')}:/usr/games")
    if path is None:
        raise RuntimeError("there is no stockfish: apt-get install stockfish")
    opened = chess.engine.SimpleEngine.popen_uci(path)
    atexit.register(opened.close)
    return opened


class Agent:
    def reset(self, info):
        pass

    def act(self, observation):
        board = chess.Board(re.search(r"^FEN: (.+)$", observation, re.MULTILINE)[1])
        with LOCK:  # a game of its own each time, before which the engine forgets
            return engine().play(board, chess.engine.Limit(nodes=NODES), game=object()).move.uci()
