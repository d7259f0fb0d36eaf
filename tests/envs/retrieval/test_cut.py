"""Cutting by words: a prefix, at a boundary, never more words than asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_envs.errors import UsageError
from whale_envs.retrieval.cut import count_words, cut_words

ANY = st.text(st.characters() | st.sampled_from("ab9 .,\n\u6771\ud800\u0301"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", 0),
        (" \n\t ", 0),
        ("one two", 2),
        ("abcdefgh", 1),
        ("abcdefghi", 2),
        ("don't", 3),
        ("3.14", 3),
        ("snake_case", 3),
        ("東京タワー", 5),
        ("한국", 2),
        ("año Ωμέγα", 2),
        ("\ud800", 1),
        ("🙂🙂", 2),
    ],
)
def test_words_are_counted(text: str, words: int) -> None:
    assert count_words(text) == words


@given(ANY, st.integers(0, 12))
def test_a_cut_is_the_longest_prefix_that_ends_with_a_word_within_the_limit(text: str, limit: int) -> None:
    cut = cut_words(text, limit)
    assert text.startswith(cut)
    if count_words(text) <= limit:
        assert cut == text
    else:
        assert count_words(cut) == limit
        assert cut == cut.rstrip()


@given(ANY, st.integers(0, 8), st.integers(0, 8))
def test_cutting_twice_is_cutting_once_to_the_smaller(text: str, a: int, b: int) -> None:
    assert count_words(cut_words(cut_words(text, a), b)) == min(a, b, count_words(text))


def test_a_cut_looks_at_no_more_than_it_needs() -> None:
    assert cut_words("word " * 2_000_000, 3) == "word word word"


def test_a_negative_limit_is_misuse() -> None:
    with pytest.raises(UsageError, match="-1"):
        cut_words("a", -1)
