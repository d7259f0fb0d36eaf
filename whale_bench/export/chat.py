"""A rollout's chat where its last call of the model does not hold it: an own agent's, from what it did.

    [message.role for message in played(rollout)]      # user, assistant, user, …

What an own agent asks of models is its affair: any number of calls a turn, or none. What it was shown and
what it did stands in the rollout's opening and steps.

Not covered: rollouts under a harness, whose last call holds all that the model was to know.
"""

from collections.abc import Iterator

from whale_bench.agents.names import is_own_agent
from whale_bench.models.base import Message
from whale_bench.records import Rollout


def is_played(rollout: Rollout, model: str) -> bool:
    """Whether the chat is `played`, and not the last call's."""
    return is_own_agent(model) or not rollout.segments


def played(rollout: Rollout) -> Iterator[Message]:
    """Each observation as the user's, each action as the assistant's."""
    yield Message("user", rollout.opening)
    for step in rollout.steps:
        if step.action is not None:
            yield Message("assistant", step.action)
        if said := step.observation or step.feedback:
            yield Message("user", said)
