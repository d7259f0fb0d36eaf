"""An optimizer's state goes into a file and comes out as it was, and equal ones give equal files."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from whale_baselines.optimizer_file import read_optimizer, write_optimizer
from whale_baselines.weights import not_finite

from whale_envs.errors import UsageError


def stepped(seed, steps=2):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2, bias=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1 / 3, betas=(0.9, 0.999), weight_decay=0.01)
    for _ in range(steps):
        model(torch.randn(5, 3)).square().sum().backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("steps", [0, 2])
def test_a_state_comes_back_to_the_bit_and_equal_ones_are_equal_files(tmp_path, steps):
    (_, optimizer), (_, same) = stepped(1, steps), stepped(1, steps)
    state = optimizer.state_dict()
    write_optimizer(state, tmp_path / "a.safetensors")
    write_optimizer(same.state_dict(), tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    found = read_optimizer(tmp_path / "a.safetensors")
    assert found["param_groups"] == state["param_groups"]
    assert found["state"].keys() == state["state"].keys()
    for key, values in state["state"].items():
        assert found["state"][key].keys() == values.keys()
        assert all(torch.equal(found["state"][key][name], value) for name, value in values.items())
    _, other = stepped(2, 0)
    other.load_state_dict(found)
    write_optimizer(other.state_dict(), tmp_path / "c.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "c.safetensors").read_bytes()


def test_the_names_of_spread_weights_come_back_too(tmp_path):
    group = {"lr": 0.1, "betas": (0.9, 0.95), "params": ["model.layers.0.w", "lm_head"]}
    tensors = {name: {"exp_avg": torch.ones(2), "step": torch.tensor(3.0)} for name in group["params"]}
    write_optimizer({"state": tensors, "param_groups": [group]}, tmp_path / "o.safetensors")
    found = read_optimizer(tmp_path / "o.safetensors")
    assert found["param_groups"] == [group]
    assert found["state"].keys() == tensors.keys()
    assert all(set(values) == {"exp_avg", "step"} for values in found["state"].values())


def test_what_is_no_state_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"step of parameter 0 .* is no tensor: 3"):
        write_optimizer({"state": {0: {"step": 3}}, "param_groups": []}, tmp_path / "o.safetensors")
    (tmp_path / "o.safetensors").write_bytes(b"half")
    with pytest.raises(SafetensorError):
        read_optimizer(tmp_path / "o.safetensors")


VALUES = st.floats(width=32, allow_nan=True, allow_infinity=True)


@given(
    st.lists(st.lists(VALUES, max_size=5), min_size=1, max_size=4), st.sampled_from(["float32", "bfloat16"])
)
def test_a_value_that_is_not_finite_is_found_wherever_it_stands(rows, dtype):
    state = {str(place): torch.tensor(row, dtype=getattr(torch, dtype)) for place, row in enumerate(rows)}
    state["counts"] = torch.tensor([1, 2])
    bad = [name for name, value in state.items() if not all(torch.isfinite(value.float()))]
    assert not_finite(state) == (bad[0] if bad else None)
