"""Keys and values of attention: written in place for a batch, remembered for prompts.

    past = KeyValues(rows=1, capacity=len(ids))
    model(input_ids=..., past_key_values=past)  # a model whose attention is `grouped_attention`
    cache = PrefixCache(limit=1 << 30)
    cache.add(Prefix(prompt, ids, parent=None, shared=0, layers=..., logits=...))

Not covered: layers with a sliding window or a recurrent state, which cannot be cut at a shared
prefix, and tensors that move between devices.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

ATTENTION = "whale_gqa"
"""Name under which `grouped_attention` is registered with transformers."""


def grouped_attention(
    _module: Any, query: Any, key: Any, value: Any, mask: Any, *, scaling: float, **_: Any
) -> tuple[Any, None]:
    """Attention with grouped queries that copies no keys or values, for transformers' models.

    The query heads that share a key head stand in a row, as more query positions would.

    `query` is [rows, heads, length, dim], `key` and `value` are [rows, key heads, total, dim], the
    additive `mask` is [1 or rows, 1, length, total]; returns [rows, length, heads, dim].
    """
    import torch

    rows, heads, length, dim = query.shape
    groups = heads // key.shape[1]
    folded = query.reshape(rows, -1, groups * length, dim)
    if length > 1:
        mask = mask.repeat(1, 1, groups, 1)
    if rows == 1 and length > 1 and query.device.type == "cpu" and query.dtype == torch.bfloat16:
        # A prompt: plain matrix products are up to twice as fast here as torch's kernel. Scores are
        # rounded to bfloat16, as by the "eager" attention of transformers.
        bias = mask[0].expand(key.shape[1], -1, -1)
        scores = torch.baddbmm(bias, folded[0], key[0].transpose(1, 2), alpha=scaling)
        out = scores.softmax(-1) @ value[0]
    else:
        out = torch.nn.functional.scaled_dot_product_attention(
            folded, key, value, attn_mask=mask, scale=scaling
        )
    return out.view(rows, heads, length, -1).transpose(1, 2), None


class KeyValues:
    """Keys and values of a batch, written in place; what a model takes as `past_key_values`.

    Per layer two tensors [rows, heads, capacity, dim], zero where nothing was written (a masked NaN
    would still spoil a sum). `used` columns are filled; the caller moves it after a forward pass.
    """

    def __init__(self, rows: int, capacity: int) -> None:
        self.rows = rows
        self.capacity = capacity
        self.used = 0
        self.layers: list[tuple[torch.Tensor, torch.Tensor]] = []

    def add_layer(self, like: tuple[torch.Tensor, torch.Tensor]) -> None:
        key, value = (t.new_zeros(self.rows, t.shape[1], self.capacity, t.shape[3]) for t in like)
        self.layers.append((key, value))

    def write(self, layer: int, row: int, column: int, source: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Copies `source`, two tensors [heads, length, dim], to [row, :, column:column + length]."""
        for target, part in zip(self.layers[layer], source, strict=True):
            target[row, :, column : column + part.shape[1]] = part

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Called by the model's attention: stores the new columns, returns all so far."""
        if layer == len(self.layers):
            self.add_layer((key, value))
        end = self.used + key.shape[2]
        keys, values = self.layers[layer]
        keys[:, :, self.used : end] = key
        values[:, :, self.used : end] = value
        return keys[:, :, :end], values[:, :, :end]

    def get_seq_length(self, *_: Any) -> int:
        return self.used


@dataclass(eq=False)
class Prefix:
    """A computed prompt: the first `shared` tokens are `parent`'s, the rest has its tensors here."""

    prompt: tuple[int, ...]
    ids: np.ndarray[Any, Any]
    """`prompt` as int64, for fast comparison."""
    parent: Prefix | None
    shared: int
    layers: list[tuple[torch.Tensor, torch.Tensor]]
    """Per layer keys and values [heads, len(ids) - shared, dim]."""
    logits: torch.Tensor
    """[vocabulary], float32, of the token after the prompt."""

    def size(self) -> int:
        """Bytes held here, the parent's not counted."""
        tensors = [self.logits, *(tensor for pair in self.layers for tensor in pair)]
        return sum(int(tensor.nbytes) for tensor in tensors)

    def chain(self) -> Iterator[Prefix]:
        node: Prefix | None = self
        while node is not None:
            yield node
            node = node.parent

    def copy_to(self, target: KeyValues, layer: int, row: int, column: int, length: int) -> None:
        """Copies one layer of the first `length` tokens, from `column` on."""
        for node in self.chain():
            if length > node.shared:
                key, value = (t[:, : length - node.shared] for t in node.layers[layer])
                target.write(layer, row, column + node.shared, (key, value))
                length = node.shared


class PrefixCache:
    """Computed prompts of the recent past, within `limit` bytes, least recently used dropped first.

    A use of a prompt is a use of its parents, and they count as the more recent: so a parent never
    goes before its children, and dropping the oldest always frees its memory.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self.entries: OrderedDict[tuple[int, ...], Prefix] = OrderedDict()

    def get(self, prompt: tuple[int, ...]) -> Prefix | None:
        if (entry := self.entries.get(prompt)) is not None:
            self._touch(entry)
        return entry

    def longest(self, ids: np.ndarray[Any, Any]) -> tuple[Prefix | None, int]:
        """The remembered prompt that agrees with `ids` for longest, and for how many tokens."""
        best, shared = None, 0
        for entry in self.entries.values():
            n = min(len(ids), len(entry.ids))
            # Most candidates share the system message alone: one comparison rules them out.
            if n <= shared or (shared and entry.ids[shared] != ids[shared]):
                continue
            unequal = np.flatnonzero(entry.ids[:n] != ids[:n])
            same = int(unequal[0]) if len(unequal) else n
            if same > shared:
                best, shared = entry, same
        if best is not None:
            self._touch(best)
        return best, shared

    def add(self, entry: Prefix) -> None:
        self.entries[entry.prompt] = entry
        self.size += entry.size()
        self._touch(entry)
        while self.size > self.limit and len(self.entries) > 1:
            self.size -= self.entries.popitem(last=False)[1].size()

    def clear(self) -> None:
        self.entries.clear()
        self.size = 0

    def _touch(self, entry: Prefix) -> None:
        for node in entry.chain():
            if node.prompt in self.entries:
                self.entries.move_to_end(node.prompt)
