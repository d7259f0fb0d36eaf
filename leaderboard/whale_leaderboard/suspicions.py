"""What only looks odd in an entry: a harness that knows answers, samples that are one, counts and times.

    for finding in suspicions(entry): ...

Few of these refuse an entry by themselves: example ids and texts of single test examples in a harness, and
answers of several. The others are notes, for people to look at. Searching text finds what was put there
plainly; a harness that hides a table well is for the canaries and for readers.

Not covered: what replaying shows; canaries.
"""

import ast
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

from whale_bench.records import Rollout
from whale_envs import get_domain, make_env
from whale_leaderboard.layout import MOST_HARNESS, MOST_ROLLOUT, TEST, K
from whale_leaderboard.report import Finding
from whale_leaderboard.rows import impossible_tokens, read_plain
from whale_leaderboard.wellformed import Entry

MOST_ANSWERS = 2
"""Test answers that may stand in a harness, as words of a prompt may; more are a table."""

_SNIPPET = 40
"""Characters of an example's own text that identify it."""
_LONG_ANSWER = 5
"""Shortest answer that is looked for; shorter ones stand everywhere."""
_TABLE = 200
"""Constants in a harness above which it holds data."""
_DUPLICATES = 0.5
"""Share of samples that equal another one of their example, above which it is said."""
_COMPARED = 4_000
"""Characters of a sample that are compared."""
_ENOUGH = 0.25
"""Share of samples that have to be long enough before anything is said."""
_SIMILAR = 0.9
_SHORTEST = 60
"""Samples shorter than this are equal by chance."""
_HIDES = re.compile(
    r"\b(?:hashlib|zlib|base64|binascii|codecs|marshal|pickle|crc32|exec|eval|(?<!re\.)compile)\b"
)


def suspicions(entry: Entry) -> Iterator[Finding]:
    """Everything that looks odd, the harnesses first."""
    known = _Known(entry)
    for name in sorted(entry.bundle.sizes):
        if name.startswith("harnesses/"):
            yield from known.harness(name, entry.bundle.read(name, MOST_HARNESS).decode("utf-8", "replace"))
    yield from _samples(entry)
    for what in entry.odd:
        yield _note("timing", what.partition(":")[0], what.partition(": ")[2])
    for run in entry.runs:
        tested = run.account.test - (len(entry.tested) if run.number == 0 else 0)
        if tested:
            yield _note("tested", run.place, f"{tested} further test rollouts of these runs were charged")


class _Known:
    """What identifies the test examples, and their answers."""

    def __init__(self, entry: Entry) -> None:
        env = make_env(entry.manifest.domain, examples=entry.examples)
        self._openings = [env.reset(options={"example_id": e.id})[0] for e in entry.examples]
        self._ids = entry.examples.ids
        own = [_own_text(opening) for opening in self._openings]
        self._snippets = {text: id_ for text, id_ in zip(own, self._ids, strict=True) if text}
        self._answers = {
            answer.casefold(): example.id
            for example in entry.examples
            for answer in _answers(example.gold)
            if len(answer) >= _LONG_ANSWER
        }

    def harness(self, name: str, source: str) -> Iterator[Finding]:
        """What looks odd in a harness's source."""
        if known := self._text_of(source):
            yield _refusal("example_text", name, f"it holds {known}")
            return
        constants = _constants(source)
        for value in constants:
            found = [i for i, text in enumerate(self._openings) if value in text] if len(value) > 24 else []
            if 0 < len(found) <= len(self._openings) // 2:
                yield _note(
                    "example_branch",
                    name,
                    f"{value!r:.80} stands in {len(found)} test examples and not in most",
                )
        hits = {
            self._answers[v.casefold().strip()] for v in constants if v.casefold().strip() in self._answers
        }
        if len(hits) > MOST_ANSWERS:
            first = min(hits)
            yield _refusal(
                "answers", name, f"it holds answers of {len(hits)} test examples, {first} among them"
            )
        elif hits:
            yield _note("answers", name, f"it holds the answer of test example {min(hits)}")
        if len(constants) > _TABLE:
            yield _note("table", name, f"it holds {len(constants)} constants, as a table does")
        if hidden := _HIDES.search(source):
            yield _note("hides", name, f"it uses {hidden[0]!r}, with which data can be hidden")

    def _text_of(self, source: str) -> str:
        """What identifies a test example in a source, in words; empty where nothing does."""
        folded = " ".join(source.split())
        ids = (f"the id of test example {id_}" for id_ in self._ids if id_ in source)
        texts = (f"the text of test example {id_}" for text, id_ in self._snippets.items() if text in folded)
        return next(chain(ids, texts), "")


def _samples(entry: Entry) -> Iterator[Finding]:
    """What looks odd in the test rollouts, read once, the samples of one example in memory."""
    plan = entry.runs[0].plan
    budget = plan.token_budget or get_domain(plan.domain).token_budget
    same, compared = 0, 0
    group: list[Rollout] = []
    for number, line in entry.bundle.lines(TEST, MOST_ROLLOUT):
        row = read_plain(line)
        if why := impossible_tokens(row, per_turn=plan.max_tokens, budget=budget):
            yield _note("tokens", f"{TEST}:{number}", f"{row.key!r}: {why}")
        group.append(row)
        if len(group) == K:
            alike = _alike(group)
            same, compared = same + alike[0], compared + alike[1]
            group = []
    enough = compared >= _ENOUGH * len(entry.tested)
    if plan.temperature > 0 and enough and same > _DUPLICATES * compared:
        yield _note(
            "duplicates",
            TEST,
            f"{same} of {compared} longer samples are much like another one of their example, at "
            f"temperature {plan.temperature:g}",
        )


def _alike(group: list[Rollout]) -> tuple[int, int]:
    """(samples that are much like another one, samples long enough to tell)."""
    texts = [" ".join(s.text for s in row.segments)[:_COMPARED] for row in group]
    shingles = [_shingles(text) for text in texts if len(text) >= _SHORTEST]
    alike = sum(
        any(_similar(one, other) for j, other in enumerate(shingles) if i != j)
        for i, one in enumerate(shingles)
    )
    return alike, len(shingles)


def _shingles(text: str) -> frozenset[str]:
    words = re.sub(r"\d", "0", text.casefold()).split()
    return frozenset(" ".join(words[i : i + 4]) for i in range(max(1, len(words) - 3)))


def _similar(one: frozenset[str], other: frozenset[str]) -> bool:
    return len(one & other) >= _SIMILAR * len(one | other)


def _own_text(opening: str) -> str:
    """The part of an opening that is the example's own, folded; empty where it is too short to tell."""
    position = re.search(r"FEN: (\S+)", opening)
    text = position[1] if position else " ".join(opening.split())[:_SNIPPET]
    return text if len(text) >= _SNIPPET // 2 else ""


def _answers(gold: Any) -> list[str]:
    if isinstance(gold, str):
        return [gold]
    parts = [part for part in gold if isinstance(part, str)]
    moves = all(re.fullmatch(r"[a-h][1-8][a-h][1-8][qrbn]?", part) for part in parts)
    return [" ".join(parts)] if moves else parts


def _constants(source: str) -> list[str]:
    """Every constant of a program, as text; its lines where it is no program."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source.splitlines()
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return [str(v) for v in values if isinstance(v, str | int | float) and not isinstance(v, bool)]


def _refusal(code: str, place: str, message: str) -> Finding:
    return Finding(level=2, code=code, place=place, message=message, refuses=True)


def _note(code: str, place: str, message: str) -> Finding:
    return Finding(level=2, code=code, place=place, message=message, refuses=False)
