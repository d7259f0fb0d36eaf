"""A search in a process of its own, for tests that kill it: `python searching.py FILE FOLDER`."""

import asyncio
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2] / "bench")]

from search_fakes import Obedient, Scripted, told  # noqa: E402
from whale_baselines import search_run  # noqa: E402

SESSIONS = [told(0.8, "a"), told(0.5, "b"), told(0.2, "c")], [told(0.6, "d"), told(0.75, "e"), told(0.1, "f")]


if __name__ == "__main__":
    plan = search_run.read_plan(Path(sys.argv[1]))
    proposer = Scripted(*SESSIONS)
    found = asyncio.run(
        search_run.run(plan, Path(sys.argv[2]), backend=Obedient(), proposer=proposer, report=print)
    )
    print("done", found.accepted, len(proposer.briefs))
