"""What a weight run is going to take, before it starts: batches, tokens, memory, disk.

    explain(recipe, task, trainer)["memory_gb"]

Memory is that of weights, gradients, Adam's moments, the served copy, the one that the share of changed
weights is counted against, and the logits of one micro-batch with their gradient: most of a forward
pass where the vocabulary is large.

Not covered: the other activations, and what the backend sets aside for keys and values.
"""

from typing import Any

from whale_baselines.recipe import Recipe
from whale_baselines.rsft import RsftTrainer
from whale_bench.engine import Task
from whale_envs import get_domain


def explain(recipe: Recipe, task: Task, trainer: RsftTrainer) -> dict[str, Any]:
    """Numbers by name; those with "most" are bounds, for rollouts that all are accepted."""
    parameters = list(trainer.model.parameters())
    count = sum(parameter.numel() for parameter in parameters)
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    rollouts = recipe.prompts * recipe.samples
    budget = get_domain(task.domain).token_budget if task.token_budget is None else task.token_budget
    logits = 2 * 4 * recipe.micro_tokens * int(trainer.model.config.vocab_size)
    return {
        "examples": len(task.examples),
        "steps_per_epoch": len(task.examples) / recipe.prompts,
        "rollouts_per_step": rollouts,
        "most_sampled_tokens_per_step": budget * rollouts,
        "sequences_per_update": recipe.minibatch,
        "most_updates_per_step": recipe.sft_epochs * -(-rollouts // recipe.minibatch),
        "parameters": count,
        "trained_parameters": trained,
        "memory_gb": (4 * count + 12 * trained + 4 * count + logits) / 1e9,
        "disk_gb": trainer.checkpoint_bytes * (recipe.keep_last + 1) / 1e9,
    }
