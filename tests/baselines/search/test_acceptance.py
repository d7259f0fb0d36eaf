"""The rules as pure functions: what they accept, when they want more, how often they are wrong."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from whale_baselines.search.acceptance import (
    PairedRule,
    PaperRule,
    Tried,
    bet_above,
    rule_of,
    sign_flip_above,
)
from whale_baselines.search.recipe import SearchRecipe

from whale_envs.errors import UsageError


def tried(name, *rows, turns=1.0):
    return Tried(name, [[bool(x) for x in row] for row in rows], turns)


def test_the_paper_rule_takes_the_highest_mean_then_fewer_turns_then_the_older():
    incumbent = tried("a", [1, 1, 0, 0], turns=3.0)
    worse, same, quicker = (
        tried("b", [1, 0, 0, 0]),
        tried("c", [0, 0, 1, 1], turns=3.0),
        tried("d", [0, 1, 1, 0], turns=2.0),
    )
    rule = PaperRule()
    assert rule.rule(incumbent, [worse, same], before=0).accepted == "a"
    assert rule.rule(incumbent, [worse, same, quicker], before=0).accepted == "d"
    best = [tried("e", [1, 1, 1, 0], turns=9.0), tried("f", [0, 1, 1, 1], turns=9.0)]
    assert rule.rule(incumbent, [quicker, *best], before=0).accepted == "e"
    assert rule.rule(incumbent, [], before=0).accepted == "a"


def test_a_rule_asks_for_what_is_not_there_and_refuses_other_examples():
    ruling = PaperRule().rule(tried("a"), [tried("b", [1])], before=0)
    assert (ruling.accepted, ruling.wanted) == ("a", {"a": 1})
    for rule in (PaperRule(), PairedRule()):
        with pytest.raises(UsageError, match="same examples"):
            rule.rule(tried("a", [1, 0]), [tried("b", [1])], before=0)


@given(st.lists(st.integers(-4, 4), max_size=9))
def test_the_p_value_counts_all_signings(differences):
    observed = sum(differences)
    sums = [
        sum(sign * abs(d) for sign, d in zip(signs, differences, strict=True))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    assert sign_flip_above(differences) == pytest.approx(sum(s >= observed for s in sums) / len(sums))


def test_the_p_value_of_one_sample_is_the_binomial_tail():
    expected = sum(math.comb(40, k) for k in range(27, 41)) / 2**40
    assert sign_flip_above([1] * 27 + [-1] * 13 + [0] * 216) == pytest.approx(expected)


def play(rule, incumbent, challengers, before=0):
    """Draws what the rule wants until it is decided; (accepted, samples by name)."""
    everyone = {one.name: one for one in (incumbent, *challengers)}
    for one in everyone.values():
        one.grow(1)
    while True:
        ruling = rule.rule(incumbent.tried, [one.tried for one in challengers], before=before)
        if not ruling.wanted:
            return ruling.accepted, {name: len(one.rows) for name, one in everyone.items()}
        for name, count in ruling.wanted.items():
            assert len(everyone[name].rows) < count
            everyone[name].grow(count)


class Drawn:
    def __init__(self, name, chance, random, examples=64):
        self.name, self.chance, self.random, self.examples = name, chance, random, examples
        self.rows = []

    def grow(self, count):
        while len(self.rows) < count:
            self.rows.append((self.random.random(self.examples) < self.chance).tolist())

    @property
    def tried(self):
        return Tried(self.name, self.rows, 1.0)


def test_the_paired_rule_keeps_its_promise_and_still_finds_what_is_better():
    random = np.random.default_rng(0)
    rule = PairedRule(false_accept=0.1, most_samples=4, planned=3)
    false = found = 0
    for _ in range(150):
        equal = [Drawn(name, 0.4, random) for name in "abc"]
        accepted, samples = play(rule, Drawn("x", 0.4, random), equal)
        false += accepted != "x"
        assert samples["x"] == max(samples.values())
        accepted, _ = play(rule, Drawn("x", 0.4, random), [*equal[:2], Drawn("z", 0.7, random)])
        found += accepted == "z"
    assert false <= 22  # 15 at most are expected; more than 22 have a chance below 4%
    assert found >= 140


def test_all_that_a_phase_may_spend_is_the_promise():
    rule = PairedRule(false_accept=0.05, most_samples=8, planned=4)
    spent = sum(rule._spend(rule._share(n), s) for n in range(400) for s in (1, 2, 4, 8))
    assert 0.0499 < spent <= 0.05


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=5),
    st.floats(0.01, 0.9),
)
def test_a_bet_on_more_than_the_margin_gains_nothing_where_it_is_the_margin(examples, margin):
    """Over all outcomes, for any chances of +1, 0 and -1 whose mean is the margin at most."""
    chances = [(up, (1 - up) * down) for up, down in examples]
    excess = sum(up - down for up, down in chances) / len(chances) - margin
    if excess > 0:  # take from the chances of +1 what is too much
        factor = max(0.0, 1 - excess * len(chances) / sum(up for up, _ in chances))
        chances = [(up * factor, down) for up, down in chances]
    outcomes = [
        (math.prod((1 - up - down, up, down)[d] for d, (up, down) in zip(found, chances, strict=True)), found)
        for found in itertools.product((0, 1, -1), repeat=len(chances))
    ]
    values = [(chance, bet_above(found, 1, margin)) for chance, found in outcomes]
    for level in {p for _, p in values if p < 1}:
        assert sum(chance for chance, p in values if p <= level) <= level * (1 + 1e-9)


def test_with_a_margin_what_is_better_by_the_margin_is_hardly_ever_accepted_and_what_is_more_is():
    random = np.random.default_rng(1)
    rule = PairedRule(false_accept=0.1, margin=0.1, most_samples=4, planned=3)
    false = found = 0
    for _ in range(100):
        by_margin = [Drawn(name, 0.5, random) for name in "abc"]
        false += play(rule, Drawn("x", 0.4, random), by_margin)[0] != "x"
        found += play(rule, Drawn("x", 0.4, random), [*by_margin[:2], Drawn("z", 0.85, random)])[0] == "z"
    assert false <= 16  # 10 at most are expected; more than 16 have a chance below 3%
    assert found >= 90


def test_what_is_not_promising_is_not_sampled_again():
    incumbent = tried("a", [1, 0] * 16)
    worse, hopeful = tried("b", [0] * 32), tried("c", [1, 0] * 13 + [1] * 6)
    ruling = PairedRule().rule(incumbent, [worse, hopeful], before=0)
    assert ruling.wanted == {"a": 2, "c": 2}
    assert "not promising" in ruling.notes["b"]


def test_the_recipe_names_the_rule():
    assert isinstance(rule_of(SearchRecipe()), PaperRule)
    paired = rule_of(SearchRecipe(rule="paired", margin=0.02, planned=7))
    assert paired == PairedRule(0.05, 0.02, 8, 7)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"slots": 0}, "slots of a search must be at least 1, got 0"),
        ({"rule": "best"}, "rule of a search cannot be 'best'"),
        ({"most_samples": 6}, "a power of two, got 6"),
        ({"false_accept": 0.7}, "false_accept between 0 and 0.5"),
        ({"smoke": -1}, "smoke of a search must be at least 0, got -1"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        SearchRecipe(**settings)
