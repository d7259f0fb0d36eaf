"""The simulated learner: a fixture, honest in its mechanism, that shows the paper's qualitative findings."""

import tomllib
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import whale_baselines.simulated
from hypothesis import given
from hypothesis import strategies as st
from runs import recipe_in, run
from whale_baselines.curves import outcome_of
from whale_baselines.history import History, harness_of
from whale_baselines.recipes import load_recipe
from whale_baselines.simulated.operators import read_source, source_of
from whale_baselines.simulated.study import study
from whale_baselines.simulated.world import Harness, World, propose, score, train, truth

from whale_envs.errors import DataError, UsageError

SEEDS = range(8)
FIXED = ("whale_e0.2_i2", "whale_e0.2_i6", "whale_e0.6_i2", "whale", "whale_e1.0_i10")


@cache
def selected(name):
    """Scores on test of each seed's agent that dev selects."""
    return [study(load_recipe(f"simulated/{name}"), seed).selected_on_dev for seed in SEEDS]


def beats(a, b):
    """Whether a's mean over the seeds is above b's by two standard errors of the paired difference."""
    differences = np.subtract(selected(a), selected(b))
    return differences.mean() > 2 * differences.std(ddof=1) / len(differences) ** 0.5


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("half", ["weight_only", "harness_only"])
def test_both_together_beat_either_half(name, half):
    assert beats(name, half)


def test_stagewise_commits_to_the_first_harness_and_stays_below():
    assert beats("stagewise", "weight_only")
    assert all(
        beats(name, "stagewise") for name in ("whale_e0.2_i6", "whale", "whale_e1.0_i10", "adaptive_whale")
    )


def test_sixteen_times_the_first_stage_buys_stagewise_next_to_nothing():
    """Why: the skills settle at what h0 opens, those of closed mechanisms fade, and no training follows."""
    recipe = load_recipe("simulated/stagewise")
    short = replace(recipe, schedule=replace(recipe.schedule, total_epochs=0.25))
    assert fmean(selected("stagewise")) - fmean(study(short, seed).selected_on_dev for seed in SEEDS) < 0.05
    skills = {"closed": ([], []), "open": ([], [])}
    for seed in SEEDS:
        world, rng = World.draw(seed), np.random.default_rng(seed)
        weights = world.weights
        for _ in range(80):
            weights, _ = train(world, weights, world.harness, rng, prompts=256, samples=8)
        for mechanism, before, after in zip(
            world.harness.mechanisms, world.weights.skills, weights.skills, strict=True
        ):
            if not 0.05 < mechanism < 0.5:
                kind = "closed" if mechanism <= 0.05 else "open"
                skills[kind][0].append(before)
                skills[kind][1].append(after)
    assert fmean(skills["closed"][1]) < 0.7 * fmean(skills["closed"][0])
    assert fmean(skills["open"][1]) > 0.9


def test_short_search_phases_adopt_lucky_candidates_and_cost_score():
    assert beats("whale_e0.2_i6", "whale_e0.2_i2")
    assert beats("whale", "whale_e0.6_i2")
    shares = {iterations: lucky_share(iterations) for iterations in (2, 6, 10)}
    assert shares[2] > 1.5 * shares[6] > 1.5 * shares[10]


def lucky_share(iterations, phases=12):
    """Of the harnesses that phases of one length adopt from one state, the share that is truly worse."""
    lucky = adopted = 0
    for seed in SEEDS:
        world = World.draw(seed)
        weights, rng = world.weights, np.random.default_rng(seed)
        for _ in range(15):
            weights, _ = train(world, weights, world.harness, rng, prompts=256, samples=8)
        for phase in range(phases):
            rng = np.random.default_rng([seed, phase, iterations])
            harness = world.harness
            top = score(world, weights, harness, rng, split="harness", samples=1).mean()
            for _ in range(iterations - 1):
                for candidate in [propose(harness, rng) for _ in range(3)]:
                    found = score(world, weights, candidate, rng, split="harness", samples=1).mean()
                    if found > top:
                        harness, top = candidate, found
            if harness is not world.harness:
                adopted += 1
                lucky += truth(world, weights, harness) < truth(world, weights, world.harness)
    return lucky / adopted


def test_adaptive_lands_near_the_best_fixed_schedule():
    """It has most of the gain of the best fixed one, which nobody knows beforehand, and beats their mean."""
    base = fmean(truth(w, w.weights, w.harness) for w in map(World.draw, SEEDS))
    found, fixed = fmean(selected("adaptive_whale")), {name: fmean(selected(name)) for name in FIXED}
    assert found - base > 0.8 * (max(fixed.values()) - base)
    assert found > fmean(fixed.values())
    assert sum(value > found for value in fixed.values()) <= 2


def test_adaptive_phases_lengthen_and_stop():
    lengths = {"train": set(), "search": set()}
    for seed in range(4):
        entries = study(load_recipe("simulated/adaptive_whale"), seed).entries
        for entry, following in pairwise(entries):
            if following.number == 1:
                lengths[entry.kind].add(entry.number)
    assert min(lengths["train"]) >= 16 < max(lengths["train"]) < 296
    assert min(lengths["search"]) == 6 < max(lengths["search"]) <= 16


def test_no_schedule_is_named_where_the_learner_is():
    folder = Path(whale_baselines.simulated.__file__).parent
    for name in ("world.py", "operators.py", "study.py"):
        code = (folder / name).read_text()
        for word in ("stagewise", "adaptive", "weight_only", "harness_only", "schedule.kind", "fst"):
            assert word not in code.lower(), f"{name} knows {word}"


def test_the_study_makes_the_moves_and_has_the_scores_of_a_real_run(tmp_path):
    recipe = recipe_in(tmp_path)
    run(recipe, tmp_path / "run")
    history = History(tmp_path / "run", readonly=True)
    found = study(recipe, recipe.recipe.seed)
    assert [(m.kind, m.cycle, m.number, m.signal, m.rollouts) for m in history.moves] == [
        (e.kind, e.cycle, e.number, e.signal, e.rollouts) for e in found.entries
    ]
    outcome = outcome_of(history)
    assert found.dev == outcome.selected.score.mean
    assert found.selected_on_dev == outcome.selected_on_dev.mean
    assert found.best_on_test == outcome.best_on_test.mean


def test_a_run_is_marked_as_a_fixture_wherever_a_reader_looks(tmp_path):
    run(recipe_in(tmp_path), tmp_path / "run")
    settings = tomllib.loads((tmp_path / "run" / "run.toml").read_text())
    assert (settings["fixture"], settings["domain"]) == (True, "simulated")
    assert '"fixture": true' in (tmp_path / "run" / "summary.json").read_text()
    history = History(tmp_path / "run", readonly=True)
    assert all(record.weights_id.startswith("simulated:") for record in (*history.moves, *history.points))
    for path in (tmp_path / "run" / "harnesses").iterdir():
        assert "no agent runs it" in path.read_text()


def test_real_recipes_do_not_get_simulated_operators(tmp_path):
    with pytest.raises(UsageError, match="demo/math_python/whale is no simulated recipe"):
        run(load_recipe("demo/math_python/whale"), tmp_path / "run")


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0, 50))
def test_a_simulated_harness_survives_its_file(mechanisms, defects):
    harness = Harness(tuple(mechanisms), defects)
    assert read_source(harness_of(source_of(harness))) == harness


@pytest.mark.parametrize("source", ["", "MECHANISMS = (0.1,)", "MECHANISMS = print\nDEFECTS = 0.0", "def"])
def test_what_is_no_simulated_harness_is_refused(source):
    with pytest.raises(DataError, match="is no simulated harness"):
        read_source(harness_of(source))


@given(st.integers(0, 2**32))
def test_the_learner_stays_within_its_bounds(seed):
    world, rng = World.draw(seed), np.random.default_rng(seed)
    weights, harness = world.weights, world.harness
    for _ in range(20):
        harness = propose(harness, rng)
        weights, reward = train(world, weights, harness, rng, prompts=16, samples=4)
        assert 0 <= reward <= 1
        assert 0 <= weights.general <= 1
        assert all(0 <= skill <= 1 for skill in weights.skills)
        assert all(0 <= mechanism <= 1 for mechanism in harness.mechanisms)
        assert harness.defects >= 0


def test_nothing_is_learned_where_nothing_is_accepted():
    world = World.draw(0)
    hopeless = Harness(world.harness.mechanisms, defects=60.0)
    weights, reward = train(world, world.weights, hopeless, np.random.default_rng(0), prompts=64, samples=8)
    assert (weights, reward) == (world.weights, 0.0)
