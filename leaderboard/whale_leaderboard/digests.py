"""Digests of what a score hangs on: the package's sources and data, the examples' ids, a harness.

    package_digest()                                    # equal on two machines with the same checkout
    verifier()                                           # with the leaderboard's sources; a report has it

An example's id is the hash of what an agent is shown of it (`whale_envs.core.content_id`); what its answers
are is in the data, which the package's digest is over.

Not covered: weights, whose digest is their backend's `weights_id`.
"""

import hashlib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path

from whale_envs import __version__
from whale_envs.paths import hash_file


@cache
def package_digest() -> str:
    """SHA-256, in hex, of the Python files of whale_envs and whale_bench and the embedded data, by name."""
    return files_digest("whale_envs", "whale_bench")


@cache
def verifier() -> str:
    """What verifies: version, digest of the package, digest of the leaderboard less its pages."""
    return f"whale-envs {__version__}, {package_digest()}, {files_digest('whale_leaderboard', less='site')}"


def files_digest(*packages: str, less: str | None = None) -> str:
    """SHA-256 of the Python files of packages and of all in their folder `data`.

    Args:
        packages: names of packages.
        less: folder of a package that is left out.
    """
    sums = hashlib.sha256()
    for package in packages:
        root = Path(str(files(package)))
        found = {path.relative_to(root): path for path in root.rglob("*") if path.is_file()}
        for inside, path in sorted(found.items(), key=lambda pair: pair[0].as_posix()):
            if inside.parts[0] != less and (inside.suffix == ".py" or inside.parts[0] == "data"):
                name = f"{package}/{inside.as_posix()}"
                sums.update(f"{name}\0{hash_file(path)}\n".encode())
    return sums.hexdigest()


def examples_digest(ids: Iterable[str]) -> str:
    """As run.toml has it: "sha256:…" over the ids in order."""
    return f"sha256:{hashlib.sha256(chr(10).join(ids).encode()).hexdigest()}"


def source_digest(source: bytes) -> str:
    """A harness's id, as its host has it: "sha256:…" of its text."""
    return f"sha256:{hashlib.sha256(source).hexdigest()}"
