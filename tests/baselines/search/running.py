"""A recipe with a fake model in a process of its own, for tests that kill it: `running.py FILE FOLDER`."""

import asyncio
import sys
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "bench")]

from search_fakes import Obedient, Scripted, told, whispers  # noqa: E402
from whale_baselines.real_operators import real_operators  # noqa: E402
from whale_baselines.recipes import load_recipe  # noqa: E402
from whale_baselines.run_recipe import run_recipe  # noqa: E402

from whale_bench.harness import check, other_boards  # noqa: E402
from whale_envs import load_examples  # noqa: E402

LEAKS = whispers(load_examples("chess_puzzles", "mini", "harness"), 0.99)
SESSIONS = [told(0.6, "a"), told(0.2, "b")], [LEAKS, told(0.8, "d")]


if __name__ == "__main__":
    check._BOARDS, other_boards._READ, other_boards._PAIRS = 4, 4, 1  # as in the other tests, see conftest.py
    proposer = Scripted(*SESSIONS)
    operators = partial(real_operators, backend=Obedient(), proposer=proposer)
    asyncio.run(run_recipe(load_recipe(sys.argv[1]), Path(sys.argv[2]), operators=operators))
    print("done", len(proposer.briefs))
