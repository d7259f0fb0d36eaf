"""How vLLM's engine is made in this process: its environment, its arguments, and its share of a GPU.

    engine = build("/models/a", precision="bfloat16", context=8192, beside=None)
    engine = build("/models/a", precision="bfloat16", context=8192, beside=12 * parameters)

A trainer on the same GPU holds weights and an optimizer's moments all the while. `beside` is how much that
is: vLLM then takes what is left of the GPU, and can sleep, so that gradients and activations have its part
while an update is made (`lends`). Without `beside` it takes what it likes by default. On a CPU neither
means anything.

Not covered: several GPUs, and what other processes will take of this one later.
"""

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator
from typing import Any

from whale_bench.models.folder import Precision
from whale_envs.errors import UsageError

MAX_ROWS = 256
"""Requests in one batch; those beyond wait inside vLLM."""
WORKER = "whale_bench.models.vllm_worker.ReloadWorker"

MOST_SHARE = 0.9
"""Of a GPU, that vLLM takes beside a trainer however small that is."""
_SLACK = 0.05
"""Of a GPU, for libraries, recorded graphs and gaps between allocations."""


def prepare_environment() -> None:
    """Sets what vLLM reads from the environment, where the user has not; call before importing it."""
    defaults = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine's core in our thread, see vllm_engine.py
        "VLLM_NO_USAGE_STATS": "1",  # a benchmark does not report its users
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; its own choice is half of the machine
        # Binding to cores pins this process's main thread too, and whatever it trains later crawls.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # OpenMP threads that spin while they wait cost tenfold once something else wants the cores;
        # both OpenMP libraries have a variable for it, and each reads its own when it is loaded.
        "GOMP_SPINCOUNT": "1000",
        "KMP_BLOCKTIME": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # a line about memory nodes at every start
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def lends(beside: int | None) -> bool:
    """Whether an engine that is built beside so many bytes can sleep."""
    import torch

    return beside is not None and torch.cuda.is_available()


def share_beside(held: int, *, free: int, total: int, own: int) -> float:
    """The share of a GPU that is vLLM's, beside a trainer in the same process.

    Args:
        held: bytes that the trainer keeps while vLLM samples.
        free: bytes that nobody has now.
        total: bytes of the GPU.
        own: bytes of `held` that this process has already.

    Raises:
        UsageError: nothing is left.

    >>> round(share_beside(24 * 10**9, free=131 * 10**9, total=141 * 10**9, own=8 * 10**9), 3)
    0.766
    """
    share = min(MOST_SHARE, (free + own - held) / total - _SLACK)
    if share <= 0:
        raise UsageError(
            f"training keeps {held / 1e9:.3g} GB of a GPU of {total / 1e9:.3g} GB, of which "
            f"{(free + own) / 1e9:.3g} GB are to be had: nothing is left for vLLM to sample in; lora_rank, "
            "accelerate's FSDP or a server elsewhere (openai/NAME) take less here"
        )
    return share


def arguments(
    folder: str, precision: Precision, context: int, *, cpu: bool, share: float | None
) -> dict[str, Any]:
    """What vLLM's `EngineArgs` is given.

    Args:
        folder: with the weights.
        precision: what is computed in.
        context: the model's own.
        cpu: whether there is no GPU.
        share: of the GPU, and that the engine can sleep; None leaves both to vLLM.
    """
    # Where a prompt is computed in two parts, vLLM winds a seeded request's random generator back,
    # which that of a CPU cannot: the engine would die of "CPU Generator does not use offset".
    whole = {"enable_chunked_prefill": False, "max_num_batched_tokens": max(2048, context), "block_size": 32}
    beside = {} if share is None else {"enable_sleep_mode": True, "gpu_memory_utilization": share}
    return {
        "model": folder,
        "dtype": precision,
        "load_format": "safetensors",
        "max_model_len": -1,  # the model's own, or what the memory for keys and values holds
        "max_num_seqs": MAX_ROWS,
        "enable_prefix_caching": True,
        "enforce_eager": cpu,
        "skip_tokenizer_init": True,  # ids in, ids out: texts are ours
        "generation_config": "vllm",  # no sampling settings but the request's
        "worker_extension_cls": WORKER,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        **(whole if cpu else beside),
    }


def build(folder: str, *, precision: Precision, context: int, beside: int | None) -> Any:
    """An engine on `folder`, on the GPU where there is one.

    Raises:
        UsageError: beside the trainer there is no room for it; and whatever vLLM raises.
    """
    prepare_environment()
    with _quiet():
        import torch
        from vllm import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        cpu = not torch.cuda.is_available()
        if cpu and "TORCHDYNAMO_DISABLE" not in os.environ:
            # A few of vLLM's functions are compiled even in eager mode: a minute of a C++ compiler at
            # the first start of a CPU, for no speed.
            import torch._dynamo

            torch._dynamo.config.disable = True
        share = None
        if beside is not None and lends(beside):
            torch.cuda.empty_cache()
            free, total = torch.cuda.mem_get_info()
            share = share_beside(beside, free=free, total=total, own=torch.cuda.memory_reserved())
        given = arguments(folder, precision, context, cpu=cpu, share=share)
        threads = torch.set_num_threads
        try:
            return LLMEngine.from_engine_args(EngineArgs(**given))
        finally:
            torch.set_num_threads = threads  # on a CPU it replaces this by a function that does nothing


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the deprecation warnings and hints of vLLM's own imports."""
    logging.getLogger("torch._library.triton").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
