"""What a report that lies beside a bundle may say.

    vouched(Path("leaderboard/submissions"))           # SHA-256 of the level 3 reports of maintainers
    beyond(said, found, digest, vouched(shelf))        # "" or what verification did not find, in words

A report is a file that whoever submits could write. Levels 1 and 2 are made again by anyone, so what a
report says of them is compared. Level 3 needs the weights: it is taken of reports alone whose SHA-256 stands
in `reproduced.toml` beside the folder of submissions, with the name of the bundle. Nobody who submits may
touch that file (CONTRIBUTING.md).

    [reports]
    "NAME" = "SHA-256 of NAME.report.json"

Not covered: which reports `build` takes, see `results.py`.
"""

import tomllib
from pathlib import Path

from whale_envs import UsageError
from whale_leaderboard.report import Report

LIST = "reproduced.toml"
"""Of the maintainers, in the folder that holds the folder of submissions."""

_APART = ("asked", "level", "verifier", "reproduction")
"""Parts of a report that verifying at level 2 may give otherwise."""


def vouched(submissions: Path) -> frozenset[str]:
    """SHA-256 of the reports of level 3 that the maintainers of a folder of submissions stand for.

    Raises:
        UsageError: their list cannot be read.
    """
    path = submissions.absolute().parent / LIST
    try:
        reports = tomllib.loads(path.read_text(encoding="utf-8")).get("reports", {})
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    if not isinstance(reports, dict) or not all(isinstance(digest, str) for digest in reports.values()):
        raise UsageError(f"{path}: [reports] has the SHA-256 of a report for each name")
    return frozenset(reports.values())


def beyond(said: Report, found: Report, digest: str, known: frozenset[str]) -> str:
    """What a report says that verification did not find, in words; empty where there is nothing.

    Args:
        said: the report.
        found: what verifying its bundle at level 2 gives.
        digest: SHA-256 of the report's file.
        known: those that maintainers stand for.
    """
    for name in Report.__struct_fields__:
        if name not in _APART and getattr(said, name) != getattr(found, name):
            return f"its {name} is not what verification gives"
    if digest not in known and claims_reproduction(said):
        return f"it says level {said.level}, and its SHA-256 {digest} is not in {LIST}"
    if not claims_reproduction(said) and said.level > found.level:
        return f"it says level {said.level}, verification reaches {found.level}"
    return ""


def claims_reproduction(said: Report) -> bool:
    """Whether a report says what only the weights can show."""
    return said.level > 2 or said.reproduction is not None
