"""Stems, each by the step of the algorithm that makes it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_envs.retrieval.porter import stem

STEMS = {
    "plural": "caresses:caress ponies:poni ties:ti caress:caress cats:cat gas:ga us:us",
    "past and gerund": "feed:feed agreed:agre plastered:plaster bled:bled motoring:motor sing:sing",
    "repaired": "conflated:conflat troubled:troubl sized:size hopping:hop tanned:tan falling:fall "
    "hissing:hiss fizzed:fizz failing:fail filing:file",
    "y": "happy:happi sky:sky syzygy:syzygi enjoy:enjoi",
    "double endings": "relational:relat conditional:condit rational:ration valenci:valenc "
    "digitizer:digit possibli:possibl radicalli:radic vietnamization:vietnam "
    "predication:predic operator:oper feudalism:feudal decisiveness:decis "
    "hopefulness:hope sensibiliti:sensibl archaeologi:archaeolog",
    "third": "triplicate:triplic formative:form formalize:formal electrical:electr "
    "goodness:good",
    "fourth": "revival:reviv allowance:allow airliner:airlin adjustable:adjust "
    "replacement:replac adoption:adopt communism:commun activate:activ "
    "effective:effect region:region",
    "last": "probate:probat rate:rate cease:ceas controlling:control rolling:roll",
    "left alone": "a:a is:is 1980s:1980 łódź:łódź москва:москва",
}  # fmt: skip


@pytest.mark.parametrize("step", STEMS)
def test_words_are_stemmed(step: str) -> None:
    pairs = dict(pair.split(":") for pair in STEMS[step].split())
    assert {word: stem(word) for word in pairs} == pairs


@given(st.text(max_size=40))
def test_any_word_has_a_stem_that_is_no_longer(word: str) -> None:
    assert len(stem(word)) <= len(word)
    assert bool(stem(word)) == bool(word)
