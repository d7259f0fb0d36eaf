"""The `paper` recipes against the published tables, number by number; h0 against the published harnesses."""

from importlib import import_module

import pytest
from whale_baselines.plan import plan_of
from whale_baselines.proposers.models import AnthropicSettings
from whale_baselines.recipes import load_recipe
from whale_baselines.schedule import steps_of

from whale_envs import DOMAINS

ALL = {
    "agent": {"tier": "full", "profile": "paper", "temperature": 1.0, "top_p": 1.0, "top_k": 20},
    "recipe": {"prompts": 256, "samples": 8, "minibatch": 64, "sft_epochs": 1, "lr": 1e-7,
               "betas": (0.9, 0.999), "weight_decay": 0.01, "clip": 1.0, "temperature": 1.0, "lora_rank": 0,
               "most_empty": 0},
    "search": {"slots": 3, "examples": 256, "rule": "paper", "smoke": 0, "prompt_only": False},
    "proposer": {"model": "claude-opus-4-7", "effort": "max", "seconds": 2_400.0},
    "schedule": {"first": "weight", "search_after_last": False, "incoming_counts": True, "strict": True,
                 "rounding": "nearest", "budget": None},
    "dev": {"every_steps": 7, "samples": 8, "test": "points"},
}  # fmt: skip
"""What is one number for all domains, by the recipe's table."""

OF_DOMAIN = {
    "search_qa": {"model": "vllm/Qwen3.5-2B", "judge": "openai/gpt-5.4-mini", "retriever": "dense",
                  "max_tokens": 8_192, "token_budget": 8_192},
    "math_python": {"model": "vllm/Qwen3.5-2B", "max_tokens": 8_192, "token_budget": 8_192},
    "chess_puzzles": {"model": "vllm/Qwen3.5-4B", "max_tokens": 8_129, "token_budget": 8_129},
}  # fmt: skip

#           steps an epoch, epochs, steps, of 0.2 / 0.6 / 1.0 epochs, cycles, harness-only iterations, test
BUDGETS = {
    "search_qa": (74, 4.0, 296, (15, 44, 74), 7, 40, 700),
    "math_python": (70, 6.0, 420, (14, 42, 70), 10, 60, 60),
    "chess_puzzles": (64, 4.0, 256, (13, 38, 64), 7, 40, 256),
}

#     MAX_TURNS, options of the environment under h0, most turns that a harness may ask for
H0 = {
    "search_qa": (2, {"topk": 1, "max_doc_tokens": 200}, 16),
    "math_python": (2, {}, 16),
    "chess_puzzles": (9, {"format_retry_budget": 1, "illegal_retry_budget": 1}, 18),
}

METHODS = ("weight_only", "harness_only", "fst", "whale", "adaptive_whale", "stagewise")


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("method", METHODS)
def test_every_published_constant_is_the_recipes(domain, method):
    recipe = load_recipe(f"paper/{domain}/{method}")
    for table, values in ALL.items():
        for key, value in values.items():
            if (method, key) in (("fst", "prompt_only"), ("weight_only", "most_empty")):
                continue  # each has a test of its own
            part = getattr(recipe, table)
            found = part[key] if table in ("agent", "proposer") else getattr(part, key)
            assert found == value, f"[{table}] {key}"
    assert {key: recipe.agent.get(key) for key in OF_DOMAIN[domain]} == OF_DOMAIN[domain]
    assert "harness" not in recipe.agent
    assert recipe.search.prompt_only == (method == "fst")
    AnthropicSettings(**recipe.proposer)


@pytest.mark.parametrize("domain", DOMAINS)
def test_budgets_are_the_published_ones(domain):
    per_epoch, epochs, steps, fractions, cycles, iterations, test = BUDGETS[domain]
    whale = load_recipe(f"paper/{domain}/whale")
    assert (whale.schedule.steps_per_epoch, whale.schedule.total_epochs) == (per_epoch, epochs)
    assert tuple(steps_of(share, per_epoch) for share in (0.2, 0.6, 1.0)) == fractions
    found = plan_of(whale).most
    assert (found.steps, found.cycles) == (steps, cycles)
    assert load_recipe(f"paper/{domain}/harness_only").schedule.iterations == iterations
    stagewise = load_recipe(f"paper/{domain}/stagewise").schedule
    assert (stagewise.total_epochs, stagewise.iterations) == (epochs, iterations)
    assert {split: whale.examples(split) for split in ("harness", "test")} == {"harness": 256, "test": test}


@pytest.mark.parametrize("domain", DOMAINS)
def test_turns_retries_and_tool_limits_are_those_of_the_published_h0(domain):
    turns, options, most = H0[domain]
    h0 = import_module(f"whale_bench.harness.h0.{domain}").Harness
    env = DOMAINS[domain].module.ENV
    assert (h0.MAX_TURNS, dict(h0.ENV_OPTIONS)) == (turns, options)
    assert env.DEFAULTS["max_turns"] == turns
    assert env.BOUNDS["max_turns"][1] == most


def test_the_interpreters_limits_are_the_published_ones():
    from whale_envs.math_python.tools import TIMEOUT_S
    from whale_envs.sandbox.results import TEXT_CHARS

    assert (TIMEOUT_S, TEXT_CHARS) == (30.0, 4_096)
