"""Canaries on entries of SearchQA, where no parrot says what a harness told: prompts and answers do."""

import re
from pathlib import Path

import pytest
from board_fakes import ABOUT, Honest, evaluated
from whale_leaderboard.archive import open_bundle
from whale_leaderboard.canaries import canaries
from whale_leaderboard.pack import pack
from whale_leaderboard.report import Finding
from whale_leaderboard.wellformed import check

from whale_bench.models.base import Request
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
