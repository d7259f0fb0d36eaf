"""The commands about recipes, as somebody types them."""

import json
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import SMALL, run
from typer.testing import CliRunner
from whale_baselines.cli import app
from whale_baselines.comparing import compare_runs, over_seeds, run_folders
from whale_baselines.recipe_files import recipe_names
from whale_baselines.recipes import load_recipe
from whale_baselines.status import status_of

from whale_bench.statistics import Score, score_of
from whale_envs.errors import UsageError

pytestmark = pytest.mark.usefixtures("wide")


@pytest.fixture
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def call(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def test_list_names_every_recipe():
    listed = call("list")
    assert all(name in listed for name in recipe_names())


def test_plan_tells_both_countings_as_a_table_and_as_json():
    table = call("plan", "paper/search_qa/whale")
    for number in ("27,648", "24,576", "606,208", "633,856", "630,784"):
        assert number in table
    assert "7 weight phases of 44, the last of 32; 6 search phases of 6." in table
    assert "GPU-hours are not known" in table
    assert "Not here: paper/search_qa/whale needs" in table or "model folder" in table
    found = json.loads(call("plan", "paper/search_qa/whale", "--json", "--device-seconds", "3.6"))
    assert found["most"]["harness_paper"] == 27_648
    assert found["totals"]["most"]["hours"] == pytest.approx(found["totals"]["most"]["rollouts"] / 1_000)
    assert "from the least search to the most" in call("plan", "simulated/adaptive_whale")


def test_diff_prints_all_that_differs_and_nothing_else():
    shown = call("diff", "paper/search_qa/whale", "paper/search_qa/fst")
    assert "search.prompt_only" in shown
    assert sum("." in line and "│" in line for line in shown.splitlines()) == 1


def test_recipes_that_do_not_differ_are_said_not_to():
    assert call("diff", "paper/search_qa/fst", "paper/search_qa/fst").count("do not differ") == 1


def test_the_plan_of_a_simulation_asks_for_no_rates():
    told = call("plan", "simulated/whale")
    assert not [word for word in ("hours", "dollars", "tokens", "give --") if word in told]


def test_a_simulated_run_status_and_compare_over_three_seeds(file, tmp_path):
    out = tmp_path / "runs"
    told = call("run", file, "--out", out, "--seeds", "3")
    assert told.count("(simulated)") > 3
    assert sorted(path.name for path in out.iterdir()) == ["seed-0", "seed-1", "seed-2"]
    assert "10 of 10" in call("status", out / "seed-1")
    status = json.loads(call("status", out / "seed-1", "--json"))
    assert (status["finished"], status["steps"], status["seconds_left"]) == (True, 10, 0.0)
    assert status["in_history"] == status["charged"]["weight"] + status["charged"]["harness"]
    (row,) = json.loads(call("compare", out, "--json"))
    assert (row["seeds"], row["simulated"]) == ([0, 1, 2], True)
    assert row["interval_over"] == "seeds and examples"
    assert row["selected_on_dev"]["low"] < row["selected_on_dev"]["mean"] < row["selected_on_dev"]["high"]
    (one,) = json.loads(call("compare", out / "seed-1", "--json"))
    assert one["interval_over"] == "examples"
    for words, note in (([out], "over seeds and examples"), ([out / "seed-1"], "over examples")):
        assert f"95% intervals: {note}." in call("compare", *words)
    assert row["best_on_test"]["mean"] >= row["selected_on_dev"]["mean"]
    again = call("run", file, "--out", out, "--seeds", "3")
    assert "moves" not in again
    assert (
        again.count("was finished, nothing was left to do") == call("resume", out).count("was finished") == 3
    )
    assert call("status", out).count("finished") == 3
    assert len([json.loads(line) for line in call("status", out, "--json").splitlines()]) == 3
    assert call("compare", tmp_path) == call("compare", out)
    watched = call("status", out / "seed-0", "--watch")
    assert "finished" in watched


def test_rows_of_one_seed_and_of_several_are_told_apart(file, tmp_path):
    runs = {"alone": [0], "both": [0, 1]}
    for name, seeds in runs.items():
        (tmp_path / f"{name}.toml").write_text(SMALL)
        for seed in seeds:
            recipe = load_recipe(str(tmp_path / f"{name}.toml")).with_seed(seed)
            run(recipe, tmp_path / name / str(seed))
    told = call("compare", tmp_path / "alone", tmp_path / "both")
    assert "over examples where there is one seed, over seeds and examples where there are several" in told
    assert "alone.toml, seed 0 (simulated)" in told
    assert "both.toml, 2 seeds (simulated)" in told


fractions = st.floats(0, 1)
scores = st.builds(
    lambda mean, error: Score(mean, error, max(0.0, mean - 2 * error), min(1.0, mean + 2 * error)),
    fractions,
    st.floats(0, 0.3),
)


@given(scores)
def test_one_seed_keeps_its_interval_over_examples(score):
    assert over_seeds([score]) == score


@given(st.lists(scores, min_size=2, max_size=6))
def test_an_interval_over_seeds_and_examples_holds_both(found):
    """It is never narrower than that over seeds alone, nor, on average, than those over examples."""
    joint, seeds = over_seeds(found), score_of([score.mean for score in found])
    assert joint.mean == seeds.mean
    if seeds.stderr:
        assert 0 <= joint.low <= seeds.low <= seeds.mean <= seeds.high <= joint.high <= 1
    examples = [
        fmean(score.mean - score.low for score in found),
        fmean(score.high - score.mean for score in found),
    ]
    assert joint.mean - joint.low >= min(examples[0], joint.mean) - 1e-12
    assert joint.high - joint.mean >= min(examples[1], 1 - joint.mean) - 1e-12
    assert joint.stderr >= fmean(score.stderr for score in found) - 1e-12


def test_seeds_that_agree_widen_no_interval():
    nothing, half = score_of([0.0] * 64), score_of([0.5, 0.0, 1.0] * 16)
    for one in (nothing, half):
        joint = over_seeds([one] * 3)
        assert (joint.low, joint.high) == pytest.approx((one.low, one.high))


def test_the_interval_covers_the_truth_where_seeds_and_examples_vary():
    """Runs drawn from a world whose mean is known: 3 seeds play the same 48 examples, 8 samples of each."""
    rng, covered, draws = np.random.default_rng(4), 0, 200
    for _ in range(draws):
        hard, skill = rng.normal(0, 0.25, 48), rng.normal(0, 0.05, (3, 1))
        rewards = rng.binomial(8, np.clip(0.5 + hard + skill, 0, 1)) / 8
        joint = over_seeds([score_of(row.tolist()) for row in rewards])
        covered += joint.low <= 0.5 <= joint.high
    assert covered >= 0.95 * draws


def test_status_of_a_run_under_way_tells_phase_signal_patience_and_time(tmp_path):
    from runs import recipe_in

    class EnoughError(Exception):
        pass

    def report(record):
        if getattr(record, "kind", "") == "search" and record.number == 2:
            raise EnoughError

    with pytest.raises(EnoughError):
        run(recipe_in(tmp_path), tmp_path / "run", report)
    status = status_of(tmp_path / "run")
    assert (status.finished, status.phase, status.cycle, status.moves_in_phase) == (False, "search", 1, 2)
    assert (status.patience_left, status.steps, status.iterations) == (1, 4, 2)
    assert status.signal == status.best_signal > 0
    assert status.seconds_left > 0
    assert 0 <= status.quiet_seconds < 3600
    told = call("status", tmp_path / "run")
    assert "running, or to be gone on with" in told
    assert "s ago" in told
    assert status.charged["harness"] == 256 + 768


def test_seeds_of_different_recipes_under_one_name_are_not_averaged(file, tmp_path):
    run(load_recipe(str(file)), tmp_path / "a" / "0")
    run(load_recipe(str(file)), tmp_path / "a" / "1")
    with pytest.raises(UsageError, match="with one seed stands twice"):
        compare_runs(run_folders([tmp_path / "a"]))
    file.write_text(SMALL.replace("iterations = 3", "iterations = 2"))
    run(load_recipe(str(file)).with_seed(1), tmp_path / "b")
    with pytest.raises(UsageError, match="differ in more than the seed"):
        compare_runs([tmp_path / "a" / "0", tmp_path / "b"])


def test_another_recipe_in_a_runs_folder_is_refused_with_what_differs(file, tmp_path):
    run(load_recipe(str(file)), tmp_path / "run")
    with pytest.raises(
        UsageError, match=r"recipe\.seed is 0 there and 4 here; search\.seed is 0 there and 4 here$"
    ):
        call("run", file, "--seed", "4", "--out", tmp_path / "run")
    with pytest.raises(UsageError, match=r"dev\.every_steps is 2 there and 7 here; .* 256 here; and 5 more$"):
        call("run", "simulated/whale", "--out", tmp_path / "run")


def test_a_run_and_runs_of_several_seeds_do_not_mix_in_one_folder(file, tmp_path):
    call("run", file, "--out", tmp_path / "one")
    with pytest.raises(UsageError, match="one holds one run: 2 seeds need another folder"):
        call("run", file, "--out", tmp_path / "one", "--seeds", "2")
    (tmp_path / "one").rename(tmp_path / "seed-0")
    with pytest.raises(UsageError, match="holds the runs seed-0: give --seeds, one of those folders, or"):
        call("run", file, "--out", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["seed-0", "small.toml"]


def test_a_simulated_run_has_no_crossplay(file, tmp_path):
    run(load_recipe(str(file)), tmp_path / "run")
    with pytest.raises(UsageError, match="is simulated: there are no weights to play"):
        call("crossplay", tmp_path / "run")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", "paper/search_qa/wale"], "did you mean 'paper/search_qa/whale'"),
        (["plan", "whale"], "unknown recipe 'whale'; did you mean 'demo/chess_puzzles/whale' or 'demo/math_"),
        (["plan", "xyz"], r"unknown recipe 'xyz'\. `whale-baselines list` names all"),
        (["plan", "simulated/whale.toml"], "no such file; the shipped recipe is 'simulated/whale', without"),
        (["run", "simulated/whale"], "a run needs a folder: --out FOLDER"),
        (["resume", "nowhere"], "is no run folder"),
        (["status", "nowhere"], "is no run folder"),
        (["compare", "nowhere"], "holds no run of a recipe"),
    ],
)
def test_misuse_is_a_sentence(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        call(*words)
    assert not list(tmp_path.iterdir())
