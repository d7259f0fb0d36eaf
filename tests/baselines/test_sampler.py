from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from whale_baselines.sampler import SamplerState, draw, permutation

from whale_envs.errors import UsageError

sizes = st.lists(st.integers(1, 9), min_size=1, max_size=30)


def examples(count):
    return tuple(f"e{i}" for i in range(count))


@given(count=st.integers(1, 12), batches=sizes, seed=st.integers(0, 3))
def test_no_example_returns_within_an_epoch_and_none_is_left_out(count, batches, seed):
    state, drawn = SamplerState(seed=seed), []
    for n in batches:  # in any number of phases: the state is all that is handed on
        batch, state = draw(examples(count), state, n)
        assert len(batch) == n
        drawn += batch
        state = msgspec.json.decode(msgspec.json.encode(state), type=SamplerState)
    assert len(set(drawn)) == len(drawn)
    per_epoch = Counter(one.epoch for one in drawn)
    assert all(per_epoch[epoch] == count for epoch in range(max(per_epoch)))
    assert sum(batches) == state.epoch * count + state.position


@given(count=st.integers(1, 12), batches=sizes, seed=st.integers(0, 3))
def test_how_draws_are_cut_into_batches_changes_nothing(count, batches, seed):
    ids, state, drawn = examples(count), SamplerState(seed=seed), ()
    for n in batches:
        batch, state = draw(ids, state, n)
        drawn += batch
    assert draw(ids, SamplerState(seed=seed), sum(batches)) == (drawn, state)


def test_a_batch_larger_than_the_remainder_crosses_the_epoch():
    _, state = draw(examples(5), SamplerState(seed=1), 3)
    batch, state = draw(examples(5), state, 4)
    assert [one.epoch for one in batch] == [0, 0, 1, 1]
    assert (state.epoch, state.position) == (1, 2)


def test_the_order_depends_on_seed_and_epoch_and_not_on_the_order_of_the_examples():
    ids = examples(50)
    assert permutation(ids, 0, 0) == permutation(ids[::-1], 0, 0)
    orders = [permutation(ids, seed, epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    assert len({tuple(order) for order in orders}) == 3


def test_neighbouring_seeds_share_no_order():
    ids = examples(20)
    assert permutation(ids, 1, 2) != permutation(ids, 2, 1)


@pytest.mark.parametrize(
    ("ids", "n", "message"),
    [
        (examples(3), 0, "at least 1 example, got 0"),
        ((), 1, "no examples"),
        (("a", "b", "a"), 1, "'a' stands twice"),
    ],
)
def test_what_cannot_be_drawn_is_refused(ids, n, message):
    with pytest.raises(UsageError, match=message):
        draw(ids, SamplerState(seed=0), n)


def test_other_examples_are_refused_in_the_middle_of_an_epoch():
    _, state = draw(examples(5), SamplerState(seed=0), 2)
    with pytest.raises(UsageError, match="in the middle of other examples"):
        draw(examples(6), state, 2)
