"""The full tier: the real loading code of `datasets`, on local files with the hub's columns and defects."""

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from whale_envs import DataError, InfrastructureError, UsageError
from whale_envs.math_python import SIZES, examples, hub, sources, verify
from whale_envs.math_python.hub import contaminated, split_full
from whale_envs.math_python.sources import COPIES, DAPO, DAPO_PROCESSED, read_aime, read_dapo, unwrap

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*(fork|utcnow).*:DeprecationWarning"),
    pytest.mark.usefixtures("no_network_and_no_home"),
]

BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
AFTER = '\n\nRemember to put your answer on its own line after "Answer:".'
NOUNS = ["lamps", "crates", "ferries", "anchors", "ladders", "violins", "kettles", "comets", "orchards"]


def statement(number: int, topic: str = "train") -> str:
    """A made-up problem, no two of which share many words in a row."""
    rng = Random(f"{topic}/{number}")
    words = [rng.choice(NOUNS) for _ in range(14)]
    return (
        f"The {' '.join(words[:5])} number {number * 37 + 5} of {topic}. "
        f"Solve $x_{{{number}}}+{rng.randint(2, 99)}={rng.randint(100, 999)}$ "
        f"for the {' '.join(words[5:])}. Remember the answer: find it."
    )


def dapo_row(number: int, answer: object = None, *, problem: str | None = None) -> dict[str, Any]:
    text = statement(number) if problem is None else problem
    return {
        "data_source": "math_dapo",
        "prompt": [{"content": BEFORE + text + AFTER, "role": "user"}],
        "ability": "MATH",
        "reward_model": {
            "ground_truth": str(number if answer is None else answer),
            "style": "rule-lighteval",
        },
        "extra_info": {"index": f"{number:08d}-aaaa"},
    }


def as_parquet(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=64)
    return path


def as_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def as_csv(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    rows = list(rows)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def local(path: Path) -> dict[str, str]:
    source = {".parquet": "parquet", ".csv": "csv", ".jsonl": "json"}[path.suffix]
    return {"source": source, "data_files": str(path)}


# --- DAPO ----------------------------------------------------------------------------------------


def test_repeated_rows_are_one_problem_in_the_order_of_the_index(tmp_path: Path) -> None:
    rows = [dapo_row(n) for n in range(30)] * 20
    Random(0).shuffle(rows)
    problems = read_dapo(**local(as_parquet(tmp_path / "a.parquet", rows)))
    assert [p.problem for p in problems] == [statement(n) for n in range(30)]
    assert [p.gold for p in problems] == [str(n) for n in range(30)]
    assert {p.groups for p in problems} == {(("dataset", "dapo_math_17k"),)}
    assert not any(p.synthetic for p in problems)
    assert problems[3].source == "BytedTsinghua-SIA/DAPO-Math-17k: 00000003-aaaa"


def test_problems_are_compared_by_their_text_and_not_by_their_index(tmp_path: Path) -> None:
    rows = [dapo_row(n) for n in range(30)]
    rows += [{**dapo_row(n), "extra_info": {"index": f"{n + 500:08d}-bbbb"}} for n in range(10)]
    rows += [dapo_row(600, 3, problem="  " + statement(3).replace(" ", "\n") + "\n")]
    assert len(read_dapo(**local(as_parquet(tmp_path / "a.parquet", rows)))) == 30


def test_copies_that_disagree_are_dropped_and_many_of_them_are_an_error(tmp_path: Path) -> None:
    rows = [dapo_row(n) for n in range(40)] + [dapo_row(n, n + 1) for n in range(7)]
    problems = read_dapo(**local(as_parquet(tmp_path / "a.parquet", rows)))
    assert [p.gold for p in problems] == [str(n) for n in range(7, 40)]
    rows += [dapo_row(n, n + 1) for n in range(7, 20)]
    with pytest.raises(DataError, match=r"20 of 40 problems of .* have two answers"):
        read_dapo(**local(as_parquet(tmp_path / "b.parquet", rows)))


@pytest.mark.parametrize(
    "problem",
    [
        "Solve for x.",
        "the answer is to be found: Answer the Remember",  # lstrip and rstrip would eat these letters
        "Answer: $Answer",
        "Let $a$ be the last line",
        "\\boxed{?}",
        "求 $x$ 的值。",
    ],
)
def test_the_instruction_is_removed_as_a_prefix_and_a_suffix(problem: str) -> None:
    assert unwrap(BEFORE + problem + AFTER) == problem
    assert unwrap(problem) == problem
    assert unwrap(BEFORE + problem) == problem
    assert unwrap(problem + AFTER + "\n") == problem
    boxed = BEFORE.replace("$Answer (without quotes)", "\\boxed{$Answer}")
    assert unwrap(boxed + problem + AFTER) == problem


def test_the_processed_mirror_reads_the_same(tmp_path: Path) -> None:
    rows = [dapo_row(n) for n in range(12)]
    new = [
        {
            "prompt": statement(n),
            "solution": str(n),
            "data_source": "math_dapo",
            "source_prompt": row["prompt"],
            "ability": "MATH",
            "reward_model": row["reward_model"],
            "extra_info": row["extra_info"],
        }
        for n, row in enumerate(rows)
    ]
    old = [{"problem": statement(n), "answer": str(n)} for n in range(12)]
    raw = read_dapo(**local(as_parquet(tmp_path / "a.parquet", rows)))
    for number, columns in enumerate((new, old)):
        path = as_parquet(tmp_path / f"{number}.parquet", columns)
        read = read_dapo(DAPO_PROCESSED, **local(path))
        assert [(p.id, p.problem, p.gold) for p in read] == [(p.id, p.problem, p.gold) for p in raw]


def test_a_row_without_problem_or_answer_is_named(tmp_path: Path) -> None:
    for broken in (dapo_row(5, ""), dapo_row(5, problem="")):
        path = as_parquet(tmp_path / "a.parquet", [dapo_row(1), broken])
        with pytest.raises(DataError, match="row 2: no problem or no answer"):
            read_dapo(**local(path))


def test_missing_columns_are_named(tmp_path: Path) -> None:
    path = as_parquet(tmp_path / "a.parquet", [{"prompt": "x", "label": "3"}])
    with pytest.raises(
        DataError, match=r"lacks the columns \['reward_model'\]; it has \['label', 'prompt'\]"
    ):
        read_dapo(**local(path))
    with pytest.raises(DataError, match=r"lacks the columns \['answer or reward_model or solution'\]"):
        read_dapo(DAPO_PROCESSED, **local(path))


# --- AIME ----------------------------------------------------------------------------------------


def aime_rows(hub_id: str, *, padded: bool = False) -> list[dict[str, Any]]:
    """30 made-up problems with the columns of that copy."""
    rows = []
    for n in range(30):
        text, answer = statement(n, hub_id), (n * 37 + 3) % 1000
        written: object = f"{answer:03d}" if padded else answer
        text_of = {
            "Maxwell-Jia/AIME_2024": {
                "ID": f"2024-I-{n}",
                "Problem": text,
                "Solution": "s",
                "Answer": written,
            },
            "HuggingFaceH4/aime_2024": {"id": n, "problem": text, "solution": "s", "answer": f"{written}"},
            "math-ai/aime24": {"id": n, "problem": text, "solution": f"\\boxed{{{written}}}", "url": "u"},
            "yentinglin/aime_2025": {"id": f"{n}", "problem": text, "answer": f"{written}", "solution": "s"},
            "math-ai/aime25": {"problem": text, "answer": f"{written}", "id": f"{n}"},
            "opencompass/AIME2025": {"question": text, "answer": f"{written}"},
        }
        rows.append(text_of[hub_id])
    return rows


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("hub_id", COPIES)
def test_every_copy_is_read_by_its_own_columns(hub_id: str, padded: bool, tmp_path: Path) -> None:
    rows = aime_rows(hub_id, padded=padded)
    paths = (
        as_parquet(tmp_path / "a.parquet", rows),
        as_csv(tmp_path / "a.csv", rows),
        as_jsonl(tmp_path / "a.jsonl", rows),
    )
    for path in paths:
        problems = read_aime(hub_id, **local(path))
        assert [p.problem for p in problems] == [statement(n, hub_id) for n in range(30)]
        assert [p.gold for p in problems] == [str((n * 37 + 3) % 1000) for n in range(30)]
        assert {p.groups for p in problems} == {(("dataset", f"aime_{COPIES[hub_id][0]}"),)}
        for problem in problems:
            assert verify(problem, f"\\boxed{{{int(problem.gold):03d}}}").reward == 1.0


def refused(tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    path = as_jsonl(tmp_path / "a.jsonl", rows)
    with pytest.raises(DataError, match=message):
        read_aime("Maxwell-Jia/AIME_2024", **local(path))


def test_other_than_thirty_distinct_rows_are_refused(tmp_path: Path) -> None:
    rows = aime_rows("Maxwell-Jia/AIME_2024")
    refused(tmp_path, rows[:29], "has 29 rows and 29 problems, not 30")
    refused(tmp_path, rows * 32, "has 960 rows and 30 problems, not 30")
    refused(tmp_path, [*rows[:29], rows[0]], "has 30 rows and 29 problems, not 30")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("1000", "1000 is not in 0 to 999"),
        ("-1", "-1 is not in 0 to 999"),
        ("1/2", "'1/2' is no integer"),
        ("2.5", "'2.5' is no integer"),
        (" ", "' ' is no integer"),
    ],
)
def test_answers_that_cannot_be_are_refused(tmp_path: Path, answer: str, message: str) -> None:
    rows = [{**row, "Answer": str(row["Answer"])} for row in aime_rows("Maxwell-Jia/AIME_2024")]
    rows[4]["Answer"] = answer
    refused(tmp_path, rows, f"2024-I-4.* {message}")


@pytest.mark.parametrize(
    "leak",
    [
        "{p} Answer: {a}", "{p} The answer is ${a}$.", "{p}\n{a}", "{p} \\boxed{{{a}}}", "{p}\n${a}$",
        "{p} answer: 0{a}",
    ],
)  # fmt: skip
def test_a_copy_that_gives_answers_away_is_refused(tmp_path: Path, leak: str) -> None:
    rows = aime_rows("Maxwell-Jia/AIME_2024")
    rows[5]["Problem"] = leak.format(p=rows[5]["Problem"], a=rows[5]["Answer"])
    refused(tmp_path, rows, "2024-I-5: the text gives the answer away")


def test_the_wrong_key_of_an_early_copy_is_refused(tmp_path: Path) -> None:
    rows = aime_rows("Maxwell-Jia/AIME_2024")
    text = "Find the number of intersections of the graphs of \\[y=4 g(f(\\sin (2 \\pi x)))\\] and the other."
    rows[11] |= {"ID": "2024-I-12", "Problem": text, "Answer": 385}
    assert len(read_aime("Maxwell-Jia/AIME_2024", **local(as_jsonl(tmp_path / "b.jsonl", rows)))) == 30
    rows[11]["Answer"] = 384
    refused(tmp_path, rows, "2024-I-12: 384 is the wrong key")


def test_a_worked_solution_without_a_box_is_refused(tmp_path: Path) -> None:
    rows = aime_rows("math-ai/aime24")
    rows[0]["solution"] = "It is 3."
    with pytest.raises(DataError, match=r"'It is 3\.' is no integer"):
        read_aime("math-ai/aime24", **local(as_jsonl(tmp_path / "a.jsonl", rows)))


# --- splits --------------------------------------------------------------------------------------


def made(count: int, topic: str) -> list[examples.MathProblem]:
    return [examples.make_problem(statement(n, topic), str(n), dataset=topic) for n in range(count)]


def test_splits_are_disjoint_complete_and_fixed() -> None:
    train, test = made(400, "train"), made(60, "test")
    split = split_full(train, test, {"harness": 30, "dev": 40})
    assert {name: len(found) for name, found in split.items()} == {
        "weight": 330, "harness": 30, "dev": 40, "test": 60,
    }  # fmt: skip
    ids = [p.id for found in split.values() for p in found]
    assert len(set(ids)) == len(ids) == 460
    again = split_full(train[::-1], test, {"harness": 30, "dev": 40})
    assert [p.id for p in again["dev"]] == [p.id for p in split["dev"]]
    assert [p.id for p in split["weight"]] == [p.id for p in train if p in split["weight"]]
    with pytest.raises(DataError, match="too few"):
        split_full(train[:60], test, {"harness": 30, "dev": 40})


def test_training_problems_that_repeat_a_test_problem_are_left_out() -> None:
    test = made(60, "test")
    copies = [
        examples.make_problem(text, "1", dataset="train")
        for text in (
            test[0].problem,
            test[1].problem.upper(),
            test[2].problem.replace(" ", "\n  ").replace("$", "$$"),
            "A figure is shown. " + test[3].problem + " Give an integer.",
            test[4].problem.replace(". Solve", ", and solve"),
        )
    ]
    train = [*made(200, "train"), *copies]
    found = contaminated(train, test)
    assert found == {copy.id: problem.id for copy, problem in zip(copies, test, strict=False)}
    split = split_full(train, test, {"harness": 20, "dev": 20})
    kept = {p.id for name in ("weight", "harness", "dev") for p in split[name]}
    assert not kept & {copy.id for copy in copies}
    assert len(kept) == 200


def test_unrelated_problems_are_not_taken_for_copies() -> None:
    assert contaminated(made(300, "train"), made(60, "test")) == {}


# --- the whole way -------------------------------------------------------------------------------


@pytest.fixture
def small_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub of local files: DAPO with its repeats, and both test years."""
    monkeypatch.setenv("WHALE_CACHE", str(tmp_path / "cache"))
    rows = [dapo_row(n) for n in range(700)] * 2
    rows += [dapo_row(9_000, 7, problem=statement(0, "Maxwell-Jia/AIME_2024"))] * 2
    files = {DAPO.hub_id: as_parquet(tmp_path / "dapo.parquet", rows)}
    for number, hub_id in enumerate(hub.TEST_COPIES):
        files[hub_id] = as_parquet(tmp_path / f"{number}.parquet", aime_rows(hub_id))

    def stream(source: str, *, needed: Any, split: str, revision: str, config: Any, **options: Any) -> Any:
        assert len(revision) == 40
        assert (split, config, options) == ("train", None, {})
        return real("parquet", needed=needed, split="train", data_files=str(files[source]))

    real = sources.stream_rows
    monkeypatch.setattr(sources, "stream_rows", stream)
    return tmp_path


def test_the_full_tier_from_the_hub_to_the_cache(small_hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split = {name: hub.load_full(name) for name in SIZES["full"]}
    assert {name: len(found) for name, found in split.items()} == {
        "weight": 188, "harness": 256, "dev": 256, "test": 60,
    }  # fmt: skip
    assert len({p.id for found in split.values() for p in found}) == 760
    for found in split.values():
        assert not any(p.synthetic for p in found)
        assert all(verify(p, f"\\boxed{{{p.gold}}}").reward == 1.0 for p in found)
    assert {dict(p.groups)["dataset"] for p in split["test"]} == {"aime_2024", "aime_2025"}
    cached = list((small_hub / "cache" / "math_python").iterdir())
    assert len(cached) == 1

    def gone(*args: Any, **options: Any) -> Any:
        raise AssertionError("the hub was asked again")

    monkeypatch.setattr(sources, "stream_rows", gone)
    assert hub.load_full("dev") == split["dev"]
    examples.load_examples.cache_clear()
    assert len(load_examples_of("test")) == 60
    with pytest.raises(DataError, match="holds 188 problems, not the documented 16000"):
        load_examples_of("weight")
    examples.load_examples.cache_clear()


load_examples_of = partial(examples.load_examples, "full")


def test_a_broken_read_leaves_no_cache(small_hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **options: Any) -> Iterator[Any]:
        yield aime_rows("Maxwell-Jia/AIME_2024")[0]
        raise InfrastructureError("reset by peer")

    monkeypatch.setattr(sources, "stream_rows", broken)
    with pytest.raises(InfrastructureError):
        hub.load_full("test")
    assert not [path for path in (small_hub / "cache").rglob("*") if path.is_file()]


def test_the_hub_is_asked_for_pinned_revisions(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[Any] = []

    def load_dataset(source: str, **options: Any) -> list[Any]:
        asked.append((source, options))
        return [{"question": "q", "answer": "1"}]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert len(list(sources.copy_rows(COPIES["opencompass/AIME2025"][1]))) == 2
    pinned = {"split": "test", "streaming": True, "revision": "a6ad95f611d72cf628a80b58bd0432ef6638f958"}
    assert asked == [
        ("opencompass/AIME2025", {**pinned, "name": "AIME2025-I"}),
        ("opencompass/AIME2025", {**pinned, "name": "AIME2025-II"}),
    ]
    for year, copy in COPIES.values():
        assert copy.revision is not None
        assert len(copy.revision) == 40
        assert str(year)[2:] in copy.hub_id


def test_a_hub_that_cannot_be_reached_is_an_infrastructure_error_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    def unreachable(*args: Any, **options: Any) -> Any:
        raise ConnectionError("no route")

    monkeypatch.setenv("WHALE_CACHE", str(tmp_path))
    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(InfrastructureError, match="mini and small are embedded"):
        load_examples_of("test")


def test_without_the_extra_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHALE_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match=r'pip install "whale-envs\[data\]"'):
        load_examples_of("test")
