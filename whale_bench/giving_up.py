"""When a run stops early, as incomplete: rollout after rollout fails, and none is finished in between.

    failures = Failures()
    failures.began(key, time.monotonic())
    failures.failed(key, time.monotonic())      # True once it is no use to go on
    failures.finished(key)

Sixteen in a row are too many, however fast they fail. Where a server is gone each takes a quarter of an
hour of attempts (`Patience.give_up_s`), so that sixteen of a run that plays one at a time would take four
hours: three in a row over 25 minutes are too many as well. That is no use to count where others only take
longer, so it holds only if most of the rollouts in flight have begun since the first of the failed ones.

Not covered: attempts within a rollout, see `models/http_retry.py`.
"""

from dataclasses import dataclass, field

GIVE_UP_AFTER = 16
"""Rollouts in a row that an infrastructure failure ended."""

GIVE_UP_SECONDS = 1500.0
"""From the first of at least `LEAST` such rollouts to the last."""

LEAST = 3


@dataclass(slots=True)
class Failures:
    """Rollouts in a row that an infrastructure failure ended. Times are of a monotonic clock."""

    count: int = 0
    since: float = 0.0
    begun: dict[str, float] = field(default_factory=dict)
    """When each rollout in flight began, by key."""

    def began(self, key: str, now: float) -> None:
        """A rollout is in flight."""
        self.begun[key] = now

    def finished(self, key: str) -> None:
        """It is finished."""
        del self.begun[key]
        self.count = 0

    def failed(self, key: str, now: float) -> bool:
        """Whether the run should stop, now that this one has failed, too."""
        in_flight = len(self.begun)
        del self.begun[key]
        if not self.count:
            self.since = now
        self.count += 1
        if self.count >= GIVE_UP_AFTER:
            return True
        if self.count < LEAST or now - self.since < GIVE_UP_SECONDS:
            return False
        outlasting = sum(begun < self.since for begun in self.begun.values())
        return 2 * outlasting < in_flight
