"""An optimizer's state as a safetensors file: no pickle, written from where the tensors are.

    write_optimizer(optimizer.state_dict(), folder / "optimizer.safetensors")
    optimizer.load_state_dict(read_optimizer(folder / "optimizer.safetensors"))

A tensor's name in the file is `exp_avg:3`: what it is, and of which parameter (a number; a name where
accelerate spreads the weights). Settings of the parameter groups, lr and the like, are JSON in the header.
Equal states give equal bytes.

Not covered: state that is no tensor, which AdamW has none of.
"""

import json
from pathlib import Path
from typing import Any

from whale_envs.errors import UsageError

_GROUPS = "param_groups"


def write_optimizer(state: dict[str, Any], path: Path) -> None:
    """Writes what `state_dict` of an optimizer gave.

    Raises:
        UsageError: the state has what is no tensor.
    """
    import torch
    from safetensors.torch import save_file

    tensors: dict[str, torch.Tensor] = {}
    for key, values in state["state"].items():
        for name, value in values.items():
            if not isinstance(value, torch.Tensor):
                raise UsageError(
                    f"{name} of parameter {key!r} in the optimizer's state is no tensor: {value!r}"
                )
            tensors[f"{name}:{key}"] = value.detach().contiguous()
    save_file(tensors, path, metadata={_GROUPS: json.dumps(state[_GROUPS])})


def read_optimizer(path: Path) -> dict[str, Any]:
    """What `write_optimizer` was given, on the CPU, in memory of its own: the file may be deleted.

    Raises as safetensors, json and the disk do where the file is none of those.
    """
    from safetensors import safe_open

    state: dict[int | str, dict[str, Any]] = {}
    with safe_open(path, framework="pt") as file:
        groups = json.loads((file.metadata() or {})[_GROUPS])
        for full in file.keys():  # noqa: SIM118  # not a dict
            name, _, key = full.partition(":")
            state.setdefault(int(key) if key.isdigit() else key, {})[name] = file.get_tensor(full).clone()
    for group in groups:
        group["betas"] = tuple(group["betas"])
    return {"state": state, _GROUPS: groups}
