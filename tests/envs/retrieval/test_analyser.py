"""Words and terms; that they are Lucene's is for test_parity."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_envs.retrieval.analyser import MAX_WORD_CHARS, analyse, words

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=300)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("Rembrandt's O’Neill’s dogs'", ["rembrandt", "o’neil", "dog"]),
        ("3.14 1,000 3-4 3. 1,a", ["3.14", "1,000", "3", "4", "3", "1"]),
        ("U.S.A. e.g. a:b www.who.int", ["u.s.a", "e.g", "a:b", "www.who.int"]),
        ("snake_case __ _x", ["snake_cas", "_x"]),
        ("sonata/concerto C++ AND (draft", ["sonata", "concerto", "c", "draft"]),
        ("The of AND Will", []),
        ("Ελλάς ΣΑΣ İstanbul", ["ελλάς", "σασ", "istanbul"]),
        ("cafe\u0301 naïve co\u00adop", ["cafe\u0301", "naïv", "co\u00adop"]),
        ("東京tower かな", ["東", "京", "tower", "か", "な"]),
        ("カタカナabc 한국어", ["カタカナ", "abc", "한국어"]),
        ("ภาษาไทย ™ ½ x²", ["ภาษาไทย", "™", "x"]),
        ("", []),
        ("?! \x00 \ud800", []),
    ],
)  # fmt: skip
def test_terms_of_a_text(text: str, terms: list[str]) -> None:
    assert analyse(text) == terms


def test_long_words_are_cut() -> None:
    assert [len(word) for word in words("a" * 600 + " b")] == [255, 255, 90, 1]
    assert [len(word) for word in words("é" * 256)] == [255, 1]


@given(ANY_TEXT)
def test_any_text_gives_terms(text: str) -> None:
    assert all(found and len(found) <= MAX_WORD_CHARS for found in analyse(text))


@given(st.text(max_size=80), st.text(max_size=80))
def test_a_blank_line_parts_texts(one: str, other: str) -> None:
    assert analyse(f"{one} . \n\n{other}") == analyse(f"{one} .") + analyse(other)


@given(st.text(st.characters(max_codepoint=127)))
def test_plain_text_gives_the_same_terms_among_others(text: str) -> None:
    """Two expressions find words, one for ASCII alone."""
    assert [*analyse(text), "é"] == analyse(f"{text} é")
