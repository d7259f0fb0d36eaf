"""Builds the embedded file of synthetic problems.

    python -m whale_envs.math_python.build_data whale_envs/data/math_python/synthetic_problems.jsonl

Every answer is computed by both methods of its family, which must agree. The same code and seed
give the same bytes. Lines stand in order of a hash of their text, so that families are mixed.

Not covered: the full tier (`hub.py`).
"""

import hashlib
import sys
from pathlib import Path

import msgspec

from whale_envs.core import SPLITS
from whale_envs.errors import DataError
from whale_envs.math_python.examples import EASY_QUOTA, MINI_QUOTA, OTHER_QUOTA, Row
from whale_envs.math_python.families import all_families, generate

SEED = 20_260
"""Seed of the embedded problems."""


def build(out: Path) -> int:
    """Writes `out` and returns the number of problems.

    Raises:
        DataError: two problems have the same text, or a family's methods disagree.
    """
    rows = []
    for family in all_families().values():
        quota = EASY_QUOTA if family.band == "easy" else OTHER_QUOTA
        for split in SPLITS:
            for i, problem in enumerate(generate(family.name, quota[split], SEED, split=split)):
                mini = split if i < MINI_QUOTA[split] else ""
                row = Row(family.name, problem.params, problem.text, str(problem.answer), split, mini)
                rows.append(row)
    if len({row.problem for row in rows}) != len(rows):
        raise DataError("two problems have the same text")
    rows.sort(key=lambda row: hashlib.sha256(row.problem.encode()).digest())
    out.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    return len(rows)


if __name__ == "__main__":
    count = build(Path(sys.argv[1]))
    sys.stdout.write(f"{count} problems written to {sys.argv[1]}\n")
