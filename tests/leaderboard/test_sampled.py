"""What a harness was shown of a reply follows from what was sampled, for every backend there is."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from whale_leaderboard.sampled import gives_tool_calls, is_final, unsampled

from whale_bench import replies
from whale_bench.models.base import Generation, Message, Request
from whale_bench.models.openai_reply import ChatReader
from whale_bench.plan import EvalPlan
from whale_bench.records import Segment
from whale_envs.text import split_thinking

TOOLS = ({"type": "function", "function": {"name": "submit"}},)
CALL = {"id": "c1", "type": "function", "function": {"name": "submit", "arguments": '{"answer": "4"}'}}
REQUEST = Request(messages=(Message("user", "2 + 2?"),), tools=TOOLS)

words = st.sampled_from(["four", " ", "4", "\n", "a < b", "<b>", "e2 e4", "é"])
thoughts = st.sampled_from(["", "<think>", "</think>", "hm", " "])
specials = st.sampled_from(["", "<|im_end|>", "<s>", "<end_of_turn>", "<|eot_id|>", "<｜end▁of▁sentence｜>"])


def segment_of(generation: Generation) -> Segment:
    return replies.segment_of(REQUEST, replies.cleaned(generation))


@given(st.lists(st.tuples(thoughts, words, specials), max_size=6))
def test_what_a_backend_that_decodes_ids_shows_is_believed(parts: list[tuple[str, str, str]]) -> None:
    """As `folder.py` does: the reply is decoded without special tokens, the raw text with them."""
    raw = "".join(map("".join, parts))
    reasoning, text = split_thinking("".join(thought + word for thought, word, _ in parts))
    segment = segment_of(Generation(text=text, reasoning=reasoning, raw_text=raw))
    assert unsampled(segment, native=False) == ""


@pytest.mark.parametrize(
    "message",
    [
        {"content": "<think>hm</think>4"},
        {"content": "4", "reasoning_content": "two and two"},
        {"content": "<think>x</think>4", "reasoning": "two\nand two"},
        {"content": None, "tool_calls": [CALL]},
        {"content": "I submit.", "tool_calls": [CALL]},
        {"content": None, "refusal": "no"},
        {"content": "hm</think>4"},
    ],
    ids=str,
)
def test_what_a_chat_server_answers_is_believed(message: dict[str, object]) -> None:
    body = msgspec.json.encode({"choices": [{"message": message, "finish_reason": "stop"}]})
    generation = ChatReader().read(body)
    assert generation is not None
    assert unsampled(segment_of(generation), native=True) == ""


def test_harmony_channels_that_were_decoded_away_are_believed() -> None:
    raw = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>4<|return|>"
    decoded = "analysishmassistantfinal4"
    assert unsampled(segment_of(Generation(text=decoded, raw_text=raw)), native=False) == ""
    assert is_final("4", raw)
    assert not is_final("hm", raw)


@given(words, words, st.data())
def test_no_part_of_the_thinking_is_a_final_text(inside: str, outside: str, data: st.DataObject) -> None:
    raw = f"<think>zug {inside} zwang</think>{outside}<|im_end|>"
    reply = data.draw(
        st.sampled_from([f"zug {inside} zwang", "zug", "zwang", f"{outside}zug", f"{outside}4"])
    )
    said = unsampled(Segment(messages=(), text=raw, reply=reply), native=False)
    assert "is not what the sampled text says outside thinking" in said


def test_tool_calls_need_a_backend_that_parses_them_and_tools_that_were_sent() -> None:
    called = Segment(messages=(), text="", tools=TOOLS, tool_calls=(CALL,))
    assert unsampled(called, native=True) == ""
    assert "by a backend that gives none" in unsampled(called, native=False)
    assert "without tools" in unsampled(msgspec.structs.replace(called, tools=()), native=True)
    for model, tokenizer, gives in (
        ("openai/x", None, True), ("anthropic/x", None, True), ("openai/x", "models/x", False),
        ("local/x", None, False), ("vllm/x", None, False), ("scripted/random", None, False),
    ):  # fmt: skip
        plan = EvalPlan(domain="chess_puzzles", model=model, tokenizer=tokenizer)
        assert gives_tool_calls(plan) is gives


def test_backends_give_tool_calls_where_this_says_so() -> None:
    """A backend that begins to parse tool calls has to be named here."""
    models = Path(__file__).resolve().parent.parent.parent / "whale_bench" / "models"
    giving = {path.name for path in models.glob("*.py") if "tool_calls=tuple(" in path.read_text()}
    assert giving == {"anthropic_messages.py", "openai_reply.py"}
