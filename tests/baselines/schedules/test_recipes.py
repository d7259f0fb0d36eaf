"""Recipes: every shipped one, what differs between two, and what is refused."""

import pytest
from runs import recipe_in
from whale_baselines.filters import filtered
from whale_baselines.recipe_files import recipe_names
from whale_baselines.recipes import differences, load_recipe
from whale_baselines.settings import FilterSettings

from whale_envs import DOMAINS, SPLITS
from whale_envs.errors import UnknownNameError, UsageError

METHODS = ("weight_only", "harness_only", "fst", "whale", "adaptive_whale", "stagewise")
SWEEP = {"whale_e0.2_i2": (0.2, 2), "whale_e0.2_i6": (0.2, 6), "whale_e0.6_i2": (0.6, 2), "whale": (0.6, 6),
         "whale_e1.0_i10": (1.0, 10)}  # fmt: skip


def test_every_method_is_there_for_every_domain_and_scale():
    names = set(recipe_names())
    expected = {
        f"{scale}/{domain}/{method}"
        for scale in ("paper", "demo")
        for domain in DOMAINS
        for method in METHODS
    }
    assert expected <= names
    assert {f"paper/{domain}/{name}" for domain in DOMAINS for name in SWEEP} <= names
    assert {"demo/weight_only", "demo/harness_only"} <= names


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_resolves(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.plan_schedule().next(()) is not None
    assert recipe.simulated == name.startswith("simulated/")


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("scale", ["paper", "demo"])
def test_methods_differ_in_nothing_but_their_schedule_and_fst_in_its_prompts(scale, domain):
    methods = {method: load_recipe(f"{scale}/{domain}/{method}") for method in METHODS}
    for method, recipe in methods.items():
        found = differences(methods["whale"], recipe)
        if method == "fst":
            assert found == {"search.prompt_only": (False, True)}
        else:
            stops = found.pop("recipe.most_empty", None)
            assert stops == ((0, 3) if (scale, method) == ("paper", "weight_only") else None)
            assert all(key.startswith("schedule.") for key in found), found


@pytest.mark.parametrize("name", recipe_names())
def test_a_long_run_that_nothing_will_change_stops_where_nothing_is_verified(name):
    """A search may bring a harness that verifies something; without one the rest of a run is as empty."""
    recipe = load_recipe(name)
    alone, demo = recipe.schedule.kind == "weight_only", name.startswith("demo/")
    if alone and not demo:
        assert recipe.recipe.most_empty > 0
    elif recipe.schedule.kind not in ("weight_only", "harness_only") and not recipe.simulated:
        assert recipe.recipe.most_empty == 0


@pytest.mark.parametrize("domain", [*(f"paper/{d}" for d in DOMAINS), "simulated"])
@pytest.mark.parametrize("name", SWEEP)
def test_the_sweep_has_the_papers_schedules(domain, name):
    schedule = load_recipe(f"{domain}/{name}").schedule
    assert (schedule.epochs, schedule.iterations) == SWEEP[name]


def test_the_adaptive_recipes_have_the_published_patience():
    for domain, steps in {"search_qa": 15, "math_python": 14, "chess_puzzles": 13}.items():
        schedule = load_recipe(f"paper/{domain}/adaptive_whale").plan_schedule()
        assert (schedule.train.window, schedule.train.patience, schedule.train.least) == (
            steps,
            steps,
            steps + 1,
        )
        assert (schedule.search.least, schedule.search.patience, schedule.search.most) == (6, 2, 16)
        assert (schedule.search.perfect == 1.0) == (domain == "chess_puzzles")


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_examples_of_a_demo_are_there(domain):
    recipe = load_recipe(f"demo/{domain}/whale")
    for split in SPLITS:
        found = filtered(domain, recipe.agent["tier"], split, recipe.filter)
        assert len(found) == recipe.examples(split)


def test_every_method_of_a_demo_has_the_same_budget():
    for domain in DOMAINS:
        assert len({load_recipe(f"demo/{domain}/{method}").schedule.budget for method in METHODS}) == 1


def test_a_recipe_of_ones_own_lays_its_keys_over_its_base(tmp_path):
    recipe = recipe_in(tmp_path, 'base = "demo/weight_only"\n[recipe]\nlr = 1e-4\n')
    assert differences(load_recipe("demo/weight_only"), recipe) == {"recipe.lr": (3e-5, 1e-4)}
    assert recipe.recipe_id != load_recipe("demo/weight_only").recipe_id
    nested = recipe_in(tmp_path, f'base = "{tmp_path}/small.toml"\n[recipe]\nseed = 3\n', "nested.toml")
    assert (nested.recipe.lr, nested.recipe.seed) == (1e-4, 3)


def test_a_recipe_keeps_its_id_under_another_name_and_loses_it_with_any_setting(tmp_path):
    whale = load_recipe("simulated/whale")
    same = recipe_in(tmp_path, 'base = "simulated/whale"\n')
    assert same.recipe_id == whale.recipe_id
    assert whale.with_seed(1).recipe_id != whale.recipe_id


REFUSED = {
    'base = "demo/whale"': "unknown recipe 'demo/whale'; did you mean",
    '[agnet]\ndomain = "simulated"': r"table in .*: 'agnet'; did you mean 'agent'",
    "[recipe]\nlearning_rate = 1.0": r"\[recipe\]: 'learning_rate'.* Valid: .*lr",
    "[schedule]\nepoch = 1.0": r"\[schedule\]: 'epoch'; did you mean 'epochs'",
    '[schedule]\nkind = "cyclic"': r"\[schedule\] kind cannot be 'cyclic'",
    "[schedule]\nwindow_epochs = 0.1": "window_epochs means nothing to kind 'fixed'; it has .*epochs",
    '[schedule]\nkind = "adaptive"': "of kind 'adaptive' lacks window_epochs",
    "[schedule]\nepochs = -1.0": r"epochs must be from 0 to 1e9, got -1.0",
    "[schedule]\nepochs = 0.0": "epochs must be more than 0, got 0.0",
    "[agent]\nk = 3": r"\[agent\] has no 'k': samples of",
    '[agent]\ndomain = "go"\nmodel = "local/smollm2"': "unknown environment 'go'",
    '[agent]\ndomain = "math_python"': "lacks 'model'",
    "[search]\nexamples = 0": "examples of a search must be at least 1, got 0",
    "[search]\nslot = 1": r"\[search\]: 'slot'; did you mean 'slots'",
    '[agent]\nfamilies = ["units_digit"]': r"\[agent\] has no 'families': groups of",
    "[dev]\nevery = 5": r"\[dev\]: 'every'",
    "[filter]\nfamilies = 3": r"\[filter\]: 'families'",
    "[recipe]\nlr = -1.0": "lr of a recipe must be more than 0",
    "[recipe]\nweight_decay = nan": "weight_decay >= 0",
    "[recipe]\nweight_decay = inf": "weight_decay >= 0",
    "agent = 3": r"\[agent\] is a table, got 3",
    "base = 3": "base is the name of a recipe, got 3",
    "base =": "cannot be read",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_a_recipe_cannot_say_is_refused_with_a_sentence(tmp_path, text):
    base = "" if text.startswith("base") else 'base = "simulated/whale"\n'
    with pytest.raises(UsageError, match=REFUSED[text]):
        recipe_in(tmp_path, base + text)


@pytest.mark.parametrize(("table", "sampled", "trained"), [("agent", 0.5, 1.0), ("recipe", 1.0, 0.5)])
def test_training_at_another_temperature_than_sampling_is_refused(tmp_path, table, sampled, trained):
    changed = f"[{table}]\ntemperature = 0.5\n"
    expected = rf"temperature of \[agent\] is {sampled} and of \[recipe\] {trained}"
    with pytest.raises(UsageError, match=expected):
        recipe_in(tmp_path, f'base = "demo/weight_only"\n{changed}')
    recipe_in(tmp_path, f'base = "demo/harness_only"\n{changed}')  # trains nothing
    both = "[agent]\ntemperature = 0.5\n[recipe]\ntemperature = 0.5\n"
    assert recipe_in(tmp_path, f'base = "demo/weight_only"\n{both}').recipe.temperature == 0.5


def test_a_recipe_that_names_itself_is_refused(tmp_path):
    with pytest.raises(UsageError, match="more than 8 bases"):
        recipe_in(tmp_path, f'base = "{tmp_path}/small.toml"\n')


def test_a_search_on_more_examples_than_there_are_is_refused(tmp_path):
    with pytest.raises(UsageError, match="examples is 300, and the harness split has 64"):
        recipe_in(tmp_path, 'base = "demo/math_python/whale"\n[search]\nexamples = 300\n')


def test_a_filter_by_groups_has_to_say_how_many_and_names_what_is_there(tmp_path):
    with pytest.raises(UsageError, match="says how many of each split"):
        recipe_in(tmp_path, 'base = "simulated/whale"\n[filter]\ngroups = { family = ["units_digit"] }\n')
    settings = FilterSettings(groups={"famly": ("units_digit",)})
    with pytest.raises(UnknownNameError, match="did you mean 'family'"):
        filtered("math_python", "small", "dev", settings)
    with pytest.raises(UnknownNameError, match="did you mean 'units_digit'"):
        filtered("math_python", "small", "dev", FilterSettings(groups={"family": ("unit_digit",)}))
    few = FilterSettings(dev=99, groups={"family": ("units_digit",)})
    with pytest.raises(UsageError, match=r"64 examples of .* pass the filter, fewer than its 99"):
        filtered("math_python", "small", "dev", few)
