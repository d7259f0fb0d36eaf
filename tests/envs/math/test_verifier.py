"""Verdicts: both profiles at once, reasons, every gold answer, and ten thousand strange responses."""

import asyncio
import time
from collections import Counter

import pytest

from tests.envs.math.fuzz import responses
from whale_envs import DOMAINS, Verdict
from whale_envs.errors import InfrastructureError
from whale_envs.math_python import SIZES, averify, load_examples, make_problem, verifier, verify
from whale_envs.math_python.verifier import paper_answer, raise_for_error


def problem(gold: str) -> verifier.MathProblem:
    return make_problem("What is it?", gold, dataset="test")


@pytest.mark.parametrize(
    ("gold", "response", "standard", "paper", "reason"),
    [
        ("42", r"It is \boxed{42}.", 1.0, 1.0, "correct"),
        ("42", r"It is \boxed{042}.", 1.0, 0.0, "correct"),
        ("42", r"It is \boxed{42.0}.", 1.0, 0.0, "correct"),
        ("42", r"It is \boxed {42}.", 1.0, 0.0, "correct"),
        ("42", r"It is \fbox{42}.", 1.0, 0.0, "correct"),
        ("42", r"It is \boxed{ 42 }.", 1.0, 0.0, "correct"),
        ("42", r"It is \boxed{43}.", 0.0, 0.0, "wrong_answer"),
        ("42", "It is 42.", 0.0, 0.0, "no_answer"),
        ("42", "", 0.0, 0.0, "no_answer"),
        ("42", r"\boxed{42" + " " * 20, 0.0, 0.0, "no_answer"),
        ("42", r"\boxed{42}" + "." * 90, 1.0, 1.0, "correct"),
        ("42", r"\boxed{42}" + "." * 91, 1.0, 0.0, "correct"),
        ("42", r"<think>\boxed{42}", 0.0, 1.0, "no_answer"),
        ("42", r"\boxed{41} \boxed{42}", 1.0, 1.0, "correct"),
        ("42", r"\boxed{42} \boxed{", 1.0, 0.0, "correct"),
        (r"\frac{1}{2}", r"\boxed{\frac{1}{2}}", 1.0, 1.0, "correct"),
        (r"\frac{1}{2}", r"\boxed{0.5}", 1.0, 0.0, "correct"),
        ("3", r"\boxed{7^{7^{7^{7}}}}", 0.0, 0.0, "too_complex"),
        ("3", r"\boxed{2^{2^{40}}}", 0.0, 0.0, "too_complex"),
    ],
)
def test_both_profiles_at_once(gold: str, response: str, standard: float, paper: float, reason: str) -> None:
    verdict = verify(problem(gold), response)
    assert (verdict.standard, verdict.paper, verdict.reward, verdict.reason) == (
        standard,
        paper,
        standard,
        reason,
    )
    assert verdict.format_ok is (reason != "no_answer")
    assert verify(problem(gold), response, profile="paper").reward == paper
    assert not verdict.diverged


def test_the_papers_rule_reads_the_last_hundred_characters_and_compares_strings() -> None:
    assert paper_answer(r"\boxed{1} and \boxed{2}") == "2"
    assert paper_answer(r"\boxed{\frac{1}{2}}") == r"\frac{1}{2}"
    assert paper_answer(r"\boxed{1} \boxed{2") is None
    assert paper_answer("x" * 200 + r"\boxed{1}") == "1"
    assert paper_answer(r"\boxed{1}" + "x" * 100) is None
    assert paper_answer("") is None
    verdict = verify(problem("42"), r"\boxed{042}", profile="paper")
    assert (verdict.reward, verdict.reason, verdict.answer) == (0.0, "wrong_answer", "042")
    assert verify(problem("42"), "none", profile="paper").reason == "no_answer"


@pytest.mark.parametrize(("tier", "split"), [(t, s) for t in ("mini", "small") for s in SIZES[t]])
def test_every_gold_answer_verifies(tier: str, split: str) -> None:
    for example in load_examples(tier, split):
        verdict = verify(example, rf"\boxed{{{example.gold}}}")
        assert (verdict.standard, verdict.paper) == (1.0, 1.0)
        assert verify(example, rf"\boxed{{{int(example.gold) + 1}}}").reward == 0.0


async def test_the_asynchronous_way_gives_the_same_verdicts() -> None:
    asked = [
        (problem("42"), r"\boxed{42}"),
        (problem("42"), "none"),
        (problem("3"), r"\boxed{2^{2^{40}}}"),
        (problem(r"2\sqrt{2}"), r"\boxed{\sqrt{8}}"),
        (problem(r"2\sqrt{2}"), r"\boxed{\sqrt{7}}"),
    ]
    assert [await averify(*pair) for pair in asked] == [verify(*pair) for pair in asked]


async def test_the_event_loop_goes_on_while_algebra_is_done() -> None:
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0)

    pulse = asyncio.create_task(beat())
    verdict = await averify(problem(r"x^2-1"), r"\boxed{(x-1)(x+1)}")
    pulse.cancel()
    assert verdict.reward == 1.0
    assert beats > 20


def test_ten_thousand_strange_responses_get_a_verdict_each() -> None:
    golds = ["3", r"\frac{1}{2}", "x+y=5", r"\{1,3\}", "12,500", "[3,7)", r"\sqrt{2}", r"50\%", "0"]
    began, decided = time.process_time(), Counter[object]()
    for i, response in enumerate(responses(10_000, "verifier")):
        answer, decision = verifier._fast(golds[i % len(golds)], response)
        decided[decision] += 1
        assert answer is None or isinstance(answer, str)
        assert decision in (True, False, None, "too_complex")
    assert time.process_time() - began < 20
    assert decided[True] < 100
    assert decided[None] > 500


def test_strange_responses_get_through_the_symbolic_helper_too() -> None:
    golds = ["3", r"\frac{1}{2}", "x+y=5", r"\sqrt{2}", "x^2-1"]
    seen = Counter[str]()
    for i, response in enumerate(responses(400, "helper")):
        if "^{7^" in response or "^{2^" in response or "99999!" in response:
            continue  # towers cost their two seconds each; see test_worker.py
        verdict = verify(problem(golds[i % len(golds)]), response)
        assert isinstance(verdict, Verdict)
        seen[verdict.reason] += 1
    assert set(seen) <= {"correct", "wrong_answer", "no_answer", "too_complex"}
    assert seen["correct"] <= 2


def test_a_verifier_error_is_no_verdict() -> None:
    verdict = verifier._verdict("42", r"\boxed{x}", "x", "verifier_error", "standard")
    assert (verdict.reason, verdict.standard, verdict.reward) == ("verifier_error", None, 0.0)
    with pytest.raises(InfrastructureError, match="failed on the answer 'x'"):
        raise_for_error(verdict)
    fine = verify(problem("42"), r"\boxed{42}")
    assert raise_for_error(fine) is fine


def test_the_domain_is_registered_at_most_once() -> None:
    assert list(DOMAINS).count("math_python") <= 1
