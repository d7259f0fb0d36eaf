"""What a weight run is going to take, before it starts: batches, tokens, memory, disk.

    explain(recipe, task, agent.harness.settings, trainer, shared=True)["least_memory_gb"]

Memory is that of weights, gradients, Adam's moments, the copy that is served (none where the trainer's own
is, as it is), the one that the share of changed weights is counted against, and the logits of one
micro-batch with their gradient: most of a forward pass where the vocabulary is large.

Not covered: the other activations, what the backend sets aside for keys and values, and the libraries. A run
peaks above what is told: `demo/weight_only`, told as 3.2 GB, at 4.3 to 5.1 GB on a CPU.
"""

from typing import Any

from whale_baselines.recipe import Recipe
from whale_baselines.rsft import RsftTrainer
from whale_bench.engine import Task
from whale_bench.harness.base import Settings
from whale_bench.models.folder import native_precision
from whale_envs import get_domain


def explain(
    recipe: Recipe, task: Task, harness: Settings, trainer: RsftTrainer, *, shared: bool
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
    """
    parameters = list(trainer.model.parameters())
    count = sum(parameter.numel() for parameter in parameters)
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    rollouts = recipe.prompts * recipe.samples
    budget = get_domain(task.domain).token_budget if task.token_budget is None else task.token_budget
    per_turn = min((cap for cap in (task.max_tokens, harness.max_tokens) if cap is not None), default=budget)
    sampled = budget if harness.max_turns is None else min(budget, per_turn * harness.max_turns)
    turns = budget if harness.max_turns is None else min(budget, harness.max_turns)
    rounded = native_precision(trainer.model.device.type) == "bfloat16"
    served = 2 * count if rounded else 0 if shared else 4 * count
    vocabulary = int(trainer.model.config.vocab_size)
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
        "least_memory_gb": (training_bytes(count, trained, recipe.micro_tokens, vocabulary) + served) / 1e9,
        "disk_gb": trainer.checkpoint_bytes * (recipe.keep_last + 1) / 1e9,
    }


def training_bytes(count: int, trained: int, micro_tokens: int, vocabulary: int) -> int:
    """Of a trainer: weights, gradients and moments, the copy for `changed_bf16`, a micro-batch of logits."""
    return 4 * count + 12 * trained + 2 * count + 2 * 4 * micro_tokens * vocabulary
