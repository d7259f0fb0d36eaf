"""Model folders as a trainer needs them: float32 weights in, the same kind of folder out.

    model = load_model(base)                            # checked first; float32, for training
    rest = rest_of(model, base)                         # what the base has beside these weights
    write_model(model, folder, rest)                    # both together: a folder like the base

Tokenizer, chat template and config are copied byte for byte: what is served after training renders
every chat as what was served before. The weights are written in float32, the master copy itself; a
backend rounds them when it loads them, to what the config says. Of a model of text and images the text
part is trained, and the tensors of the others go with it as they were, so that what is written is whole.

Not covered: models whose weights do not fit the memory of one process, pickled weights, code that
comes with a model.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from whale_bench.models.chat_template import SETTINGS, load_tokenizer
from whale_bench.models.folder import HASHED, loading, without_bars
from whale_bench.models.layout import check_replaces, layout, weight_files
from whale_envs.errors import UsageError

if TYPE_CHECKING:
    import torch

_INDEX = "model.safetensors.index.json"
_TRAINED, _CARRIED = "model-trained.safetensors", "model-carried.safetensors"
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
    if bad := not_finite(model.state_dict()):
        raise UsageError(
            f"the weights in {str(folder)!r} are damaged: {bad} holds values that are not finite"
        )
    return model


def not_finite(state: "Mapping[str, torch.Tensor]") -> str | None:
    """The name of a tensor that holds an infinity or what is no number; None where all is well."""
    import torch

    for name, value in state.items():
        if not value.is_floating_point() or not value.numel():
            continue
        # One pass and no copies: what is no number comes through as both ends, an infinity is one of them.
        ends = torch.stack(torch.aminmax(value.detach()))
        if not torch.isfinite(ends).all():
            return name
    return None


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


class Rest(NamedTuple):
    """What a model folder holds beside the weights that are trained."""

    base: Path
    files: dict[str, bytes]
    """Everything that decides what the folder answers, but weights."""
    tensors: frozenset[str]
    """Names of those that the trained class does not have, such as a vision tower's."""


def rest_of(model: Any, base: Path) -> Rest:
    """What is in `base` beside the weights of `model`, which was loaded from it.

    Raises:
        UsageError: what would be written of the two could not take the base's place where it is served.
    """
    import transformers as installed

    transformers: Any = installed
    with loading(base):
        there = layout(base, transformers.AutoConfig.from_pretrained(base, **SETTINGS))
    ours, tied = _written(model)
    carried = there.shapes.keys() - ours.keys() - tied
    shapes = ours | {name: there.shapes[name] for name in carried}
    try:
        check_replaces("the base", base, there, there._replace(shapes=shapes))
    except UsageError as error:
        raise UsageError(
            f"{str(base)!r} cannot be trained: what is written of it is no such folder: {error}"
        ) from error
    paths = (path for path in sorted(base.iterdir()) if path.is_file() and path.suffix in HASHED)
    files = {path.name: path.read_bytes() for path in paths if not path.name.endswith(_WEIGHTS)}
    return Rest(base, files, frozenset(carried))


def write_model(model: Any, folder: Path, rest: Rest, state: "dict[str, torch.Tensor] | None" = None) -> None:
    """Writes the weights (`state`, where they are gathered from several processes) and the rest.

    Raises:
        UsageError: they are not finite; nothing was written then.
    """
    if bad := not_finite(model.state_dict() if state is None else state):
        raise UsageError(
            f"training left values in {bad} that are not finite: they are written nowhere, and the "
            "checkpoint before is whole; begin a new run with a smaller lr"
        )
    with without_bars():
        model.save_pretrained(folder, state_dict=state)
    for path in folder.iterdir():
        if path.is_file() and not path.name.endswith(_WEIGHTS) and path.name not in rest.files:
            path.unlink()  # of the library's making, and not in the base
    for name, data in rest.files.items():
        (folder / name).write_bytes(data)
    if rest.tensors:
        _carry(rest, folder)


def _written(model: Any) -> tuple[dict[str, tuple[int, ...]], frozenset[str]]:
    """Shape per tensor, by the names in a file, and those names that are another tensor's too."""
    import torch
    from transformers.core_model_loading import revert_weight_conversion

    empty = {name: torch.empty(value.shape, device="meta") for name, value in model.state_dict().items()}
    everything = revert_weight_conversion(model, empty)
    own = {name: value for name, value in empty.items() if name not in model.all_tied_weights_keys}
    shapes = {name: tuple(value.shape) for name, value in revert_weight_conversion(model, own).items()}
    return shapes, frozenset(everything.keys() - shapes.keys())


def _carry(rest: Rest, folder: Path) -> None:
    """Copies tensors of the base into a folder of weights, and an index of all of them."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    single = folder / "model.safetensors"
    if single.exists():  # it would be read in place of the index
        single.rename(folder / _TRAINED)
    tensors: dict[str, Any] = {}
    for file in weight_files(rest.base):
        with safe_open(file, framework="pt") as weights:
            tensors |= {name: weights.get_tensor(name) for name in rest.tensors & set(weights.keys())}
    save_file(tensors, folder / _CARRIED, metadata={"format": "pt"})
    places: dict[str, str] = {}
    size = 0
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            places |= dict.fromkeys(weights.keys(), file.name)
        size += file.stat().st_size
    index = {"metadata": {"total_size": size}, "weight_map": places}
    (folder / _INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
