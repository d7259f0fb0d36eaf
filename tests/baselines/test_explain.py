"""What a run is said to take before it starts."""

import importlib

import pytest
from tiny_model import HIDDEN, INNER, LAYERS, write_folder
from whale_baselines import loss
from whale_baselines.recipe import Recipe
from whale_baselines.rsft import RsftTrainer

from whale_bench.engine import Task
from whale_bench.harness.base import Settings
from whale_envs import load_examples

pytestmark = pytest.mark.usefixtures("one_thread")
explain = importlib.import_module("whale_baselines.explain")


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    return RsftTrainer(write_folder(tmp_path_factory.mktemp("explain") / "base"), Recipe(precision="float32"))


def told(trainer, *, shared=True, resting=False, turns=2, **recipe):
    task = Task("math_python", load_examples("math_python", "mini", "weight"))
    bounds = Settings(max_turns=turns, max_tokens=None, tool_mode="text", tools=[], env_options={})
    return explain.explain(Recipe(**recipe), task, bounds, trainer, shared=shared, resting=resting)


@pytest.mark.parametrize(("turns", "most"), [(1, 4), (2, 8), (5, 20)])
def test_updates_are_bounded_by_rows_not_by_rollouts(trainer, turns, most):
    found = told(trainer, turns=turns, prompts=16, samples=4, minibatch=16)
    assert (found["rollouts_per_step"], found["most_updates_per_step"]) == (64, most)


@pytest.mark.parametrize(
    ("precision", "shared", "of_a_number"),
    [("float32", True, 0), ("float32", False, 4), ("bfloat16", True, 2), ("bfloat16", False, 2)],
)
def test_memory_has_the_copy_that_is_served(trainer, monkeypatch, precision, shared, of_a_number):
    monkeypatch.setattr(explain, "native_precision", lambda device: precision)
    found = told(trainer, shared=shared)
    count, recipe = found["parameters"], Recipe()
    training = explain.training_bytes(count, count, recipe.micro_tokens, trainer.model.config.vocab_size)
    training += trainer.activation_bytes(recipe.micro_tokens)
    assert found["memory_gb"] * 1e9 == pytest.approx(training + of_a_number * count)
    resting = told(trainer, shared=shared, resting=True, micro_tokens=1)
    assert resting["memory_gb"] * 1e9 >= trainer.held_bytes + of_a_number * count


def test_what_a_forward_pass_keeps_grows_with_its_tokens_and_holds_no_weights(trainer):
    """Against the tensors of the tiny Llama by name: norms, attention and the three parts of the MLP."""
    per_token = loss.saved_bytes(trainer.model, 512) / 512
    assert trainer.activation_bytes(512) == pytest.approx(512 * per_token, rel=0.05)
    least = 4 * LAYERS * (4 * HIDDEN + 4 * INNER)
    assert least < per_token < 4 * least
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_rounded_copies_of_weights_do_not_grow_with_tokens(tmp_path):
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)  # it has one precision a process
    try:
        trainer = RsftTrainer(write_folder(tmp_path / "base"), Recipe(precision="bfloat16"))
        with trainer._accelerator.autocast():
            found = loss.saved_bytes(trainer.model, 512)
        assert trainer.activation_bytes(512) == pytest.approx(found, rel=0.05)
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


def test_held_are_weights_and_two_moments(trainer):
    assert trainer.held_bytes == 12 * sum(parameter.numel() for parameter in trainer.model.parameters())
