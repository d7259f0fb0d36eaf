"""Reading: the boxed answer of a response, and one way of writing (O-05, O-06)."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from random import Random

import pytest

from tests.envs.math.fuzz import balanced, strings
from whale_envs.math_python import check
from whale_envs.math_python.answers import clean, last_box, read_answer, squeeze
from whale_envs.text import strip_thinking


@pytest.mark.parametrize(
    ("response", "gold", "right"),
    [
        (r"\boxed{7}. Checking again. Final answer: \boxed{7}", "7", True),
        (r"\boxed{7}. Checking again. Final answer: \boxed{7}", "77", False),
        (r"\boxed{5}; no, that was wrong: \boxed{3}", "5", False),
        (r"\boxed{5}; no, that was wrong: \boxed{3}", "3", True),
        (r"\boxed {42}", "42", True),
        (r"\fbox{42}", "42", True),
        (r"\boxed{42.}", "42", True),
        (r"\boxed{\frac{1}{2}}", "1/2", True),
        (r"so \boxed{4", "4", False),
        # more of each kind
        ("\\boxed\n{42}", "42", True),
        ("\\fbox  {42}", "42", True),
        (r"\\boxed{42}", "42", True),
        (r"$\boxed{42}$.", "42", True),
        (r"\[\boxed{42}\]", "42", True),
        (r"\boxed{ 42 }", "42", True),
        (r"\boxed{$42$}", "42", True),
        (r"\boxed{42\,.}", "42", True),
        (r"\boxed{42;}", "42", True),
        (r"\boxed{42,}", "42", True),
        (r"\boxed{\boxed{42}}", "42", True),
        (r"\fbox{\boxed{42}}", "42", True),
        (r"\boxed{1}\boxed{2}\boxed{3}", "3", True),
        (r"\boxed{1}\fbox{2}", "2", True),
        (r"\fbox{2}\boxed{1}", "2", False),
        (r"\boxed{4} and then \boxed{5", "4", True),
        (r"\boxed{5 so \boxed{4}", "4", True),
        (r"\boxed{5 so \boxed{4}", "5", False),
        (r"\boxed{4} is my boxed answer", "4", True),
        (r"\boxed{4} \boxed", "4", True),
        (r"\boxed{\{1,2\}}", r"\{2,1\}", True),
        (r"\boxed{\left\{1\right\}}", r"\{1\}", True),
        (r"\boxed{\sqrt{\frac{1}{4}}}", "1/2", True),
        (r"} \boxed{4} {", "4", True),
        (r"\boxed{}", "", False),
        (r"\boxed{ }", " ", False),
        (r"\boxed{4} \boxed{}", "4", False),
        (r"\boxed 4", "4", False),
        (r"boxed{4}", "4", False),
        (r"\Boxed{4}", "4", False),
        (r"\unboxed{4}", "4", False),
    ],
)
def test_the_last_complete_box_is_the_answer(response: str, gold: str, right: bool) -> None:
    assert check(gold, response) is right


@pytest.mark.parametrize(
    ("response", "gold", "right"),
    [
        ("The candidates are 11, 12 and 13.", "12", False),
        (r"<think>perhaps \boxed{4}", "4", False),
        (r"<think>\boxed{4}</think>So \boxed{5}", "4", False),
        (r"<think>\boxed{4}</think>So \boxed{5}", "5", True),
        # more of each kind
        ("12", "12", False),
        ("The answer is 12.", "12", False),
        ("Answer: 12", "12", False),
        ("$12$", "12", False),
        ("**12**", "12", False),
        (r"\[12\]", "12", False),
        ("", "0", False),
        (r"<THINK>\boxed{4}</THINK>", "4", False),
        (r"<thinking>\boxed{4}</thinking>", "4", False),
        (r"<Thinking>\boxed{4}", "4", False),
        (r"\boxed{4}</think>", "4", False),
        (r"it is \boxed{3}</think>\boxed{4}", "4", True),
        (r"\boxed{4}<think>or \boxed{5}?", "4", True),
        (r"\boxed{4}<think>or \boxed{5}?</think>", "4", True),
        (r"<think>a</think>\boxed{4}<think>\boxed{5}</think>", "4", True),
        (r"<think>a<think>b</think>\boxed{4}", "4", True),
        (r"<think>\boxed{4}</thinking>", "4", False),
        (r"\box<think></think>ed{4}", "4", False),
    ],
)
def test_nothing_outside_a_box_and_nothing_inside_thinking_is_an_answer(
    response: str, gold: str, right: bool
) -> None:
    assert check(gold, response) is right


def test_a_response_without_a_box_has_no_answer() -> None:
    assert read_answer("The candidates are 11, 12 and 13.") is None
    assert read_answer("<think>\\boxed{4}") is None
    assert read_answer(r"so \boxed{4") is None


def test_braces_are_matched_not_cut() -> None:
    rng = Random("braces")
    for text in strings(2_000, "braces"):
        content = balanced(text)
        if re.search(r"(?:boxed|fbox)\s*\{", content) or content.endswith("\\"):
            continue
        before = "x" * rng.randint(0, 50) + rng.choice(["", "{", "}", "\\boxed{0} ", "\\{"])
        after = rng.choice(["", ".", " }}", " {", "$ so it is", " \\boxed", "\\boxed {"])
        assert last_box(f"{before}\\boxed{{{content}}}{after}") == content


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{" * 150_000,
        "\\boxed{1}" + "\\boxed{" * 150_000,
        "\\boxed {" * 100_000 + "}" * 100_000,
        "\\boxed{" * 100_000 + "7" + "}" * 99_999,
        "\\boxed{" + "{" * 1_000_000,
        "{" * 1_000_000,
        "\\" * 1_000_000,
        "\\boxed" + " " * 1_000_000,
        "\\boxed\n" * 150_000,
        "\\boxed{" + "1" * 1_000_000 + "}",
        "\\boxed{" + "(" * 1_000_000 + "}",
        "\\boxed{" + " " * 1_000_000 + "}",
        "\\boxed{" + "{" * 500_000 + "}" * 500_000 + "}",
        "<think>" * 150_000,
        "</think>" * 150_000,
        "<" * 1_000_000,
        "<think>\\boxed{4}</think>" * 40_000 + "\\boxed{4}",
        "boxed" * 200_000,
        "\\boxed{1" + ",1" * 500_000 + "}",
    ],
    ids=lambda text: f"{text[:20]!r} x {len(text)}",
)
def test_a_megabyte_made_to_hurt_is_read_in_linear_time(
    text: str, cpu_within: Callable[[float], AbstractContextManager[None]]
) -> None:
    with cpu_within(2):
        check("1", text)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (" 42 ", "42"),
        ("42.", "42"),
        ("$42$", "42"),
        ("$$42$$", "42"),
        (r"\(42\)", "42"),
        (r"\[42\]", "42"),
        (r"\text{42}", "42"),
        (r"\mathbf{\text{42}}", "42"),
        (r"{42}", "42"),
        (r"\dfrac{1}{2}", r"\frac{1}{2}"),
        (r"\tfrac{1}{2}.", r"\frac{1}{2}"),
        (r"\left(1,2\right)", "(1,2)"),
        (r"\leftarrow", r"\leftarrow"),
        (r"12{,}500", "12500"),
        (r"12\,500", "12 500"),
        (r"12,\!500", "12,500"),
        ("−5", "-5"),
        ("４２", "42"),
        ("½", r"\frac{1}{2}"),
        ("= 5", "5"),
        ("5!", "5!"),
        (r"2\\5", r"2\\5"),
        (r"\{1\}", r"\{1\}"),
        (r"\text{5} + \text{6}", r"\text{5} + \text{6}"),
        ("", ""),
        (".", "."),
        ("$", "$"),
    ],
)
def test_one_way_of_writing(text: str, plain: str) -> None:
    assert clean(text) == plain


def test_cleaning_is_total_and_does_not_go_on_for_ever() -> None:
    for text in strings(5_000, "clean"):
        once = clean(text)
        assert squeeze(once) == squeeze(clean(text))


@pytest.mark.parametrize(
    ("text", "squeezed"), [("0, 3", "0,3"), ("3 3/4", "3 3/4"), ("x = 5", "x=5"), (r"\pi x", r"\pi x")]
)
def test_spaces_that_part_words_and_numbers_stay(text: str, squeezed: str) -> None:
    assert squeeze(text) == squeezed


@pytest.mark.parametrize(
    ("text", "outside"),
    [
        ("no tag", "no tag"),
        ("<think>a</think>b", "b"),
        ("a<thinking>b</thinking>c", "a\nc"),
        ("<THINK>a", ""),
        ("a</Think>b", "b"),
        ("a < think", "a < think"),
        ("<thinker>a", "<thinker>a"),
        ("[THINK]a[/THINK]b", "b"),
        ("◁think▷a◁/think▷b", "b"),
    ],
)
def test_thinking_is_taken_out(text: str, outside: str) -> None:
    assert strip_thinking(text) == outside
