"""The one source of randomness: seeds are hashed from (namespace, seed, index), never added.

    >>> derive_seed("doc", 7, 0) != derive_seed("doc", 6, 1)
    True

Adding a seed and an index makes neighbouring seeds share items (seed 1, index 2 = seed 2, index 1)
and leaks training items into test sets. Hashing keeps every stream apart.

Not covered: the randomness inside a remote model server, which only receives a seed.
"""

import hashlib
import random


def derive_seed(namespace: str, seed: int, *index: int | str) -> int:
    """A seed in [0, 2**63) that depends on every argument and on nothing else."""
    parts = [_escape(namespace), str(int(seed))]
    parts += [f"str:{_escape(i)}" if isinstance(i, str) else f"int:{int(i)}" for i in index]
    text = "\x1f".join(parts).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def derive_rng(namespace: str, seed: int, *index: int | str) -> random.Random:
    """A `random.Random` on the stream of `derive_seed`."""
    return random.Random(derive_seed(namespace, seed, *index))


def _escape(part: str) -> str:
    """The text with the separator written otherwise, so that no two lists of parts look alike."""
    return part.replace("\\", "\\\\").replace("\x1f", "\\s") if "\x1f" in part or "\\" in part else part
