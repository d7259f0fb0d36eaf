"""What verification says: findings, each of which names what it is about, and the report they stand in.

    raise Refusal(1, "claim", "manifest.json", "the claimed score is 0.5, the rollouts give 0.25")

A finding either refuses the bundle at its level, or is a note for people. A `Refusal` stops what found it:
what comes after the first fault of a chain or a list is seldom worth reading.

Not covered: how findings are reached.
"""

from collections.abc import Callable
from typing import Literal

import msgspec

from whale_bench.statistics import Score
from whale_envs.errors import InfrastructureError
from whale_leaderboard.accounting import Account
from whale_leaderboard.behaviour import Behaviour
from whale_leaderboard.curve import Point
from whale_leaderboard.layout import Manifest, Track

Selection = Literal["dev", "fixed", "none"]
"""How the agent was chosen among those of its runs: by dev, without a choice, or nobody can tell."""

Say = Callable[[str, int], None]
"""Called with what is being read and how many of it have been, now and then."""

UNPINNED = "unpinned"
"""Code of a note on conditions that an author chose and no track names; it keeps an entry unranked."""

BADGES = ("not verified", "well-formed", "replayed", "reproduced")
"""By level."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that verification found."""

    level: int
    """Of verification, 1 to 3."""
    code: str
    """Typed word, see docs/leaderboard.md."""
    place: str
    """File and line, or file and key."""
    message: str
    refuses: bool
    """Whether the level is refused for it; else it is a note."""

    def __str__(self) -> str:
        return f"{'refused' if self.refuses else 'note'} [{self.code}] {self.place}: {self.message}"


class Refusal(Exception):  # noqa: N818 - not an error of this program
    """A finding that refuses the bundle."""

    def __init__(self, level: int, code: str, place: str, message: str) -> None:
        super().__init__(message)
        self.finding = Finding(level=level, code=code, place=place, message=message, refuses=True)


class CannotVerifyError(InfrastructureError):
    """What verifying needs is not on this machine; that says nothing about the bundle."""


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What level 2 did. Counts are of rollouts unless they say otherwise."""

    replayed: int = 0
    samples: int = 0
    """Of these, from the sample of charged rollouts."""
    python_calls: int = 0
    """Calls of the interpreter that were made again."""
    python_apart: int = 0
    """Calls whose result varies; the recorded one was taken."""
    searches: int = 0
    """Searches that were made again on the pinned index."""
    searches_recorded: int = 0
    """Searches of an index that is not here; the recorded result was taken."""
    judged: int = 0
    """Verdicts of a judge, taken as recorded."""
    harness_apart: int = 0
    """Ended by a failure of the harness that did not happen again; they have no reward."""
    own: int = 0
    """Of an own agent, whose recorded actions were played again."""

    def plus(self, other: "Replay") -> "Replay":
        """The sum of two."""
        return Replay(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


class Reproduction(msgspec.Struct, frozen=True, kw_only=True):
    """What level 3 found."""

    model: str
    examples: int
    """Drawn by the bundle's digest."""
    samples: int
    """New rollouts of each."""
    recorded: float
    """Mean of the recorded rewards of these examples."""
    reproduced: float
    """Mean of the new ones."""
    low: float
    high: float
    """95% interval of the difference, new less recorded."""
    p_value: float
    """Of no difference, paired by example, two-sided."""
    alpha: float
    """The level is refused where the p-value is below this."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What `whale-leaderboard verify --json` prints."""

    bundle: str
    """SHA-256 of the bundle's manifest, which holds those of all other files."""
    asked: int
    level: int
    """Highest level without a refusal, every lower one too; 0 for none."""
    findings: tuple[Finding, ...]
    verifier: str
    """Version and digest of the package that verified."""
    manifest: Manifest | None = None
    score: Score | None = None
    """Recomputed from the rollouts."""
    means: tuple[float, ...] = ()
    """Of each test example, in the split's order."""
    behaviour: Behaviour | None = None
    """Recomputed from the rollouts."""
    account: Account | None = None
    """Recomputed from the ledgers."""
    track: Track | None = None
    selection: Selection = "none"
    curve: tuple[Point, ...] = ()
    """Of the dev evaluations in the ledgers."""
    replay: Replay | None = None
    repeatable: float | None = None
    """mean@k with every rollout counted as wrong in which a result varied; a lower bound."""
    reproduction: Reproduction | None = None

    @property
    def passed(self) -> bool:
        """Whether nothing was found that refuses the bundle."""
        return not any(finding.refuses for finding in self.findings)

    @property
    def badge(self) -> str:
        """The word for the level."""
        return BADGES[self.level]
