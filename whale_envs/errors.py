"""Every exception this project raises, as one tree.

    WhaleError
    ├── UsageError              misuse by the caller; a command line exits with 2
    │   ├── UnknownNameError    a name that is not among the valid ones
    │   ├── EpisodeError        step before reset, or after the end
    │   ├── DataError           a data file that does not hold what it should
    │   ├── UnconfinedError     this machine cannot confine code that nobody here wrote
    │   └── HarnessFileError    a harness file that cannot be used, with file and line
    ├── RolloutError            model or harness failed: a zero-reward record with a typed reason
    │   ├── AgentError          an own agent, which is both
    │   ├── HarnessError
    │   └── ModelError
    ├── InfrastructureError     server, network or worker failed: retried, then missing, never scored
    └── ContractError           a checker found a class that breaks its contract

The first three branches are the failure model of the whole suite: the first stops the caller with
one sentence, the second is data, the third says nothing about the agent. All of them survive
pickling, as worker processes need.

Not covered: a move or a tool call that the environment rejects. That is an observation, not an
exception.
"""

from collections.abc import Iterable
from difflib import get_close_matches


class WhaleError(Exception):
    """Base of everything raised on purpose by this project."""


class UsageError(WhaleError, ValueError):
    """The caller asked for something that cannot be; the message quotes the bad value."""


class UnknownNameError(UsageError):
    """A name outside a fixed list, such as a split or an example id.

    Args:
        what: what the name should have been, e.g. "split".
        name: the bad value.
        valid: the names there are; None where `what` is the whole message already, which is how
            pickle and Gymnasium's worker processes make an exception again.
        most: how many of the valid names the message shows.
    """

    def __init__(
        self, what: object, name: object = None, valid: Iterable[object] | None = None, *, most: int = 12
    ) -> None:
        if valid is None:
            super().__init__(str(what))
            return
        names = [str(v) for v in valid]
        shown = names if len(names) <= most else names[:most]
        more = f", … ({len(names)} in all)" if len(names) > most else ""
        close = get_close_matches(str(name)[:200], names, n=1) if len(names) <= 256 else []
        hint = f"; did you mean {close[0]!r}?" if close else "."
        super().__init__(f"unknown {what} {_short(name)}{hint} Valid: {', '.join(shown) or 'none'}{more}.")


class EpisodeError(UsageError):
    """An environment was stepped outside an episode."""


class DataError(UsageError):
    """A data file is missing, has the wrong columns, or holds a row that cannot be true."""


class UnconfinedError(UsageError):
    """Untrusted code would run here without walls around it, and nobody said that it may."""


class HarnessFileError(UsageError):
    """A harness file cannot be loaded or breaks the contract; says file and line."""


class RolloutError(WhaleError):
    """A failure of the agent under test; `reason` is the record's stop condition."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else f"{self.reason}"


class AgentError(RolloutError):
    """An own agent raised, hung, ended, or said what is no action."""


class HarnessError(RolloutError):
    """Harness code raised, returned the wrong type, hung, or broke a host rule."""


class ModelError(RolloutError):
    """The model could not answer: context overflow, content filter."""


class InfrastructureError(WhaleError):
    """A server, a connection or a worker failed, after the retries that were worth trying."""


class ContractError(WhaleError, AssertionError):
    """A class breaks the contract it implements; one sentence per violation, one a line."""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
