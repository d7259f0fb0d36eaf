"""Writes the committed schemas anew.

    python -m whale_leaderboard.schemas

Not covered: raising the `format` of a manifest or of results.json where a shape changed so that old readers
would misread it.
"""

from whale_leaderboard.schemas import COMMITTED

if __name__ == "__main__":
    COMMITTED.write()
