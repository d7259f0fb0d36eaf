"""Reads out of a bundle what its pages show: behaviour, the harness and its difference to h0, some replays.

    contents = read_contents(path, report)
    contents.overview.summary.metrics, contents.diff, contents.replays

Every file that is read is held against the manifest's digest, for a report may have been made of the bundle
long before. The replays are of the same examples for every entry of a tier, those with the smallest hashes
of their ids, with all 8 samples, and of the first solved and the first failed example where these show none.

Not covered: whether what a rollout says happened did happen, which verification has shown or not.
"""

import hashlib
import tomllib
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from whale_bench.harness.host import shipped_harnesses
from whale_bench.outcomes import Outcome, OutcomeReader, SkimmedLine
from whale_bench.records import Rollout
from whale_bench.view.data import Overview, Row, headline, overview_of
from whale_bench.view.index import ANSWER_CHARS, SAID_CHARS
from whale_bench.view.replay import replay_of
from whale_envs import UsageError
from whale_leaderboard.archive import Bundle, open_bundle
from whale_leaderboard.layout import MOST_EVENT, MOST_HARNESS, MOST_ROLLOUT, MOST_TOML, TEST, K, Manifest
from whale_leaderboard.matrix import CROSSPLAY, MOST_CROSSPLAY, Matrix, read_matrix
from whale_leaderboard.report import Refusal, Report
from whale_leaderboard.rows import read_plain
from whale_leaderboard.textdiff import unified

EXAMPLES = 3
"""Examples with replays, the same for every entry of a tier."""

SAMPLE_NOTE = (
    f"those of the {EXAMPLES} test examples with the smallest hashes of their ids, the same for every entry "
    "of this tier, and of the first solved and the first failed one where these show none"
)
_LONGEST = 2**20
"""Bytes of a rollout's line above which it is not in a page."""
_DIFF_LINES = 3_000


class Contents(NamedTuple):
    """What pages show of an entry beside its report."""

    overview: Overview
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
    manifest = report.manifest
    try:
        with open_bundle(path) as bundle:
            harness = f"harnesses/{manifest.harness_id.removeprefix('sha256:')}.py"
            names = ["runs/0/run.toml", "runs/0/ledger.jsonl", TEST]
            names += [CROSSPLAY] if CROSSPLAY in manifest.files else []
            names += [] if manifest.own_agent else [harness]
            _check(bundle, manifest, names)
            settings = tomllib.loads(bundle.read("runs/0/run.toml", MOST_TOML).decode())
            overview = _overview(bundle, settings, manifest.about.agent)
            matrix = None
            if CROSSPLAY in manifest.files:
                matrix = read_matrix(bundle.read(CROSSPLAY, MOST_CROSSPLAY))
            source = None
            if not manifest.own_agent:
                source = bundle.read(harness, MOST_HARNESS).decode("utf-8", "replace")
            return Contents(
                overview=overview.overview,
                replays=overview.replays,
                shown=overview.shown,
                source=source,
                diff=None if source is None else difference(shipped_harnesses()[manifest.domain], source),
                matrix=matrix,
                ended=_ended(bundle),
            )
    except Refusal as refusal:
        raise UsageError(f"{path}: {refusal.finding}") from refusal


def difference(old: str, new: str) -> list[tuple[str, str]] | None:
    """The unified diff as (kind, line); None where the texts are too long for it."""
    lines = unified(old, new, "h0", "the entry's harness")
    if lines is None or len(lines) > _DIFF_LINES:
        return None
    kinds = {"+": "added", "-": "removed", "@": "place"}
    return [(kinds.get(line[:1], ""), line) for line in lines]


def _check(bundle: Bundle, manifest: Manifest, names: Sequence[str]) -> None:
    for name in names:
        if name not in manifest.files or bundle.sha256(name) != manifest.files[name].sha256:
            raise Refusal(1, "digest", name, "is not the file that the manifest has the digest of")


class _Read(NamedTuple):
    overview: Overview
    replays: bytes
    shown: int


def _overview(bundle: Bundle, settings: dict[str, Any], agent: str) -> _Read:
    decode, reader = msgspec.json.Decoder(SkimmedLine).decode, OutcomeReader()
    outcomes, starts = [], array("q", [0])
    for _, line in bundle.lines(TEST, MOST_ROLLOUT):
        outcomes.append(reader.outcome(decode(line)))
        starts.append(starts[-1] + len(line) + 1)
    overview = overview_of(settings, outcomes, None, folder=agent, damaged=0)
    rollouts = []
    with bundle.open(TEST) as file:
        for place in sorted(_sampled(outcomes)):
            length = starts[place + 1] - starts[place] - 1
            if length <= _LONGEST:
                file.seek(starts[place])
                rollouts.append(read_plain(file.read(length)))
    data = {
        "overview": overview,
        "sample": {
            "shown": len(rollouts),
            "of": len(outcomes),
            "note": f"This page holds {len(rollouts)} of {len(outcomes)} rollouts: {SAMPLE_NOTE}. Scores, "
            "distributions and groups are of all rollouts.",
        },
        "rows": [_row(rollout) for rollout in rollouts],
        "replays": [replay_of(rollout) for rollout in rollouts],
    }
    return _Read(overview, msgspec.json.encode(data), len(rollouts))


def _sampled(outcomes: Sequence[Outcome]) -> Iterator[int]:
    """Places of the rollouts that are shown."""
    solved: dict[str, int] = {}
    places: dict[str, int] = {}
    for place, outcome in enumerate(outcomes):
        places.setdefault(outcome.example_id, place)
        solved[outcome.example_id] = solved.get(outcome.example_id, 0) + outcome.verdict.correct
    order = sorted(places, key=lambda id_: hashlib.sha256(id_.encode()).digest())
    chosen = order[:EXAMPLES]
    some_solved = [id_ for id_ in order if solved[id_] > 0]
    some_failed = [id_ for id_ in order if solved[id_] < K]
    for shown in (some_solved, some_failed):
        if not set(shown) & set(chosen):
            chosen += shown[:1]
    for id_ in chosen:
        yield from range(places[id_], places[id_] + K)


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


def _ended(bundle: Bundle) -> float:
    """The time of the last event; 0 where the ledger has none."""
    name = "runs/0/ledger.jsonl"
    with bundle.open(name) as file:
        file.seek(max(0, bundle.sizes[name] - MOST_EVENT - 1))
        lines = file.read().splitlines()
    return msgspec.json.decode(lines[-1], type=_Event).at if lines else 0.0
