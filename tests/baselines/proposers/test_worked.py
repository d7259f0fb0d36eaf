"""Worked examples come from the weight split, and from nowhere else."""

import pytest
from proposer_fakes import DOMAINS, TIERS
from whale_baselines.proposers.worked import MOST_CHARS, WorkedExample, as_examples, keywords, worked_examples

from whale_envs import make_env
from whale_envs.core import ExampleSet
from whale_envs.errors import UsageError


@pytest.mark.parametrize("domain", DOMAINS)
def test_worked_examples_are_solved_ones_of_the_weight_split(domain: str) -> None:
    env = make_env(domain, tier=TIERS[domain], split="weight")
    found = worked_examples(domain, env.examples, tier=TIERS[domain], count=4, seed=1)
    assert len({one.key for one in found}) == 4
    openings = {}
    for example_id in env.examples.ids:
        opening, _ = env.reset(options={"example_id": example_id})
        openings[opening] = env.oracle_action()
    for one in found:
        assert openings[one.question] == one.answer
        assert len(one.question) <= MOST_CHARS
    assert found == worked_examples(domain, env.examples, tier=TIERS[domain], count=4, seed=1)
    assert found != worked_examples(domain, env.examples, tier=TIERS[domain], count=4, seed=2)


def test_in_search_the_examples_that_a_search_solves_come_first() -> None:
    examples = make_env("search_qa", tier="mini", split="weight").examples
    found = worked_examples("search_qa", examples, tier="mini", count=4)
    assert found[0].query
    answer = found[0].answer.removeprefix("<answer>").removesuffix("</answer>")
    assert answer.casefold() in found[0].shown.casefold()


@pytest.mark.parametrize("split", ["harness", "dev", "test"])
@pytest.mark.parametrize("domain", DOMAINS)
def test_an_example_of_another_split_is_refused(domain: str, split: str) -> None:
    weight = make_env(domain, tier=TIERS[domain], split="weight").examples
    other = make_env(domain, tier=TIERS[domain], split=split).examples
    mixed = ExampleSet([*weight[:3], other[0]], name="mixed")
    with pytest.raises(UsageError, match=f"{other[0].id}.*{split}"):
        worked_examples(domain, mixed, tier=TIERS[domain], count=1)


def test_pairs_are_examples_and_anything_else_is_refused() -> None:
    assert as_examples([("2+2?", "\\boxed{4}")]) == (WorkedExample("2+2?", "\\boxed{4}"),)
    for wrong in (("one",), ("a", 1), "ab"):
        with pytest.raises(UsageError, match="pair"):
            as_examples([wrong])  # type: ignore[list-item]


def test_keywords_leave_the_small_words_out() -> None:
    assert keywords("Who was the painter of The Night Watch?") == "painter Night Watch"
    assert keywords("who is it") == "who is it"
