"""Reading the seven benchmarks: the real loading code of `datasets` on local files with the hub's defects."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from whale_envs import DataError, InfrastructureError
from whale_envs.search_qa import sources
from whale_envs.search_qa.sources import (
    TEST,
    TRAIN,
    Part,
    answers_of,
    read_part,
    read_search_r1,
    tidy,
    unwrap,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*(fork|utcnow).*:DeprecationWarning"),
    pytest.mark.usefixtures("no_network_and_no_home"),
]

PROMPT = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you "
    "get new information. For example, <answer> Beijing </answer>. Question: "
)


def flash_row(number: int, **columns: Any) -> dict[str, Any]:
    """A row as FlashRAG has them: metadata is large, nested, and of another shape in every few rows."""
    metadata: Any = {"type": "bridge", "context": {"title": ["A", "B"], "sentences": [["x" * 40] * 5] * 2}}
    if number % 3 == 1:
        metadata = {"type": 7, "decomposition": [{"id": number, "support": None}]}
    if number % 3 == 2:
        metadata = None
    row = {"id": f"test_{number}", "question": f"who is number {number}?", "metadata": metadata}
    return {**row, "golden_answers": [f"Number {number}"], **columns}


def as_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def as_parquet(path: Path, rows: Iterable[Mapping[str, Any]]) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=16)
    return str(path)


def part(rows: int, dataset: str = "nq") -> Part:
    return Part(dataset, "nq/test.jsonl", rows)


def test_rows_of_every_shape_of_metadata_are_read_in_order(tmp_path: Path) -> None:
    rows = [flash_row(n) for n in range(50)]
    rows[7]["question"] = "what does \u2028 or \u0085 or \r\n do in a question"
    found = read_part(part(50), place=as_jsonl(tmp_path / "a.jsonl", rows))
    assert [q.source for q in found] == [f"nq test_{n}" for n in range(50)]
    assert [q.gold for q in found] == [(f"Number {n}",) for n in range(50)]
    assert found[7].question == "what does or or do in a question"
    assert {q.groups for q in found} == {(("dataset", "nq"), ("kind", "nq"))}
    assert all(q.support == () for q in found)


def test_metadata_is_skipped(tmp_path: Path) -> None:
    """HotpotQA has half a gigabyte of it; here it would even hide the row's own columns."""
    metadata = '{"question": "whose?", "golden_answers": ["Bob"], "x": [[[[[[]]]]]]}'
    row = '"id": "train_1", "question": "who?", "golden_answers": ["Ann"]'
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{{row}, "metadata": {metadata}}}\n')
    (question,) = read_part(part(1), place=str(path))
    assert question.gold == ("Ann",)


BAD = [
    {"golden_answers": []}, {"golden_answers": [""]}, {"golden_answers": "Rome"}, {"golden_answers": None},
    {"golden_answers": [None]}, {"question": ""}, {"question": None}, {"question": 5},
]  # fmt: skip


@pytest.mark.parametrize("change", BAD, ids=repr)
def test_a_bad_row_is_left_out_and_many_are_an_error(change: dict[str, Any], tmp_path: Path) -> None:
    rows = [flash_row(n) for n in range(200)]
    rows[3] |= change
    found = read_part(part(200), place=as_jsonl(tmp_path / "a.jsonl", rows))
    assert len(found) == 199
    assert not any("number 3?" in q.question for q in found)
    for n in (4, 5):
        rows[n] |= change
    with pytest.raises(DataError, match=r"3 of 200 rows of .* lack a question or a reference answer"):
        read_part(part(200), place=as_jsonl(tmp_path / "b.jsonl", rows))


def test_a_line_that_is_no_json_is_a_bad_row(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    as_jsonl(path, [flash_row(n) for n in range(150)])
    with path.open("a") as file:
        file.write('{"id": "test_150", "quest\n')
    assert len(read_part(part(151), place=str(path))) == 150


def test_a_read_that_broke_off_is_an_error_and_no_smaller_set(tmp_path: Path) -> None:
    place = as_jsonl(tmp_path / "a.jsonl", [flash_row(n) for n in range(97)])
    with pytest.raises(DataError, match="has 97 rows, not the 100 that it should have"):
        read_part(part(100), place=place)


def test_a_missing_file_is_an_infrastructure_error(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError):
        read_part(part(1), place=str(tmp_path / "none.jsonl"))


def test_progress_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    rows = ({"text": json.dumps(flash_row(n))} for n in range(20_000))
    monkeypatch.setattr(sources, "stream_rows", lambda *args, **options: rows)
    assert len(read_part(part(20_000), progress=told.append)) == 20_000
    assert told == [10_000, 20_000]


def test_files_are_asked_for_at_their_pinned_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def stream(source: str, *, needed: Any, data_files: str) -> Any:
        assert (source, needed) == ("text", [{"text"}])
        asked.append(data_files)
        return iter([{"text": json.dumps(flash_row(0))}])

    monkeypatch.setattr(sources, "stream_rows", stream)
    for one in (*TRAIN, *TEST):
        with pytest.raises(DataError, match=f"{one.file} has 1 rows"):
            read_part(one)
    root = "hf://datasets/RUC-NLPIR/FlashRAG_datasets@bcafb8dd07d453be3cbeeeb3f78be1841bddf92c"
    assert asked == [f"{root}/{one.file}" for one in (*TRAIN, *TEST)]
    assert "popqa/dev.jsonl" not in {one.file for one in TEST}  # there is none
    assert sum(one.rows for one in TRAIN) == 169_615
    assert sum(one.rows for one in TEST) == 51_713


# --- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "golds"),
    [
        ({"golden_answers": ["Rome", "Roma"]}, ("Rome", "Roma")),
        ({"golden_answers": np.array(["Rome", "Roma"], dtype=object)}, ("Rome", "Roma")),
        ({"possible_answers": '["politician", "political leader"]'}, ("politician", "political leader")),
        ({"possible_answers": ["politician"]}, ("politician",)),
        ({"reward_model": {"ground_truth": {"target": ["Rome"]}, "style": "rule"}}, ("Rome",)),
        ({"answer": {"value": "Sunset Boulevard", "aliases": ["Sunset Bulevard", "Sunset Boulevard"]}},
         ("Sunset Boulevard", "Sunset Bulevard")),
        ({"answer": "yes"}, ("yes",)),
        ({"answer": ["14 December 1972 UTC"]}, ("14 December 1972 UTC",)),
        ({"golden_answers": ["May 18 , 2018", "May 18, 2018"]}, ("May 18, 2018", "May 18 , 2018")),
    ],
    ids=repr,
)  # fmt: skip
def test_answers_of_every_type_that_the_columns_have(row: dict[str, Any], golds: tuple[str, ...]) -> None:
    assert answers_of(row, "row 1") == golds


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"answer": None},
        {"possible_answers": "politician"},
        {"possible_answers": '"politician"'},
        {"possible_answers": "[]"},
        {"possible_answers": '["", "a"]'},
        {"golden_answers": "Rome"},
        {"reward_model": {"ground_truth": {"target": "Rome"}}},
        {"reward_model": {"ground_truth": None}},
        {"answer": {"value": None, "aliases": []}},
    ],
    ids=repr,
)
def test_answers_of_the_wrong_type_are_refused_with_the_name_of_the_row(row: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="row 17"):
        answers_of(row, "row 17")


@pytest.mark.parametrize(
    ("spaced", "tight"),
    [
        ("May 18 , 2018", "May 18, 2018"),
        ("`` Heroes ''", '"Heroes"'),
        ("King 's College ( London )", "King's College (London)"),
        ("did n't", "didn't"),
        ("$ 5 million", "$5 million"),
        ("25 %", "25%"),
        ("1,350", "1,350"),
        ("  two   words ", "two words"),
        ("rock 'n' roll", "rock 'n' roll"),
        ("a : b ; c", "a: b; c"),
    ],
)
def test_a_tokenisers_spaces_are_taken_out(spaced: str, tight: str) -> None:
    assert tidy(spaced) == tight
    assert tidy(tight) == tight


# --- the copy of Search-R1 -----------------------------------------------------------------------


def search_r1_row(number: int, **columns: Any) -> dict[str, Any]:
    question = f"which Question: {number} is it?"
    return {
        "id": f"train_{number}",
        "data_source": "nq" if number % 2 else "hotpotqa",
        "prompt": [{"role": "user", "content": f"{PROMPT}{question}\n"}],
        "ability": "fact-reasoning",
        "reward_model": {"ground_truth": {"target": [f"Number {number}"]}, "style": "rule"},
        "extra_info": {"index": number, "split": "train"},
        "metadata": {"context": "x" * 1_000},
        **columns,
    }


def test_the_question_is_taken_out_of_the_prompt(tmp_path: Path) -> None:
    path = as_parquet(tmp_path / "train.parquet", [search_r1_row(n) for n in range(40)])
    found = read_search_r1(expected=40, source="parquet", data_files=path)
    assert [q.question for q in found] == [f"which Question: {n} is it?" for n in range(40)]
    assert [q.gold for q in found] == [(f"Number {n}",) for n in range(40)]
    assert [dict(q.groups)["dataset"] for q in found[:2]] == ["hotpotqa", "nq"]


def test_only_the_needed_columns_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[str]] = []
    real = sources.stream_rows

    def stream(*args: Any, **options: Any) -> Iterator[Mapping[str, Any]]:
        for row in real(*args, **options):
            seen.append(set(row))
            yield row

    monkeypatch.setattr(sources, "stream_rows", stream)
    path = as_parquet(tmp_path / "train.parquet", [search_r1_row(n) for n in range(3)])
    read_search_r1(expected=3, source="parquet", data_files=path)
    assert seen == [{"data_source", "prompt", "reward_model"}] * 3


def test_the_copy_is_asked_for_at_its_pinned_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def stream(source: str, **options: Any) -> Any:
        asked.append((source, options["revision"], options["data_files"]))
        return iter([search_r1_row(1)])

    monkeypatch.setattr(sources, "stream_rows", stream)
    assert len(read_search_r1(expected=1)) == 1
    revision = "b7d80abfee334a7a91cb377544f09180d58b34f6"
    assert asked == [("PeterJinGo/nq_hotpotqa_train", revision, "train.parquet")]


@pytest.mark.parametrize("prompt", [None, "", [], "Answer it.", [{"content": None}], [5], 7], ids=repr)
def test_a_prompt_without_a_question_is_refused(prompt: object) -> None:
    with pytest.raises(DataError, match="no question in the prompt"):
        unwrap(prompt)


def test_a_plain_string_will_do_as_a_prompt() -> None:
    assert unwrap(f"{PROMPT}who?\n") == "who?"
    assert unwrap(np.array([{"content": f"{PROMPT}who?"}], dtype=object)) == "who?"
