"""Writes the committed schemas anew.

    python -m whale_baselines.schemas

Not covered: raising `FORMAT` of a run folder where a shape changed so that old readers would misread it.
"""

from whale_baselines.schemas import COMMITTED

if __name__ == "__main__":
    COMMITTED.write()
