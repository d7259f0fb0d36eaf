"""Model folders as a trainer needs them: float32 weights in, the same kind of folder out.

    model = load_model(folder)                          # checked first; float32, for training
    write_model(model, folder, read_files(base))        # weights, and the base's other files as they were

Tokenizer, chat template and config are copied byte for byte: what is served after training renders
every chat as what was served before. The weights are written in float32, the master copy itself; a
backend rounds them when it loads them, to what the config says.

Not covered: models whose weights do not fit the memory of one process, pickled weights, code that
comes with a model.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whale_bench.models.folder import HASHED, SETTINGS, load_tokenizer, loading, without_bars
from whale_envs.errors import UsageError

if TYPE_CHECKING:
    import torch

_WEIGHTS = (".safetensors", ".safetensors.index.json")
_INCIDENTAL = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache")
"""Parts of a config that say nothing about the architecture."""


def load_model(folder: Path, *, like: dict[str, Any] | None = None) -> Any:
    """The folder's model in float32 on the CPU.

    Args:
        folder: a Hugging Face folder with safetensors and a tokenizer with a chat template.
        like: config (`architecture`) that it has to have.

    Raises:
        UsageError: something is missing, damaged or of another architecture; says what.
    """
    import torch
    import transformers as installed
    from safetensors import SafetensorError

    transformers: Any = installed  # its own type hints are incomplete
    if not (folder / "config.json").is_file():
        raise UsageError(f"{str(folder)!r} holds no config.json, so it is not a Hugging Face model folder")
    found = architecture(folder)
    if like is not None:
        for key in sorted(like.keys() | found.keys()):
            if like.get(key) != found.get(key):
                raise UsageError(
                    f"{str(folder)!r} is of another architecture: {key} is {found.get(key)!r}, "
                    f"trained is {like.get(key)!r}"
                )
    with loading(folder, RuntimeError, SafetensorError):
        load_tokenizer(folder)
        model, told = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, use_safetensors=True, output_loading_info=True, **SETTINGS
        )
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if told.get(what):
            raise UsageError(
                f"the weights in {str(folder)!r} are not those of its config.json: {what.replace('_', ' ')} "
                f"{', '.join(map(str, sorted(told[what], key=str)[:3]))}"
            )
    return model


def architecture(folder: Path) -> dict[str, Any]:
    """What config.json says of the architecture.

    Raises:
        UsageError: there is none, or it cannot be read.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        return {key: value for key, value in config.items() if key not in _INCIDENTAL}
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error


def read_files(folder: Path) -> dict[str, bytes]:
    """Everything in a model folder that decides what it answers, but the weights."""
    paths = (path for path in sorted(folder.iterdir()) if path.is_file() and path.suffix in HASHED)
    return {path.name: path.read_bytes() for path in paths if not path.name.endswith(_WEIGHTS)}


def write_model(
    model: Any, folder: Path, files: dict[str, bytes], state: "dict[str, torch.Tensor] | None" = None
) -> None:
    """Writes the weights (`state`, where they are gathered from several processes) and the `files`."""
    with without_bars():
        model.save_pretrained(folder, state_dict=state)
    for path in folder.iterdir():
        if path.is_file() and not path.name.endswith(_WEIGHTS) and path.name not in files:
            path.unlink()  # of the library's making, and not in the base
    for name, data in files.items():
        (folder / name).write_bytes(data)
