"""Two processes (gloo) against one: an update, a phase, and weights that are spread over both (FSDP2)."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import two_processes
from tiny_model import write_folder
from whale_baselines.prefix_tree import tree_groups
from whale_baselines.sharding import check_sharding
from whale_baselines.weights import load_model

from whale_envs.errors import UsageError

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("processes") / "base")


@pytest.fixture(scope="module")
def pair(base, tmp_path_factory):
    """(folder, what was found) of each of two processes."""
    here, root = Path(__file__).parent, tmp_path_factory.mktemp("pair")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "PYTHONPATH": f"{here}{os.pathsep}{here.parent / 'bench'}",
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
    }
    outs = [root / "first", root / "second"]
    running = [
        subprocess.Popen(
            [sys.executable, str(here / "two_processes.py"), str(base), str(out)],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank, out in enumerate(outs)
    ]
    try:
        assert [process.wait(timeout=600) for process in running] == [0, 0]
    finally:
        for process in running:
            process.kill()
            process.wait()
    return [(out, json.loads((out / "found.json").read_text())) for out in outs]


@pytest.fixture(scope="module")
def alone(base, tmp_path_factory):
    """The same in this process alone."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("alone")
    found = {name: getattr(two_processes, name)(base, out) for name in ("update", "loop", "spread")}
    return out, found


def nearly_equal(weights, others, within, share):
    assert weights.keys() == others.keys()
    for name, value in weights.items():
        assert ((value - others[name]).abs() < within).float().mean() > share, name


def test_two_processes_make_the_update_of_one(alone, pair):
    (out, mine), ((first, told), (second, other)) = alone, pair
    assert told["processes"] == other["processes"] == 2
    assert told["update"] == other["update"]
    assert tree_groups(two_processes.rows_alike(), 60) is not None
    for rows in ("apart", "alike"):  # the latter are trained as trees
        loss, norm, tokens, updates = told["update"][rows]
        assert (tokens, updates) == (mine["update"][rows][2], 2)
        assert loss == pytest.approx(mine["update"][rows][0], rel=1e-5)
        assert norm == pytest.approx(mine["update"][rows][1], rel=1e-4)
    weights, one, two = (torch.load(folder / "update.pt") for folder in (out, first, second))
    assert all(torch.equal(value, two[name]) for name, value in one.items())
    nearly_equal(weights, one, 1e-5, 0.999)


def test_a_phase_in_two_processes_is_that_of_one(alone, pair):
    """Rollouts, checkpoints and accounts are the first one's, over a restart, too; weights are equal."""
    (out, mine), ((first, lead), (second, follower)) = alone, pair
    assert follower["loop"] == {"lines": [], "logprobs": []}
    assert not (second / "checkpoints").exists()
    for one, two in zip(mine["loop"]["lines"], lead["loop"]["lines"], strict=True):
        for name in ("step", "accepted", "updates", "trained_tokens", "reward"):
            assert one[name] == two[name]
        assert two["loss"] == (one["loss"] and pytest.approx(one["loss"], rel=1e-4))
    saved = max((first / "checkpoints").iterdir())
    assert saved.name == "step-000003"
    weights, one, two = (torch.load(folder / "loop.pt") for folder in (out, first, second))
    served = load_model(saved).state_dict()
    for name, value in one.items():
        assert torch.equal(value, two[name])
        assert torch.equal(value, served[name])
    nearly_equal(weights, one, 1e-4, 0.99)


def test_log_probabilities_for_a_server_are_a_call_of_all_processes(alone, pair):
    """One process alone would wait for the others where weights are spread, and they for its next call."""
    (_, mine), ((_, lead), _) = alone, pair
    assert len(lead["loop"]["logprobs"]) == len(mine["loop"]["logprobs"]) == 3  # one after the restart
    for one, two in zip(mine["loop"]["logprobs"], lead["loop"]["logprobs"], strict=True):
        assert two == pytest.approx(one, abs=0.01)  # a step moves them by 0.06


def test_spread_weights_make_the_same_update_and_checkpoint(alone, pair, base):
    (out, mine), ((first, told), (_, other)) = alone, pair
    one, two = mine["spread"], told["spread"]
    assert two["kind"].endswith("FSDP")
    assert (one["shareable"], two["shareable"]) == (True, False)
    assert two["here"] + other["spread"]["here"] == pytest.approx(one["here"], rel=0.02)
    for name in ("loss", "norm", "changed"):
        assert two[name] == other["spread"][name] == pytest.approx(one[name], rel=1e-3), name
    files = {path.name for path in (first / "spread").iterdir()}
    assert (
        files
        == {path.name for path in (out / "spread").iterdir()}
        == {*map(name_of, base.iterdir()), "trainer"}
    )
    weights, spread = (load_model(folder / "spread").state_dict() for folder in (out, first))
    nearly_equal(weights, spread, 1e-5, 0.999)


def name_of(path):
    return path.name


def test_a_spread_trainer_goes_on_from_its_checkpoint(alone, pair):
    (_, mine), ((_, told), _) = alone, pair
    for found in (mine["spread"], told["spread"]):
        assert found["logprobs"][0] == found["logprobs"][1]
        assert found["again"][0] == found["again"][1]
    assert told["spread"]["logprobs"][0] == pytest.approx(mine["spread"]["logprobs"][0], abs=1e-3)
    assert told["spread"]["again"][0] == pytest.approx(mine["spread"]["again"][0], rel=1e-3)


@pytest.mark.parametrize(
    ("second", "adapters", "words"), [(False, False, "--fsdp_version 2"), (True, True, "lora_rank")]
)
def test_what_cannot_be_spread_is_refused(second, adapters, words):
    told = SimpleNamespace(distributed_type="DistributedType.FSDP", is_fsdp2=second)
    with pytest.raises(UsageError, match=words):
        check_sharding(told, adapters=adapters)
