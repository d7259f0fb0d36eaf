"""The unified diff of two texts of strangers, in time that they do not choose.

    for line in unified(old, new, "a", "b", context=3) or ["too long to compare"]: ...

`difflib` takes hours over texts that repeat their lines cleverly. Lines that both begin or end with are taken
off first; what is left is compared only where the work that it can take is bounded.

Not covered: changes within a line.
"""

import difflib
from collections import Counter
from collections.abc import Sequence

MOST_WORK = 20_000_000
"""Comparisons of lines that one diff may take: a second or two."""

_POPULAR = 200
"""Lines from which on `difflib` passes over those that are more than a hundredth of all."""


def unified(old: str, new: str, before: str, after: str, *, context: int = 3) -> list[str] | None:
    """The lines of the diff; None where it would take too long.

    Args:
        old: the one text.
        new: the other.
        before: name of the one.
        after: name of the other.
        context: equal lines around each change.
    """
    a, b = old.splitlines(), new.splitlines()
    head = _same(a, b)
    tail = _same(a[head:][::-1], b[head:][::-1])
    if _work(a[head : len(a) - tail], b[head : len(b) - tail]) > MOST_WORK:
        return None
    # Of what is equal at both ends, only what can be seen; the numbers of lines are put right again.
    cut = max(0, head - context)
    keep = max(0, tail - context)
    lines = difflib.unified_diff(
        a[cut : len(a) - keep], b[cut : len(b) - keep], before, after, lineterm="", n=context
    )
    return [_moved(line, cut) if line.startswith("@@") else line for line in lines]


def first_difference(old: str, new: str) -> str:
    """In words, for texts that are too long to compare."""
    a, b = old.splitlines(), new.splitlines()
    return f"{len(a):,} and {len(b):,} lines, which differ from line {_same(a, b) + 1:,} on"


def _same(a: Sequence[str], b: Sequence[str]) -> int:
    """How many lines both begin with."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _work(a: Sequence[str], b: Sequence[str]) -> int:
    """An upper bound of the steps: every search for a longest match visits each pair of equal lines."""
    counts = Counter(b)
    if len(b) >= _POPULAR:
        counts = Counter({line: n for line, n in counts.items() if n <= len(b) // 100 + 1})
    pairs = sum(counts[line] for line in a)
    return (len(a) + pairs) * (min(len(a), len(b), pairs) + 1)


def _moved(place: str, by: int) -> str:
    """A hunk's heading with its numbers of lines moved."""

    def moved(part: str) -> str:
        start, comma, count = part[1:].partition(",")
        return f"{part[0]}{int(start) + by}{comma}{count}"

    old, new = place.split()[1:3]
    return f"@@ {moved(old)} {moved(new)} @@"
