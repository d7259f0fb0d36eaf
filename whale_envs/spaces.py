r"""`UnicodeText`: a Gymnasium space of text that holds every string, the empty one included.

    >>> UnicodeText().contains("π — ♞\n")
    True

`gymnasium.spaces.Text` admits letters and digits only by default, and an `AsyncVectorEnv` with its
default shared memory silently returns a run of zeros for characters it does not know. This space
registers its own shared-memory layout (UTF-8 with a length in front), so that vectorised
environments pass text through unharmed in every mode. A batch of observations is a tuple of
strings; only an `AsyncVectorEnv` with copy=False gives a live view of the shared memory instead.

Not covered: `batch_differing_spaces`. Use observation_mode="same", the default.
"""

from collections.abc import Iterable, Sequence
from typing import Any, overload

import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector.utils.shared_memory import (
    create_shared_memory,
    read_from_shared_memory,
    write_to_shared_memory,
)

_HEADER = 4
_SAMPLE_ALPHABET = "abc XYZ 019 .,;!?\n\t(){}[]<>\"'\\/|é¿ßπЖ中א👍♞\u200d\ufeff"


class UnicodeText(Space[str]):
    """Strings of at most `max_length` characters (code points)."""

    def __init__(self, max_length: int = 2**20, seed: int | np.random.Generator | None = None) -> None:
        if max_length < 0:
            raise ValueError(f"max_length must be at least 0, got {max_length}")
        self.max_length = max_length
        super().__init__((), None, seed)

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A short random string over a small alphabet with awkward members."""
        if mask is not None or probability is not None:
            raise ValueError("UnicodeText.sample takes neither mask nor probability")
        length = int(self.np_random.integers(0, min(self.max_length, 48) + 1))
        picks = self.np_random.integers(0, len(_SAMPLE_ALPHABET), size=length)
        return "".join(_SAMPLE_ALPHABET[i] for i in picks)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    def to_jsonable(self, sample_n: Iterable[str]) -> list[Any]:
        return list(sample_n)

    def from_jsonable(self, sample_n: list[Any]) -> list[str]:
        return [str(s) for s in sample_n]

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText) and other.max_length == self.max_length

    def __hash__(self) -> int:
        return hash((UnicodeText, self.max_length))


def _slot(space: UnicodeText) -> int:
    return _HEADER + 4 * space.max_length  # four bytes is the longest UTF-8 character


@create_shared_memory.register(UnicodeText)
def _create(space: UnicodeText, n: int = 1, ctx: Any = None) -> Any:
    return ctx.Array("B", n * _slot(space))


@write_to_shared_memory.register(UnicodeText)
def _write(space: UnicodeText, index: int, value: str, shared_memory: Any) -> None:
    if not space.contains(value):
        raise ValueError(f"an observation of {len(value)} characters does not fit {space}")
    data = value.encode("utf-8", "surrogatepass")
    start = index * _slot(space)
    view = memoryview(shared_memory.get_obj()).cast("B")
    view[start : start + _HEADER] = len(data).to_bytes(_HEADER, "big")
    view[start + _HEADER : start + _HEADER + len(data)] = data


@read_from_shared_memory.register(UnicodeText)
def _read(space: UnicodeText, shared_memory: Any, n: int = 1) -> "_SharedTexts":
    return _SharedTexts(memoryview(shared_memory.get_obj()).cast("B"), _slot(space), n)


class _SharedTexts(Sequence[str]):
    """The texts now in shared memory; a copy is a tuple.

    `AsyncVectorEnv` reads the memory once, when it is made, and copies what it read at every step:
    what it reads must therefore follow the memory, as numpy arrays do.
    """

    def __init__(self, view: memoryview, slot: int, n: int) -> None:
        self._view, self._slot, self._n = view, slot, n

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(self._n)))
        start = range(self._n)[index] * self._slot + _HEADER
        length = int.from_bytes(self._view[start - _HEADER : start], "big")
        return bytes(self._view[start : start + length]).decode("utf-8", "surrogatepass")

    def __copy__(self) -> tuple[str, ...]:
        return tuple(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[str, ...]:
        return tuple(self)

    def __eq__(self, other: object) -> bool:
        return tuple(self) == (tuple(other) if isinstance(other, _SharedTexts) else other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(tuple(self))
