"""Harness sources as texts and trees: when two are the same.

    >>> tree_id("a = 1  # one") == tree_id("a = (1)")
    True

Not covered: whether two different trees do the same; running anything.
"""

import ast
import hashlib
import warnings

from whale_bench.harness.prompt_only import flat
from whale_bench.text import scrub

MOST_BYTES = 200_000
"""Largest harness file that a search takes."""


def clean(source: str) -> str:
    """A source as a file holds it: plain ends of lines, no byte order mark, nothing that UTF-8 has not."""
    return scrub(source.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n"))


def source_id(source: str) -> str:
    """The `harness_id` of a source."""
    return "sha256:" + hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()


def tree_id(source: str) -> str:
    """Equal for sources that differ in formatting and comments alone; of what is no Python, its hash."""
    tree = _parse(source)
    if tree is None:
        return source_id(source)
    digest = hashlib.sha256()
    for _, part in flat(tree):
        digest.update(part.encode("utf-8", "surrogatepass") + b"\0")
    return "tree:" + digest.hexdigest()


def _parse(source: str) -> ast.Module | None:
    if len(source) > MOST_BYTES:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape is the file's affair
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
