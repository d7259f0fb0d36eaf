"""Writes the committed schemas anew.

    python -m whale_baselines.schemas

Not covered: raising `FORMAT` of a run folder where a shape changed so that old readers would misread it.
"""

from whale_baselines.schemas import KINDS, make, path_of

if __name__ == "__main__":
    for name in KINDS:
        path_of(name).write_text(make(name), encoding="utf-8")
