"""JSON Schemas (2020-12) of the files of a submission and a site, beside those of `whale_bench.schemas`.

    python -m whale_leaderboard.schemas      # writes the *.json beside this module anew

They are made, as those are, from the types that read and write the files, and committed. What is only
written, results.json and feed.json, is described here. A ledger's lines, rollouts and run.toml in a bundle
are as `whale-bench schema` has them.

Not covered: feed.xml, which is Atom (RFC 4287); limits between fields, see `wellformed.py`.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from whale_bench.schemas import VERSION as VERSION
from whale_bench.schemas import Committed
from whale_leaderboard.accounting import Account
from whale_leaderboard.curve import Point
from whale_leaderboard.layout import About, Charged, Manifest
from whale_leaderboard.matrix import Matrix
from whale_leaderboard.money import Money
from whale_leaderboard.ranking import PaperRow, TrackBoard
from whale_leaderboard.report import Finding, Replay, Report, Reproduction, Selection


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """What verification reached and found."""

    level: int
    badge: str
    findings: list[Finding]
    replay: Replay | None
    repeatable: float | None
    reproduction: Reproduction | None
    verifier: str


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """How an entry came about."""

    points: list[Point]
    rollouts_to_best: int | None
    area: float | None
    """Under the curve up to what was charged; null where nothing was."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """An entry, beside its place on the board."""

    submission: str
    """Name of the bundle."""
    page: str
    """Within the site."""
    manifest: Manifest
    report: Verified
    selection: Selection
    account: Account
    money: Money
    means: list[float]
    """Of each test example, in the split's order."""
    curve: Way


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """All of the board."""

    format: int
    version: str
    """Of whale-envs."""
    tracks: list[TrackBoard]
    entries: dict[str, Facts]
    """By the digest of the bundle."""
    reported: list[PaperRow]
    """What the paper reports, not verified."""


class Author(msgspec.Struct, frozen=True, kw_only=True):
    """Of an entry."""

    name: str


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """An entry in the feed."""

    id: str
    """urn:sha256: and the digest of the bundle."""
    url: str
    """Relative to the feed's own address where the site's is not known."""
    title: str
    content_text: str
    date_published: str
    """Of the last event of its test run."""
    authors: list[Author]


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """The entries, the latest first, as JSON Feed 1.1."""

    version: str
    title: str
    home_page_url: str = ""
    """With `--url` alone, as `feed_url`."""
    feed_url: str = ""
    items: list[Item]


KINDS: Mapping[str, tuple[str, Any]] = MappingProxyType(
    {
        "about": ("the file given to pack --about, read as an object", About),
        "manifest": ("manifest.json of a submission", Manifest),
        "charged": ("a line of charged.jsonl: a rollout without its content", Charged),
        "crossplay": ("crossplay.json of a submission", Matrix),
        "report": ("NAME.report.json, and what verify --json prints", Report),
        "results": ("results.json of the site", Results),
        "feed": ("feed.json of the site", Feed),
    }
)
"""Title and type by name."""

COMMITTED = Committed.of_types("whale-leaderboard", Path(__file__).parent, KINDS)
read_schema, make, path_of = COMMITTED.read, COMMITTED.make, COMMITTED.path_of
