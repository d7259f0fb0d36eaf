"""A Hugging Face model in this process, by transformers, with exact sampled ids.

    backend = LocalBackend.load("smollm2")  # or a folder
    async with backend:
        generation = await backend.generate(Request(messages=(Message("user", "Hi"),), seed=1))
        weights_id = await backend.reload("/models/after-training")

Requests in flight at the same time share one batch; see `sampling_loop.py`. Everything runs in one
worker thread on one device: CUDA where there is one, else the CPU.

Chats, ids and checks are those of `folder.py`. Not covered: what it does not cover, quantised weights,
several devices, models with sliding-window or recurrent layers.
"""

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from whale_bench.models.chat_template import SETTINGS, load_tokenizer
from whale_bench.models.folder import (
    FolderBackend,
    Precision,
    hash_folder,
    loading,
    model_folder,
    native_precision,
    stop_ids,
)
from whale_bench.models.layout import Layout, check_replaces, layout
from whale_envs.errors import UsageError

if TYPE_CHECKING:
    from whale_bench.models.sampling_loop import Job, Sampled, SamplingLoop


class LocalBackend(FolderBackend):
    """One model folder in memory. Use it as a context manager: leaving ends the worker thread."""

    def __init__(
        self, name: str, weights_id: str, tokenizer: Any, loop: "SamplingLoop", context: int
    ) -> None:
        super().__init__(name, weights_id, tokenizer, context, loop.model.config.vocab_size)
        self._loop = loop
        self._layout: Layout
        self._load_seconds = 0.0

    @classmethod
    def load(cls, path_or_name: str, *, precision: Precision | None = None) -> Self:
        """Loads "smollm2" (fetched when missing) or a folder with safetensors and a chat template.

        Args:
            path_or_name: as on the command line behind "local/".
            precision: None takes bfloat16 where the device computes in it, else float32.

        Raises:
            UsageError: the folder, the model or the installation cannot be used; says why.
            InfrastructureError: "smollm2" could not be fetched.
        """
        started = time.perf_counter()
        folder = model_folder("local", path_or_name)
        # OpenMP threads that wait for each other spin, by default so long that everything slows down
        # up to tenfold once something else wants the cores. A short spin costs nothing on quiet
        # cores. Read once, when torch loads its OpenMP library.
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
        try:
            import torch
            import transformers  # noqa: F401
        except ImportError as error:
            raise UsageError(f'{error.name} is missing: pip install "whale-envs[local]"') from error
        from whale_bench.models.sampling_loop import SamplingLoop

        device = "cuda" if torch.cuda.is_available() else "cpu"
        precision = precision or native_precision(device)
        model, tokenizer = _read(folder, precision, device)
        loop = SamplingLoop(model, stop_ids(tokenizer, model.generation_config), **memory_budgets(device))
        name = f"local/{path_or_name}"
        backend = cls(name, hash_folder(folder), tokenizer, loop, model.config.max_position_embeddings)
        backend._layout = layout(folder, model.config)
        backend._load_seconds = time.perf_counter() - started
        return backend

    async def reload(self, folder: str | Path) -> str:
        """Serves the weights, tokenizer and chat template of `folder` from now on; its `weights_id`.

        Requests under way are finished with the old weights, later ones wait for the new. Both are in
        memory for a moment.

        Raises:
            UsageError: no model folder, another architecture, or weights that are missing or damaged.
            InfrastructureError: the backend was closed.
        """
        path = model_folder("local", str(folder))
        model, tokenizer, weights_id = await asyncio.to_thread(self._read_next, path)

        def swapped() -> None:
            self._use(tokenizer)
            self.weights_id = weights_id

        ends = stop_ids(tokenizer, model.generation_config)
        await asyncio.wrap_future(self._loop.replace(model, ends, swapped))
        return weights_id

    def _read_next(self, folder: Path) -> tuple[Any, Any, str]:
        """Model, tokenizer and weights_id of a folder that can replace the one served."""
        import transformers as installed

        transformers: Any = installed
        try:
            config = transformers.AutoConfig.from_pretrained(folder, **SETTINGS)
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot load the model in {str(folder)!r}: {error}") from error
        check_replaces(self.name, folder, self._layout, layout(folder, config))
        served = self._loop.model
        model, tokenizer = _read(folder, str(served.dtype).removeprefix("torch."), served.device)
        return model, tokenizer, hash_folder(folder)

    async def _sample(self, job: "Job") -> "Sampled":
        return await asyncio.wrap_future(self._loop.submit(job))

    def seconds(self) -> dict[str, float]:
        """Of "load", then of the worker thread: "prefill" (prompts) and "decode" (sampling)."""
        return {"load": self._load_seconds, **self._loop.seconds}

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self._loop.close)


def _read(folder: Path, precision: str, device: Any) -> tuple[Any, Any]:
    """Model and tokenizer.

    Raises:
        UsageError: one of them cannot be used.
    """
    import torch
    import transformers as installed

    transformers: Any = installed  # its own type hints are incomplete
    attention = register_attention()
    with loading(folder):
        config = transformers.AutoConfig.from_pretrained(folder, **SETTINGS)
        check_layers(folder, config)
        tokenizer = load_tokenizer(folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=getattr(torch, precision),
            attn_implementation=attention,
            use_safetensors=True,
            **SETTINGS,
        )
    return model.to(device).eval(), tokenizer


def memory_budgets(device: str) -> dict[str, int]:
    """How much of a GPU's free memory a loop takes; nothing where the loop's own bounds are right."""
    import torch

    if device != "cuda":
        return {}
    free = torch.cuda.mem_get_info()[0]
    return {"batch_bytes": free // 2, "prefix_bytes": free // 4}


def register_attention() -> str:
    """Makes the loop's attention known to transformers; its name there."""
    import transformers

    from whale_bench.models.key_values import ATTENTION, grouped_attention

    transformers.AttentionInterface.register(ATTENTION, grouped_attention)
    return ATTENTION


def check_layers(folder: Path, config: Any) -> None:
    """Whether the loop can sample from such a model.

    Raises:
        UsageError: it cannot; names its layers.
    """
    odd = odd_layers(config)
    if odd or not hasattr(config, "max_position_embeddings"):
        shown = ", ".join(sorted(odd)) or "its config has no max_position_embeddings of its own"
        raise UsageError(
            f"{str(folder)!r} ({config.model_type}) has layers that local/PATH does not support: {shown}; "
            "vllm/PATH serves such models"
        )


def odd_layers(config: Any) -> set[str]:
    """Kinds of a model's layers that do not attend to everything before them, as configs call them."""
    text = config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ())
    window = getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True)
    return (kinds | ({"sliding_attention"} if window else set())) - {"full_attention"}
