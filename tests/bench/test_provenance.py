"""What a harness may act with: formatted and filtered samples, and nothing of its own."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_bench.harness.provenance import is_sampled, stands_in
from whale_envs.core import ToolCall, parse_action


def call(tool: str, /, **arguments: Any) -> str:
    return json.dumps({"tool": tool, "arguments": arguments})


def nested(depth: int) -> str:
    return '{"tool": "x", "arguments": {"a": ' + "[" * depth + '"42"' + "]" * depth + "}}"


SAID = ["I think we should compute it.\n```python\n6*7\n```\nor 3.5, -8 and 1,234."]


@pytest.mark.parametrize(
    "action",
    [
        call("submit", answer="42"),
        call("submit", answer=42),
        call("submit", answer=42.0),
        call("submit", answer=True),
        call("submit", answer=None),
        call("submit", answer=["compute", ["it", ["42"]]]),
        call("submit", answer={"compute": {"it": "42"}}),
        call("submit", **{"42": "compute"}),
        call("submit", answer={"deep": {"42": "it"}}),
        call("code_interpreter", code="print(42)"),
        call("code_interpreter", code="6*7", note="42"),
        call("code_interpreter", code="6*7", timeout=30),
        call("code_interpreter", code=["print(42)"]),
        call("code_interpreter", code={"code": "6*7", "more": "42"}),
        call("code_interpreter", program="print(42)"),
        call("code_interpreter", arguments={"code": "print(6*7)"}, code="6*8"),
        call("Code_Interpreter", code="print(6*7)"),  # normalised, but not for the interpreter
        call("submit", code="print(6*7)"),
        call("Search", query="42"),
        call("search ", query="42"),
        call("submit", answer="сompute"),  # a Cyrillic letter
        call("submit", answer="compute\u200b"),
        json.dumps({"tool": "search", "arguments": {"query": "x"}, "answer": "42"}),
        json.dumps({"tool": "search", "arguments": ["42"]}),
        json.dumps({"answer": "42"}),
        call("submit", answer="5"),
        call("submit", answer="3"),
        call("submit", answer=8),
        call("submit", answer="234"),
        nested(5),
        nested(400),
        nested(100_000),
        r"\boxed{42}",
        "42",
    ],
)
def test_a_harness_cannot_play(action: str) -> None:
    assert not is_sampled(action, SAID)
    assert not is_sampled(action, [*SAID, "", "{}", "[1]", "{broken"])


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (call("code_interpreter", code="6*7"), SAID),
        (call("code_interpreter", code="print(6*7)"), SAID),
        (call("code_interpreter", code=""), SAID),
        (call("submit"), SAID),
        (call("submit", compute="it"), SAID),
        (call("submit", compute=["it", {"or": -8}]), SAID),
        (call("submit", we=[3.5, "1,234", [], {}]), SAID),
        (call("search", query="anything", top_n=3), SAID),
        (call("search", query={"deep": ["anything"]}), SAID),
        (call("submit", answer=42), ["so " + call("submit", answer=42)]),
        (call("submit", answer=1000.0, b=True), ['{"b": true, "answer": 1e3}']),
        (call("submit", x=True, y=None), ["x is true and y is null"]),
        ("Nf3", ["I play Nf3."]),
        ("5", ["5. Or not."]),
        ("5", ["it is 5, I think"]),
        ("-5", ["it is -5"]),
        ("3.5", ["so 3.5."]),
    ],
)
def test_what_was_said_may_be_put_into_a_call(action: str, said: list[str]) -> None:
    assert is_sampled(action, said)


def test_true_is_not_one_in_a_sampled_call() -> None:
    assert not is_sampled(call("submit", a=True), ['{"a": 1}'])
    assert not is_sampled(call("submit", a=1), ['{"a": true}'])


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("5", "3.5"), ("3", "3.5"), ("5", "-5"), ("5", "−5"), ("5", ".5"), ("234", "1,234"), ("1", "1,234"),
        ("5", "15"), ("5", "5\u200b3"), ("5", "\u20605"), ("e", "e\u0301"), ("e2e4", "ée2e4"),
        ("e2e4", "e2e4é"),
        ("K", "\u212a"), ("fi", "ﬁ"), ("5", "５"), ("5", "²5"), ("a", "ab"),
    ],
)  # fmt: skip
def test_a_part_or_a_double_of_a_word_is_not_the_word(part: str, text: str) -> None:
    assert not stands_in(part, text)
    assert stands_in(part, f"{text} and {part}")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 99) | st.text("abc", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text("abc", max_size=3), JSON, max_size=3), st.sampled_from(["x", "code_interpreter"])
)
def test_a_call_passes_once_all_that_stands_in_it_was_said_and_not_with_a_word_more(
    arguments: dict[str, Any], tool: str
) -> None:
    action = call(tool, **arguments)
    assert isinstance(parse_action(action), ToolCall)
    assert is_sampled(action, [json.dumps(arguments)])
    for place in ("secret", {"secret": ""}, [[["secret"]]], 424242):
        assert not is_sampled(call(tool, **{**arguments, "abc": place}), [json.dumps(arguments)])


@pytest.mark.parametrize("shape", ["{a}{b}{c}{d}", "answer {a}{b}{c}{d}", "{b}.{d}", "[{a}{b}]"])
def test_another_answer_is_no_other_pattern_to_compile(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling one takes a hundred times as long as looking, and every rollout says something else."""
    compiled: list[str] = []
    compile_ = re._compiler.compile
    monkeypatch.setattr(re._compiler, "compile", lambda p, flags=0: compiled.append(p) or compile_(p, flags))
    re.purge()
    answers = {shape.format(a=a, b=b, c=c, d=d) for a in "abcd" for b in "123" for c in "efgh" for d in "456"}
    assert all(stands_in(answer, f"I say {answer} now") for answer in answers)
    assert len(compiled) <= 2 < len(answers)
