"""Schedules: the published arithmetic, the adaptive rules, and what holds for every schedule."""

from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from whale_baselines.schedule import (
    Budget,
    Entry,
    Length,
    Patience,
    Schedule,
    adaptive,
    current_phase,
    fixed,
    harness_only,
    signals_of,
    stagewise,
    steps_of,
    steps_per_epoch,
    weight_only,
)

from whale_envs.errors import UsageError

MOST_MOVES = 2_000


def play(schedule, signal=lambda move, number: 0.5, costs=None):
    """The history of a run whose signals are `signal(move, moves so far)`."""
    history = []
    while (move := schedule.next(tuple(history))) is not None:
        rollouts = 0 if costs is None else costs(move)
        history.append(Entry(**move._asdict(), signal=signal(move, len(history)), rollouts=rollouts))
        assert len(history) <= MOST_MOVES
    return history


def phases(history):
    grouped = groupby(history, key=lambda entry: (entry.kind, entry.cycle))
    return [(kind, cycle, len(list(entries))) for (kind, cycle), entries in grouped]


PUBLISHED = {  # examples, steps per epoch, epochs in all, steps of 0.6 and 0.2 epochs, cycles of (0.6, 6)
    "search_qa": (18_946, 74, 4, 44, 15, 7),
    "math_python": (17_920, 70, 6, 42, 14, 10),
    "chess_puzzles": (16_384, 64, 4, 38, 13, 7),
}


@pytest.mark.parametrize("domain", PUBLISHED)
def test_steps_cycles_and_searches_are_the_published_ones(domain):
    examples, per_epoch, epochs, main, short, cycles = PUBLISHED[domain]
    assert steps_per_epoch(examples, 256) == per_epoch
    assert (steps_of(0.6, per_epoch), steps_of(0.2, per_epoch)) == (main, short)
    total = steps_of(epochs, per_epoch)
    found = phases(play(fixed(steps=main, iterations=6, total_steps=total)))
    assert [kind for kind, _, _ in found] == ["train", "search"] * (cycles - 1) + ["train"]
    assert found[-1] == ("train", cycles, total - main * (cycles - 1))
    assert {moves for kind, _, moves in found if kind == "search"} == {6}


def test_a_partial_batch_is_no_step_so_17917_problems_are_69_and_published_as_70():
    assert steps_per_epoch(17_917, 256) == 69
    with pytest.raises(UsageError, match="255 examples do not make a batch of 256"):
        steps_per_epoch(255, 256)


def test_the_helper_of_the_release_rounds_up_and_would_have_other_steps_than_its_launchers():
    assert [steps_of(0.6, per_epoch, "ceil") for per_epoch in (74, 70, 64)] == [45, 42, 39]
    assert steps_of(0.1, 70, "ceil") == 7  # seven exactly, though 0.1 * 70 is not in floats
    with pytest.raises(UsageError, match="nearest or ceil, got 'floor'"):
        steps_of(0.6, 74, "floor")


def test_the_methods_of_the_paper_are_phases_of_these_lengths():
    assert phases(play(weight_only(total_steps=296))) == [("train", 1, 296)]
    assert phases(play(harness_only(iterations=40))) == [("search", 1, 40)]
    assert phases(play(stagewise(total_steps=296, iterations=40))) == [("train", 1, 296), ("search", 1, 40)]
    after = fixed(steps=44, iterations=6, total_steps=60, search_after_last=True)
    assert phases(play(after)) == [("train", 1, 44), ("search", 1, 6), ("train", 2, 16), ("search", 2, 6)]
    harness_first = Schedule(train=Length(2), search=Length(3), total_steps=4, first="search")
    assert phases(play(harness_first)) == [
        ("search", 1, 3),
        ("train", 1, 2),
        ("search", 2, 3),
        ("train", 2, 2),
    ]


PAPER = adaptive(
    train=Patience(least=16, patience=15, window=15),
    search=Patience(least=6, patience=2, most=16),
    total_steps=296,
)


def test_a_weight_phase_lengthens_while_its_signal_improves_and_up_to_its_cap():
    rising = play(PAPER, lambda move, number: number / 1000)
    assert phases(rising)[0] == ("train", 1, 296)
    capped = adaptive(
        train=Patience(least=16, patience=15, window=15, most=40), search=PAPER.search, total_steps=296
    )
    assert phases(play(capped, lambda move, number: number / 1000))[0] == ("train", 1, 40)


def test_a_weight_phase_stops_at_the_first_step_past_burn_in_and_patience():
    assert phases(play(PAPER))[0] == ("train", 1, 16)  # the first step set the best
    # Better up to step 20 and level afterwards: the sliding mean still rises until it has left the slope.
    levelling = play(PAPER, lambda move, number: min(number, 19) / 100 if move.kind == "train" else 0.5)
    assert phases(levelling)[0] == ("train", 1, 34 + 15)


def test_a_search_phase_lengthens_up_to_its_cap_and_stops_without_progress():
    rising = play(PAPER, lambda move, number: number / 10_000 if move.kind == "search" else 0.5)
    assert phases(rising)[1] == ("search", 1, 16)
    assert phases(play(PAPER))[1] == ("search", 1, 6)
    late = play(PAPER, lambda move, number: 0.9 if move.kind == "search" and move.number >= 6 else 0.5)
    assert phases(late)[1] == ("search", 1, 8)  # better at 6, then two without progress


def test_a_perfect_score_ends_a_search_phase_before_its_least_length():
    search = Patience(least=6, patience=2, most=16, perfect=1.0)
    chess = adaptive(train=PAPER.train, search=search, total_steps=256)
    assert phases(play(chess, lambda move, number: 1.0))[1] == ("search", 1, 1)


def test_an_equal_signal_is_progress_only_where_strict_is_off():
    lenient = Patience(least=2, patience=2, most=9, strict=False)
    assert not lenient.over([0.5] * 8)
    assert Patience(least=2, patience=2, most=9).over([0.5] * 3)
    assert lenient.left([0.5] * 3) == 2


def test_patience_left_is_what_it_takes_to_end_without_progress():
    rule = Patience(least=6, patience=2, most=16)
    assert [rule.left([0.5] * n) for n in range(1, 7)] == [5, 4, 3, 2, 1, 0]
    assert rule.left([0.1 * n for n in range(1, 8)]) == 2
    assert rule.left([0.01 * n for n in range(1, 16)]) == 1  # the cap is nearer


@pytest.mark.parametrize(
    ("rollouts", "second", "spent"),
    [
        (950, [("train", 2, 2), ("search", 2, 2)], 950),
        (1_000, [("train", 2, 2), ("search", 2, 2)], 950),  # nothing fits into 50
        (1_099, [("train", 2, 2), ("search", 2, 2), ("train", 3, 1)], 1_050),
        (949, [("train", 2, 3)], 850),  # no proposal could be scored: training goes on
        (700, [("train", 2, 1)], 650),
    ],
)
def test_what_a_budget_leaves_goes_to_training(rollouts, second, spent):
    budget = Budget(rollouts=rollouts, step=100, incoming=50, iteration=150)
    schedule = Schedule(train=Length(2), search=Length(3), total_steps=100, budget=budget)
    costs = {"train": lambda move: 100, "search": lambda move: 50 if move.number == 1 else 150}
    history = play(schedule, costs=lambda move: costs[move.kind](move))
    assert phases(history) == [("train", 1, 2), ("search", 1, 3), *second]
    assert sum(entry.rollouts for entry in history) == spent


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Length(0), "length of a phase must be at least 1, got 0"),
        (lambda: Patience(least=3, patience=1, most=2), "at least 3 moves cannot have at most 2"),
        (lambda: Patience(least=1, patience=0), "patience of a phase must be at least 1"),
        (lambda: Schedule(train=None, search=None, total_steps=0), "does neither"),
        (lambda: Schedule(train=Length(1), search=None, total_steps=0), "0 steps in all do not go with"),
        (lambda: Schedule(train=Length(1), search=None, total_steps=1, first="test"), "got 'test'"),
        (lambda: steps_of(0.0, 74), "more than 0, got 0.0"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(UsageError, match=message):
        make()


patience = st.builds(
    lambda least, patience, window, more, strict: Patience(
        least=least,
        patience=patience,
        window=window,
        most=None if more is None else least + more,
        strict=strict,
    ),
    st.integers(1, 6),
    st.integers(1, 5),
    st.integers(1, 4),
    st.none() | st.integers(0, 6),
    st.booleans(),
)
capped = patience.filter(lambda rule: rule.most is not None)
rules = st.builds(Length, st.integers(1, 7))
schedules = st.one_of(
    st.builds(
        Schedule,
        train=rules | patience,
        search=st.none() | rules | capped,
        total_steps=st.integers(1, 30),
        first=st.sampled_from(["train", "search"]),
        search_after_last=st.booleans(),
        budget=st.none() | st.builds(Budget, st.integers(0, 300), st.just(8), st.just(5), st.just(15)),
    ),
    st.builds(harness_only, iterations=st.integers(1, 9)),
)
signals = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=1, max_size=60)


@given(schedules, signals)
def test_no_schedule_exceeds_its_caps_and_every_one_ends(schedule, drawn):
    budget = schedule.budget or Budget(0, 8, 5, 15)
    history = play(
        schedule,
        lambda move, number: drawn[number % len(drawn)],
        lambda move: (
            budget.step if move.kind == "train" else budget.incoming if move.number == 1 else budget.iteration
        ),
    )
    assert sum(entry.kind == "train" for entry in history) <= schedule.total_steps
    if schedule.budget is not None:
        assert sum(entry.rollouts for entry in history) <= schedule.budget.rollouts
    else:
        assert sum(entry.kind == "train" for entry in history) == schedule.total_steps
    found = phases(history)
    for number, (kind, _, moves) in enumerate(found, 1):
        rule = schedule.rule(kind)
        most = rule.moves if isinstance(rule, Length) else rule.most
        takes_the_rest = kind == "train" and schedule.budget is not None and number == len(found)
        assert most is None or moves <= most or takes_the_rest
    if schedule.search is not None:
        assert all(one[0] != other[0] for one, other in pairwise(found))
    cycles = [entry.cycle for entry in history]
    assert cycles == sorted(cycles)
    assert not history or (cycles[0] == 1 and set(cycles) == set(range(1, cycles[-1] + 1)))
    assert len({(entry.kind, entry.cycle, entry.number) for entry in history}) == len(history)


@given(schedules, signals)
def test_a_schedule_is_pure_and_goes_on_from_any_prefix(schedule, drawn):
    history = play(schedule, lambda move, number: drawn[number % len(drawn)], lambda move: 3)
    for length in range(len(history)):
        prefix = tuple(history[:length])
        entry = history[length]
        assert schedule.next(prefix) == schedule.next(list(prefix)) == (entry.kind, entry.cycle, entry.number)
    assert schedule.next(history) is None


@given(capped | patience, signals)
def test_a_phase_ends_when_nothing_is_left_of_it_and_not_before(rule, drawn):
    for count in range(1, len(drawn) + 1):
        assert rule.over(drawn[:count]) == (rule.left(drawn[:count]) == 0)
        if rule.over(drawn[:count]):
            break


@given(schedules, signals)
def test_the_current_phase_is_the_run_of_moves_of_one_kind_and_cycle(schedule, drawn):
    history = play(schedule, lambda move, number: drawn[number % len(drawn)], lambda move: 3)
    if not history:
        assert list(current_phase(history)) == []
        return
    last = history[-1]
    expected = [entry for entry in history if (entry.kind, entry.cycle) == (last.kind, last.cycle)]
    assert list(current_phase(history)) == expected
    assert len(signals_of(current_phase(history))) == last.number
