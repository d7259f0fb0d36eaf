"""The builder: the same bytes from the drafts, and a refusal of what should not be embedded."""

import gzip
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from whale_envs import SPLITS, DataError
from whale_envs.search_qa import build_data
from whale_envs.search_qa.build_data import assign_splits, build, factbook_passages, wikipedia_passages
from whale_envs.search_qa.corpora import stored_passages
from whale_envs.search_qa.examples import Row, data_folder

DRAFTS = Path(__file__).parent / "drafts"
FOLDERS = ("wikipedia", "natural_questions", "factbook")


def write_packed(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_bytes(gzip.compress(b"".join(msgspec.json.encode(row) + b"\n" for row in rows)))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The drafts, and the passages as they came, which the embedded ones still hold."""
    source = tmp_path_factory.mktemp("source")
    for folder in FOLDERS:
        shutil.copy(DRAFTS / f"{folder}.jsonl", source)
    rng = Random(3)
    for folder in ("wikipedia", "factbook"):
        rows = [msgspec.structs.asdict(stored) for stored in stored_passages(folder)]
        rng.shuffle(rows)
        write_packed(source / f"{folder}_passages.jsonl.gz", rows)
    return source


@pytest.fixture
def decisions(tmp_path: Path) -> Path:
    for folder in FOLDERS:
        (tmp_path / folder).mkdir()
        for name in ("dropped.jsonl", "edited.jsonl"):
            (tmp_path / folder / name).write_bytes((data_folder(folder) / name).read_bytes())
    return tmp_path


def test_the_same_drafts_and_decisions_give_the_same_bytes(sources: Path, decisions: Path) -> None:
    assert build(sources, decisions) == {"wikipedia": 533, "natural_questions": 82, "factbook": 254}
    for folder in FOLDERS:
        built = (decisions / folder / "questions.jsonl").read_bytes()
        assert built == (data_folder(folder) / "questions.jsonl").read_bytes()
    for folder in ("wikipedia", "factbook"):
        built = (decisions / folder / "passages.jsonl.gz").read_bytes()
        embedded = (data_folder(folder) / "passages.jsonl.gz").read_bytes()
        assert gzip.decompress(built) == gzip.decompress(embedded)
        assert built[:10] == embedded[:10]  # no date and no name of a file in the header


def append(path: Path, row: Mapping[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


@pytest.mark.parametrize(
    ("file", "row", "says"),
    [
        ("dropped.jsonl", {"id": "wt-9999", "reason": "?"}, "wt-9999"),
        ("dropped.jsonl", {"id": "wt-0009", "reason": "it is edited too"}, "wt-0009"),
        ("edited.jsonl", {"id": "wt-0001", "answers": ["1968"]}, "the first passage holds the answer"),
        ("edited.jsonl", {"id": "wt-0001", "answers": "1928"}, "wt-0001: the reference answers are one"),
        ("edited.jsonl", {"id": "wt-0001", "answers": []}, "wt-0001: there are no reference answers"),
        ("edited.jsonl", {"id": "wt-0001", "question": "Was it 1928?"}, "names the answer '1928'"),
    ],
)
def test_a_wrong_decision_is_refused(
    file: str, row: dict[str, Any], says: str, sources: Path, decisions: Path
) -> None:
    append(decisions / "wikipedia" / file, row)
    with pytest.raises(DataError, match=says):
        build(sources, decisions)


def test_a_link_to_two_countries_is_refused(sources: Path, decisions: Path) -> None:
    """What `dropped.jsonl` holds of these was found by hand; the builder would have refused it too."""
    path = decisions / "factbook" / "dropped.jsonl"
    path.write_text("".join(x for x in path.read_text().splitlines(True) if '"fb-0229"' not in x))
    with pytest.raises(DataError, match=r"fb-0229: 'frigatebird' leads to .*nr:symbols"):
        build(sources, decisions)


def test_the_fifth_question_about_one_page_is_refused(sources: Path, decisions: Path) -> None:
    path = decisions / "wikipedia" / "dropped.jsonl"
    path.write_text("".join(x for x in path.read_text().splitlines(True) if '"wt-0117"' not in x))
    with pytest.raises(DataError, match=r"more than 4 questions .*William_Shakespeare"):
        build(sources, decisions)


def test_passages_with_one_id_are_refused() -> None:
    rows = [{"title": name, "text": "t", "description": ""} for name in ("A b", "A_b")]
    with pytest.raises(DataError, match="'A_b'"):
        wikipedia_passages(rows)


def test_names_that_were_cut_short_are_whole_and_no_other_is_touched() -> None:
    rows = [
        {"id": "dr:state", "title": "The Dominican — state", "text": "t"},
        {"id": "cf:state", "title": "Congo — state", "text": "t"},
        {"id": "do:state", "title": "Dominica — state", "text": "t"},
        {"id": "aa:state", "title": "Dominican Republic — state", "text": "t"},
    ]
    titles = {stored.id: stored.title for stored in factbook_passages(rows)}
    assert titles == {
        "aa:state": "Dominican Republic — state",
        "cf:state": "Republic of the Congo — state",
        "do:state": "Dominica — state",
        "dr:state": "Dominican Republic — state",
    }


def rows_over(entities: int, count: int, rng: Random) -> list[Row]:
    rows = []
    for n in range(count):
        chosen = rng.sample(range(entities), rng.choice([1, 1, 2]))
        kind = rng.choice(["single", "bridge"])
        rows.append(Row(f"q{n}", kind, f"Question {n}?", ("x",), ("p",), "", tuple(map(str, chosen)), ""))
    return rows


@pytest.mark.parametrize("seed", range(20))
def test_splits_share_no_entity_and_do_not_depend_on_the_order(seed: int) -> None:
    rng = Random(seed)
    rows = rows_over(rng.randint(20, 600), 300, rng)
    splits = assign_splits(rows)
    by_entity: dict[str, set[str]] = {}
    for row in rows:
        for entity in row.entities:
            by_entity.setdefault(entity, set()).add(splits[row.id])
    assert all(len(found) == 1 for found in by_entity.values())
    assert set(splits) == {row.id for row in rows}
    rng.shuffle(rows)
    assert assign_splits(rows) == splits


def test_where_entities_allow_it_kinds_are_shared_out_as_wanted() -> None:
    rows = rows_over(4_000, 1_000, Random(1))
    splits = assign_splits(rows)
    for kind in ("single", "bridge"):
        wanted = sum(row.kind == kind for row in rows)
        for split in SPLITS:
            held = sum(row.kind == kind and splits[row.id] == split for row in rows)
            assert abs(held - build_data.SHARES[split] * wanted) <= 2
