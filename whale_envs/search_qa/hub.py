"""The `full` tier: NQ and HotpotQA to train and search on, seven benchmarks to test on.

    load_full("test")                                        # reads the hub once, then the user's cache
    python -m whale_envs.search_qa.hub test_ids.jsonl        # writes the list of the test's ids

The rule. Two questions are the same where their words are, in whatever order, without case,
punctuation and articles (`question_key`). Test: of each benchmark the 100 questions of the lowest
seeded hash of this key, 700 in all. Training questions that are the same as any question of the seven
evaluation files, chosen or not, are left out, and so are repetitions. Of the rest, by the same hash:
harness is 200 of HotpotQA and 56 of NQ, the published mix; dev is as many, the next ones; weight is the
next 18,946 of both together. 18,946 is the size of the published training set, whose filter was never
published: this set is another one.

The test's ids are to be published as a list. `data/search_qa/full/test_ids.jsonl` will hold it once a
machine with access to the hub has written it; from then on a test that differs is refused. Until then
the pinned revision and the rule say which questions these are.

Not covered: resuming a read that was broken off; it starts anew.
"""

import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path

import msgspec

from whale_envs.core import SPLITS
from whale_envs.errors import DataError
from whale_envs.hub import show_progress
from whale_envs.paths import cache_dir, make_cached_folder, write_cached
from whale_envs.search_qa.examples import SIZES, SPLIT_SEED, SearchQuestion, data_folder, make_question
from whale_envs.search_qa.honesty import fold
from whale_envs.search_qa.sources import FLASHRAG_REVISION, TEST, TRAIN, read_part

TEST_EACH = 100
"""Test questions of each benchmark."""
HELD_OUT: Mapping[str, int] = {"hotpotqa": 200, "nq": 56}
"""The mix of harness, and of dev (reference §4.1)."""


class Stored(msgspec.Struct, frozen=True):
    """A line of the cache."""

    split: str
    dataset: str
    question: str
    answers: tuple[str, ...]
    source: str


class TestId(msgspec.Struct, frozen=True):
    """A line of the published list."""

    __test__ = False  # not a test case, whatever pytest thinks of the name

    dataset: str
    row: str
    """The row's own id in its file."""
    id: str
    """The example's id, a hash of the question."""


def load_full(split: str) -> list[SearchQuestion]:
    """The questions of a split of the full tier, from the cache or else from the hub.

    Args:
        split: one of `SPLITS`.

    Raises:
        UsageError: the extra is not installed, or the cache cannot be written to.
        InfrastructureError: the hub cannot be reached.
        DataError: the hub's rows are not what they should be, or the test is not the published one.
    """
    path = cache_dir() / "search_qa" / f"full-{FLASHRAG_REVISION[:12]}.jsonl"
    if not path.is_file():
        make_cached_folder(path.parent)
        evaluation = [read_part(part) for part in TEST]
        train = [question for part in TRAIN for question in read_part(part, progress=show_progress)]
        save(split_full(train, evaluation), path)
    rows = (msgspec.json.decode(line, type=Stored) for line in path.read_bytes().splitlines())
    questions = [_restored(row) for row in rows if row.split == split]
    if split == "test":
        check_test_ids(questions)
    return questions


def question_key(question: str) -> str:
    """What makes two questions the same: their words, sorted.

    >>> question_key("Who wrote the music of Cats?") == question_key("who wrote cats' music of")
    True
    """
    return " ".join(sorted(fold(question).split()))


def split_full(
    train: Iterable[SearchQuestion],
    evaluation: Sequence[Sequence[SearchQuestion]],
    *,
    each: int = TEST_EACH,
    held_out: Mapping[str, int] = HELD_OUT,
    weight: int = SIZES["full"]["weight"],
) -> dict[str, list[SearchQuestion]]:
    """Questions by split, by the rule in the module's docstring.

    Args:
        train: training questions of all datasets.
        evaluation: the questions of each benchmark.
        each: test questions of a benchmark.
        held_out: questions of harness, and of dev, by dataset.
        weight: questions of weight.

    Raises:
        DataError: too few questions.
    """
    seen: set[str] = set()
    test: list[SearchQuestion] = []
    for benchmark in evaluation:
        chosen = _distinct(benchmark, seen)[:each]
        if len(chosen) < each:
            raise DataError(f"a benchmark has {len(chosen)} distinct questions, and {each} are needed")
        seen |= {question_key(question.question) for question in chosen}
        test += chosen
    seen |= {question_key(question.question) for benchmark in evaluation for question in benchmark}
    split: dict[str, list[SearchQuestion]] = {"harness": [], "dev": [], "weight": [], "test": test}
    room = {(name, dataset): size for name in ("harness", "dev") for dataset, size in held_out.items()}
    for question in _distinct(train, seen):
        dataset = dict(question.groups)["dataset"]
        name = next((name for name in ("harness", "dev") if room.get((name, dataset))), "weight")
        if name != "weight":
            room[name, dataset] -= 1
        elif len(split["weight"]) == weight:
            continue
        split[name].append(question)
    if any(room.values()) or len(split["weight"]) < weight:
        counts = {name: len(found) for name, found in split.items()}
        raise DataError(f"the training questions are too few: {counts}")
    return {name: split[name] for name in SPLITS}


def _distinct(questions: Iterable[SearchQuestion], seen: set[str]) -> list[SearchQuestion]:
    """Questions in the order of their keys' hashes, the first of each key, none whose key is in `seen`."""
    by_key: dict[str, SearchQuestion] = {}
    for question in questions:
        key = question_key(question.question)
        if key and key not in seen:
            by_key.setdefault(key, question)
    return [by_key[key] for key in sorted(by_key, key=_rank)]


def _rank(key: str) -> bytes:
    return hashlib.sha256(f"{SPLIT_SEED}:{key}".encode()).digest()


# --- the published list --------------------------------------------------------------------------


def published_test_ids() -> Traversable:
    """Where the list of the test's ids is, once there is one."""
    return data_folder("full") / "test_ids.jsonl"


def write_test_ids(questions: Iterable[SearchQuestion], path: Path) -> None:
    """Writes the list of a test's ids, in the order of datasets and ids."""
    ids = sorted((_test_id(question) for question in questions), key=lambda one: (one.dataset, one.id))
    path.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in ids))


def check_test_ids(questions: Iterable[SearchQuestion], published: Traversable | None = None) -> bool:
    """Whether there is a published list; that the questions are those on it is then certain.

    Args:
        questions: the test split.
        published: the list, by default the package's.

    Raises:
        DataError: the questions are not those on the list.
    """
    path = published or published_test_ids()
    if not path.is_file():
        return False
    listed = set(msgspec.json.Decoder(TestId).decode_lines(path.read_bytes()))
    found = {_test_id(question) for question in questions}
    if listed != found:
        more, fewer = len(found - listed), len(listed - found)
        raise DataError(
            f"the test is not the published one: {more} questions are not on the list and {fewer} of the "
            f"list are missing; has the dataset changed?"
        )
    return True


def _test_id(question: SearchQuestion) -> TestId:
    dataset, _, row = question.source.partition(" ")
    return TestId(dataset, row, question.id)


# --- the cache -----------------------------------------------------------------------------------


def save(chosen: Mapping[str, Iterable[SearchQuestion]], path: Path) -> None:
    """Writes the questions to the cache, whole or not at all; raises UsageError where it cannot."""
    lines = (
        msgspec.json.encode(
            Stored(split, dict(q.groups)["dataset"], q.question, q.gold, q.source.partition(" ")[2])
        )
        + b"\n"
        for split, questions in chosen.items()
        for q in questions
    )
    write_cached(path, b"".join(lines))


def _restored(row: Stored) -> SearchQuestion:
    return make_question(row.question, row.answers, dataset=row.dataset, kind=row.dataset, source=row.source)


if __name__ == "__main__":
    write_test_ids(load_full("test"), Path(sys.argv[1]))
    sys.stdout.write(f"the ids of {SIZES['full']['test']} questions written to {sys.argv[1]}\n")
