"""The full tier: its rule, contamination, the list of ids, and the way from the hub to the cache."""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from whale_envs import SPLITS, DataError, InfrastructureError, UsageError
from whale_envs.search_qa import examples, hub, sources
from whale_envs.search_qa.examples import SIZES, SearchQuestion, load_examples, make_question
from whale_envs.search_qa.hub import (
    check_test_ids,
    published_test_ids,
    question_key,
    split_full,
    write_test_ids,
)
from whale_envs.search_qa.sources import TEST, TRAIN

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*(fork|utcnow).*:DeprecationWarning"),
    pytest.mark.usefixtures("no_network_and_no_home"),
]

WORDS = ["river", "poet", "castle", "band", "novel", "island", "queen", "planet", "bridge", "opera", "film"]


def text(number: int, topic: str) -> str:
    rng = Random(f"{topic}/{number}")
    return f"Which {' '.join(rng.choices(WORDS, k=5))} of {topic} has the number {number}?"


def question(number: int, dataset: str, asked: str | None = None) -> SearchQuestion:
    answers = [f"Answer {number}", f"answer no. {number}"]
    return make_question(
        asked or text(number, dataset), answers, dataset=dataset, kind=dataset, source=f"row_{number}"
    )


def pool(dataset: str, count: int) -> list[SearchQuestion]:
    return [question(n, dataset) for n in range(count)]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("who painted the night watch", "Who painted The Night Watch?", True),
        ("who wrote the music phantom of the opera", "who wrote the phantom of the opera music ?", True),
        ("when was the 1914–1918 war", "When was the 1914-1918 war?", True),
        ("what is ２０２０", "what is 2020", True),
        ("who won in 2013", "who won in 2014", False),
        ("who painted the night watch", "who painted the night", False),
    ],
)
def test_questions_are_the_same_by_their_words(one: str, other: str, same: bool) -> None:
    assert (question_key(one) == question_key(other)) == same


def split_small(train: list[SearchQuestion], evaluation: list[list[SearchQuestion]]) -> Any:
    return split_full(train, evaluation, each=10, held_out={"hotpotqa": 20, "nq": 6}, weight=100)


def test_the_mix_and_the_sizes_of_the_splits() -> None:
    train = pool("nq", 100) + pool("hotpotqa", 120)
    evaluation = [pool(name, 40) for name in ("a", "b", "c")]
    split = split_small(train, evaluation)
    assert list(split) == list(SPLITS)
    sets = {name: Counter(dict(q.groups)["dataset"] for q in found) for name, found in split.items()}
    assert sets["harness"] == sets["dev"] == {"hotpotqa": 20, "nq": 6}
    assert sets["test"] == {"a": 10, "b": 10, "c": 10}
    assert sets["weight"].total() == 100
    ids = [q.id for found in split.values() for q in found]
    assert len(set(ids)) == len(ids)
    shuffled = [Random(5).sample(found, len(found)) for found in (train, *evaluation)]
    assert split_small(shuffled[0], shuffled[1:]) == split


def test_the_test_does_not_depend_on_other_benchmarks_or_on_new_rows_of_low_rank() -> None:
    train = pool("nq", 100) + pool("hotpotqa", 120)
    alone = split_small(train, [pool("a", 40)])["test"]
    beside = split_small(train, [pool("a", 40), pool("b", 40)])["test"]
    assert beside[:10] == alone


def test_no_training_question_is_the_same_as_an_evaluation_question() -> None:
    evaluation = [pool("a", 40)]
    variants = [
        evaluation[0][n].question.lower().rstrip("?") + " ?" if n % 2 else evaluation[0][n].question.upper()
        for n in range(40)
    ]
    train = [question(n, "nq", asked) for n, asked in enumerate(variants)] + pool("nq", 120)
    train += pool("hotpotqa", 100)
    split = split_small(train, evaluation)
    keys = {question_key(q.question) for q in evaluation[0]}
    for name in ("weight", "harness", "dev"):
        assert not keys & {question_key(q.question) for q in split[name]}


def test_repetitions_are_one_question_within_and_across_sets() -> None:
    train = pool("nq", 100) * 3 + pool("hotpotqa", 120)
    train += [replace(q, id=q.id + "x", question=q.question.lower()) for q in pool("hotpotqa", 120)]
    evaluation = [pool("a", 40), pool("a", 12) + pool("b", 40)]
    split = split_small(train, evaluation)
    keys = [question_key(q.question) for found in split.values() for q in found]
    assert len(set(keys)) == len(keys)


def test_too_few_questions_are_an_error() -> None:
    with pytest.raises(DataError, match="a benchmark has 9 distinct questions, and 10 are needed"):
        split_small(pool("nq", 200), [pool("a", 9) * 2])
    with pytest.raises(DataError, match=r"too few: \{'harness': 26, 'dev': 26, 'weight': 99"):
        split_small(pool("nq", 51) + pool("hotpotqa", 100), [pool("a", 40)])
    with pytest.raises(DataError, match="too few"):
        split_small(pool("nq", 500), [pool("a", 40)])


# --- the list of ids -----------------------------------------------------------------------------


def test_the_list_of_ids_is_written_and_holds_the_test_to_it(tmp_path: Path) -> None:
    test = pool("nq", 30) + pool("popqa", 30)
    path = tmp_path / "test_ids.jsonl"
    assert not check_test_ids(test, path)
    write_test_ids(Random(1).sample(test, 60), path)
    first = path.read_bytes()
    write_test_ids(test, path)
    assert path.read_bytes() == first
    assert json.loads(first.splitlines()[0]).keys() == {"dataset", "row", "id"}
    assert check_test_ids(test, path)
    changed = [*test[1:], question(99, "nq")]
    with pytest.raises(DataError, match="1 questions are not on the list and 1 of the list are missing"):
        check_test_ids(changed, path)
    reworded = [replace(test[0], id="search_qa-0"), *test[1:]]
    with pytest.raises(DataError, match="has the dataset changed"):
        check_test_ids(reworded, path)


def test_the_list_is_said_not_to_be_there_as_long_as_it_is_not() -> None:
    """When the list is added this fails: then say so in the docs and in `hub.py`."""
    page = (Path(__file__).parents[3] / "docs" / "search_qa_data.md").read_text()
    assert not published_test_ids().is_file()
    assert "not yet published" in page


# --- from the hub to the cache -------------------------------------------------------------------


@pytest.fixture
def small_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nine local files in place of the hub's, smaller, read by the real code."""
    monkeypatch.setenv("WHALE_CACHE", str(tmp_path / "cache"))
    files = {}
    small = []
    for part in (*TRAIN, *TEST):
        count = 700 if part in TRAIN else 120
        rows = [
            {
                "id": f"{part.file.split('/')[1][:-6]}_{n}",
                "question": text(n, part.file),
                "golden_answers": [f"Answer , {n}"],
                "metadata": {"n": [n]},
            }
            for n in range(count)
        ]
        path = tmp_path / part.file.replace("/", "-")
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        files[part.place] = path
        small.append(replace(part, rows=count))
    real = sources.stream_rows

    def stream(source: str, *, needed: Any, data_files: str) -> Any:
        return real(source, needed=needed, data_files=str(files[data_files]))

    monkeypatch.setattr(sources, "stream_rows", stream)
    monkeypatch.setattr(hub, "TRAIN", tuple(small[:2]))
    monkeypatch.setattr(hub, "TEST", tuple(small[2:]))
    monkeypatch.setattr(split_full, "__kwdefaults__", {**split_full.__kwdefaults__, "weight": 500})
    return tmp_path


def test_the_full_tier_from_the_hub_to_the_cache(small_hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split = {name: hub.load_full(name) for name in SPLITS}
    assert {name: len(found) for name, found in split.items()} == {**SIZES["full"], "weight": 500}
    sets = Counter(dict(q.groups)["dataset"] for q in split["test"])
    assert sets == dict.fromkeys((part.dataset for part in TEST), 100)
    assert all(q.gold == (f"Answer, {n}", f"Answer , {n}") for q in split["dev"] for n in [q.gold[0][8:]])
    assert split["test"][0].source.startswith("nq test_")
    cached = list((small_hub / "cache" / "search_qa").iterdir())
    assert [path.name for path in cached] == ["full-bcafb8dd07d4.jsonl"]

    def gone(*args: Any, **options: Any) -> Any:
        raise AssertionError("the hub was asked again")

    monkeypatch.setattr(sources, "stream_rows", gone)
    assert hub.load_full("dev") == split["dev"]
    examples.load_examples.cache_clear()
    assert set(load_examples("full", "test").ids) == {q.id for q in split["test"]}
    with pytest.raises(DataError, match="holds 500 questions, not the documented 18946"):
        load_examples("full", "weight")
    examples.load_examples.cache_clear()


def test_a_test_that_is_not_the_published_one_is_refused(
    small_hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small_hub / "test_ids.jsonl"
    monkeypatch.setattr(hub, "published_test_ids", lambda: path)
    test = hub.load_full("test")
    write_test_ids(test, path)
    assert hub.load_full("test") == test
    write_test_ids(test[1:], path)
    with pytest.raises(DataError, match="the test is not the published one: 1 questions"):
        hub.load_full("test")
    assert len(hub.load_full("dev")) == 256


def test_a_broken_read_leaves_no_cache(small_hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **options: Any) -> Iterator[Any]:
        yield {"text": "{}"}
        raise InfrastructureError("reset by peer")

    monkeypatch.setattr(sources, "stream_rows", broken)
    with pytest.raises(InfrastructureError):
        hub.load_full("test")
    assert not [path for path in (small_hub / "cache").rglob("*") if path.is_file()]


def test_a_hub_that_cannot_be_reached_is_an_infrastructure_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHALE_CACHE", str(tmp_path))
    with pytest.raises(InfrastructureError, match="cannot be read"):
        load_examples("full", "test")


def test_without_the_extra_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHALE_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match=r'pip install "whale-envs\[data\]"'):
        load_examples("full", "test")
