"""Every reference answer of every embedded question is right under both profiles, and can be found."""

import pytest

from whale_envs import DOMAINS, SPLITS, load_examples
from whale_envs.search_qa import stands_in, verify
from whale_envs.search_qa.corpora import load_corpus
from whale_envs.search_qa.examples import CORPUS_OF_TIER

EMBEDDED = [tier for tier, what in DOMAINS["search_qa"].tiers.items() if "embedded" in what]


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("tier", EMBEDDED)
def test_every_reference_answer_is_right(tier: str, split: str) -> None:
    for question in load_examples("search_qa", tier, split):
        for gold in question.gold:
            verdict = verify(question, f"<answer>{gold}</answer>")
            assert (verdict.standard, verdict.paper) == (1.0, 1.0), (question.question, gold)


@pytest.mark.parametrize("tier", EMBEDDED)
def test_a_passage_that_is_needed_holds_a_reference_answer_as_retrieval_accuracy_reads_it(tier: str) -> None:
    passages = {passage.id: passage.contents for passage in load_corpus(CORPUS_OF_TIER[tier])}
    for split in SPLITS:
        for question in load_examples("search_qa", tier, split):
            held = [stands_in(question.gold, passages[name]) for name in question.support]
            assert any(held), question.question
            if dict(question.groups)["kind"] in ("bridge", "border"):
                assert held[-1], question.question
                assert not held[0], question.question
