"""The `full` tier: DAPO-Math-17k to train and search on, AIME 2024 and 2025 to test on.

    load_full("test")             # reads the hub once, then the user's cache

The problems are read and checked by `sources.py`. Training problems that repeat a test problem are
left out (`contaminated`). Of the rest the lowest seeded hashes are harness (256) and dev (256), and
what remains is weight, in the order of the file's index: disjoint, unlike the original release, which
draws its harness set from its training set.

Not covered: resuming a read that was broken off; it starts anew.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from whale_envs.core import SPLITS
from whale_envs.errors import DataError
from whale_envs.hub import show_progress
from whale_envs.math_python.examples import SPLIT_SEED, MathProblem, make_problem
from whale_envs.math_python.sources import COPIES, DAPO, folded, read_aime, read_dapo
from whale_envs.paths import cache_dir, make_cached_folder, write_cached

TEST_COPIES = ("Maxwell-Jia/AIME_2024", "yentinglin/aime_2025")
HELD_OUT = {"harness": 256, "dev": 256}

_WORD = re.compile(r"[a-z0-9]+")
_SHINGLE = 6
_LIKENESS = 0.6
"""Share of a test problem's runs of `_SHINGLE` words from which on a training problem is the same."""


class Stored(msgspec.Struct, frozen=True):
    """A line of the cache."""

    split: str
    dataset: str
    problem: str
    answer: str
    source: str


def load_full(split: str) -> list[MathProblem]:
    """The problems of a split of the full tier, from the cache or else from the hub.

    Args:
        split: one of `SPLITS`.

    Raises:
        UsageError: the extra is not installed, or the cache cannot be written to.
        InfrastructureError: the hub cannot be reached.
        DataError: the hub's rows are not what they should be.
    """
    pins = [DAPO.revision, *(COPIES[hub_id][1].revision for hub_id in TEST_COPIES)]
    name = hashlib.sha256(" ".join(map(str, pins)).encode()).hexdigest()[:12]
    path = cache_dir() / "math_python" / f"full-{name}.jsonl"
    if not path.is_file():
        make_cached_folder(path.parent)
        test = [problem for hub_id in TEST_COPIES for problem in read_aime(hub_id)]
        save(split_full(read_dapo(progress=show_progress), test), path)
    rows = (msgspec.json.decode(line, type=Stored) for line in path.read_bytes().splitlines())
    return [
        make_problem(r.problem, r.answer, dataset=r.dataset, source=r.source)
        for r in rows
        if r.split == split
    ]


def contaminated(train: Iterable[MathProblem], test: Iterable[MathProblem]) -> dict[str, str]:
    """Training problems that repeat a test problem: {training id: test id}.

    Texts are compared as runs of six words, without case, punctuation and LaTeX commands' backslashes;
    60 % of a test problem's runs are enough, so that copies with another wording are found too.
    """
    tests = {problem.id: _shingles(problem.problem) for problem in test}
    holders: dict[str, list[str]] = {}
    for test_id, shingles in tests.items():
        for shingle in shingles:
            holders.setdefault(shingle, []).append(test_id)
    found = {}
    for problem in train:
        shared: dict[str, int] = {}
        for shingle in _shingles(problem.problem):
            for test_id in holders.get(shingle, ()):
                shared[test_id] = shared.get(test_id, 0) + 1
        for test_id, count in shared.items():
            if count >= _LIKENESS * len(tests[test_id]):
                found[problem.id] = test_id
    return found


def _shingles(text: str) -> set[str]:
    words = _WORD.findall(text.lower())
    return {" ".join(words[i : i + _SHINGLE]) for i in range(max(1, len(words) - _SHINGLE + 1))}


def split_full(
    train: Sequence[MathProblem], test: Sequence[MathProblem], held_out: Mapping[str, int] = HELD_OUT
) -> dict[str, list[MathProblem]]:
    """Problems by split, disjoint; training problems that repeat a test problem are left out.

    Raises:
        DataError: too few training problems.
    """
    repeats = contaminated(train, test)
    clean = [problem for problem in train if problem.id not in repeats]
    if len(clean) <= sum(held_out.values()):
        raise DataError(f"{len(clean)} training problems are too few for {dict(held_out)} held out")
    ranked = sorted(clean, key=_rank)
    split: dict[str, list[MathProblem]] = {}
    start = 0
    for name, size in held_out.items():
        split[name] = ranked[start : start + size]
        start += size
    taken = {problem.id for chosen in split.values() for problem in chosen}
    split["weight"] = [problem for problem in clean if problem.id not in taken]
    split["test"] = list(test)
    return {name: split[name] for name in SPLITS}


def _rank(problem: MathProblem) -> bytes:
    return hashlib.sha256(f"{SPLIT_SEED}:{folded(problem.problem)}".encode()).digest()


def save(chosen: Mapping[str, Iterable[MathProblem]], path: Path) -> None:
    """Writes the problems to the cache, whole or not at all; raises UsageError where it cannot."""
    lines = (
        msgspec.json.encode(Stored(split, dict(p.groups)["dataset"], p.problem, p.gold, p.source)) + b"\n"
        for split, problems in chosen.items()
        for p in problems
    )
    write_cached(path, b"".join(lines))
