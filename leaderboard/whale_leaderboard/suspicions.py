"""What only looks odd in an entry: a harness that knows answers, samples that are one, counts and times.

    for finding in suspicions(entry, seconds=600.0): ...

Few of these refuse an entry by themselves: texts and ids of test examples in a harness, answers of several,
and tables to play from, as `whale_bench.harness.answers` finds them. The others are notes, for people to look
at. A harness that hides a table well is for the canaries (`canaries.py`) and for readers.

Not covered: what replaying shows.
"""

import ast
import re
import time
from collections.abc import Iterator

from whale_bench.harness.answers import holds_answers
from whale_bench.records import Rollout
from whale_envs import get_domain
from whale_leaderboard.layout import MOST_HARNESS, MOST_ROLLOUT, TEST, K
from whale_leaderboard.report import Finding
from whale_leaderboard.rows import impossible_tokens, read_plain
from whale_leaderboard.wellformed import Entry

_KINDS = {
    "holds the text of": ("example_text", True),
    "goes by text of": ("example_branch", False),
    "holds": ("answers", True),
}
"""Code, and whether it refuses, by the words in which `holds_answers` says it."""

_TABLE = 200
"""Constants in a harness above which it holds data."""
_DUPLICATES = 0.5
"""Share of samples that equal another one of their example, above which it is said."""
_COMPARED = 4_000
"""Characters of a sample that are compared."""
_ENOUGH = 0.25
"""Share of samples that have to be long enough before anything is said."""
_SIMILAR = 0.9
_SHORTEST = 60
"""Samples shorter than this are equal by chance."""
_HIDES = re.compile(
    r"\b(?:hashlib|zlib|base64|binascii|codecs|marshal|pickle|crc32|exec|eval|(?<!re\.)compile)\b"
)


def suspicions(entry: Entry, *, seconds: float) -> Iterator[Finding]:
    """Everything that looks odd, the harnesses first; a bundle may hold thousands of these.

    Args:
        entry: read.
        seconds: most wall time before the next harness is begun.
    """
    until = time.monotonic() + seconds
    for name in sorted(entry.bundle.sizes):
        if name.startswith("harnesses/"):
            if time.monotonic() > until:
                said = f"reading the harnesses did not end within {seconds:g} s"
                yield Finding(level=2, code="time", place=name, message=said, refuses=True)
                return
            source = entry.bundle.read(name, MOST_HARNESS).decode("utf-8", "replace")
            yield from _harness(entry, name, source)
    yield from _samples(entry)
    for what in entry.odd:
        yield _note("timing", what.partition(":")[0], what.partition(": ")[2])
    for run in entry.runs:
        tested = run.account.test - (len(entry.tested) if run.number == 0 else 0)
        if tested:
            yield _note("tested", run.place, f"{tested} further test rollouts of these runs were charged")


def _harness(entry: Entry, name: str, source: str) -> Iterator[Finding]:
    """What looks odd in a harness's source."""
    for found in holds_answers(source, entry.examples):
        code, refuses = next(kind for words, kind in _KINDS.items() if words in found.message)
        yield Finding(level=2, code=code, place=f"{name}:{found.message.partition(':')[0]}",
                      message=found.message.partition(": ")[2], refuses=refuses)  # fmt: skip
    if (count := _constants(source)) > _TABLE:
        yield _note("table", name, f"it holds {count} constants, as a table does")
    if hidden := _HIDES.search(source):
        yield _note("hides", name, f"it uses {hidden[0]!r}, with which data can be hidden")


def _samples(entry: Entry) -> Iterator[Finding]:
    """What looks odd in the test rollouts, read once, the samples of one example in memory."""
    plan = entry.runs[0].plan
    budget = plan.token_budget or get_domain(plan.domain).token_budget
    same, compared = 0, 0
    group: list[Rollout] = []
    for number, line in entry.bundle.lines(TEST, MOST_ROLLOUT):
        row = read_plain(line)
        if why := impossible_tokens(row, per_turn=plan.max_tokens, budget=budget):
            yield _note("tokens", f"{TEST}:{number}", f"{row.key!r}: {why}")
        group.append(row)
        if len(group) == K:
            alike = _alike(group)
            same, compared = same + alike[0], compared + alike[1]
            group = []
    enough = compared >= _ENOUGH * len(entry.tested)
    if plan.temperature > 0 and enough and same > _DUPLICATES * compared:
        yield _note(
            "duplicates",
            TEST,
            f"{same} of {compared} longer samples are much like another one of their example, at "
            f"temperature {plan.temperature:g}",
        )


def _alike(group: list[Rollout]) -> tuple[int, int]:
    """(samples that are much like another one, samples long enough to tell)."""
    texts = [" ".join(s.text for s in row.segments)[:_COMPARED] for row in group]
    shingles = [_shingles(text) for text in texts if len(text) >= _SHORTEST]
    alike = sum(
        any(_similar(one, other) for j, other in enumerate(shingles) if i != j)
        for i, one in enumerate(shingles)
    )
    return alike, len(shingles)


def _shingles(text: str) -> frozenset[str]:
    words = re.sub(r"\d", "0", text.casefold()).split()
    return frozenset(" ".join(words[i : i + 4]) for i in range(max(1, len(words) - 3)))


def _similar(one: frozenset[str], other: frozenset[str]) -> bool:
    return len(one & other) >= _SIMILAR * len(one | other)


def _constants(source: str) -> int:
    """How many constants a program holds; lines where it is no program."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source.count("\n")
    kinds = (str, int, float)
    return sum(isinstance(n, ast.Constant) and isinstance(n.value, kinds) for n in ast.walk(tree))


def _note(code: str, place: str, message: str) -> Finding:
    return Finding(level=2, code=code, place=place, message=message, refuses=False)
