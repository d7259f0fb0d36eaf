"""A Hugging Face model in this process, by vLLM: many rollouts in one batch, weights replaceable.

    backend = VllmBackend.load("smollm2")  # or a folder
    async with backend:
        generation = await backend.generate(Request(messages=(Message("user", "Hi"),), seed=1))
        weights_id = await backend.reload("/models/after-training")

The same chats, ids and `weights_id` as `local/PATH` (`folder.py`), sampled by `vllm_engine.py`: paged
keys and values, prompts that share a beginning computed once, CUDA graphs on a GPU. Results depend on
the seed and, through rounding, on what else is in the batch. Beside a trainer it is a `Pausable`.

Not covered: what those modules do not cover; folders whose layers vLLM does not know.
"""

import asyncio
import importlib.util
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from whale_bench.models.chat_template import SETTINGS, load_tokenizer
from whale_bench.models.folder import (
    FolderBackend,
    Precision,
    hash_folder,
    model_folder,
    native_precision,
    stop_ids,
)
from whale_bench.models.layout import check_replaces, layout
from whale_envs.errors import UsageError

if TYPE_CHECKING:
    from whale_bench.models.sampling_loop import Job, Sampled
    from whale_bench.models.vllm_engine import EngineThread


class VllmBackend(FolderBackend):
    """One model folder in vLLM. Use it as a context manager: leaving frees its memory.

    One at a time may be open in a process.
    """

    default_concurrency = 64

    def __init__(self, name: str, folder: Path, tokenizer: Any, config: Any, engine: "EngineThread") -> None:
        vocabulary = config.get_text_config().vocab_size
        super().__init__(name, hash_folder(folder), tokenizer, engine.context, vocabulary)
        self._engine = engine
        self._layout = layout(folder, config)
        self._load_seconds = 0.0

    @classmethod
    def load(
        cls, path_or_name: str, *, precision: Precision | None = None, beside: int | None = None
    ) -> Self:
        """Loads "smollm2" (fetched when missing) or a folder with safetensors and a chat template.

        Args:
            path_or_name: as on the command line behind "vllm/".
            precision: None takes bfloat16 where the device computes in it, else float32.
            beside: bytes of the GPU that a trainer in this process keeps while this samples: vLLM takes of
                the rest, and lends all of it to an update (`rest`). None where nobody trains here.

        Raises:
            UsageError: the folder, the model or the installation cannot be used, or another vLLM
                model is open in this process; says which.
            InfrastructureError: "smollm2" could not be fetched.
        """
        started = time.perf_counter()
        folder = model_folder("vllm", path_or_name)
        _check_installation()
        from whale_bench.models.vllm_engine import EngineThread

        tokenizer, config, ends = _read(folder)
        layout(folder, config)  # before seconds go into an engine
        precision = precision or native_precision(_device())
        context = getattr(config.get_text_config(), "max_position_embeddings", 0)
        engine = EngineThread(str(folder), precision=precision, context=context, ends=ends, beside=beside)
        try:
            backend = cls(f"vllm/{path_or_name}", folder, tokenizer, config, engine)
        except BaseException:
            engine.close()
            raise
        backend._load_seconds = time.perf_counter() - started
        return backend

    @property
    def resting(self) -> bool:
        """See `Pausable`."""
        return self._engine.resting

    async def rest(self) -> None:
        """See `Pausable`: where there is no GPU to share, nothing happens.

        Raises:
            InfrastructureError: vLLM failed, and serves nothing any more.
        """
        if self._engine.lends:
            await asyncio.wrap_future(self._engine.rest())

    async def reload(self, folder: str | Path) -> str:
        """Serves the weights, tokenizer and chat template of `folder` from now on; its `weights_id`.

        Requests under way are finished with the old weights, later ones wait for the new. The files
        are checked against what is served before anything is touched.

        Raises:
            UsageError: no model folder, another architecture, or weights that are missing or damaged.
            InfrastructureError: vLLM failed in the middle; nothing is served any more.
        """
        path = model_folder("vllm", str(folder))
        tokenizer, weights_id, ends = await asyncio.to_thread(self._check, path)

        def swapped() -> None:
            self._use(tokenizer)
            self._engine.ends = ends
            self.weights_id = weights_id

        # Once begun, a swap ends: a caller that gives up does not leave half of the weights.
        await asyncio.wrap_future(self._engine.reload(str(path), swapped=swapped))
        return weights_id

    async def _sample(self, job: "Job") -> "Sampled":
        return await asyncio.wrap_future(self._engine.submit(job))

    def seconds(self) -> dict[str, float]:
        """Of "load", and of the engine's thread: "engine"."""
        return {"load": self._load_seconds, "engine": self._engine.seconds}

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.to_thread(self._engine.close)

    def _check(self, folder: Path) -> tuple[Any, str, frozenset[int]]:
        """Tokenizer, weights_id and stop ids of a folder that can replace the one served."""
        tokenizer, config, ends = _read(folder)
        check_replaces(self.name, folder, self._layout, layout(folder, config))
        return tokenizer, hash_folder(folder), ends


def _check_installation() -> None:
    from whale_bench.models.vllm_build import prepare_environment

    prepare_environment()
    if importlib.util.find_spec("vllm") is None:
        raise UsageError(
            'vllm is missing: pip install "whale-envs[vllm]" for a GPU; for a CPU `make vllm` in a clone'
        )
    for extra in ("torch", "transformers", "safetensors"):
        if importlib.util.find_spec(extra) is None:
            raise UsageError(f'{extra} is missing: pip install "whale-envs[local]"')
    if importlib.util.find_spec("torchvision") is not None:
        # vLLM and transformers import it when it is there; one that is made for another build of torch fails
        # at import and takes them with it.
        try:
            import torchvision  # noqa: F401
        except (ImportError, RuntimeError, OSError) as error:
            raise UsageError(
                f"torchvision does not fit this build of torch ({error}), and vLLM cannot be imported "
                "beside it: pip uninstall torchvision torchaudio torchcodec"
            ) from error


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _read(folder: Path) -> tuple[Any, Any, frozenset[int]]:
    """Tokenizer, config and stop ids."""
    import transformers as installed

    transformers: Any = installed  # its own type hints are incomplete
    try:
        config = transformers.AutoConfig.from_pretrained(folder, **SETTINGS)
        tokenizer = load_tokenizer(folder)
        if (folder / "generation_config.json").is_file():
            ends = transformers.GenerationConfig.from_pretrained(folder)
        else:
            ends = transformers.GenerationConfig.from_model_config(config)
    except (OSError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"cannot load the model in {str(folder)!r}: {error}") from error
    return tokenizer, config, stop_ids(tokenizer, ends)
