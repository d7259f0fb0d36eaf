"""What `plan` says: every figure that was published, under the counting that it was published in."""

import pytest
from runs import recipe_in
from whale_baselines.plan import plan_of, with_rates
from whale_baselines.recipe_files import recipe_names
from whale_baselines.recipes import load_recipe

MAIN = ("search_qa", "math_python", "chess_puzzles")


def plan(name):
    return plan_of(load_recipe(name))


@pytest.mark.parametrize("domain", MAIN)
def test_768_rollouts_for_a_search_iteration(domain):
    assert plan(f"paper/{domain}/whale").per_iteration == 768


@pytest.mark.parametrize("domain", MAIN)
def test_2048_rollouts_for_a_step(domain):
    assert plan(f"paper/{domain}/whale").per_step == 2_048


@pytest.mark.parametrize("domain", MAIN)
def test_4608_as_the_paper_counts_a_phase_of_six_and_4096_as_it_is_run(domain):
    found = plan(f"paper/{domain}/whale").most
    searches = [phase.moves for phase in found.phases if phase.kind == "search"]
    assert set(searches) == {6}
    assert found.harness_paper / len(searches) == 4_608
    assert found.harness / len(searches) == 4_096


def test_30720_for_forty_iterations_as_the_paper_counts_and_30208_as_they_are_run():
    for domain in ("search_qa", "chess_puzzles"):
        found = plan(f"paper/{domain}/harness_only").most
        assert (found.harness_paper, found.harness) == (30_720, 256 + 39 * 768)


def test_30976_for_forty_iterations_of_the_proposer_beside_the_incoming_one(tmp_path):
    text = 'base = "paper/search_qa/harness_only"\n[schedule]\nincoming_counts = false\n'
    assert plan_of(recipe_in(tmp_path, text)).most.harness == 30_976


def test_46080_for_sixty_iterations():
    assert plan("paper/math_python/harness_only").most.harness_paper == 46_080


def test_530432_for_the_steps_to_the_weight_only_peak_which_are_three_and_a_half_epochs(tmp_path):
    text = 'base = "paper/search_qa/weight_only"\n[schedule]\ntotal_epochs = 3.5\n'
    found = plan_of(recipe_in(tmp_path, text)).most
    assert (found.steps, found.weight) == (259, 530_432)
    assert found.steps % load_recipe("paper/search_qa/weight_only").dev.every_steps == 0


def test_harness_only_takes_5_79_percent_of_the_weight_only_peak(tmp_path):
    text = 'base = "paper/search_qa/weight_only"\n[schedule]\ntotal_epochs = 3.5\n'
    peak = plan_of(recipe_in(tmp_path, text)).most.weight
    assert f"{plan('paper/search_qa/harness_only').most.harness_paper / peak:.2%}" == "5.79%"


@pytest.mark.parametrize(
    ("domain", "cycle", "weight", "cycles"),
    [
        ("search_qa", 94_720, 606_208, 7),
        ("math_python", 90_624, 860_160, 10),
        ("chess_puzzles", 82_432, 524_288, 7),
    ],
)
def test_the_published_budgets_of_a_cycle_and_of_all_training(domain, cycle, weight, cycles):
    found = plan(f"paper/{domain}/whale")
    steps, search = found.most.phases[0].moves, found.most.phases[1].moves
    assert steps * found.per_step + search * found.per_iteration == cycle
    assert (found.most.weight, found.most.cycles) == (weight, cycles)
    assert found.most.weight == plan(f"paper/{domain}/weight_only").most.weight


@pytest.mark.parametrize("name", recipe_names())
def test_a_plan_is_one_number_unless_the_schedule_adapts(name):
    found = plan(name)
    if load_recipe(name).schedule.kind != "adaptive":
        assert found.least == found.most
    assert found.least.harness <= found.most.harness
    assert found.most.budget_paper >= found.most.budget
    assert found.most.rollouts == found.most.budget + found.most.smoke + found.most.dev + found.most.test
    budget = load_recipe(name).schedule.budget
    assert budget is None or found.most.budget + found.most.smoke <= budget


def test_an_adaptive_plan_reaches_from_no_search_to_the_caps():
    found = plan("paper/search_qa/adaptive_whale")
    assert (found.least.iterations, found.least.steps) == (0, 296)
    longest = [phase.moves for phase in found.most.phases if phase.kind == "search"]
    assert set(longest) == {16}
    assert [phase.moves for phase in found.most.phases if phase.kind == "train"][:-1] == [16] * len(longest)


def test_tokens_hours_and_money_are_told_where_a_rate_is_known_and_never_made_up():
    unknown = plan("paper/search_qa/whale")
    assert unknown.tokens(unknown.most) == 8_192 * unknown.most.rollouts
    assert unknown.hours(unknown.most) is None
    assert unknown.usd(unknown.most) is None
    rated = with_rates(unknown, device_seconds=36.0, usd_per_session=2.0)
    assert rated.hours(rated.most) == unknown.most.rollouts / 100
    assert rated.usd(rated.most) == 2.0 * 6 * 5
    chess = plan("paper/chess_puzzles/weight_only")
    assert chess.hours(chess.most) == pytest.approx(70 * chess.most.rollouts / 3600)
    simulated = plan("simulated/whale")
    assert simulated.tokens(simulated.most) is None


def test_the_plan_of_a_simulated_run_is_what_it_is_charged(tmp_path):
    from runs import run

    from whale_bench.ledger import Ledger

    recipe = recipe_in(tmp_path)
    run(recipe, tmp_path / "run")
    most = plan_of(recipe).most
    with Ledger(tmp_path / "run" / "ledger.sqlite", readonly=True) as ledger:
        charged = {purpose: charge.rollouts for purpose, charge in ledger.charged().items()}
    assert (charged["weight"], charged["harness"]) == (most.weight, most.harness)
    assert charged["dev"] <= most.dev  # an agent that a search left as it was is not evaluated again
    assert charged["test"] <= most.test
