"""How long a client waits for a server, and when it asks again.

    patience = Patience(attempts=3, backoff_s=0.1)
    await asyncio.sleep(wait if (wait := retry_after(response.headers)) is not None else patience.pause(1))

A generation may take minutes before its first byte, so silence alone is no sign of a fault. `Pace`
keeps how many seconds a token of recent answers took; a request that has lasted longer than all of
its `max_tokens` would have at three times the slow end of that pace has stalled. It is dropped and
sent again, with twice the patience each time, so that a server that became slow is still waited for.
Dropping costs what the server had sampled by then, if it goes on after a hang-up (vLLM stops); a
second copy of a request never runs on purpose, and because the bound allows for the longest reply,
long replies are not sampled again until they come out short.

Not covered: requests without `max_tokens` and servers that do not count tokens, which have
`silence_s` alone.
"""

import math
import random
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

_KNOWN = 16
"""Answers from which on a pace is known."""

_RECENT = 64


@dataclass(frozen=True, slots=True)
class Patience:
    """The waits of a client, in seconds but for `attempts` and `stall_paces`."""

    attempts: int = 8
    """Of one request; a 429 that names a wait of a second or more is none, nor is a server out of reach."""
    backoff_s: float = 0.5
    """Before the second attempt; doubles with each further one, with up to a quarter of jitter."""
    most_wait_s: float = 60.0
    """Longest wait between attempts, whatever a server asks for."""
    connect_s: float = 10.0
    silence_s: float = 600.0
    """A server that sends no byte for so long has timed out; most send none before a reply is whole."""
    answer_s: float = 1800.0
    """The longest that one attempt lasts, however its bytes trickle."""
    give_up_s: float = 900.0
    """No attempt begins later than this, time in our own queue not counted."""
    stall_s: float = 10.0
    """No attempt has stalled before this."""
    stall_paces: float = 3.0
    """How often the slow end of the recent pace fits into the bound."""
    others_s: float = 30.0
    """How long servers may take to answer a probe once another has."""
    rest_s: float = 30.0
    """Longest rest of a server that keeps failing, where there are others."""

    def pause(self, attempt: int) -> float:
        """Seconds to wait after this attempt, counted from 1."""
        spread = 1 + random.random() / 4
        return min(self.backoff_s * 2.0 ** min(attempt - 1, 60) * spread, self.most_wait_s)


class Pace:
    """Seconds a sampled token took in recent answers, waiting included."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._slow: float | None = None
        self._added = 0

    def add(self, seconds: float, tokens: int | None) -> None:
        """Takes note of an answer; one without tokens says nothing."""
        if tokens:
            self._recent.append(seconds / tokens)
            self._added += 1
            if self._added % _KNOWN == 0:
                self._slow = sorted(self._recent)[len(self._recent) * 9 // 10]

    def stalled_after(self, patience: Patience, max_tokens: int | None) -> float | None:
        """Seconds after which a request for so many tokens has stalled; None where nobody can tell."""
        if self._slow is None or max_tokens is None:
            return None
        return max(patience.stall_s, patience.stall_paces * self._slow * max_tokens)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asks to wait: `retry-after-ms`, or `Retry-After` as seconds or HTTP date."""
    for name, unit in (("retry-after-ms", 0.001), ("Retry-After", 1.0)):
        text = headers.get(name)
        if text is None:
            continue
        try:
            seconds = float(text) * unit
        except ValueError:
            try:
                seconds = parsedate_to_datetime(text).timestamp() - time.time()
            except (ValueError, OverflowError):
                continue
            if seconds <= 0:  # its clock is another
                continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    return None
