"""A model that somebody else trains, sampled from in the same process, without a second copy of it.

    backend = SharedBackend.of(model, "models/base", precision="float32")
    ...                                                     # `model` is trained, and written to a folder
    weights_id = await backend.reload("runs/weight/checkpoints/step-000001")

The sampling loop of `local.py` runs on a second module around the same parameters, with attention of its
own: an optimizer that changes them in place changes what is sampled. `reload` reads no weights. It compares
every parameter with the folder's files, bit for bit, forgets remembered prompts, and only then takes the
folder's `weights_id`; so what a rollout is labelled with is what it was sampled from. `adopt` does the same
for a folder whose `weights_id` its writer has just computed from these files.

Where the device computes in bfloat16 and `model` is float32, what is shared is a rounded copy, half as
large, which `reload` renews in place.

Not covered: training while requests are under way; adapters, whose served weights are a sum, and weights
that are spread over processes.
"""

import asyncio
import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from whale_bench.models.chat_template import load_tokenizer
from whale_bench.models.folder import (
    HASHED,
    Precision,
    hash_folder,
    loading,
    model_folder,
    native_precision,
    stop_ids,
)
from whale_bench.models.layout import check_replaces, layout, weight_files
from whale_bench.models.local import LocalBackend, check_layers, memory_budgets, register_attention
from whale_envs.errors import InfrastructureError, UsageError

if TYPE_CHECKING:
    import torch


_REST = tuple(ending for ending in HASHED if ending != ".safetensors")


class SharedBackend(LocalBackend):
    """Samples from a model in memory. Use it as a context manager: leaving ends the worker thread."""

    shares = True
    """That it holds no weights of its own, or a smaller copy of them at most."""
    _trained: "dict[str, torch.Tensor]"
    """The owner's parameters, by name."""
    _rest_id: str
    """Hash of what the folder served holds beside weights."""

    @classmethod
    def of(cls, model: Any, path_or_name: str, *, precision: Precision | None = None) -> Self:
        """Samples from `model`, whose weights are those of the folder, until `reload` says otherwise.

        Args:
            model: a causal language model of transformers, on the device to sample on.
            path_or_name: the folder, as on the command line behind "local/".
            precision: None takes bfloat16 where the device computes in it, else float32.

        Raises:
            UsageError: the folder or the model cannot be sampled from; says why.
            InfrastructureError: the model's weights are not the folder's.
        """
        from whale_bench.models.sampling_loop import SamplingLoop

        folder = model_folder("local", path_or_name)
        with loading(folder):
            check_layers(folder, model.config)
            tokenizer = load_tokenizer(folder)
        view = _view(model, precision or native_precision(model.device.type))
        budgets = memory_budgets(model.device.type)
        loop = SamplingLoop(view, stop_ids(tokenizer, model.generation_config), **budgets)
        name = f"local/{path_or_name}"
        backend = cls(name, hash_folder(folder), tokenizer, loop, model.config.max_position_embeddings)
        backend._layout = layout(folder, model.config)
        backend._rest_id = hash_folder(folder, _REST)
        backend._trained = dict(model.named_parameters())
        backend._compare(folder)
        return backend

    async def reload(self, folder: str | Path) -> str:
        """Labels what is sampled from now on with the folder's `weights_id`, once it is proved to be that.

        Raises:
            UsageError: no model folder, another architecture, or weights that are missing or damaged.
            InfrastructureError: the shared weights are not the folder's, or the backend was closed.
        """
        weights_id = await asyncio.to_thread(hash_folder, model_folder("local", str(folder)))
        await self.adopt(folder, weights_id)
        return weights_id

    async def adopt(self, folder: str | Path, weights_id: str) -> None:
        """See `Sharing`: as `reload`, of a folder with this `weights_id`."""
        path = model_folder("local", str(folder))
        tokenizer, rest_id = await asyncio.to_thread(self._prove, path)
        config = self._loop.model.generation_config

        def swapped() -> None:
            if tokenizer is not None:
                self._use(tokenizer)
            self._rest_id = rest_id
            self.weights_id = weights_id

        ends = self._loop.stop_ids if tokenizer is None else stop_ids(tokenizer, config)
        await asyncio.wrap_future(self._loop.replace(self._loop.model, ends, swapped))

    def _prove(self, folder: Path) -> tuple[Any, str]:
        """Tokenizer of a folder that holds what is shared, None where it is that in use; and `_rest_id`."""
        import transformers as installed

        transformers: Any = installed
        tokenizer, rest_id = None, hash_folder(folder, _REST)
        with loading(folder):
            config = transformers.AutoConfig.from_pretrained(folder)
            if rest_id != self._rest_id:
                tokenizer = load_tokenizer(folder)
        check_replaces(self.name, folder, self._layout, layout(folder, config))
        self._renew()
        self._compare(folder)
        return tokenizer, rest_id

    def _renew(self) -> None:
        """Rounds the owner's weights anew, where they are not shared as they are."""
        import torch

        with torch.no_grad():
            for name, parameter in self._loop.model.named_parameters():
                if parameter.data_ptr() != self._trained[name].data_ptr():
                    parameter.copy_(self._trained[name])

    def _compare(self, folder: Path) -> None:
        """Whether what is sampled from is what the folder's files hold, bit for bit."""
        import torch
        from safetensors import safe_open

        left = dict(self._loop.model.named_parameters())
        for file in weight_files(folder):
            with safe_open(file, framework="pt") as weights:
                for name in weights.keys():  # noqa: SIM118  # not a dict
                    served = left.pop(name, None)
                    if served is None:
                        continue  # a tied layer that some tools write
                    if not torch.equal(served.detach().cpu(), weights.get_tensor(name).to(served.dtype)):
                        raise InfrastructureError(
                            f"{self.name} shares weights that are not those of {str(folder)!r}: "
                            f"{name} differs"
                        )
        if left:
            raise UsageError(f"{str(folder)!r} lacks the weights {', '.join(sorted(left)[:3])}")


def _view(model: Any, precision: str) -> Any:
    """A module of the same class around the same parameters and buffers, for sampling."""
    import torch
    import transformers as installed

    transformers: Any = installed
    dtype = getattr(torch, precision)
    config = copy.deepcopy(model.config)  # it is written to, and the owner's attention stays its own
    implementation = register_attention()
    with torch.device("meta"):
        view = transformers.AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation=implementation
        )
    copies: dict[int, Any] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) not in copies:
            rounded = parameter.detach().to(dtype)
            same = rounded.data_ptr() == parameter.data_ptr()
            copies[id(parameter)] = parameter if same else torch.nn.Parameter(rounded, requires_grad=False)
        place, _, leaf = name.rpartition(".")
        view.get_submodule(place)._parameters[leaf] = copies[id(parameter)]
    for name, buffer in model.named_buffers(remove_duplicate=False):
        place, _, leaf = name.rpartition(".")
        view.get_submodule(place)._buffers[leaf] = buffer
    view.generation_config = model.generation_config
    return view.eval()
