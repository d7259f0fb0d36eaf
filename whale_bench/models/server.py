"""One server of a model: what it can say, and how it is doing.

    server = Server.at("http://name:secret@a/v1")
    server.address                                  # http://a/v1

It is rested after three failures in a row, for longer each time. One that is overloaded (429, 503, 529,
time-outs for a fifth of its answers) gets less at a time: half of what it had in flight, at most once per
round trip, and one more for each round of answers after that. One that asks for a wait is left alone so long.

Not covered: who of several is asked, and how often, see `servers.py`.
"""

import time
from dataclasses import dataclass
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from whale_bench.models.http_retry import Patience

_FAILURES_TO_REST = 3
_HOT, _LATEST = 0.2, 1 / 32
"""The share of overloads from which a server is asked for less, and what each answer adds to it. Below
that they are accidents: halving at each would leave a server with one in twenty almost idle."""


class Refusal(NamedTuple):
    """An answer that asking again would not change."""

    status: int
    body: bytes
    address: str
    settled: bool
    """Whether there were replies before, so that the settings were right then."""


class Answer(NamedTuple):
    """What a server said that is no reply."""

    status: int
    body: bytes
    wait: float | None = None
    """Seconds that it asks to wait."""
    final: bool = False
    """Whether it says that asking again is no use."""


class Broken(NamedTuple):
    """An attempt without an answer, or with a part of one."""

    problem: str
    timed_out: bool = False
    status: int = 0
    """Of the error that an answer broke off with."""
    unconnected: bool = False
    """Whether nothing was sent, because no connection came about."""


@dataclass(slots=True, eq=False)
class Server:
    """One address and how it is doing."""

    url: str
    address: str
    """The same without user name and password."""
    has_user: bool
    session: Any = None
    replied: bool = False
    """Whether a reply ever came."""
    in_flight: int = 0
    limit: float = float("inf")
    """Most requests in flight; no bound until the server is overloaded."""
    cut_at: float = 0.0
    failures: int = 0
    """In a row."""
    rests: int = 0
    rests_until: float = 0.0
    heat: float = 0.0
    """Share of overloads among the last answers, the latest counting most."""
    overloads: int = 0
    least: int = 0
    """The lowest that `limit` ever was."""
    rested: int = 0
    not_before: float = 0.0
    """It asked for no request until then."""

    @classmethod
    def at(cls, url: str) -> Self:
        url = url.rstrip("/")
        parts = urlsplit(url)
        user, _, host = parts.netloc.rpartition("@")
        return cls(url, parts._replace(netloc=host).geturl(), bool(user))

    def answered(self) -> None:
        """A reply came: room for one more per round of them."""
        self.replied = True
        self.failures = self.rests = 0
        self.heat *= 1.0 - _LATEST
        self.limit += 1.0 / self.limit

    def overloaded(self, sent_at: float) -> None:
        """Half as many from now on, unless this is rare or was sent before the last such cut."""
        self.overloads += 1
        self.heat += (1.0 - self.heat) * _LATEST
        if self.heat >= _HOT and sent_at >= self.cut_at:
            self.cut_at, self.heat = time.monotonic(), 0.0
            self.limit = max(1.0, min(self.limit, self.in_flight) / 2)
            self.least = min(self.least or int(self.limit), int(self.limit))

    def failed(self, patience: Patience) -> None:
        now = time.monotonic()
        self.failures += 1
        if self.failures >= _FAILURES_TO_REST and now >= self.rests_until:
            self.rests += 1
            self.rested += 1
            self.rests_until = now + min(patience.rest_s, patience.backoff_s * 2.0 ** min(self.rests, 30))

    def rest(self, patience: Patience) -> None:
        """Rests it as long as it may be at once, and anew at its next failure."""
        self.failures = _FAILURES_TO_REST
        self.rests = 30
        self.rested += 1
        self.rests_until = time.monotonic() + patience.rest_s
