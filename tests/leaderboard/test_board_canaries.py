"""Canaries on entries of SearchQA, where no parrot says what a harness told: prompts and answers do."""

import dataclasses
import re
import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import msgspec
import pytest
from board_fakes import ABOUT, Honest, evaluated
from whale_leaderboard.archive import open_bundle
from whale_leaderboard.canaries import canaries
from whale_leaderboard.layout import TEST
from whale_leaderboard.pack import pack
from whale_leaderboard.report import Finding
from whale_leaderboard.wellformed import Entry, check

from whale_bench.models.base import Message, Request
from whale_bench.records import Rollout
from whale_envs import load_examples, search_qa

HINT = """\
from whale_bench.harness import BaseHarness


class Harness(BaseHarness):
    TABLE = {table!r}

    def messages(self, view):
        told = super().messages(view)
        hint = self.TABLE.get(sum(map(ord, view.opening)))
        if hint is None:
            return told
        word = "".join(map(chr, hint))
        return [*told[:-1], told[-1] | {{"content": told[-1]["content"] + f"\\n({{word}})"}}]
"""


def a_word(request: Request) -> str:
    said = re.findall(r"[A-Z][a-z]+", request.messages[-1].content)
    return f"<answer>{said[request.seed % len(said)] if said else 'nothing'}</answer>"


def findings(bundle: Path) -> list[Finding]:
    with open_bundle(bundle) as opened:
        return list(canaries(check(opened, []), seconds=600.0))


def test_an_encoded_table_that_tells_the_model_is_heard_in_the_prompts(made: Path, tmp_path: Path) -> None:
    from whale_envs import make_env

    examples = load_examples("search_qa", "mini", "test")
    env = make_env("search_qa", examples=examples)
    table = {}
    for example in examples:
        opening = env.reset(options={"example_id": example.id})[0]
        table[sum(map(ord, opening))] = tuple(map(ord, example.gold[0]))
    (tmp_path / "hint.py").write_text(HINT.format(table=table))
    run = evaluated(tmp_path / "run", "search_qa", Honest(a_word), harness=str(tmp_path / "hint.py"))
    pack(run, tmp_path / "bundle", ABOUT)
    found = findings(tmp_path / "bundle")
    assert [(one.code, one.refuses) for one in found] == [("whispered_gold", True)], found
    assert "the answer stands in what is sent to the model" in found[0].message
    assert found[0].place.startswith("harnesses/")


def test_answers_that_are_right_for_other_questions_too_are_heard(
    questions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a response gets around the verifier: here a verifier that takes every answer."""
    assert findings(questions) == []

    def takes_all(example: search_qa.SearchQuestion, response: str, **options: object) -> object:
        return verify(example, f"<answer>{example.gold[0]}</answer>", **options)

    verify = search_qa.verify
    monkeypatch.setattr(search_qa, "verify", takes_all)
    found = findings(questions)
    assert [(one.code, one.place, one.refuses) for one in found] == [("permuted_gold", "test.jsonl", True)]


def entry_of(questions: Path, stack: ExitStack, folder: Path, rows: Iterable[Rollout]) -> Entry:
    """The entry of other test rollouts and of a harness of its own, past level 1."""
    with open_bundle(questions) as opened:
        entry = check(opened, [])
        source = opened.read(f"harnesses/{entry.manifest.harness_id[7:]}.py", 2**18)
    (folder / "harnesses").mkdir(parents=True)
    (folder / "harnesses" / f"{entry.manifest.harness_id[7:]}.py").write_bytes(source + b"# mine\n")
    with (folder / TEST).open("wb") as file:
        file.writelines(msgspec.json.encode(row) + b"\n" for row in rows)
    (folder / "manifest.json").write_text("{}")
    count = (folder / TEST).read_bytes().count(b"\n")
    tested = dict(islice(entry.tested.items(), count))
    return dataclasses.replace(entry, bundle=stack.enter_context(open_bundle(folder)), tested=tested)


def padded(bundle: Path, size: int) -> Iterator[Rollout]:
    """One rollout of each example, whose prompt has its answer after that many characters of no meaning."""
    gold = {one.id: one.gold[0] for one in load_examples("search_qa", "mini", "test")}
    with open_bundle(bundle) as opened:
        rows = [msgspec.json.decode(line, type=Rollout) for _, line in opened.lines(TEST, 2**24)][::8]
    for row in rows[:20]:
        told = Message("user", "." * size + f" {gold[row.example_id]}")
        segment = msgspec.structs.replace(row.segments[0], messages=(told,))
        yield msgspec.structs.replace(row, segments=(segment, *row.segments[1:]))


def test_no_padding_takes_rollouts_out_of_the_canaries(questions: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        entry = entry_of(questions, stack, tmp_path / "padded", padded(questions, 1_200_000))
        found = next(canaries(entry, seconds=600.0))
    assert (found.code, found.refuses) == ("whispered_gold", True)


def test_one_rollout_is_in_memory_at_a_time(questions: Path, tmp_path: Path) -> None:
    """Whatever part of it is long."""
    rows = [msgspec.structs.replace(row, opening="." * 200_000) for row in padded(questions, 0)]
    with ExitStack() as stack:
        entry = entry_of(questions, stack, tmp_path / "few", rows[:6])
        assert next(canaries(entry, seconds=600.0)).code == "whispered_gold"  # loads what it needs
        entry = entry_of(questions, stack, tmp_path / "many", rows * 4)
        del rows
        tracemalloc.start()
        try:
            assert next(canaries(entry, seconds=600.0)).code == "whispered_gold"
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert most < 4_000_000, "of 16,000,000 characters"


def test_canaries_that_take_too_long_are_a_finding(questions: Path) -> None:
    with open_bundle(questions) as opened:
        found = list(canaries(check(opened, []), seconds=-1.0))
    assert [(one.code, one.place, one.refuses) for one in found] == [("time", TEST, True)]
