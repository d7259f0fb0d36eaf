"""Training sequences: exactly the sampled tokens are trained on, and merging changes none of them."""

import msgspec
import pytest
from bench_fakes import record
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_bench import Generation, Request, training_sequences
from whale_bench.records import Rollout, Segment, TrainingSequence
from whale_bench.replies import segment_of

Ids = tuple[int, ...]


def sequences(*segments: tuple[Ids | None, Ids | None]) -> list[TrainingSequence]:
    parts = tuple(Segment((), "", prompt_ids=prompt, sampled_ids=sampled) for prompt, sampled in segments)
    return training_sequences(record(segments=parts))


def trained(sequence: TrainingSequence) -> Ids:
    return tuple(i for i, on in zip(sequence.ids, sequence.mask, strict=True) if on)


def test_o22_the_row_holds_the_ids_that_were_sampled() -> None:
    [row] = sequences(((7,), (1, 2)), ((7, 1, 2, 9), (3,)))
    assert row.ids == (7, 1, 2, 9, 3)
    assert trained(row) == (1, 2, 3)


def test_o23_a_template_that_drops_earlier_thinking_gives_two_rows() -> None:
    first, second = sequences(((10, 11), (20, 21, 22, 30, 31)), ((10, 11, 30, 31, 12), (20, 23, 22, 32, 31)))
    assert trained(first) == (20, 21, 22, 30, 31)
    assert trained(second) == (20, 23, 22, 32, 31)
    assert (first.ids[:2], second.ids[:5]) == ((10, 11), (10, 11, 30, 31, 12))


def test_o23_where_the_prompt_extends_the_row_there_is_one() -> None:
    [row] = sequences(((10, 11), (20, 31)), ((10, 11, 20, 31, 12), (23, 31)))
    assert trained(row) == (20, 31, 23, 31)


def test_o24_observations_are_out_and_the_sampled_end_is_in() -> None:
    [row] = sequences(((7,), (5, 6)), ((7, 5, 6, 8, 8, 8), (9, 0)))
    assert row.ids == (7, 5, 6, 8, 8, 8, 9, 0)
    assert trained(row) == (5, 6, 9, 0)


def test_a_prompt_that_repeats_the_row_exactly_goes_on_with_it() -> None:
    [row] = sequences(((7,), (5,)), ((7, 5), (6,)))
    assert trained(row) == (5, 6)


def test_a_rewritten_context_begins_anew_and_may_be_extended_in_turn() -> None:
    rows = sequences(((1,), (2,)), ((9,), (3,)), ((9, 3, 4), (5,)), ((1, 2, 8), (6,)))
    assert [trained(row) for row in rows] == [(2,), (3, 5), (6,)]


def test_an_empty_reply_trains_nothing() -> None:
    [row] = sequences(((1,), ()))
    assert row == TrainingSequence((1,), (False,))


@pytest.mark.parametrize("bad", [(None, (1,)), ((1,), None), (None, None)])
def test_o22_a_segment_without_token_ids_refuses_to_train(bad: tuple[Ids | None, Ids | None]) -> None:
    with pytest.raises(ValueError, match="test:a:0 has a segment without token ids"):
        sequences(((1,), (2,)), bad)


def test_a_rollout_that_never_asked_the_model_has_no_rows() -> None:
    assert sequences() == []


IDS = st.lists(st.integers(0, 3), max_size=4).map(tuple)


@given(st.lists(st.tuples(st.booleans(), IDS, IDS), max_size=6))
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
def test_merging_keeps_every_token_and_masks_every_sampled_one(turns: list[tuple[bool, Ids, Ids]]) -> None:
    segments: list[tuple[Ids, Ids]] = []
    context: Ids = ()
    for extends, rest, sampled in turns:
        prompt = context + rest if extends else rest
        segments.append((prompt, sampled))
        context = prompt + sampled
    rows = sequences(*segments)
    assert all(len(row.ids) == len(row.mask) for row in rows)
    assert sum((trained(row) for row in rows), ()) == sum((s for _, s in segments), ())
    assert len(rows) <= len(segments)
    for prompt, sampled in segments:  # each turn's whole context stands at the beginning of some row
        assert any(row.ids[: len(prompt + sampled)] == prompt + sampled for row in rows)


@given(st.lists(st.floats() | st.integers() | st.just(10**400) | st.booleans() | st.none(), max_size=4))
def test_whatever_logprobs_a_backend_gives_the_line_can_be_read_again(values: list[float]) -> None:
    segment = segment_of(Request(()), Generation("a", logprobs=tuple(values)))
    kept = record(segments=(segment,))
    assert msgspec.json.decode(msgspec.json.encode(kept), type=Rollout) == kept
    if all(type(value) is float and abs(value) < 1e300 for value in values):
        assert segment.logprobs == tuple(values)
