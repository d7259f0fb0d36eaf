"""What a check or a canary says of a harness file.

    Finding("chess_puzzles", "mine.py:7: read must return Act, Nudge or Stop").line     # 7

Not covered: how things are found, see `check.py` and `canaries.py`.
"""

import re
from typing import NamedTuple

_PLACE = re.compile(r"(.*?):(\d+): ", re.DOTALL)


class Finding(NamedTuple):
    """Something in a harness file that breaks the contract."""

    domain: str
    """Where it showed; empty where it is the file itself."""
    message: str
    """With file and line."""

    @property
    def file(self) -> str:
        place = _PLACE.match(self.message)
        return place[1] if place else ""

    @property
    def line(self) -> int:
        """From 1; the first where the message names none."""
        place = _PLACE.match(self.message)
        return int(place[2]) if place else 1
