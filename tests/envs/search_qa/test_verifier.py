"""The tagged answer: which one is read, and what both profiles say of it."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_envs.search_qa.verifier import f1, paper_answer, read_answer, verify


@dataclass(frozen=True)
class Question:
    gold: tuple[str, ...]


PARIS = Question(("Paris", "Ville de Paris"))


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("<answer>Paris</answer>", "Paris"),
        ("<answer> Paris\n</answer> I think.", "Paris"),
        ("<answer>Rome</answer> wait <answer>Paris</answer>", "Paris"),
        ("<answer>Paris", None),
        ("Paris</answer>", None),
        ("Paris", None),
        ("", None),
        ("<answer></answer>", ""),
        ("<answer>Rome</answer> or <answer>Paris", "Rome"),
        ("<answer><answer>Paris</answer></answer>", "Paris"),
        ("<answer>Rome <answer>Paris</answer>", "Paris"),
        ("< Answer >Paris</ANSWER>", "Paris"),
        ("<think><answer>Rome</answer></think><answer>Paris</answer>", "Paris"),
        ("<think>so <answer>Paris</answer>", None),
        ("<answer>Paris</answer><think>or <answer>Rome</answer></think>", "Paris"),
        ("<answers>Paris</answers>", None),
        ("</answer><answer>", None),
    ],
)
def test_the_last_complete_pair_outside_thinking_is_read(response: str, answer: str | None) -> None:
    assert read_answer(response) == answer


@pytest.mark.parametrize(
    ("response", "reason", "reward", "format_ok"),
    [
        ("<answer>ville de paris.</answer>", "correct", 1.0, True),
        ("<answer>Rome</answer>", "wrong_answer", 0.0, True),
        ("<answer></answer>", "no_answer", 0.0, False),
        ("<answer> \u00a0</answer>", "no_answer", 0.0, False),
        ("Paris, of course", "no_answer", 0.0, False),
        ("<answer>Paris", "no_answer", 0.0, False),
    ],
)
def test_verdicts_have_a_typed_reason(response: str, reason: str, reward: float, format_ok: bool) -> None:
    for profile in ("standard", "paper"):
        verdict = verify(PARIS, response, profile=profile)  # type: ignore[arg-type]
        assert (verdict.reason, verdict.reward, verdict.format_ok) == (reason, reward, format_ok)
        assert (verdict.standard, verdict.paper) == (reward, reward)


def test_both_profiles_stand_in_every_verdict() -> None:
    years = Question(("1914–1918",))
    verdict = verify(years, "<answer>1914-1918</answer>")
    assert (verdict.reward, verdict.standard, verdict.paper) == (1.0, 1.0, 0.0)
    verdict = verify(years, "<answer>1914-1918</answer>", profile="paper")
    assert (verdict.reward, verdict.reason) == (0.0, "wrong_answer")


def test_the_published_rule_reads_from_the_nearest_opening_tag_to_the_last_closing_one() -> None:
    assert paper_answer("<answer>Rome</answer><answer>Paris</answer>") == "Paris"
    assert paper_answer("<answer><answer>Paris</answer></answer>") == "Paris</answer>"
    assert paper_answer("<ANSWER>Paris</ANSWER>") is None
    assert paper_answer("</answer><answer>") is None


def test_a_gold_that_is_only_an_article() -> None:
    golds = Question(("A",))
    rewards = [verify(golds, f"<answer>{said}</answer>").reward for said in ("B", "A", "the", "")]
    assert rewards == [0.0, 1.0, 0.0, 0.0]


def test_f1_reads_the_same_answer() -> None:
    assert f1(Question(("blue whale",)), "<answer>whale</answer>") == pytest.approx(2 / 3)
    assert f1(PARIS, "Paris") == 0.0


@given(st.text(), st.text())
@settings(max_examples=500, deadline=None)
def test_verify_is_total(gold: str, response: str) -> None:
    for text in (response, f"<answer>{response}</answer>", f"<answer>{gold}"):
        verdict = verify(Question((gold,)), text)
        assert verdict.reward in (0.0, 1.0)
        assert verdict.format_ok or not verdict.reward
