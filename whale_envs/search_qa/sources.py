r"""Reads questions of NQ, HotpotQA and five more benchmarks from the Hugging Face hub, or from files.

    read_part(TRAIN[0])                              # NQ's 79,168 training questions
    read_part(TEST[2], place="popqa-test.jsonl")     # a local copy

FlashRAG's collection has all seven in one shape: JSON lines with id, question, golden_answers and
metadata. HotpotQA's metadata is most of 570 MB and its shape changes within other files, so lines are
read as text and nothing but the first three is decoded. 2WikiMultihopQA, MuSiQue and HotpotQA have no
public test split; their dev split is what everyone tests on. `read_search_r1` reads the training
questions from another copy, where they stand inside a prompt.

Reference answers come in several types (`answers_of`): a list; PopQA's own file has a JSON string;
HotpotQA's own has one string. Some copies put spaces around punctuation ("May 18 , 2018"): `tidy` takes
them out, and the answer as it was stays as one more. Rows without a question or an answer are left
out, and more than one in a hundred is an error.

Revisions are those that several public projects pin for these names; we could not read the hub.

Not covered: splits, contamination and the cache (`hub.py`); TriviaQA's long and partly wrong lists of
aliases, which are kept as they are.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from whale_envs.errors import DataError
from whale_envs.hub import stream_rows
from whale_envs.search_qa.examples import SearchQuestion, as_golds, make_question

FLASHRAG = "RUC-NLPIR/FlashRAG_datasets"
FLASHRAG_REVISION = "bcafb8dd07d453be3cbeeeb3f78be1841bddf92c"
SEARCH_R1 = "PeterJinGo/nq_hotpotqa_train"
SEARCH_R1_REVISION = "b7d80abfee334a7a91cb377544f09180d58b34f6"


@dataclass(frozen=True, slots=True)
class Part:
    """One file of FlashRAG's collection."""

    dataset: str
    file: str
    rows: int
    """Lines that it should have; fewer than 99 % of them are an error, for a read that broke off."""

    @property
    def place(self) -> str:
        """Its address for `datasets`."""
        return f"hf://datasets/{FLASHRAG}@{FLASHRAG_REVISION}/{self.file}"


TRAIN = (Part("nq", "nq/train.jsonl", 79_168), Part("hotpotqa", "hotpotqa/train.jsonl", 90_447))
TEST = (
    Part("nq", "nq/test.jsonl", 3_610),
    Part("triviaqa", "triviaqa/test.jsonl", 11_313),
    Part("popqa", "popqa/test.jsonl", 14_267),
    Part("hotpotqa", "hotpotqa/dev.jsonl", 7_405),
    Part("2wikimultihopqa", "2wikimultihopqa/dev.jsonl", 12_576),
    Part("musique", "musique/dev.jsonl", 2_417),
    Part("bamboogle", "bamboogle/test.jsonl", 125),
)
"""The seven benchmarks of the published test."""


class Line(msgspec.Struct, frozen=True):
    """What is decoded of a line; whatever else stands in it is skipped."""

    id: Any = None
    question: Any = None
    golden_answers: Any = None
    possible_answers: Any = None
    answer: Any = None


_SPACE_BEFORE = re.compile(r"\s+(?=[,.;:!?%)\]}]|'s\b|n't\b)")
_SPACE_AFTER = re.compile(r"(?<=[(\[{$#])\s+")
_QUOTES = re.compile(r"``\s*|\s*''")


def read_part(
    part: Part, *, place: str | None = None, progress: Callable[[int], None] | None = None
) -> list[SearchQuestion]:
    """The questions of a file, in its order.

    Args:
        part: which file, and how many lines it should have.
        place: reads this file instead of the hub's.
        progress: called now and then with the number of rows read.

    Raises:
        UsageError, InfrastructureError: see `whale_envs.hub.stream_rows`.
        DataError: too few rows, or too many without question or answer.
    """
    where = place or f"{FLASHRAG}, {part.file}"
    lines = (row["text"] for row in stream_rows("text", needed=[{"text"}], data_files=place or part.place))
    return _collect(
        (_line_question(part.dataset, line, number) for number, line in enumerate(lines, start=1)),
        where=where,
        expected=part.rows,
        progress=progress,
    )


def read_search_r1(
    *,
    expected: int = 169_615,
    progress: Callable[[int], None] | None = None,
    source: str = SEARCH_R1,
    **options: Any,
) -> list[SearchQuestion]:
    """The training questions of NQ and HotpotQA from the copy that Search-R1 published.

    Its columns hold a whole prompt and `reward_model.ground_truth.target`, a list.

    Args:
        expected: rows that it should have.
        progress: called now and then with the number of rows read.
        source: the dataset's id on the hub, or a format that `datasets` reads.
        options: for `datasets.load_dataset`, such as data_files for a local file.

    Raises:
        UsageError, InfrastructureError, DataError: as `read_part`.
    """
    if source == SEARCH_R1:
        options = {"revision": SEARCH_R1_REVISION, "data_files": "train.parquet", **options}
    columns = ["data_source", "prompt", "reward_model"]
    rows = stream_rows(source, needed=[{name} for name in columns], columns=columns, **options)
    return _collect(
        (_search_r1_question(row, number) for number, row in enumerate(rows, start=1)),
        where=source,
        expected=expected,
        progress=progress,
    )


def answers_of(row: Mapping[str, Any] | Line, where: str) -> tuple[str, ...]:
    """The reference answers, from whichever column holds them and in the type that this column has.

    >>> answers_of({"possible_answers": '["politician", "political leader"]'}, "PopQA 1")
    ('politician', 'political leader')
    >>> answers_of({"golden_answers": ["May 18 , 2018"]}, "NQ 1")
    ('May 18, 2018', 'May 18 , 2018')

    Raises:
        DataError: no column holds anything, or not what this column should hold (`as_golds`).
    """
    row = msgspec.structs.asdict(row) if isinstance(row, Line) else row
    value: Any
    if row.get("golden_answers") is not None:
        value = row["golden_answers"]
    elif row.get("possible_answers") is not None:
        value = _from_json(row["possible_answers"], where)
    elif isinstance(row.get("reward_model"), Mapping):
        truth = row["reward_model"].get("ground_truth")
        value = truth.get("target") if isinstance(truth, Mapping) else truth
    else:
        value = row.get("answer")
        if isinstance(value, Mapping):  # TriviaQA's own file
            value = [value.get("value"), *(value.get("aliases") or ())]
        elif isinstance(value, str):  # HotpotQA's own file
            value = [value]
    golds = as_golds(value, where)
    return tuple(dict.fromkeys(form for gold in golds for form in (tidy(gold), gold)))


def tidy(text: str) -> str:
    """The text without the spaces that a tokeniser put around punctuation.

    >>> print(tidy("`` Weird Al '' Yankovic ( born 1959 ) , King 's"))
    "Weird Al" Yankovic (born 1959), King's
    """
    text = _QUOTES.sub('"', text) if "``" in text else text
    return " ".join(_SPACE_AFTER.sub("", _SPACE_BEFORE.sub("", text)).split())


def unwrap(prompt: Any) -> str:
    """The question inside a chat of one message, which ends "Question: …".

    Raises:
        DataError: there is none.
    """
    if not isinstance(prompt, str) and hasattr(prompt, "__getitem__") and len(prompt):
        prompt = prompt[0].get("content") if isinstance(prompt[0], Mapping) else None
    if not isinstance(prompt, str) or "Question: " not in prompt:
        raise DataError(f"no question in the prompt {prompt!r:.80}")
    return prompt.partition("Question: ")[2].strip()


# --- private -------------------------------------------------------------------------------------


def _line_question(dataset: str, text: str, number: int) -> SearchQuestion | None:
    if not text.strip():
        return None
    try:
        row = msgspec.json.decode(text, type=Line)
        name = str(row.id) if row.id is not None else f"row {number}"
        where = f"{dataset} {name}"
        answers = answers_of(row, where)
        return make_question(row.question, answers, dataset=dataset, kind=dataset, source=name)
    except (DataError, msgspec.DecodeError):
        return None


def _search_r1_question(row: Mapping[str, Any], number: int) -> SearchQuestion | None:
    dataset, name = str(row["data_source"]), f"row {number}"
    try:
        answers = answers_of(row, f"{dataset} {name}")
        return make_question(unwrap(row["prompt"]), answers, dataset=dataset, kind=dataset, source=name)
    except DataError:
        return None


def _collect(
    questions: Iterator[SearchQuestion | None],
    *,
    where: str,
    expected: int,
    progress: Callable[[int], None] | None,
) -> list[SearchQuestion]:
    """The questions that are some, with the counts checked."""
    kept, count = [], 0
    for count, question in enumerate(questions, start=1):
        if question is not None:
            kept.append(question)
        if progress is not None and count % 10_000 == 0:
            progress(count)
    bad = count - len(kept)
    if bad > max(1, count // 100):
        raise DataError(f"{bad} of {count} rows of {where} lack a question or a reference answer")
    if count < 0.99 * expected:
        raise DataError(f"{where} has {count} rows, not the {expected} that it should have")
    return kept


def _from_json(value: Any, where: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError as error:
        raise DataError(f"{where}: {value!r:.80} is no JSON list of reference answers: {error}") from error
