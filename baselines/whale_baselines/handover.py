"""How a step's weights get to whoever serves them, and how an update gets the room it needs.

    await make_room(backend)                            # before an update on the device that it serves from
    await hand_over(backend, checkpoint, served)        # afterwards: it serves the checkpoint, or an error

Where a server's answers before and after a change are compared, those before are in `served.json`, the file
`served`, so that the first hand-over after a resume is checked like any other.

Not covered: how a backend takes weights, see `whale_bench/models/`; earlier weights, see `serving.py`.
"""

from pathlib import Path

import msgspec

from whale_baselines.checkpoint import Checkpoint
from whale_bench.models.base import Pausable, Reloadable, Remembering, Sharing, names_weights
from whale_bench.store import write_whole
from whale_envs.errors import InfrastructureError, UsageError


def check_takes_weights(backend: object) -> None:
    """Whether a backend can be handed weights at all.

    Raises:
        UsageError: it cannot.
    """
    if not isinstance(backend, Reloadable):
        raise UsageError(
            f"{getattr(backend, 'name', backend)!r} cannot take new weights; local/PATH and vllm/PATH can"
        )


async def make_room(backend: Reloadable) -> None:
    """Lets the backend give up the device's memory until the next `hand_over`, where it shares it."""
    if isinstance(backend, Pausable):
        await backend.rest()


async def hand_over(backend: Reloadable, checkpoint: Checkpoint, served: Path) -> None:
    """Makes the backend serve the checkpoint; nothing happens where it does already.

    Raises:
        InfrastructureError: it says that it serves something else.
    """
    folder, state = checkpoint
    resting = isinstance(backend, Pausable) and backend.resting
    if resting or not names_weights(backend.weights_id, state.weights_id):
        if isinstance(
            backend, Sharing
        ):  # the bytes were hashed when they were written, or when the run began
            await backend.adopt(folder, state.weights_id)
        else:
            await backend.reload(folder)
        if isinstance(backend, Remembering):
            write_whole(served, backend.remembered())
    if not names_weights(backend.weights_id, state.weights_id):
        raise InfrastructureError(
            f"the backend serves {backend.weights_id} after it was given {folder}, which is "
            f"{state.weights_id}"
        )


def recall(backend: Reloadable, served: Path) -> None:
    """Gives a backend back what it remembered in an earlier launch.

    Raises:
        UsageError: that cannot be read.
    """
    if not isinstance(backend, Remembering) or not served.exists():
        return
    try:
        backend.remember(served.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(
            f"{served}: cannot be read: {error}; delete it, and the run goes on; whether the "
            "server takes the next weights is checked less well then"
        ) from error
