"""Whether this machine can carry a recipe, before anything is loaded, made or spent.

    check_ready(load_recipe("paper/search_qa/whale"))   # UsageError: what it needs, and what is here

GPUs are those that torch finds. What a recipe needs of one is a bound from below, from the sizes in the
model's own files: where it trains, weights, gradients, AdamW's moments and the logits of a micro-batch; where
it serves, the weights in half precision. vLLM rests during an update, so that the larger of the two moments
counts. Where accelerate spreads the weights (FSDP), all GPUs count together.

Not covered: activations, and the memory for keys and values; other processes on the same GPU.
"""

import importlib.util
import json
import os
from pathlib import Path
from typing import NamedTuple

from whale_baselines.explain import training_bytes
from whale_baselines.recipe_files import recipe_names
from whale_baselines.recipes import RunRecipe
from whale_bench.models.folder import model_folder
from whale_envs.errors import UsageError

HERE = ("local", "vllm")
"""Kinds of models whose weights are loaded on this machine."""
_HALF = 2
"""Bytes of a served parameter on a GPU."""


class Gpu(NamedTuple):
    """One, as torch tells of it."""

    name: str
    memory: int
    """Bytes, all of it."""


class Found(NamedTuple):
    """What there is to train and serve on."""

    gpus: tuple[Gpu, ...]
    why: str
    """Where there are no GPUs: why, as the end of a sentence."""


def check_ready(recipe: RunRecipe) -> None:
    """Whether this machine can carry a recipe.

    Raises:
        UsageError: there is no GPU, it is too small, or the model is not here; says what to do.
    """
    if recipe.simulated:
        return
    trains = recipe.schedule.kind != "harness_only"
    kind, _, model = str(recipe.agent["model"]).partition("/")
    on_gpu = recipe.estimate.device == "GPU" and (trains or kind in HERE)
    found = find_gpus() if on_gpu else Found((), "")
    if on_gpu and not found.gpus:
        raise UsageError(
            f"{recipe.name} needs a GPU, and {found.why}; {_smaller(recipe)}`whale-baselines plan "
            f"{recipe.name}` says what it takes"
        )
    if kind in HERE and model != "smollm2":  # which is fetched when missing
        there = Path(recipe.agent.get("directory") or ".") / model
        folder = model_folder(kind, str(there) if there.is_dir() else model)
        if on_gpu:
            _check_memory(recipe, folder, found.gpus, trains=trains, shared=kind == "local")


def find_gpus() -> Found:
    """The GPUs that torch can use here."""
    if importlib.util.find_spec("torch") is None:
        return Found((), 'torch is not installed here (pip install "whale-envs[train]")')
    import torch

    if torch.cuda.is_available():
        all_of_them = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        return Found(tuple(Gpu(one.name, one.total_memory) for one in all_of_them), "")
    seen = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    shown = f", though this machine has {', '.join(seen)}" if seen else ""
    if torch.version.cuda is None:
        return Found((), f"torch {torch.__version__} is a build for CPUs{shown}")
    return Found((), f"torch {torch.__version__} finds no CUDA device{shown}")


def _check_memory(
    recipe: RunRecipe, folder: Path, gpus: tuple[Gpu, ...], *, trains: bool, shared: bool
) -> None:
    count = parameters_in(folder)
    needed = _HALF * count
    if trains:
        trained = 0 if recipe.recipe.lora_rank else count  # adapters are small beside the rest
        training = training_bytes(count, trained, recipe.recipe.micro_tokens, _vocabulary(folder))
        held = 4 * count + 8 * trained
        needed = training if shared else max(training, held + needed)
    spread = os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("1", "true")
    memory = sum(gpu.memory for gpu in gpus) if spread else gpus[0].memory
    if needed <= memory:
        return
    names = ", ".join(f"{gpu.name} of {gpu.memory / 1e9:.3g} GB" for gpu in gpus)
    ways = "fewer micro_tokens, a lora_rank, or accelerate's FSDP over several GPUs take less; " * trains
    raise UsageError(
        f"{recipe.name} needs at least {needed / 1e9:.3g} GB of memory "
        f"{'on all GPUs together' if spread else 'on one GPU'} for {count / 1e9:.2g} billion parameters, and "
        f"here is {names}; {ways}{_smaller(recipe)}nothing was spent"
    )


def parameters_in(folder: Path) -> int:
    """How many numbers the weights in a model folder are; reads the headers of its files only.

    Raises:
        UsageError: one of the files is damaged.
    """
    from safetensors import SafetensorError, safe_open

    count = 0
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="numpy") as weights:
                for name in weights.keys():  # noqa: SIM118  # no mapping
                    size = 1
                    for extent in weights.get_slice(name).get_shape():
                        size *= extent
                    count += size
        except (OSError, SafetensorError) as error:
            raise UsageError(f"{path}: cannot be read: {error}") from error
    return count


def _vocabulary(folder: Path) -> int:
    """Of the model's output; a multimodal one has it in a part of its own."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return int(config.get("vocab_size") or config.get("text_config", {}).get("vocab_size") or 0)
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"{folder / 'config.json'}: cannot be read: {error}") from error


def _smaller(recipe: RunRecipe) -> str:
    small = f"demo/{recipe.domain}/{recipe.name.rpartition('/')[2]}"
    there = recipe.name.startswith("paper/") and small in recipe_names()
    return f"{small} is the same method at a size for a CPU; " if there else ""
