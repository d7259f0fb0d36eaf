"""Writes the committed schemas anew.

    python -m whale_bench.schemas

Not covered: raising `FORMAT` where a shape changed so that old readers would misread it.
"""

from whale_bench.schemas import MAKERS, make, path_of

if __name__ == "__main__":
    for name in MAKERS:
        path_of(name).write_text(make(name), encoding="utf-8")
