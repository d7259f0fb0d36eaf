"""The questions: embedded tiers `mini` and `factbook`, and `full` from the Hugging Face hub.

    load_examples("mini", "test")          # 184 questions, no network
    CORPUS_OF_TIER["mini"]                 # 'wiki-mini', the corpus they are asked about

Mini asks about 10,033 lead summaries of Wikipedia: questions of Natural Questions (kind nq) and our
own by template (single, bridge, comparison). Factbook asks about 1,508 passages of the CIA World
Factbook (single, bridge, border); nothing in it is under ShareAlike. Every embedded question was read
by hand beside its passages. Splits share no question and no entity: two questions that ask about, pass or
end at the same page are in the same split. A page that a question only names in passing (the United
States, Italy) may be named in another split, too.

    tier      weight  harness  dev  test   source
    mini         244       94   93   184   82 of Natural Questions, 533 by template
    factbook     101       39   39    75   254 by template
    full      18,946      256  256   700   NQ and HotpotQA; test is seven benchmarks, 100 each

Not covered: the passages (`corpora.py`); what counts as a right answer (`verifier.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

import msgspec

from whale_envs.core import SPLITS, Example, ExampleSet, content_id
from whale_envs.errors import DataError, UnknownNameError

DOMAIN = "search_qa"
SPLIT_SEED = 42

SIZES: Mapping[str, Mapping[str, int]] = {
    "mini": {"weight": 244, "harness": 94, "dev": 93, "test": 184},
    "factbook": {"weight": 101, "harness": 39, "dev": 39, "test": 75},
    "full": {"weight": 18_946, "harness": 256, "dev": 256, "test": 700},
}
"""Examples by tier and split."""

CORPUS_OF_TIER: Mapping[str, str] = {"mini": "wiki-mini", "factbook": "factbook", "full": "wiki-2018"}
"""The corpus whose passages answer a tier's questions, a name for `load_corpus`."""

FOLDERS: Mapping[str, tuple[str, ...]] = {
    "mini": ("wikipedia", "natural_questions"),
    "factbook": ("factbook",),
}
"""Folders of the embedded data by tier: one for each licence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuestion(Example):
    """One question. `gold` holds the reference answers, at least one, none empty; any of them is right."""

    question: str
    """As it is asked; Natural Questions are in lower case and without a question mark."""
    support: tuple[str, ...] = field(default=(), repr=False)
    """Ids of the passages that answer it, in the order in which they are needed; empty in full."""
    gold: tuple[str, ...] = field(repr=False)


class Row(msgspec.Struct, frozen=True):
    """A line of an embedded file of questions."""

    id: str
    kind: str
    """single, bridge, comparison, border or nq."""
    question: str
    answers: tuple[str, ...]
    support: tuple[str, ...]
    link: str
    """What leads from the first passage to the second, as it stands in the first; empty without a hop."""
    entities: tuple[str, ...]
    """Pages that the question names, passes or ends at; none of them is in two splits."""
    split: str


def as_golds(value: Any, where: str) -> tuple[str, ...]:
    """Reference answers from a list, a tuple or an array of strings, without repetitions.

    >>> as_golds(["Rome", "Roma ", "Rome"], "row 1")
    ('Rome', 'Roma')

    Args:
        value: what stands in the row.
        where: names the row in an error.

    Raises:
        DataError: it is a bare string, is no list, is empty, or holds anything but non-empty strings.
    """
    if not isinstance(value, str) and hasattr(value, "tolist"):  # an array, of numpy or pyarrow
        value = value.tolist()
    if isinstance(value, str):
        raise DataError(f"{where}: the reference answers are one string, {value!r:.80}, not a list of them")
    if not isinstance(value, Sequence) or not value:
        raise DataError(f"{where}: there are no reference answers in {value!r:.80}")
    bad = [answer for answer in value if not isinstance(answer, str) or not answer.strip()]
    if bad:
        raise DataError(f"{where}: {bad[0]!r:.80} is no reference answer")
    return tuple(dict.fromkeys(answer.strip() for answer in value))


def make_question(
    question: Any,
    answers: Any,
    *,
    dataset: str,
    kind: str,
    source: str = "",
    support: Sequence[str] = (),
) -> SearchQuestion:
    """A question from a row's values.

    Args:
        question: its text.
        answers: reference answers, see `as_golds`.
        dataset: where it comes from, for reports.
        kind: its kind, for reports.
        source: names the row in errors and for people.
        support: ids of passages.

    Raises:
        DataError: the question is empty, or the answers are not what `as_golds` takes.
    """
    where = f"{dataset} {source}".strip()
    if not isinstance(question, str) or not question.strip():
        raise DataError(f"{where}: the question is {question!r:.80}")
    text = " ".join(question.split())
    return SearchQuestion(
        id=content_id(DOMAIN, text),
        question=text,
        support=tuple(support),
        groups=(("dataset", dataset), ("kind", kind)),
        gold=as_golds(answers, where),
        source=where,
    )


@lru_cache(maxsize=16)
def load_examples(tier: str, split: str) -> ExampleSet[SearchQuestion]:
    """The questions of a tier's split, in fixed order.

    Raises:
        UnknownNameError: no such tier or split.
        DataError, InfrastructureError: the full tier cannot be had (see `hub.py`).
    """
    if tier not in SIZES:
        raise UnknownNameError(f"tier of {DOMAIN}", tier, SIZES)
    if split not in SPLITS:
        raise UnknownNameError("split", split, SPLITS)
    if tier == "full":
        from whale_envs.search_qa.hub import load_full

        questions: Sequence[SearchQuestion] = load_full(split)
    else:
        questions = [
            _question(row, folder)
            for folder in FOLDERS[tier]
            for row in embedded_rows(folder)
            if row.split == split
        ]
    if len(questions) != SIZES[tier][split]:
        raise DataError(
            f"{DOMAIN}/{tier}/{split} holds {len(questions)} questions, "
            f"not the documented {SIZES[tier][split]}"
        )
    return ExampleSet(sorted(questions, key=lambda q: q.id), name=f"{DOMAIN}/{tier}/{split}")


def data_folder(name: str) -> Traversable:
    """A folder of the embedded data: wikipedia, natural_questions or factbook."""
    return files("whale_envs") / "data" / DOMAIN / name


def embedded_rows(folder: str) -> tuple[Row, ...]:
    """The questions of a folder of the embedded data."""
    lines = (data_folder(folder) / "questions.jsonl").read_bytes().splitlines()
    return tuple(msgspec.json.decode(line, type=Row) for line in lines)


def _question(row: Row, folder: str) -> SearchQuestion:
    return make_question(
        row.question, row.answers, dataset=folder, kind=row.kind, source=row.id, support=row.support
    )
