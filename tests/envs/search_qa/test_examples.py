"""The embedded questions: sizes, splits without a shared entity, honest questions, golds of every type."""

import re
from collections import Counter, defaultdict

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_envs import SPLITS, DataError, UnknownNameError
from whale_envs.search_qa.build_data import target
from whale_envs.search_qa.corpora import embedded_corpus
from whale_envs.search_qa.examples import (
    CORPUS_OF_TIER,
    FOLDERS,
    SIZES,
    as_golds,
    data_folder,
    embedded_rows,
    load_examples,
    make_question,
)
from whale_envs.search_qa.honesty import MOST_USES, broken_rules, fold, holds

TIERS = tuple(FOLDERS)
ROWS = {tier: [row for folder in FOLDERS[tier] for row in embedded_rows(folder)] for tier in TIERS}
PASSAGES = {tier: {p.id: p for p in embedded_corpus(CORPUS_OF_TIER[tier])} for tier in TIERS}


@pytest.mark.parametrize("tier", TIERS)
def test_sizes_are_as_documented(tier: str) -> None:
    assert {split: len(load_examples(tier, split)) for split in SPLITS} == SIZES[tier]
    assert sum(SIZES[tier].values()) == len(ROWS[tier])


def test_the_kinds_of_every_split() -> None:
    kinds = {
        (tier, split): Counter(dict(q.groups)["kind"] for q in load_examples(tier, split))
        for tier in TIERS
        for split in SPLITS
    }
    assert kinds["mini", "test"] == {"bridge": 68, "comparison": 59, "single": 33, "nq": 24}
    assert kinds["factbook", "test"] == {"bridge": 33, "border": 8, "single": 34}
    for (tier, _), found in kinds.items():
        assert set(found) == set(kinds[tier, "test"])
        assert min(found.values()) >= 5


def test_no_question_and_no_id_is_in_two_splits_or_tiers() -> None:
    texts: dict[str, tuple[str, str]] = {}
    for tier in TIERS:
        for split in SPLITS:
            for question in load_examples(tier, split):
                for key in (question.id, fold(question.question)):
                    assert key not in texts, question
                    texts[key] = (tier, split)


@pytest.mark.parametrize("tier", TIERS)
def test_no_entity_is_in_two_splits(tier: str) -> None:
    """Counted anew from the passages, not from the file's own list of entities."""
    titles: dict[str, set[str]] = defaultdict(set)
    for passage in PASSAGES[tier].values():
        page = page_of(tier, passage.id)
        titles[fold(re.sub(r" \([^)]*\)$", "", passage.title.split(" — ")[0]))].add(page)
    splits: dict[str, set[str]] = defaultdict(set)
    for row in ROWS[tier]:
        entities = {page_of(tier, name) for name in row.support}
        for text in (*row.answers, row.link):
            if text and not text.isdigit():
                entities |= titles.get(fold(text), set())
        assert entities <= set(row.entities), row
        for entity in (*entities, *row.entities):
            splits[entity].add(row.split)
    assert not {entity: found for entity, found in splits.items() if len(found) > 1}


def page_of(tier: str, passage_id: str) -> str:
    return passage_id.partition(":")[0] if tier == "factbook" else passage_id


@pytest.mark.parametrize("tier", TIERS)
def test_every_question_keeps_the_rules(tier: str) -> None:
    for row in ROWS[tier]:
        assert broken_rules(row, PASSAGES[tier]) == [], row
        assert len(row.support) == (1 if row.kind in {"single", "nq"} else 2), row
        assert row.kind == "nq" or (row.question[0].isupper() and row.question.endswith("?")), row
        aside = ("(top-level domain)", "(Keeling)")
        assert "(" not in row.question or any(words in row.question for words in aside), row
        unfit = ("  ", " the the ", " of United ", " of Philippines")
        assert not any(words in row.question for words in unfit), row


@pytest.mark.parametrize("tier", TIERS)
def test_one_page_is_the_target_of_few_questions(tier: str) -> None:
    uses = Counter((row.kind, target(row)) for row in ROWS[tier])
    assert max(uses.values()) <= MOST_USES


def test_a_link_leads_to_one_page() -> None:
    """Of all passages of the kind that holds it, only the one that the question names has the link."""
    for row in ROWS["mini"]:
        if row.kind != "bridge":
            continue
        last = PASSAGES["mini"][row.support[-1]]
        if row.question.startswith("What is the capital"):
            said = [
                p.id
                for p in PASSAGES["mini"].values()
                if re.match(rf"Capital\b[^.]* of (the )?{re.escape(row.link)}\.", p.text)
            ]
            assert said == [last.id], row
        else:
            assert re.sub(r" \([^)]*\)$", "", last.title) == row.link
    for row in ROWS["factbook"]:
        if row.kind == "bridge":
            assert holds(row.question, row.link)
        if row.kind in {"bridge", "border"}:
            first, last = (name.split(":")[0] for name in row.support)
            assert (first == last) == (row.kind == "bridge")


def test_a_comparison_is_decided_by_its_two_passages() -> None:
    for row in ROWS["mini"]:
        if row.kind == "comparison":
            years = {}
            for name in row.support:
                passage = PASSAGES["mini"][name]
                found = re.search(r"\((?:born )?(\d{3,4})", passage.text.split(". ")[0] + passage.text[:120])
                assert found is not None, passage
                years[name] = int(found[1])
            first = min(years, key=years.__getitem__)
            assert len(set(years.values())) == 2
            assert any(fold(answer) in fold(first.replace("_", " ")) for answer in row.answers), row


def test_dashes_are_spaces_and_an_empty_answer_is_nowhere() -> None:
    assert holds("Dutch painter (1853–1890)", "1853")
    assert holds("from 1914—1918", "1914-1918")
    assert not holds("anything", "the")
    assert not holds("Miltonic", "Milton")
    assert fold("Beyoncé ２０２０ the A-Team") == "beyoncé 2020 team"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"answers": ("Nobody Known",)}, "does not hold the answer"),
        ({"link": "Alfred Hitchcock"}, "does not hold the link"),
        ({"link": ""}, "does not hold the link"),
        ({"answers": ("1968", "1928")}, "the first passage holds the answer '1968'"),
        ({"question": "In what year, 1928 or 1930, was the director born?"}, "names the answer '1928'"),
        ({"support": ("2001:_A_Space_Odyssey", "Nowhere")}, "not in the corpus"),
        ({"support": ()}, "not in the corpus"),
        ({"kind": "single", "answers": ("Odyssey",), "question": "What is it?"}, "names the answer"),
        ({"kind": "comparison", "question": "Who was born first, Ang Lee or Brigitte Bardot?"}, "none of"),
    ],
)
def test_a_question_that_breaks_a_rule_is_told(change: dict[str, object], says: str) -> None:
    row = next(row for row in ROWS["mini"] if row.id == "wt-0001")
    assert says in "; ".join(broken_rules(msgspec.structs.replace(row, **change), PASSAGES["mini"]))


@pytest.mark.parametrize("folder", [folder for tier in TIERS for folder in FOLDERS[tier]])
def test_every_dropped_question_has_a_reason_and_is_gone(folder: str) -> None:
    lines = (data_folder(folder) / "dropped.jsonl").read_bytes().splitlines()
    dropped = [msgspec.json.decode(line, type=dict[str, str]) for line in lines]
    assert len(dropped) > 30
    assert all(len(row["reason"]) > 10 and row["question"] for row in dropped)
    assert not {row["id"] for row in dropped} & {row.id for row in embedded_rows(folder)}


def test_a_printed_question_shows_neither_gold_nor_support_nor_source() -> None:
    question = make_question(
        "Who?", ["GOLD_7391"], dataset="d", kind="k", source="SOURCE_7391", support=["PAGE_7391"]
    )
    assert "7391" not in repr(question)
    assert question.groups == (("dataset", "d"), ("kind", "k"))
    assert question.source == "d SOURCE_7391"


# --- golds of the wrong type ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    ["Rome", "", [], (), None, [""], ["  "], ["Rome", ""], [None], [["Rome"]], [5], 5, {"Rome": 1},
     np.array("Rome"), np.array([]), np.array([1.0]), float("nan"), b"Rome"],
    ids=repr,
)  # fmt: skip
def test_golds_of_the_wrong_type_are_refused_with_the_name_of_the_row(value: object) -> None:
    with pytest.raises(DataError, match="set 17"):
        make_question("Which city?", value, dataset="set", kind="k", source="17")


@pytest.mark.parametrize(
    "value",
    [["Rome", "Roma"], ("Rome", "Roma"), np.array(["Rome", "Roma"], dtype=object), np.array(["Rome", "Roma"]),
     ["Rome ", "Rome", "\tRoma"]],
    ids=repr,
)  # fmt: skip
def test_every_list_of_strings_is_all_of_its_strings(value: object) -> None:
    assert as_golds(value, "row") == ("Rome", "Roma")


@given(st.lists(st.text(min_size=1).filter(str.strip), min_size=1))
def test_no_answer_is_lost_and_none_is_empty(answers: list[str]) -> None:
    golds = as_golds(answers, "row")
    assert {answer.strip() for answer in answers} == set(golds)
    assert len(set(golds)) == len(golds)
    assert as_golds(np.array(answers, dtype=object), "row") == golds


@pytest.mark.parametrize("question", [None, "", " \n", 5, float("nan")], ids=repr)
def test_a_question_without_text_is_refused(question: object) -> None:
    with pytest.raises(DataError, match="set 17: the question is"):
        make_question(question, ["Rome"], dataset="set", kind="k", source="17")


def test_unknown_names_are_told() -> None:
    with pytest.raises(UnknownNameError, match="tier of search_qa 'small'"):
        load_examples("small", "test")
    with pytest.raises(UnknownNameError, match="split 'train'"):
        load_examples("mini", "train")
