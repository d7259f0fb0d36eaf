r"""Text that can be written down: lone surrogates become "?", in a string or deep inside plain data.

    >>> scrub("ok \ud800")
    'ok ?'
    >>> scrub_all({"a": ["\udfff", 1]})
    {'a': ['?', 1]}

Models, servers and harnesses can produce halves of UTF-16 pairs, which UTF-8 and so JSON lines,
requests and worker processes cannot carry.

Not covered: control characters and anything else that UTF-8 can carry.
"""

from typing import Any


def scrub(text: str) -> str:
    """`text` as UTF-8 can carry it."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def scrub_all(value: Any) -> Any:
    """A copy of plain data (dicts, lists, tuples) with every string in it scrubbed."""
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, dict):
        return {scrub_all(key): scrub_all(item) for key, item in value.items()}
    if isinstance(value, list):
        return [scrub_all(item) for item in value]
    if isinstance(value, tuple):
        return tuple(scrub_all(item) for item in value)
    return value
