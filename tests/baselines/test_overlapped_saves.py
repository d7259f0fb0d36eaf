"""Trainer's files that are written while the next step samples: kills, full disks, and the same bits."""

import errno
import threading

import pytest
import torch
from test_rsft_loop import (
    Kept,
    Killed,
    Recorded,
    changed,
    charged_of,
    files_of,
    go,
    launch,
    phase_of,
    steps_of,
)
from tiny_model import write_folder
from whale_baselines import rsft
from whale_baselines.checkpoint import Checkpoints
from whale_baselines.json_lines import read_lines
from whale_baselines.rsft import RsftTrainer
from whale_baselines.rsft_loop import Phase

from whale_bench.ledger import Ledger
from whale_bench.models.folder import hash_folder
from whale_envs.errors import InfrastructureError

pytestmark = pytest.mark.usefixtures("one_thread")

ONE = changed(keep_last=1)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("overlapped") / "base")


@pytest.fixture(scope="module")
def foreground(base, tmp_path_factory):
    """A run of three steps, each of which waits for its checkpoint."""
    root = tmp_path_factory.mktemp("foreground") / "run"
    torch.set_num_threads(1)  # as every test of this file
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RsftTrainer, "overlaps", False)
        patch.setattr(Checkpoints, "start", None)
        launch(base, root, {}, 3)
    return root


def all_files(root):
    return {folder.name: files_of(folder) for folder in Checkpoints(root / "checkpoints", 2).folders()}


def weights_of(root):
    return [line["weights_id"] for line in read_lines(root / "metrics.jsonl")]


def check_same(root, foreground):
    assert all_files(root).items() <= all_files(foreground).items()
    assert Checkpoints(root / "checkpoints", 2).latest().state.step == 3
    assert charged_of(root) == charged_of(foreground)
    assert steps_of(root) == [1, 2, 3]


def failing(error, save):
    """An optimizer's writer that raises in the thread of one save, counted from the first checkpoint's, 0."""
    count, write = 0, rsft.write_optimizer

    def counted(state, path):
        nonlocal count
        count += 1
        if count > save:
            raise error
        write(state, path)

    return counted


class Opens(Recorded):
    """Lets the trainer's files be written from its second batch on."""

    def __init__(self, backend, gate):
        super().__init__(backend)
        self.gate = gate

    async def play(self, batch):
        if self.batches:
            assert not self.gate.is_set()
            self.gate.set()
        return await super().play(batch)


def test_the_trainers_files_are_written_while_the_next_step_samples_and_before_it_trains(
    base, foreground, tmp_path, monkeypatch
):
    phase, gate = phase_of(base, tmp_path), threading.Event()
    phase.player = Opens(phase.backend, gate)
    update, write, whole = RsftTrainer.update, rsft.write_optimizer, []

    def waiting(state, path):
        if threading.current_thread() is not threading.main_thread():
            assert gate.wait(60)
            gate.clear()
        write(state, path)

    def watched(self, rows, **named):
        whole.append(Checkpoints(phase.checkpoints.root, 2).latest().state.step)
        return update(self, rows, **named)

    monkeypatch.setattr(rsft, "write_optimizer", waiting)
    monkeypatch.setattr(RsftTrainer, "update", watched)
    join = phase.join

    def last():  # nobody samples after the last step
        if len(whole) == 3:
            assert Checkpoints(phase.checkpoints.root, 2).newest_whole().state.step == 2
            gate.set()
        join()

    monkeypatch.setattr(Phase, "join", lambda _self: last())
    lines = go(phase, base, 3)
    assert whole == [0, 1, 2]
    assert set(lines[0]["seconds"]) == {"sample", "admit", "train", "save", "sync"}
    check_same(tmp_path, foreground)


@pytest.mark.parametrize("save", [1, 2, 3])
def test_a_kill_after_the_hand_over_and_before_the_trainers_files_are_there(
    base, foreground, tmp_path, monkeypatch, save
):
    """The step has its line and its charge already; older checkpoints wait for it to be whole."""
    root, kept = tmp_path / "run", {}
    with monkeypatch.context() as patch:
        patch.setattr(rsft, "write_optimizer", failing(Killed(), save))
        with pytest.raises(Killed):
            launch(base, root, kept, 3, ONE)
    checkpoints = Checkpoints(root / "checkpoints", 1)
    before, half = checkpoints.folders()
    assert steps_of(root)[-1] == save
    assert (before.name, half.name) == (f"step-{save - 1:06d}", f"step-{save:06d}")
    assert not (half / "trainer").exists()
    assert checkpoints.newest_whole().folder == before
    assert hash_folder(half) == weights_of(foreground)[save - 1]
    launch(base, root, kept, 3, ONE)
    check_same(root, foreground)
    with Ledger(root / "ledger.sqlite", readonly=True) as ledger:
        repeated = [event.key for event in ledger.events() if event.kind == "repeated"]
    assert repeated == [f"train:{save}"]


def killed_in_step_two(base, root, kept):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rsft, "write_optimizer", failing(Killed(), 2))
        with pytest.raises(Killed):
            launch(base, root, kept, 3, ONE)


def test_a_step_is_made_anew_on_as_many_threads_as_the_first_time(base, foreground, tmp_path):
    root, kept = tmp_path / "run", {}
    killed_in_step_two(base, root, kept)
    torch.set_num_threads(2)  # the fixture sets it back
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RsftTrainer, "take_weights", lambda *_: False)  # the bits alone have to do
        launch(base, root, kept, 2, ONE)
    torch.set_num_threads(1)
    launch(base, root, kept, 3, ONE)
    check_same(root, foreground)


def test_weights_that_are_whole_are_kept_by_a_machine_that_does_not_repeat_the_step(
    base, foreground, tmp_path, monkeypatch
):
    root, kept = tmp_path / "run", {}
    killed_in_step_two(base, root, kept)
    update = RsftTrainer.update

    def rounds_otherwise(self, rows, **named):
        done = update(self, rows, **named)
        with torch.no_grad():
            next(iter(self.model.parameters())).mul_(1 + 1e-6)
        return done

    with monkeypatch.context() as patch:
        patch.setattr(RsftTrainer, "update", rounds_otherwise)
        launch(base, root, kept, 2, ONE)
    newest = Checkpoints(root / "checkpoints", 1).latest()
    assert newest.state.step == 2
    assert hash_folder(newest.folder) == newest.state.weights_id == weights_of(foreground)[1]
    launch(base, root, kept, 3, ONE)
    assert weights_of(root) == weights_of(foreground)
    assert charged_of(root) == charged_of(foreground)


def test_a_disk_that_fills_up_meanwhile_stops_the_next_step_and_the_run_goes_on_later(
    base, foreground, tmp_path, monkeypatch
):
    root, kept = tmp_path / "run", {}
    phase = phase_of(base, root, recipe=ONE)
    phase.player = Kept(phase.backend, kept)
    with monkeypatch.context() as patch:
        patch.setattr(rsft, "write_optimizer", failing(OSError(errno.ENOSPC, "No space left on device"), 2))
        with pytest.raises(InfrastructureError, match=r"step-000002: the checkpoint cannot be .*untouched"):
            go(phase, base, 3)
    with pytest.raises(InfrastructureError, match="step-000002"):  # it is not forgotten
        phase.join()
    assert phase.now.state.step == 2
    assert sorted(path.name for path in (root / "checkpoints").iterdir()) == ["step-000001", "step-000002"]
    assert Checkpoints(root / "checkpoints", 1).newest_whole().state.step == 1
    launch(base, root, kept, 3, ONE)
    check_same(root, foreground)


def test_a_fault_of_the_trainer_meanwhile_is_not_taken_for_one_of_the_disk(base, tmp_path, monkeypatch):
    monkeypatch.setattr(rsft, "write_optimizer", failing(RuntimeError("a bug"), 1))
    with pytest.raises(RuntimeError, match="a bug"):
        launch(base, tmp_path / "run", {}, 2)
