"""What a weight run is going to take, before it starts: batches, tokens, memory, disk.

    explain(recipe, task, agent.harness.settings, trainer, shared=True, resting=False)["memory_gb"]

Memory is that of the largest micro-batch, with all of its tokens trained on: weights, gradients, Adam's
moments, the copy that the share of changed weights is counted against, the copy that is served (none where
the trainer's own is, as it is), what the forward pass keeps for the backward one (measured on a few tokens),
and logits. Where what is served rests during an update, it is that or what is held while it samples.

Not covered: what a backend sets aside for keys and values (`local/` on a CPU: 1 GiB of remembered prompts,
and up to 2 GiB while it samples), the libraries (0.3 GB), rows longer than `micro_tokens`; activations of
weights that are spread over processes.
"""

from typing import Any

from whale_baselines.recipe import Recipe
from whale_baselines.rsft import RsftTrainer
from whale_bench.engine import Task
from whale_bench.harness.base import Settings
from whale_bench.models.folder import native_precision


def explain(
    recipe: Recipe,
    task: Task,
    harness: Settings,
    trainer: RsftTrainer,
    *,
    shared: bool,
    resting: bool,
) -> dict[str, Any]:
    """Numbers by name; those with "most" are bounds, for rollouts that all are accepted.

    A harness that rewrites its context at every turn makes a training sequence of each turn, so that bounds
    of updates are by turns.

    Args:
        recipe: how to train.
        task: the examples to train on, and the limits of a rollout.
        harness: its bounds are the tighter ones, most often.
        trainer: with the model.
        shared: whether what is served is the trainer's own copy.
        resting: whether it is out of the memory during an update.
    """
    parameters = list(trainer.model.parameters())
    count = sum(parameter.numel() for parameter in parameters)
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    rollouts = recipe.prompts * recipe.samples
    budget = task.budget
    per_turn = min((cap for cap in (task.max_tokens, harness.max_tokens) if cap is not None), default=budget)
    sampled = budget if harness.max_turns is None else min(budget, per_turn * harness.max_turns)
    turns = budget if harness.max_turns is None else min(budget, harness.max_turns)
    return {
        "examples": len(task.examples),
        "steps_per_epoch": len(task.examples) / recipe.prompts,
        "rollouts_per_step": rollouts,
        "most_sampled_tokens_per_rollout": sampled,
        "most_sampled_tokens_per_step": sampled * rollouts,
        "sequences_per_update": recipe.minibatch,
        "processes": trainer.processes,
        "most_tokens_of_a_forward_pass": recipe.micro_tokens,
        "most_updates_per_step": recipe.sft_epochs * -(-rollouts * turns // recipe.minibatch),
        "parameters": count,
        "trained_parameters": trained,
        "precision_of_a_forward_pass": trainer.precision,
        "memory_gb": memory_bytes(recipe, trainer, shared=shared, resting=resting) / 1e9,
        "disk_gb": trainer.checkpoint_bytes * (recipe.keep_last + 1) / 1e9,
    }


def memory_bytes(recipe: Recipe, trainer: RsftTrainer, *, shared: bool, resting: bool) -> int:
    """At most, of trainer and what is served, see above; `shared` and `resting` as `explain` has them."""
    parameters = list(trainer.model.parameters())
    count = sum(parameter.numel() for parameter in parameters)
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    rounded = native_precision(trainer.model.device.type) == "bfloat16"
    served = 2 * count if rounded else 0 if shared else 4 * count
    vocabulary = int(trainer.model.config.get_text_config().vocab_size)
    training = training_bytes(count, trained, recipe.micro_tokens, vocabulary)
    training += trainer.activation_bytes(recipe.micro_tokens)
    return max(training, trainer.held_bytes + served) if resting else training + served


def training_bytes(count: int, trained: int, micro_tokens: int, vocabulary: int) -> int:
    """Of a trainer, but for what a forward pass keeps: weights, gradients and moments, the copy for
    `changed_bf16`, and of a micro-batch log-probabilities and two gradients on the way to the logits.
    """
    return 4 * count + 12 * trained + 2 * count + 3 * 4 * micro_tokens * vocabulary
