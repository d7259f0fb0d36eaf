r"""Names that stand twice in one JSON object, of which readers take either.

    doubled(b'{"reward":0.0,"reward":1.0}')             # "reward"

Our decoder takes the last one, others the first: a file with such a name says two things.

A name is what its escapes spell: `"te\u0078t"` and `"text"` are one, here as for every reader.

Not covered: names that differ in case; these are other names, and unknown ones.
"""

import json
from typing import Any


class _Doubled(Exception):  # noqa: N818 - carries a name out of the decoder
    pass


def doubled(text: bytes) -> str | None:
    """The first such name of a text that is known to be JSON; None where no object has one.

    Raises:
        ValueError: it is nested too deeply to say.
    """
    try:
        # Numbers stay text: thousands of digits would be refused, or take long.
        json.loads(text, object_pairs_hook=_checked, parse_int=str, parse_float=str)
    except _Doubled as found:
        return str(found)
    except RecursionError as error:
        raise ValueError("is nested too deeply") from error
    return None


def _checked(pairs: list[tuple[str, Any]]) -> None:
    """Nothing of an object is kept but that it has no such name."""
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise _Doubled(name)
        seen.add(name)
