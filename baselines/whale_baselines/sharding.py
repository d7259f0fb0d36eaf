"""Weights and optimizer where accelerate spreads them over processes (FSDP2), in one piece and back.

    accelerate launch --use_fsdp --fsdp_version 2 --num_processes 8 -m whale_baselines.cli run …

    state = whole_weights(accelerator, model)           # a call of all processes; whole in the first one
    take_whole_weights(accelerator, model, state)

A process holds a part of each weight; every function here is called by all processes together, and where
nothing is spread it is what a single process does. What a checkpoint holds is the same either way, but for
the optimizer's file: a run goes on as it began, spread or not.

Not covered: FSDP1, which accelerate keeps for old configurations; adapters; spread checkpoints, for weights
that do not fit the memory of one process.
"""

from typing import TYPE_CHECKING, Any

from whale_envs.errors import UsageError

if TYPE_CHECKING:
    import torch


def is_sharded(accelerator: Any) -> bool:
    """Whether each process holds a part of every weight only."""
    return str(accelerator.distributed_type).endswith("FSDP")


def check_sharding(accelerator: Any, *, adapters: bool) -> None:
    """Whether a trainer can be made with what accelerate was told.

    Raises:
        UsageError: it cannot.
    """
    if not is_sharded(accelerator):
        return
    if not accelerator.is_fsdp2:
        raise UsageError("FSDP1 is not supported: accelerate launch --use_fsdp --fsdp_version 2")
    if adapters:
        raise UsageError("adapters (lora_rank) are not trained under FSDP: leave out one of the two")


def whole_weights(accelerator: Any, model: Any) -> dict[str, "torch.Tensor"]:
    """The weights by their names in a file, in the first process's memory; of spread ones nothing elsewhere.

    Gathered one by one, so that other processes never hold more than one whole weight.
    """
    inner = accelerator.unwrap_model(model)
    if not is_sharded(accelerator):
        state: dict[str, torch.Tensor] = inner.state_dict()
        return state
    gathered: dict[str, torch.Tensor] = {}
    for name, value in inner.state_dict().items():
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        if accelerator.is_main_process and name not in inner.all_tied_weights_keys:  # one name for each
            gathered[name] = whole.detach().cpu()
    return gathered


def take_whole_weights(accelerator: Any, model: Any, state: dict[str, Any]) -> None:
    """Puts whole weights, which each process has, where they belong."""
    inner = accelerator.unwrap_model(model)
    if not is_sharded(accelerator):
        inner.load_state_dict(state)
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    set_model_state_dict(inner, state, options=StateDictOptions(full_state_dict=True))


def whole_optimizer(accelerator: Any, model: Any, optimizer: Any) -> Any:
    """The optimizer's state."""
    if not is_sharded(accelerator):
        return optimizer.state_dict()
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_optimizer_state_dict(model, optimizer.optimizer, options=options)


def take_optimizer(accelerator: Any, model: Any, optimizer: Any, state: Any) -> None:
    """Puts back what `whole_optimizer` gave."""
    if not is_sharded(accelerator):
        optimizer.load_state_dict(state)
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

    options = StateDictOptions(full_state_dict=True)
    set_optimizer_state_dict(model, optimizer.optimizer, state, options=options)


def shard_again(accelerator: Any, model: Any) -> None:
    """Gives up what a forward pass without a backward one has gathered and would keep."""
    if not is_sharded(accelerator):
        return
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def norm_of(norm: Any) -> float:
    """A gradient's norm, each process's part of it included."""
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


def summed(accelerator: Any, *values: float) -> list[float]:
    """Each value's sum over all processes."""
    import torch

    if accelerator.num_processes == 1:
        return list(values)
    here = torch.tensor(values, device=accelerator.device, dtype=torch.float64)
    found: list[float] = accelerator.reduce(here, "sum").tolist()
    return found
