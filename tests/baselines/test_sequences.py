import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollouts_of_ids import rollout_of, segment
from whale_baselines.sequences import (
    IGNORED,
    Row,
    admit,
    micro_batches,
    minibatches,
    padding_share,
    share,
)

from whale_envs.errors import UsageError

_ = IGNORED


def row(length, trained=1):
    return Row(tuple(range(length)), (_,) * (length - trained) + tuple(range(length - trained, length)))


def test_a_row_holds_exactly_what_was_sampled():
    """1 = "a", 2 = "b", 3 = "ab": [1, 2] stays two tokens although its text would encode to [3]."""
    admitted = admit([rollout_of(segment([7], [1, 2]))])
    assert admitted.rows == (Row((7, 1, 2), (_, 1, 2)),)
    assert admitted.tokens == admitted.sampled == 2


def test_observations_are_masked_and_the_sampled_end_is_not():
    """0 is both the end of turn and the padding; the sampled one counts."""
    admitted = admit([rollout_of(segment([7], [5, 6]), segment([7, 5, 6, 8, 8, 8], [9, 0]))])
    assert admitted.rows == (Row((7, 5, 6, 8, 8, 8, 9, 0), (_, 5, 6, _, _, _, 9, 0)),)
    assert (admitted.tokens, admitted.broken) == (4, 0)


def test_a_template_that_drops_thinking_breaks_a_rollout_into_rows():
    turns = segment([10, 11], [20, 21, 22, 30, 31]), segment([10, 11, 30, 31, 12], [20, 23, 22, 32, 31])
    admitted = admit([rollout_of(*turns), rollout_of(segment([1], [2]), key="weight:e1:0")])
    assert [r.labels for r in admitted.rows] == [
        (_, _, 20, 21, 22, 30, 31),
        (_, _, _, _, _, 20, 23, 22, 32, 31),
        (_, 2),
    ]
    assert (admitted.broken, admitted.accepted, admitted.tokens) == (1, 2, 11)


def test_only_verified_rollouts_that_were_not_cut_off_are_admitted():
    one = segment([1], [2])
    admitted = admit(
        [
            rollout_of(one, key="weight:a:0"),
            rollout_of(one, key="weight:a:1"),
            rollout_of(one, key="weight:a:2", reward=0.5),
            rollout_of(one, key="weight:b:0", reward=0.0),
            rollout_of(one, key="weight:c:0", truncated=True),
        ]
    )
    assert (admitted.rollouts, admitted.accepted, admitted.cut_off, admitted.examples) == (5, 2, 1, 1)
    assert len(admitted.rows) == 2


def test_seconds_in_the_environment_are_those_of_all_rollouts():
    some = [rollout_of(key=f"weight:a:{n}", reward=n % 2) for n in range(4)]
    rollouts = [msgspec.structs.replace(one, env_seconds=2.0**n) for n, one in enumerate(some)]
    assert admit(rollouts).env_seconds == 15.0


@pytest.mark.parametrize("bad", [segment([1], None), segment(None, [2])])
def test_a_rollout_without_ids_is_refused_even_where_it_failed(bad):
    with pytest.raises(UsageError, match=r"rollout weight:e0:0 has a segment without token ids.*--tokenizer"):
        admit([rollout_of(bad, reward=0.0)])


def test_nothing_sampled_or_nothing_accepted_is_no_failure():
    assert admit([]).rows == ()
    assert admit([rollout_of(reward=0.0)]).rows == ()  # the harness failed before it asked


def test_the_order_in_which_rollouts_finish_changes_nothing():
    rollouts = [rollout_of(segment([1], [i]), key=f"weight:e:{i}") for i in range(9)]
    assert admit(rollouts) == admit(rollouts[::-1])


@given(count=st.integers(0, 200), size=st.integers(1, 64), step=st.integers(0, 3))
def test_minibatches_hold_every_row_once_and_count_its_tokens(count, size, step):
    rows = [Row((0, i), (_, i)) for i in range(count)]
    found = minibatches(rows, size, seed=1, step=step)
    assert sorted(r.ids for m in found for r in m.rows) == [r.ids for r in rows]
    assert [len(m.rows) for m in found[:-1]] == [size] * max(0, len(found) - 1)
    assert all(m.tokens == len(m.rows) for m in found)
    assert found == minibatches(rows, size, seed=1, step=step)


def test_rows_are_shuffled_anew_for_every_step_and_epoch():
    rows = [Row((0, i), (_, i)) for i in range(40)]
    orders = {minibatches(rows, 64, seed=1, step=s, epoch=e)[0].rows for s, e in ((0, 0), (1, 0), (0, 1))}
    assert len(orders) == 3


def test_a_minibatch_without_a_trained_token_is_left_out():
    assert minibatches([Row((5,), (5,)), Row((5, 6), (_, _))], 64, seed=0, step=0) == []


@given(lengths=st.lists(st.integers(1, 3000), min_size=1, max_size=80), budget=st.integers(1, 9000))
def test_micro_batches_fit_the_budget_with_less_than_5_percent_padding(lengths, budget):
    rows = [Row((0,) * n, (_,) * n) for n in lengths]
    groups = micro_batches(rows, budget)
    assert sorted(len(r.ids) for g in groups for r in g) == sorted(lengths)
    assert padding_share(groups) < 0.05
    for group in groups:
        longest = max(len(r.ids) for r in group)
        assert padding_share([group]) < 0.05
        assert len(group) == 1 or len(group) * longest <= budget


def test_rows_of_one_length_fill_the_budget():
    assert [len(g) for g in micro_batches([row(10)] * 10, 40)] == [4, 4, 2]


@given(count=st.integers(1, 20), processes=st.integers(1, 6))
def test_processes_get_equally_many_micro_batches_and_every_token_once(count, processes):
    groups = [(row(3, 2),)] * count
    shares = [share(groups, process, processes) for process in range(processes)]
    assert len({len(part) for part in shares}) == 1
    assert sum(r.tokens for part in shares for g in part for r in g) == 2 * count
