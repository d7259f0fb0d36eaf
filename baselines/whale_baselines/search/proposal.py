"""What the search and a proposer exchange: a brief of one iteration, and the session that answers it.

    class MyProposer:                                   # no base class: a Protocol
        name = "mine"

        async def propose(self, brief: Brief) -> Session:
            return Session((Proposal(source=SOURCE, hypothesis="An example shows the format."),))

A brief holds no reference answer and nothing of the test split; neither does the archive's folder that
it names. A session that fails says so in `problem` and still charges what it used: a proposer never
raises for a model's or a network's fault, only `UsageError` for a setting that can never work.

Not covered: whether a candidate is any good or even runs, which the search finds out.
"""

from pathlib import Path
from typing import Any, Protocol

import msgspec

from whale_bench.ledger import Charge


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A harness that somebody proposes, not checked in any way."""

    source: str
    """Of the file."""
    hypothesis: str = ""
    """Why it should do better, so that its score can refute it."""
    changes: str = ""
    """What is different from its parents."""
    parents: tuple[str, ...] = ()
    """`harness_id`s that it was made from."""
    components: tuple[str, ...] = ()
    """Short tags of the mechanisms that are in it."""


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """A harness of the archive, as far as a proposer may know it."""

    harness_id: str
    name: str
    """Of its folder in the archive."""
    source: str
    status: str
    """"scored", or why it has no score: "invalid", "rejected_prompt_only", "duplicate", "failed",
    "flagged" (the rule would have accepted it, and an examination found that it did not earn its score)."""
    reason: str = ""
    """What was wrong with it, for the proposer."""
    score: float | None = None
    """Mean reward under the present weights, a fraction; None without a score under them."""
    turns: float | None = None
    """Mean turns of a rollout."""
    components: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    iteration: int = 0


class Brief(msgspec.Struct, frozen=True, kw_only=True):
    """What a proposer is told before one iteration."""

    domain: str
    phase: int
    """Number of the search phase in its run, from 1."""
    iteration: int
    """From 2 within a phase: the first is the incoming harness's evaluation."""
    slots: int
    """Most proposals of the session; the paper's M."""
    archive: Path
    """Folder that may be read, see `archive.py`."""
    workspace: Path
    """Folder of this session's own, new and empty, the only one that may be written to."""
    base: str
    """`harness_id` of the harness that the phase began with."""
    accepted: str
    """`harness_id` of the best one so far; what a proposal is measured against."""
    frontier: tuple[str, ...] = ()
    """`harness_id`s that no other one beats in both score and turns; the accepted one is among them."""
    known: tuple[Known, ...] = ()
    """Everything in the archive, oldest first."""
    prompt_only: bool = False
    """Only `SYSTEM_PROMPT` and `USER_PROMPT`, plain string literals, may differ from the base (FST)."""
    seed: int = 0
    """Of this session, for proposers that draw."""


class Session(msgspec.Struct, frozen=True):
    """What came of a brief."""

    proposals: tuple[Proposal, ...]
    """At most `Brief.slots`; the search leaves out any more."""
    charge: Charge = Charge()
    """The `proposer_…` parts of it, with `seconds` and `unpriced`."""
    problem: str = ""
    """Why it ended early or wrote less than it should; empty where all went well."""
    transcript: tuple[dict[str, Any], ...] = ()
    """What was said and done, in order, to be kept beside the iteration."""


class Proposer(Protocol):
    """Anything that writes candidates."""

    name: str
    """As a recipe names it."""

    async def propose(self, brief: Brief) -> Session:
        """Proposals for one iteration.

        Raises:
            UsageError: a setting can never work, such as a key that is not there.
        """
        ...
