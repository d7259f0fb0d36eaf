"""Reads out of a bundle what pages show beside its report: the harness, its difference to h0, some replays.

    contents = read_contents(path, report)
    contents.shown, contents.diff, contents.replays

Every file is read once, and held against the manifest's digest, for a report may have been made of the bundle
long before; what is not shown is passed over. Which rollouts are replayed, see `chosen.py`.

Not covered: whether what a rollout says happened did happen, which verification has shown or not.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from whale_bench.harness.shipped import shipped_harnesses
from whale_bench.records import Rollout
from whale_bench.view.data import Overview, Row, headline
from whale_bench.view.distributions import Group, stored_groups
from whale_bench.view.index import ANSWER_CHARS, SAID_CHARS
from whale_bench.view.replay import replay_of
from whale_envs import DOMAINS, UsageError
from whale_leaderboard.archive import contents_of
from whale_leaderboard.layout import (
    MOST_EVENT,
    MOST_HARNESS,
    MOST_ROLLOUT,
    MOST_TOML,
    TEST,
    Manifest,
    harness_file,
)
from whale_leaderboard.matrix import CROSSPLAY, MOST_CROSSPLAY, Matrix, read_matrix
from whale_leaderboard.members import Content
from whale_leaderboard.report import Refusal, Report
from whale_leaderboard.rows import read_plain
from whale_leaderboard.site.chosen import SAMPLE_NOTE, chosen
from whale_leaderboard.textdiff import unified

SETTINGS, LEDGER = "runs/0/run.toml", "runs/0/ledger.jsonl"
_DIFF_LINES = 3_000


class Contents(NamedTuple):
    """What pages show of an entry beside its report."""

    replays: bytes
    """What the replay page's source reads."""
    shown: int
    """Replays in it."""
    source: str | None
    """Of the harness; None for an own agent."""
    diff: list[tuple[str, str]] | None
    """(kind, line) against h0; None where it is too long to compare."""
    matrix: Matrix | None
    """What the author's run reported of weights and harnesses."""
    ended: float
    """Unix time of the test run's last event, as its author's ledger has it."""


def read_contents(path: Path, report: Report) -> Contents:
    """The contents of a verified bundle.

    Raises:
        UsageError: it is not the bundle that the report is of.
    """
    assert report.manifest is not None
    try:
        return _contents(_read(path, report.manifest), report)
    except Refusal as refusal:
        raise UsageError(f"{path}: {refusal.finding}") from refusal


def difference(old: str, new: str) -> list[tuple[str, str]] | None:
    """The unified diff as (kind, line); None where the texts are too long for it."""
    lines = unified(old, new, "h0", "the entry's harness")
    if lines is None or len(lines) > _DIFF_LINES:
        return None
    kinds = {"+": "added", "-": "removed", "@": "place"}
    return [(kinds.get(line[:1], ""), line) for line in lines]


class _Read(NamedTuple):
    small: dict[str, bytes]
    """Whole files by name."""
    rollouts: list[bytes]
    """Lines of those that are replayed."""
    ended: float


def _read(path: Path, manifest: Manifest) -> _Read:
    """What pages need of each file, each read once and held against the manifest's digest of it."""
    limits = {SETTINGS: MOST_TOML, CROSSPLAY: MOST_CROSSPLAY}
    if not manifest.own_agent:
        limits[harness_file(manifest.harness_id)] = MOST_HARNESS
    small: dict[str, bytes] = {}
    rollouts: list[bytes] = []
    ended = 0.0
    wanted = {SETTINGS, LEDGER, TEST, *limits} - ({CROSSPLAY} - manifest.files.keys())
    for content in contents_of(path):
        if content.name not in wanted:
            continue
        try:
            if content.name == TEST:
                rollouts = chosen(content.lines(MOST_ROLLOUT))
            elif content.name == LEDGER:
                ended = _ended(content)
            else:
                small[content.name] = content.read(limits[content.name])
        except msgspec.DecodeError:  # no line of a bundle that was verified
            content.skip()
        listed = manifest.files.get(content.name)
        if listed is None or content.sha256 != listed.sha256:
            raise Refusal(1, "digest", content.name, "is not the file that the manifest has the digest of")
        wanted.remove(content.name)
    for name in sorted(wanted):
        raise Refusal(1, "missing_file", name, "the bundle has no such file")
    return _Read(small, rollouts, ended)


def _contents(read: _Read, report: Report) -> Contents:
    assert report.manifest is not None
    manifest, small = report.manifest, read.small
    overview = overview_of(report, tomllib.loads(small[SETTINGS].decode()))
    rollouts = [read_plain(line) for line in read.rollouts]
    of = overview.summary.rollouts
    source = None
    if not manifest.own_agent:
        source = small[harness_file(manifest.harness_id)].decode("utf-8", "replace")
    data = {
        "overview": overview,
        "sample": {
            "shown": len(rollouts),
            "of": of,
            "note": f"This page holds {len(rollouts)} of {of} rollouts: {SAMPLE_NOTE}. Scores, "
            "distributions and groups are of all rollouts.",
        },
        "rows": [_row(rollout) for rollout in rollouts],
        "replays": [replay_of(rollout) for rollout in rollouts],
    }
    return Contents(
        replays=msgspec.json.encode(data),
        shown=len(rollouts),
        source=source,
        diff=None if source is None else difference(_h0()[manifest.domain], source),
        matrix=read_matrix(small[CROSSPLAY]) if CROSSPLAY in small else None,
        ended=read.ended,
    )


def groups_of(report: Report) -> list[Group]:
    """The groups of an entry's examples, those that tables show first."""
    assert report.behaviour is not None
    summary = report.behaviour.summary
    return stored_groups(summary, DOMAINS[summary.domain].shown_by)


def overview_of(report: Report, settings: dict[str, Any]) -> Overview:
    """What the page of replays says of all rollouts."""
    assert report.manifest is not None
    assert report.behaviour is not None
    return Overview(
        folder=report.manifest.about.agent,
        settings=settings,
        summary=report.behaviour.summary,
        missing=0,
        missing_keys=[],
        damaged=0,
        histograms=report.behaviour.histograms,
        groups=groups_of(report),
    )


@cache
def _h0() -> Mapping[str, str]:
    return shipped_harnesses()


def _row(rollout: Rollout) -> Row:
    """A rollout in the replay page's table."""
    return Row(
        key=rollout.key,
        example=rollout.example_id,
        sample=rollout.sample,
        reward=rollout.verdict.reward,
        stop=rollout.stop_condition,
        truncated=rollout.truncated,
        turns=len(rollout.segments),
        tokens=rollout.sampled_tokens,
        seconds=rollout.seconds,
        task=headline(rollout.opening),
        answer=(rollout.verdict.answer or "")[:ANSWER_CHARS],
        said=rollout.segments[-1].text[:SAID_CHARS] if rollout.segments else "",
        groups=list(rollout.groups),
    )


class _Event(msgspec.Struct):
    at: float


def _ended(ledger: Content) -> float:
    """The time of the last event; 0 where the ledger has none."""
    tail = b""
    for piece in ledger.pieces():
        tail = (tail + piece)[-MOST_EVENT - 1 :]
    lines = tail.splitlines()
    return msgspec.json.decode(lines[-1], type=_Event).at if lines else 0.0
