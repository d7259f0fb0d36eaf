"""When a run stops early, as incomplete: rollout after rollout fails, and none is finished in between.

    failures = Failures()
    failures.failed(time.monotonic())           # True once it is no use to go on
    failures.finished()

Sixteen in a row are too many, however fast they fail. Where a server is gone each takes a quarter of an
hour of attempts (`Patience.give_up_s`), so that sixteen of a run that plays one at a time would take four
hours: three in a row over 25 minutes are too many as well.

Not covered: attempts within a rollout, see `models/http_retry.py`.
"""

from dataclasses import dataclass

GIVE_UP_AFTER = 16
"""Rollouts in a row that an infrastructure failure ended."""

GIVE_UP_SECONDS = 1500.0
"""From the first of at least `LEAST` such rollouts to the last."""

LEAST = 3


@dataclass(slots=True)
class Failures:
    """Rollouts in a row that an infrastructure failure ended."""

    count: int = 0
    since: float = 0.0

    def finished(self) -> None:
        """A rollout is finished."""
        self.count = 0

    def failed(self, now: float) -> bool:
        """Whether the run should stop, now that one more has failed; `now` is of a monotonic clock."""
        if not self.count:
            self.since = now
        self.count += 1
        lasting = self.count >= LEAST and now - self.since >= GIVE_UP_SECONDS
        return lasting or self.count >= GIVE_UP_AFTER
