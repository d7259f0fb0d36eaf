"""Digests of what a score hangs on: the package's sources, the examples' ids, a harness.

    package_digest()                                    # equal on two machines with the same checkout

Not covered: weights, whose digest is their backend's `weights_id`.
"""

import hashlib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path


@cache
def package_digest() -> str:
    """SHA-256, in hex, of the Python files of whale_envs and whale_bench, by name."""
    sums = hashlib.sha256()
    for package in ("whale_envs", "whale_bench"):
        root = Path(str(files(package)))
        for path in sorted(root.rglob("*.py"), key=lambda p: p.relative_to(root).as_posix()):
            name = f"{package}/{path.relative_to(root).as_posix()}"
            sums.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return sums.hexdigest()


def examples_digest(ids: Iterable[str]) -> str:
    """As run.toml has it: "sha256:…" over the ids in order."""
    return f"sha256:{hashlib.sha256(chr(10).join(ids).encode()).hexdigest()}"


def source_digest(source: bytes) -> str:
    """A harness's id, as its host has it: "sha256:…" of its text."""
    return f"sha256:{hashlib.sha256(source).hexdigest()}"
