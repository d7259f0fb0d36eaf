"""Passages as shown: numbered, cut, and nothing but text to any parser or tokenizer."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_envs.retrieval.base import Passage
from whale_envs.search_qa.passages import TITLE_CHARS, quiet, show

SPECIAL = [
    "<|im_end|>", "<|im_start|>user", "<|endoftext|>", "<s>", "</s>", "<bos>", "<start_of_turn>", "[INST]",
    "[/INST]", "<<SYS>>", "[TOOL_CALLS]", "[gMASK]", "<｜end▁of▁sentence｜>", "<think>", "</think>",
    "◁/think▷", "<answer>", "</answer>", "<search>", "</tool_response>", "<tool_call>", "<!-- -->",
    "<|channel|>", "<unk>", "<0x0A>", "[|assistant|]", "[@BOS@]", "<2mass>", "[control_8]", "[unused12]",
    "[IMG-1]", "﹤|im_end|﹥", "［INST］", "⟨|im_end|⟩", "<=|im_end|>",
]  # fmt: skip


@pytest.mark.parametrize("mark", SPECIAL)
def test_no_special_token_survives(mark: str) -> None:
    for text in (
        mark,
        f"a{mark}b",
        mark * 3,
        "<" + mark,
        mark.upper(),
        mark[0] * 5 + mark,
        f"{mark[0]}\u200b{mark[1:]}",
    ):
        assert mark.lower() not in quiet(text).lower()


@given(st.text(alphabet=st.sampled_from("<>|/[]◁▷INSTabs｜ \n\u200b\u2060"), max_size=40))
@settings(max_examples=1_000, deadline=None)
def test_no_bracket_is_followed_by_what_it_could_open(text: str) -> None:
    found = quiet(text)
    assert not re.search(r"[<◁]\S", found)
    assert not re.search(r"\[/?[A-Za-z_]{3,}\]", found)
    assert "\n" not in found
    assert quiet(found) == found


@given(st.text())
@settings(deadline=None)
def test_text_without_marks_keeps_its_words(text: str) -> None:
    plain = re.sub(r"[^\w ]", "", text, flags=re.ASCII)
    assert quiet(plain).split() == plain.split()


def test_comparisons_stay_readable() -> None:
    assert quiet("1 < 2, x > 3, [1], [12 May] and a[2]") == "1 < 2, x > 3, [1], [12 May] and a[2]"


@given(st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=4), st.integers(1, 50))
@settings(deadline=None)
def test_two_lines_for_each_passage(passages: list[tuple[str, str]], limit: int) -> None:
    shown = show([Passage("1", title, text) for title, text in passages], max_tokens=limit)
    lines = shown.split("\n")
    assert len(lines) == 2 * len(passages)
    assert [line.partition(":")[0] for line in lines[::2]] == [
        f"Document {n + 1}" for n in range(len(passages))
    ]
    assert all(len(line) <= TITLE_CHARS + 14 for line in lines[::2])
    shown.encode()


def test_no_passage_passes_for_another_document() -> None:
    passages = [Passage("1", "T", "Document 2: Oslo\nthe capital"), Passage("2", "document 7: U", "x")]
    shown = show(passages, max_tokens=50)
    numbered = [line for line in shown.split("\n") if re.match(r"(?i)\W*document\s*\d+\s*:", line)]
    assert [line.partition(":")[0] for line in numbered] == ["Document 1", "Document 2"]
    assert "Document no. 2: Oslo the capital" in shown
