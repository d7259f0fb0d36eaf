"""Whether a model folder can replace the weights that are being served: same settings, same shapes.

    served = layout(folder, config)
    check_replaces("local/base", other, served, layout(other, other_config))

Only headers are read, so that a folder which does not fit is refused before anything is touched.

Not covered: what the weights are worth, and tensors under names that a loader would translate.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from whale_envs.errors import UsageError

INCIDENTAL = {
    "_name_or_path",
    "transformers_version",
    "dtype",
    "torch_dtype",
    "use_cache",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
}
"""Settings in which the folders of a reload may differ: the engine was built without them."""


class Layout(NamedTuple):
    """What an engine is built for."""

    settings: dict[str, Any]
    """The config, but for what is incidental."""
    shapes: dict[str, tuple[int, ...]]
    """By the names of the tensors."""


def layout(folder: Path, config: Any) -> Layout:
    """The layout of a folder with this config.

    Raises:
        UsageError: there are no weights, or a file of them is not whole.
    """
    settings = json.loads(json.dumps(config.to_dict(), default=str))  # e.g. integer keys as text
    kept = {key: value for key, value in settings.items() if key not in INCIDENTAL}
    return Layout(kept, _shapes(folder, config))


def check_replaces(name: str, folder: Path, served: Layout, given: Layout) -> None:
    """Whether `folder`, of the layout `given`, can replace what `name` serves.

    Raises:
        UsageError: it cannot; names the first difference.
    """
    refused = f"{str(folder)!r} cannot replace the weights of {name}: "
    for key in sorted(served.settings.keys() | given.settings.keys()):
        if served.settings.get(key) != given.settings.get(key):
            raise UsageError(
                f"{refused}{key} is {given.settings.get(key)!r}, served is {served.settings.get(key)!r}"
            )
    for key in sorted(served.shapes.keys() | given.shapes.keys()):
        if served.shapes.get(key) != given.shapes.get(key):
            raise UsageError(
                f"{refused}{key!r} has shape {given.shapes.get(key)}, served is {served.shapes.get(key)}"
            )


def weight_files(folder: Path) -> list[Path]:
    """The files that a folder's weights are in.

    Raises as json and the disk do where the index of several files cannot be read.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]
    return sorted(folder.glob("*.safetensors"))


def _shapes(folder: Path, config: Any) -> dict[str, tuple[int, ...]]:
    """Shape per tensor, from the headers of all weight files; each must be whole."""
    from safetensors import SafetensorError, safe_open

    shapes = {}
    try:
        for file in weight_files(folder):
            with safe_open(file, framework="numpy") as weights:
                for name in weights.keys():  # noqa: SIM118  # not a dict
                    shapes[name] = tuple(weights.get_slice(name).get_shape())
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise UsageError(f"the weights in {str(folder)!r} cannot be read: {error}") from error
    if not shapes:
        raise UsageError(f"{str(folder)!r} holds no *.safetensors")
    if getattr(config, "tie_word_embeddings", False):
        shapes.pop("lm_head.weight", None)  # written by some tools, read by none
    return shapes
