"""`replay`: the sessions of an earlier search, once more; for tests and for looking at what was done.

    record_session(path, brief, session)          # appends a line
    proposer = Replay(path)

A line holds the phase and iteration that a session answered. A replayed session has the proposals, the
problem and the transcript of the recorded one, and charges nothing: nothing was spent.

Not covered: a session for an iteration that was not recorded, which comes out empty and says so.
"""

from pathlib import Path

import msgspec

from whale_baselines.search.proposal import Brief, Session
from whale_bench.ledger import Charge
from whale_envs.errors import UsageError


class Recorded(msgspec.Struct, frozen=True):
    """A line of the file."""

    domain: str
    phase: int
    iteration: int
    session: Session


class Replay:
    """See the module's docstring.

    Args:
        path: of the file.

    Raises:
        UsageError: there is no such file, or a line is none of ours.
    """

    name = "replay"

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._sessions: dict[tuple[str, int, int], Session] = {}
        try:
            lines = self._path.read_bytes().splitlines()
        except OSError as error:
            raise UsageError(f"{path}: cannot be read as recorded sessions: {error.strerror}") from error
        for number, line in enumerate(lines, start=1):
            try:
                row = msgspec.json.decode(line, type=Recorded)
            except msgspec.DecodeError as error:
                if number == len(lines):  # a killed process left half a line
                    continue
                raise UsageError(f"{path}:{number}: is no recorded session: {error}") from error
            self._sessions[row.domain, row.phase, row.iteration] = row.session

    async def propose(self, brief: Brief) -> Session:
        found = self._sessions.get((brief.domain, brief.phase, brief.iteration))
        if found is None:
            where = f"phase {brief.phase}, iteration {brief.iteration} of {brief.domain}"
            return Session((), problem=f"{self._path} holds no session for {where}")
        return msgspec.structs.replace(found, proposals=found.proposals[: brief.slots], charge=Charge())


def record_session(path: str | Path, brief: Brief, session: Session) -> None:
    """Appends a session to a file that `Replay` reads; a later one for the same iteration holds."""
    row = Recorded(brief.domain, brief.phase, brief.iteration, session)
    with Path(path).open("ab") as file:
        file.write(msgspec.json.encode(row) + b"\n")
