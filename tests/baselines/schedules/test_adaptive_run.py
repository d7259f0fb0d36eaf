"""A whole adaptive run: either phase lengthens while its own signal improves, up to its cap, and stops."""

from itertools import groupby

import pytest
from runs import recipe_in, run
from whale_baselines.history import History

RECIPE = """
base = "simulated/base"
[recipe]
prompts = 64
samples = 8
seed = 3
[schedule]
kind = "adaptive"
steps_per_epoch = 100
total_epochs = 0.4
window_epochs = 0.03
burn_in_epochs = 0.03
patience_epochs = 0.03
most_epochs = 0.12
least_iterations = 3
patience_iterations = 2
most_iterations = 5
[dev]
every_steps = 0
samples = 1
test = "none"
"""
#         least, cap, patience, window: burn-in of 3 steps and one past it; iterations as the recipe has them
RULES = {"train": (4, 12, 3, 3), "search": (3, 5, 2, 1)}
STEPS = 40


@pytest.fixture(scope="module")
def phases(tmp_path_factory):
    """(kind, signals) of each phase of a run through the loop, as its folder has them."""
    place = tmp_path_factory.mktemp("adaptive")
    recipe = recipe_in(place, RECIPE)
    run(recipe.with_seed(recipe.recipe.seed), place / "run")
    moves = History(place / "run", readonly=True).moves
    grouped = groupby(moves, key=lambda made: (made.kind, made.cycle))
    return [(kind, [made.signal for made in some]) for (kind, _), some in grouped]


def without_progress(signals, window):
    """Moves since the sliding mean was last better than ever before."""
    recent = [signals[max(0, n - window) : n] for n in range(1, len(signals) + 1)]
    means = [sum(part) / len(part) for part in recent]
    records = [n for n in range(len(signals)) if all(means[n] > before for before in means[:n])]
    return len(signals) - 1 - records[-1]


def ended(kind, signals):
    """Why a phase is over with these signals; None where it is not."""
    least, cap, patience, window = RULES[kind]
    if len(signals) >= least and without_progress(signals, window) >= patience:
        return "no progress"
    return "cap" if len(signals) == cap else None


def test_each_phase_goes_on_until_its_own_signal_says_so_and_no_longer(phases):
    assert sum(len(signals) for kind, signals in phases if kind == "train") == STEPS
    assert phases[-1][0] == "train"  # which the total ends
    for kind, signals in phases[:-1]:
        assert ended(kind, signals)
        assert not any(ended(kind, signals[:n]) for n in range(1, len(signals)))


@pytest.mark.parametrize("kind", RULES)
def test_some_phases_lengthen_up_to_the_cap_and_others_stop_for_want_of_progress(phases, kind):
    whole = [signals for of, signals in phases[:-1] if of == kind]
    assert {ended(kind, signals) for signals in whole} == {"cap", "no progress"}
    least, cap, _, _ = RULES[kind]
    assert least in map(len, whole)
    assert cap in map(len, whole)
