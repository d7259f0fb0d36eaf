"""Verifies a bundle up to a level, and says everything that was found.

    report = verify(Path("entry.tar.gz"), level=2)
    report.passed, report.badge, report.findings

Levels: 1 well-formed (`wellformed.py`), 2 replayed (`replay.py`, with `suspicions.py` before it and
`canaries.py` after), 3 reproduced (`reproduce.py`). A level is reached when it and all below it refuse
nothing; after a refusal nothing higher is tried. An own agent whose model calls nobody metered stays at level
1, and in the open track; any other own agent stays at level 1, too, for its actions are its author's word;
and so does an entry of which more Python results vary than `MOST_VARY` and `FEW` allow.

Not covered: whether an entry may be ranked, see `ranking.py`.
"""

import asyncio
from pathlib import Path

from whale_bench.models.registry import load_backend
from whale_envs import UsageError, __version__
from whale_envs.errors import UnconfinedError
from whale_leaderboard.archive import open_bundle
from whale_leaderboard.canaries import canaries
from whale_leaderboard.digests import package_digest
from whale_leaderboard.layout import MOST_BYTES, TEST
from whale_leaderboard.replay import replay
from whale_leaderboard.report import (
    UNPINNED,
    CannotVerifyError,
    Finding,
    Refusal,
    Replay,
    Report,
    Reproduction,
    Say,
)
from whale_leaderboard.reproduce import NotReproducedError, reproduce
from whale_leaderboard.suspicions import suspicions
from whale_leaderboard.wellformed import Entry, check

LEVELS = (1, 2, 3)
SECONDS = 4 * 3600.0
"""Most wall time of each part of level 2: reading harnesses, the replay, the canaries."""

MOST_VARY = 0.1
"""Share of an entry's Python calls whose results may be taken as recorded at level 2, because they vary."""
FEW = 0.01
"""Such calls for each rollout that are few enough whatever their share."""


def verify(
    path: Path,
    *,
    level: int = 2,
    model: str | None = None,
    base_url: str | None = None,
    seconds: float = SECONDS,
    most_bytes: int = MOST_BYTES,
    say: Say = lambda _what, _count: None,
) -> Report:
    """The report on a bundle.

    Args:
        path: a folder or a .tar.gz.
        level: highest level to try.
        model: of level 3, what serves the entry's weights, as KIND/NAME.
        base_url: its server.
        seconds: most wall time of each part of level 2, see `SECONDS`.
        most_bytes: of the bundle's files together.
        say: told how far it is.

    Raises:
        UsageError: there is no bundle, or the level cannot be tried so.
        CannotVerifyError: this machine lacks the data or cannot confine what a bundle runs.
        InfrastructureError: something of this machine or of the model's server failed.
    """
    _check_level(level, model)
    found: list[Finding] = []
    entry: Entry | None = None
    reached, replayed, reproduction = 0, None, None
    repeatable: float | None = None
    try:
        with open_bundle(path, most_bytes=most_bytes) as bundle:
            entry = check(bundle, found, say)
            _note_version(entry, found)
            _note_conditions(entry, found)
            reached = 0 if _refused(found) else 1
            if level >= 2 and reached == 1:
                found += suspicions(entry, seconds=seconds)
            if level >= 2 and reached == 1 and not any(finding.code == "time" for finding in found):
                replayed, repeatable = _replay(entry, found, seconds, say)
                if not _refused(found):
                    found += canaries(entry, seconds=seconds, say=say)
                reached = 1 if _refused(found) else 2
            if level == 3 and reached == 2:
                assert model is not None
                reproduction = asyncio.run(_reproduce(entry, model, base_url, say))
                reached = 3
    except NotReproducedError as refusal:
        reproduction = refusal.found
        found.append(refusal.finding)
    except Refusal as refusal:
        found.append(refusal.finding)
    except UnconfinedError as error:
        raise CannotVerifyError(str(error)) from error
    if entry is None:
        return Report(bundle="", asked=level, level=0, findings=tuple(found), verifier=_verifier())
    reached = _capped(entry, reached, replayed, found)
    manifest = entry.manifest
    return Report(
        bundle=entry.digest,
        asked=level,
        level=reached,
        findings=tuple(found),
        verifier=_verifier(),
        manifest=manifest,
        score=entry.score,
        means=entry.means,
        behaviour=entry.behaviour,
        account=entry.account,
        track=entry.track,
        selection=entry.dev.selection(manifest.weights_id, manifest.harness_id, entry.account.charged),
        curve=entry.dev.points(),
        replay=replayed,
        repeatable=repeatable,
        reproduction=reproduction,
    )


def _check_level(level: int, model: str | None) -> None:
    if level not in LEVELS:
        raise UsageError(f"a level is one of {', '.join(map(str, LEVELS))}, got {level}")
    if (model is not None) != (level == 3):
        raise UsageError("level 3 needs --model, which serves the entry's weights; no other level takes it")


def _replay(entry: Entry, found: list[Finding], seconds: float, say: Say) -> tuple[Replay, float]:
    """(what was done, mean@k with rollouts of varying results counted as wrong)."""
    done = asyncio.run(replay(entry, seconds=seconds, say=say))
    found += done.findings
    if (apart := done.replay.searches_recorded) > 0:
        said = f"{apart} searches were answered by what is on record, for its index is not the tier's"
        found.append(_note(UNPINNED, "runs/0/run.toml", said))
    worth = {key: record.reward for key, record in entry.tested.items()}
    kept = sum(reward for key, reward in worth.items() if key not in done.varied)
    return done.replay, kept / len(worth)


async def _reproduce(entry: Entry, model: str, base_url: str | None, say: Say) -> Reproduction:
    async with load_backend(model, base_url=base_url) as backend:
        await backend.probe()
        return await reproduce(entry, backend, say=say)


def _note_version(entry: Entry, found: list[Finding]) -> None:
    packed = entry.manifest.package
    if packed.digest != package_digest():
        found.append(
            _note(
                "package",
                "manifest.json",
                f"it was packed with other sources (version {packed.version}) than verify it ({__version__})",
            )
        )


def _capped(entry: Entry, reached: int, replayed: Replay | None, found: list[Finding]) -> int:
    """The level of an entry of which too much is its author's word."""
    if reached > 1 and not entry.metered:
        found.append(
            _note("unmetered", "manifest.json", "its agent's model calls are unknown: level 1 at most")
        )
        return 1
    if reached > 1 and entry.manifest.own_agent:
        found.append(_note("own_agent", "manifest.json", "its program is in no bundle: level 1 at most"))
        return 1
    if reached > 1 and replayed is not None and too_varied(replayed):
        said = f"{replayed.python_apart} of {replayed.python_calls} Python results vary: level 1 at most"
        found.append(_note("varies", TEST, said))
        return 1
    return reached


def too_varied(replayed: Replay) -> bool:
    """Whether more Python results were taken as recorded than a replay may rest on."""
    most = max(MOST_VARY * replayed.python_calls, FEW * replayed.replayed)
    return replayed.python_apart > most


def _note_conditions(entry: Entry, found: list[Finding]) -> None:
    """What an author chose that decides scores and no track names: such entries are not ranked."""
    plan = entry.runs[0].plan
    chosen = {
        f"judged by {plan.judge}": plan.judge is not None,
        f"scored by the profile {plan.profile!r}": plan.profile != "standard",
        "played without search": plan.closed_book,
        "searched in an index of its own": plan.index is not None
        or plan.retriever not in (None, "bm25", "pyserini"),
    }
    if told := [what for what, is_so in chosen.items() if is_so]:
        found.append(_note(UNPINNED, "runs/0/run.toml", f"it was {', '.join(told)}"))


def _refused(found: list[Finding]) -> bool:
    return any(finding.refuses for finding in found)


def _note(code: str, place: str, message: str) -> Finding:
    return Finding(level=1, code=code, place=place, message=message, refuses=False)


def _verifier() -> str:
    return f"whale-envs {__version__}, {package_digest()}"
