import errno
import shutil

import pytest
from tiny_model import write_folder
from whale_baselines.checkpoint import Checkpoints, TrainingState, copy_model
from whale_baselines.sampler import SamplerState

from whale_bench.models.folder import hash_folder
from whale_envs.errors import InfrastructureError, UsageError


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("checkpoint") / "base")


@pytest.fixture
def root(tmp_path):
    return tmp_path / "checkpoints"


def state(step):
    return TrainingState(base_id="b", recipe_id="r", sampler=SamplerState(seed=1, position=step), step=step)


def names(root):
    return sorted(path.name for path in root.iterdir())


def test_a_checkpoint_is_a_model_folder_with_the_same_weights_id(base, root):
    checkpoint = Checkpoints(root, 2).save(state(3), lambda folder: copy_model(base, folder))
    assert checkpoint.folder.name == "step-000003"
    assert checkpoint.state.weights_id == hash_folder(base) == hash_folder(checkpoint.folder)
    assert Checkpoints(root, 2).latest() == checkpoint


def test_the_newest_are_kept_and_nothing_else(base, root):
    checkpoints = Checkpoints(root, 2)
    assert checkpoints.latest() is None
    for step in range(4):
        checkpoints.save(state(step), lambda folder: copy_model(base, folder))
    assert names(root) == ["step-000002", "step-000003"]


def test_what_a_kill_left_behind_is_never_taken_for_a_checkpoint(base, root):
    checkpoints = Checkpoints(root, 1)
    checkpoints.save(state(1), lambda folder: copy_model(base, folder))
    for name in (".half-written-step-000002", ".deleted-step-000000"):
        (root / name).mkdir()
        (root / name / "model.safetensors").write_bytes(b"half")
    assert checkpoints.latest().state.step == 1
    checkpoints.save(state(2), lambda folder: copy_model(base, folder))
    assert names(root) == ["step-000002"]


def test_a_step_is_not_written_twice(base, root):
    checkpoints = Checkpoints(root, 2)
    checkpoints.save(state(1), lambda folder: copy_model(base, folder))
    with pytest.raises(UsageError, match="step-000001 is there already"):
        checkpoints.save(state(1), lambda folder: copy_model(base, folder))


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("PytorchStreamWriter failed writing file data/3: file write failed"),
    ],
)
def test_a_full_disk_leaves_the_earlier_checkpoints_as_they_were(base, root, error):
    def fill(folder):
        (folder / "model.safetensors").write_bytes(b"half")
        raise error

    checkpoints = Checkpoints(root, 2)
    before = checkpoints.save(state(1), lambda folder: copy_model(base, folder))
    with pytest.raises(
        InfrastructureError, match=r"step-000002: the checkpoint cannot be written.*untouched"
    ):
        checkpoints.save(state(2), fill)
    assert names(root) == ["step-000001"]
    assert checkpoints.latest() == before


def test_a_fault_of_the_trainer_is_not_taken_for_one_of_the_disk(root):
    def fill(folder):
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        Checkpoints(root, 2).save(state(2), fill)
    assert names(root) == []


def test_a_damaged_checkpoint_is_refused_with_a_way_out(base, root):
    checkpoints = Checkpoints(root, 2)
    for step in (1, 2):
        checkpoints.save(state(step), lambda folder: copy_model(base, folder))
    weights = root / "step-000002" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(
        UsageError, match=r"is damaged: .*; the run cannot go on from it: begin a new one; step-000001 in"
    ):
        checkpoints.latest()
    (root / "step-000002" / "trainer" / "state.json").write_text("{")
    with pytest.raises(UsageError, match=r"step-000002 is damaged: .*begin a new one"):
        checkpoints.latest()
    assert checkpoints.newest_whole().state.step == 1
    shutil.rmtree(root / "step-000002")
    assert checkpoints.latest().state.step == 1


def test_where_all_are_damaged_there_is_no_way_on(base, root):
    checkpoints = Checkpoints(root, 1)
    checkpoints.save(state(1), lambda folder: copy_model(base, folder))
    (root / "step-000001" / "trainer" / "more.bin").write_bytes(b"x")
    with pytest.raises(UsageError, match=r"trainer/more.bin is not what was written; .*: begin a new one$"):
        checkpoints.newest_whole()


def test_a_damaged_checkpoint_is_replaced_only_by_the_weights_that_it_had(base, root):
    checkpoints = Checkpoints(root, 2)
    for step in (1, 2):
        made = checkpoints.save(state(step), lambda folder: copy_model(base, folder))
    (made.folder / "model.safetensors").write_bytes(b"half")
    checkpoints.newest_whole()
    before = names(root)
    with pytest.raises(UsageError, match=r"and the run had sha256:0: .* begin a new one; step-000001 in"):
        checkpoints.save(state(2), lambda folder: copy_model(base, folder), expected="sha256:0")
    assert names(root) == before
    assert checkpoints.newest_whole().state.step == 1
    expected = made.state.weights_id
    assert checkpoints.save(state(2), lambda folder: copy_model(base, folder), expected=expected) == made
    assert Checkpoints(root, 2).latest() == made


def test_too_little_room_is_said_before_anything_is_trained(root, monkeypatch):
    checkpoints = Checkpoints(root, 2)
    checkpoints.check_space(1)
    with pytest.raises(UsageError, match=r"GB free, and 2 checkpoints .* need 3000000.00 GB"):
        checkpoints.check_space(10**15)
