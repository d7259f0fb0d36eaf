"""The text space holds every text, and shared memory gives back what was put in (O-32)."""

import multiprocessing
from copy import copy, deepcopy
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Tuple
from gymnasium.utils.passive_env_checker import check_observation_space
from gymnasium.vector.utils import (
    batch_space,
    create_shared_memory,
    read_from_shared_memory,
    write_to_shared_memory,
)
from hypothesis import given
from hypothesis import strategies as st

from whale_envs.spaces import UnicodeText

create: Any = create_shared_memory  # typed by Gymnasium for arrays only
write: Any = write_to_shared_memory
recall: Any = read_from_shared_memory

ANY_TEXT = st.text(st.characters(), max_size=40)  # lone surrogates included
AWKWARD = [
    "",
    "a b",
    "line\nline",
    "π",
    "👍🏽",
    "r1b1k2r/pp1n1ppp w kq - 0 1",
    "\x00",
    "\ud800",
    "x" * 50_000,
]


@pytest.mark.parametrize("text", AWKWARD, ids=ascii)
def test_the_space_contains_every_text(text: str) -> None:
    assert UnicodeText().contains(text)


@pytest.mark.parametrize("other", [None, 7, b"bytes", ["a"], np.zeros(3)])
def test_the_space_contains_only_text(other: object) -> None:
    assert not UnicodeText().contains(other)


def test_the_bound_counts_characters() -> None:
    assert UnicodeText(3).contains("👍👍👍")
    assert not UnicodeText(3).contains("aaaa")
    assert UnicodeText(0).contains("")


def test_a_negative_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 0, got -1"):
        UnicodeText(-1)


@pytest.mark.parametrize("bound", [0, 1, 5, 100_000])
def test_every_sample_is_inside(bound: int) -> None:
    space = UnicodeText(bound, seed=3)
    assert all(space.contains(space.sample()) for _ in range(200))


def test_equal_seeds_give_equal_samples() -> None:
    one, two = UnicodeText(seed=1), UnicodeText(seed=1)
    assert [one.sample() for _ in range(20)] == [two.sample() for _ in range(20)]


def test_samples_are_not_only_letters() -> None:
    space = UnicodeText(seed=0)
    seen = "".join(space.sample() for _ in range(300))
    assert {" ", "\n", "♞", "π"} <= set(seen)


def test_sample_takes_no_mask() -> None:
    with pytest.raises(ValueError, match="neither mask nor probability"):
        UnicodeText().sample(mask=np.ones(3))


def test_spaces_are_equal_by_their_bound() -> None:
    assert UnicodeText(5) == UnicodeText(5) != UnicodeText(6)
    assert hash(UnicodeText(5)) == hash(UnicodeText(5))
    assert UnicodeText(5) != "UnicodeText(5)"
    assert repr(UnicodeText(5)) == "UnicodeText(5)"


def test_a_copy_of_a_space_is_equal() -> None:
    assert deepcopy(UnicodeText(5)) == UnicodeText(5)


def test_gymnasium_accepts_it_as_an_observation_space() -> None:
    check_observation_space(UnicodeText())
    assert not UnicodeText().is_np_flattenable


@given(st.lists(ANY_TEXT, max_size=4))
def test_json_gives_the_texts_back(texts: list[str]) -> None:
    space = UnicodeText()
    assert space.from_jsonable(space.to_jsonable(texts)) == texts


def test_a_batch_is_a_tuple_space_of_texts() -> None:
    batch = batch_space(UnicodeText(9), 2)
    assert isinstance(batch, Tuple)
    assert batch.contains(("", "♞"))


@given(st.lists(ANY_TEXT, min_size=1, max_size=4))
def test_shared_memory_gives_back_every_text(texts: list[str]) -> None:
    space, n = UnicodeText(40), len(texts)
    memory = create(space, n, multiprocessing.get_context())
    for index, text in enumerate(texts):
        write(space, index, text, memory)
    assert deepcopy(recall(space, memory, n)) == tuple(texts)


def test_a_text_as_long_as_the_bound_leaves_its_neighbours_alone() -> None:
    space = UnicodeText(8)
    memory = create(space, 3, multiprocessing.get_context())
    for index, text in ((0, "left"), (2, "right"), (1, "👍" * 8), (1, "mid")):
        write(space, index, text, memory)
    assert tuple(recall(space, memory, 3)) == ("left", "mid", "right")


def test_a_text_beyond_the_bound_is_refused_instead_of_spilling_over() -> None:
    space = UnicodeText(8)
    memory = create(space, 2, multiprocessing.get_context())
    write(space, 1, "kept", memory)
    with pytest.raises(ValueError, match=r"an observation of 41 characters does not fit UnicodeText\(8\)"):
        write(space, 0, "x" * 41, memory)
    assert recall(space, memory, 2)[1] == "kept"


def test_what_is_read_follows_the_memory_and_a_copy_does_not() -> None:
    space = UnicodeText(8)
    memory = create(space, 2, multiprocessing.get_context())
    live = recall(space, memory, 2)
    snapshot = copy(live)
    write(space, 1, "new", memory)
    assert (len(live), live[-1], live[:], live == ("", "new")) == (2, "new", ("", "new"), True)
    assert repr(live) == "('', 'new')"
    assert snapshot == ("", "")
    with pytest.raises(IndexError):
        live[2]
