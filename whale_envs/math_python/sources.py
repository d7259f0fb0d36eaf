r"""Reads problems from DAPO-Math-17k and from AIME 2024 and 2025, in whichever copy.

    read_dapo()                         # 17,391 problems, from 1,791,700 rows
    read_aime("Maxwell-Jia/AIME_2024")  # 30 problems

DAPO. The released file repeats each row 100 times by accident: 1,791,700 rows are 17,917 rows, the
number that WHALE gives, and these are 17,398 different problems, seven of which stand there with two
answers (counted by others at this revision; we could not read the hub). The instruction around a
problem is removed, exactly as prefix and suffix; problems are de-duplicated on what is left; those
whose copies disagree are dropped, which leaves 17,391.

AIME. Each copy has its own columns (`COPIES`). Every answer must be an integer from 0 to 999 once
leading zeros are off, every year has 30 rows, and copies known to be bad are refused: a text that
gives its own answer away, and the early key 384 for problem I-12 of 2024 (it is 385).

Revisions are those that several public projects pin for these names.

Not covered: splits and the cache (`hub.py`); the licence of the problems, which stay with their
owners and are never embedded here.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whale_envs.errors import DataError
from whale_envs.hub import stream_rows
from whale_envs.math_python.answers import last_box
from whale_envs.math_python.examples import MathProblem, make_problem


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy of a dataset on the hub: where it is, and which of its columns hold what."""

    hub_id: str
    revision: str | None
    """Commit hash; None where we know of none, so that the hub's newest is read."""
    problem: tuple[str, ...]
    """Names under which the problem may stand; the first that is there counts."""
    answer: tuple[str, ...]
    name: tuple[str, ...] = ("id", "ID")
    split: str = "train"
    configs: tuple[str | None, ...] = (None,)
    boxed: bool = False
    """The answer is the last box of a worked solution."""


DAPO = Copy(
    hub_id="BytedTsinghua-SIA/DAPO-Math-17k",
    revision="65877096c24ffa7abc4e4fa5edb95cf3413a5674",
    problem=("prompt",),
    answer=("reward_model",),
    name=("extra_info",),
)
DAPO_PROCESSED = Copy(
    hub_id="open-r1/DAPO-Math-17k-Processed",
    revision=None,
    problem=("prompt", "problem"),
    answer=("solution", "answer", "reward_model"),
    name=("extra_info",),
    configs=("all",),
)
"""A de-duplicated mirror of 3.8 MB; the instruction is already off."""

_AIME = (
    (
        2024,
        Copy("Maxwell-Jia/AIME_2024", "8d88b2876a82a080e2f172cc9b25d0d9d2cb4792", ("Problem",), ("Answer",)),
    ),
    (
        2024,
        Copy(
            "HuggingFaceH4/aime_2024", "2fe88a2f1091d5048c0f36abc874fb997b3dd99a", ("problem",), ("answer",)
        ),
    ),
    (
        2024,
        Copy(
            "math-ai/aime24",
            "83a7f387baaa524a8bda0022eac0541582297103",
            ("problem",),
            ("solution",),
            split="test",
            boxed=True,
        ),
    ),
    (
        2025,
        Copy("yentinglin/aime_2025", "6f71d77b0b89b9dabe07ab466c51df33f514df7f", ("problem",), ("answer",)),
    ),
    (
        2025,
        Copy(
            "math-ai/aime25",
            "563bb8404243c5f09de6ec262f2db674fe5bce9b",
            ("problem",),
            ("answer",),
            split="test",
        ),
    ),
    (
        2025,
        Copy(
            "opencompass/AIME2025",
            "a6ad95f611d72cf628a80b58bd0432ef6638f958",
            ("question",),
            ("answer",),
            split="test",
            configs=("AIME2025-I", "AIME2025-II"),
        ),
    ),
)
COPIES: Mapping[str, tuple[int, Copy]] = {copy.hub_id: (year, copy) for year, copy in _AIME}
"""AIME copies by hub id, with the year."""

ROWS_A_YEAR = 30

_PREFIX = re.compile(
    r"\s*Solve the following math problem step by step\. The last line of your response should be of the "
    r"form Answer: (?:\$Answer|\\boxed\{\$Answer\})(?: \(without quotes\))? where \$Answer is the answer to "
    r"the problem\.\s*"
)
_SUFFIX = re.compile(r'\s*Remember to put your answer on its own line after "Answer:"\.\s*\Z')


def copy_rows(copy: Copy, **options: Any) -> Iterator[Mapping[str, Any]]:
    """The rows of a copy, streamed; `source` and `data_files` among the options read local files."""
    source = options.pop("source", None)
    for config in copy.configs:
        place: dict[str, Any] = {"split": copy.split, "revision": copy.revision, "config": config}
        if source:
            place = {"split": "train"}
        yield from stream_rows(source or copy.hub_id, needed=[copy.problem, copy.answer], **place, **options)
        if source:
            return


# --- training problems ---------------------------------------------------------------------------


def read_dapo(
    copy: Copy = DAPO, *, progress: Callable[[int], None] | None = None, **options: Any
) -> list[MathProblem]:
    """DAPO's problems, de-duplicated, in the order of the file's index.

    Raises:
        DataError: a row lacks problem or answer, or more than 1 in 100 problems have two answers.
    """
    answers: dict[str, set[str]] = {}
    kept: dict[str, tuple[str, str, str]] = {}
    for count, row in enumerate(copy_rows(copy, **options), start=1):
        text = unwrap(_message(_first(row, copy.problem, copy.hub_id)))
        answer = _truth(_first(row, copy.answer, copy.hub_id)).strip()
        index = _index(row)
        key = folded(text)
        if not key or not answer:
            raise DataError(f"{copy.hub_id}, row {count}: no problem or no answer in {dict(row)!r:.200}")
        answers.setdefault(key, set()).add(answer)
        if key not in kept or (index or str(count)) < kept[key][0]:
            kept[key] = (index or f"{count:09d}", text, answer)
        if progress is not None and count % 10_000 == 0:
            progress(count)
    doubtful = {key for key, found in answers.items() if len(found) > 1}
    if len(doubtful) > max(10, len(kept) // 100):
        raise DataError(f"{len(doubtful)} of {len(kept)} problems of {copy.hub_id} have two answers")
    rows = sorted((value for key, value in kept.items() if key not in doubtful), key=lambda r: (r[0], r[1]))
    return [
        make_problem(text, answer, dataset="dapo_math_17k", source=f"{copy.hub_id}: {index}")
        for index, text, answer in rows
    ]


def unwrap(prompt: str) -> str:
    """The problem without DAPO's instruction before it and its reminder after it."""
    prefix = _PREFIX.match(prompt)
    return _SUFFIX.sub("", prompt[prefix.end() :] if prefix else prompt).strip()


def _message(value: Any) -> str:
    """The text of a chat of one message, or of a plain string."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = value[0] if value else ""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _truth(value: Any) -> str:
    if isinstance(value, Mapping):
        value = value.get("ground_truth")
    return "" if value is None else str(value)


def _index(row: Mapping[str, Any]) -> str:
    extra = row.get("extra_info")
    return str(extra.get("index") or "") if isinstance(extra, Mapping) else ""


def _first(row: Mapping[str, Any], names: Iterable[str], where: str) -> Any:
    for name in names:
        if row.get(name) is not None:
            return row[name]
    raise DataError(f"{where}: none of the columns {list(names)} holds anything in {dict(row)!r:.200}")


def folded(text: str) -> str:
    """The text with single spaces: what makes two problems the same."""
    return " ".join(text.split())


# --- test problems -------------------------------------------------------------------------------


def read_aime(hub_id: str, **options: Any) -> list[MathProblem]:
    """The 30 problems of one year from one of the `COPIES`.

    Raises:
        DataError: not 30 rows, an answer that is no integer from 0 to 999, or a copy known to be bad.
    """
    year, copy = COPIES[hub_id]
    problems: list[MathProblem] = []
    for row in copy_rows(copy, **options):
        text = str(_first(row, copy.problem, hub_id)).strip()
        raw = str(_first(row, copy.answer, hub_id))
        name = next((str(row[n]) for n in copy.name if row.get(n) is not None), str(len(problems) + 1))
        answer = _aime_answer(raw, copy, name)
        _refuse_known_faults(text, answer, f"{hub_id}, {name}")
        problems.append(make_problem(text, str(answer), dataset=f"aime_{year}", source=f"{hub_id}: {name}"))
    distinct = len({folded(p.problem) for p in problems})
    if len(problems) != ROWS_A_YEAR or distinct != ROWS_A_YEAR:
        raise DataError(f"{hub_id} has {len(problems)} rows and {distinct} problems, not {ROWS_A_YEAR}")
    return problems


def _aime_answer(raw: str, copy: Copy, name: str) -> int:
    text: str | None = last_box(raw) if copy.boxed else raw
    try:
        answer = int((text or "").strip().strip("$"))
    except ValueError:
        raise DataError(f"{copy.hub_id}, {name}: the answer {raw!r:.80} is no integer") from None
    if not 0 <= answer <= 999:
        raise DataError(f"{copy.hub_id}, {name}: the answer {answer} is not in 0 to 999")
    return answer


def _refuse_known_faults(problem: str, answer: int, where: str) -> None:
    given = rf"(?:\\boxed\s*\{{\s*|\b(?:answer|ans)\b\s*(?:is|:|=)?\s*\$?|\n\s*\$?)0*{answer}\b[\s$}}.]*\Z"
    if re.search(given, problem, re.IGNORECASE):
        raise DataError(f"{where}: the text gives the answer away ({answer}); this copy is known to be bad")
    squeezed = re.sub(r"[^a-z0-9=(|]", "", problem.lower())
    if answer == 384 and "y=4g(f(sin(2" in squeezed:
        raise DataError(f"{where}: 384 is the wrong key of an early copy; problem I-12 of 2024 has 385")
