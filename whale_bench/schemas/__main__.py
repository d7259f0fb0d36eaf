"""Writes the committed schemas anew.

    python -m whale_bench.schemas

Not covered: raising `FORMAT` where a shape changed so that old readers would misread it.
"""

from whale_bench.schemas import COMMITTED

if __name__ == "__main__":
    COMMITTED.write()
