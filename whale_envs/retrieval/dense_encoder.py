r"""Texts to unit vectors by a Hugging Face encoder: mean pooling and L2 norm, as E5 asks.

    encoder = Encoder("intfloat/e5-base-v2")
    encoder.queries(["who painted the night watch"])            # float32, 1 x 768
    encoder.passages(["The Night Watch\nA painting by …"])

Models whose name has the word e5 get its prefixes `query: ` and `passage: `; others none. Queries are cut
at 256 word pieces, passages at 512 or what the model takes.

Not covered: encoders with other pooling (DPR, ANCE, BGE's first token) or with instructions.
"""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from whale_envs.errors import DataError, InfrastructureError, UsageError

QUERY_PIECES = 256
PASSAGE_PIECES = 512
BATCH = 32
"""Texts in one pass of the model."""

INSTALL = 'pip install "whale-envs[dense]"'

Vectors = npt.NDArray[np.float32]


class Encoder:
    """A model in memory; for one thread at a time.

    Args:
        name: a model of the Hugging Face hub, or the folder of one.
        rough: half precision also on a CPU that is faster with it. Cosines to full precision are above
            0.999; a GPU always uses it.

    Raises:
        UsageError: torch or transformers is missing.
        DataError: the folder holds no encoder.
        InfrastructureError: the hub's model cannot be had.
    """

    def __init__(self, name: str, *, rough: bool = False) -> None:
        torch, transformers = _libraries()
        settings = {"trust_remote_code": False}
        bars = transformers.utils.logging.is_progress_bar_enabled()
        transformers.utils.logging.disable_progress_bar()
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(name, **settings)
            model = transformers.AutoModel.from_pretrained(
                name, dtype=torch.float32, use_safetensors=True, **settings
            )
        except (OSError, ValueError) as error:
            if Path(name).exists():
                raise DataError(f"{name} holds no encoder that transformers reads: {error}") from error
            raise InfrastructureError(
                f"the encoder {name!r} is no folder here and cannot be fetched from the hub: {error}"
            ) from error
        finally:
            if bars:
                transformers.utils.logging.enable_progress_bar()
        self.weights_digest = _digest(model)
        self.dimension = int(model.config.hidden_size)
        self._most_pieces = int(model.config.max_position_embeddings)
        if model.config.model_type in ("roberta", "xlm-roberta"):
            self._most_pieces -= 2  # positions there begin at 2
        known_as = f"{name} {getattr(model.config, '_name_or_path', '')}".lower()
        e5 = re.search(r"(?<![a-z0-9])e5(?![a-z0-9])", known_as) is not None
        self.query_prefix, self.passage_prefix = ("query: ", "passage: ") if e5 else ("", "")
        self._torch = torch
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        rough_cpu = torch.bfloat16 if rough and _multiplies_in_bfloat16(torch) else torch.float32
        dtype = torch.float16 if self._device == "cuda" else rough_cpu
        self._model = model.to(self._device, dtype).eval()

    def queries(self, texts: Sequence[str]) -> Vectors:
        """One row of unit length for each text; `(len(texts), dimension)`."""
        return self._encode([self.query_prefix + text for text in texts], QUERY_PIECES)

    def passages(self, texts: Sequence[str]) -> Vectors:
        """As `queries`, for what is indexed."""
        return self._encode([self.passage_prefix + text for text in texts], PASSAGE_PIECES)

    def _encode(self, texts: list[str], pieces: int) -> Vectors:
        out = np.empty((len(texts), self.dimension), np.float32)
        by_length = sorted(range(len(texts)), key=lambda at: len(texts[at]))  # little is padded then
        for start in range(0, len(texts), BATCH):
            rows = by_length[start : start + BATCH]
            out[rows] = self._batch([texts[row] for row in rows], min(pieces, self._most_pieces))
        return out

    def _batch(self, texts: list[str], pieces: int) -> Vectors:
        batch = self._tokenizer(texts, padding=True, truncation=True, max_length=pieces, return_tensors="pt")
        batch = batch.to(self._device)
        with self._torch.inference_mode():
            states = self._model(**batch).last_hidden_state.float()
            mask = batch["attention_mask"].unsqueeze(-1).float()
            mean = (states * mask).sum(1) / mask.sum(1).clamp(min=1.0)
            unit = self._torch.nn.functional.normalize(mean, dim=-1)
        vectors: Vectors = unit.cpu().numpy()
        return vectors


def _libraries() -> tuple[Any, Any]:
    try:
        import torch
        import transformers
    except ImportError as error:
        raise UsageError(f"dense retrieval needs the package {error.name}: {INSTALL}") from error
    return torch, transformers


def _multiplies_in_bfloat16(torch: Any) -> bool:
    """Elsewhere it is slower than float32."""
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, probe, lambda: False)() for probe in probes)


def _digest(model: Any) -> str:
    """SHA-256 over names and values of the weights, whatever files they came in."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(np.ascontiguousarray(tensor.numpy()).data)
    return f"sha256:{digest.hexdigest()}"
