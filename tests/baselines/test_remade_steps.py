"""A kill, and then a disk that damages the newest checkpoint: the step is made anew and charged once."""

import random

import pytest
from test_rsft_loop import Clock, Killed, Served, charged_of, files_of, flip, launch, steps_of
from tiny_model import write_folder
from whale_baselines import disk, rsft_loop
from whale_baselines.checkpoint import Checkpoints

from whale_bench.ledger import Ledger

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 2


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("remade") / "base")


def killed(base, root, kept, fatal):
    """A launch that dies before one of the writes that finish a step; how many there were, if it survives."""
    clock = Clock(fatal)
    before = clock.before
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "_append", before(Ledger._append))
        patch.setattr(disk, "synchronise", before(disk.synchronise))
        patch.setattr(rsft_loop, "append_line", before(rsft_loop.append_line))
        patch.setattr(Served, "reload", before(Served.reload))
        if fatal is None:
            launch(base, root, kept, STEPS)
        else:
            with pytest.raises(Killed):
                launch(base, root, kept, STEPS)
    return clock.count


def test_a_kill_at_any_instant_and_then_a_damaged_checkpoint_change_nothing(base, tmp_path):
    """The step is made anew, whoever of ledger and metrics knew of it; and a kill may come again."""
    whole, rng = tmp_path / "whole", random.Random(2)
    instants = killed(base, whole, {}, None)
    expected = {folder.name: files_of(folder) for folder in Checkpoints(whole / "checkpoints", 2).folders()}
    assert instants == 1 + 6 * STEPS
    for fatal in range(4, instants + 1):  # from where there is an earlier checkpoint to go on from
        root, kept = tmp_path / str(fatal), {}
        killed(base, root, kept, fatal)
        flip(Checkpoints(root / "checkpoints", 2).folders()[-1] / "model.safetensors")
        if fatal % 2:
            killed(base, root, kept, rng.randrange(1, 5))
        launch(base, root, kept, STEPS)
        found = {folder.name: files_of(folder) for folder in Checkpoints(root / "checkpoints", 2).folders()}
        assert found == expected, fatal
        assert charged_of(root) == charged_of(whole), fatal
        assert steps_of(root) == steps_of(whole), fatal
