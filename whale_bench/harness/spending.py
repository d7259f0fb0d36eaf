"""How much time a candidate's calls may take together: some to begin with, and more with every call.

    spending = Spending()
    spending.call(0.004, worker.cpu_seconds)            # after each: how long the worker was at it
    spending.refusal                                    # empty, or why no further call is made

A call may take five seconds, so that one slow call does no harm. Thousands of them in an evaluation would
take a day; what is bounded here is their mean. Two accounts are held: CPU seconds of the worker processes,
read from the system, and seconds that a worker was at calls, which also bounds one that sleeps. A worker has
one thread, so that its CPU seconds are looked at only once the seconds at calls are more than they may be.

Whoever is refused has spent hundreds of times what a harness needs (a call of h0 takes 0.07 ms of CPU), so a
busy machine makes nobody refused.

Not covered: CPU seconds of a worker that ended by itself, of which only the seconds at calls are known.
"""

from collections.abc import Callable

FREE_CPU_SECONDS = 60.0
CALL_CPU_SECONDS = 0.1
"""With every call, of which a rollout's turn has two."""

FREE_SECONDS = 180.0
CALL_SECONDS = 0.5
"""Likewise for the seconds at calls."""


class Spending:
    """The account of one candidate, over all of its workers."""

    def __init__(self) -> None:
        self.calls = 0
        self.seconds = 0.0
        """At calls, and at loading the file again."""
        self.refusal = ""
        """Why no further call is made; once there, it stays."""
        self._ended = 0.0
        """CPU seconds of workers that are gone."""

    def call(self, seconds: float, cpu_seconds: Callable[[], float]) -> None:
        """Notes a call, or the start of another worker.

        Args:
            seconds: that the worker was at it.
            cpu_seconds: says how much CPU the present worker has used.
        """
        self.calls += 1
        self.seconds += seconds
        if self.refusal:
            return
        cpu = FREE_CPU_SECONDS + CALL_CPU_SECONDS * self.calls
        most = FREE_SECONDS + CALL_SECONDS * self.calls
        if self.seconds > most:
            self.refusal = f"its {self.calls} calls took {self.seconds:.0f} s, more than {most:.0f} s"
        elif self.seconds > cpu and (used := self._ended + cpu_seconds()) > cpu:
            self.refusal = f"its {self.calls} calls took {used:.0f} s of CPU, more than {cpu:.0f} s"

    def end(self, cpu_seconds: float) -> None:
        """Notes what a worker had used when it was given up."""
        self._ended += cpu_seconds
