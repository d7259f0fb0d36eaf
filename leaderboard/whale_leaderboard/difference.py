"""What is different between two submissions, as lines for people.

    for line in differences(Path("a.tar.gz"), Path("b.tar.gz")): print(line)

Both are verified at level 1 first. Then: what the manifests say, settings of the test runs, harness sources
as a unified diff, accounts, and the scores, compared on the same examples where these are the same. Hidden
characters are spelt out, for the lines go to a terminal.

Not covered: single rollouts, which `whale-bench compare` and `whale-bench view` show.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from whale_bench.statistics import differences_of, paired, sign_flip
from whale_bench.view.hidden import plain
from whale_envs import UsageError
from whale_leaderboard.archive import Bundle, open_bundle
from whale_leaderboard.layout import MOST_HARNESS, harness_file
from whale_leaderboard.report import Finding, Refusal
from whale_leaderboard.textdiff import first_difference, unified
from whale_leaderboard.wellformed import Entry, check

_APART = ("files", "runs", "claim", "about", "examples_id")
"""Fields of a manifest that are said in other words, or follow from others."""
_HASHES = ("settings_id",)
"""Settings that differ wherever another one does."""
_ACCOUNT = ("charged", "paper", "executed", "test")


def differences(a: Path, b: Path) -> Iterator[str]:
    """Lines that say how b differs from a.

    Raises:
        UsageError: one of the two is no well-formed submission.
    """
    return map(plain, _differences(a, b))


def _differences(a: Path, b: Path) -> Iterator[str]:
    with open_bundle(a) as first, open_bundle(b) as second:
        before, after = _read(first, a), _read(second, b)
        yield from _fields("", before.manifest, after.manifest, _APART)
        yield from _fields("about.", before.manifest.about, after.manifest.about, ())
        old, new = before.runs[0].settings, after.runs[0].settings
        for name in sorted(old.keys() | new.keys()):
            told = name in type(before.manifest).__struct_fields__ or name in _HASHES
            if old.get(name) != new.get(name) and not told:
                yield f"run.toml {name}: {_shown(old.get(name))} -> {_shown(new.get(name))}"
        yield from _harness(before, after)
        for name in _ACCOUNT:
            counts = getattr(before.account, name), getattr(after.account, name)
            if counts[0] != counts[1]:
                yield f"rollouts {name}: {counts[0]:,} -> {counts[1]:,}"
        yield f"mean@8: {before.score.mean:.4f} -> {after.score.mean:.4f}"
        if before.manifest.examples_id != after.manifest.examples_id:
            yield "their test examples differ, so that the scores cannot be compared"
        else:
            found = paired(before.means, after.means)
            p = sign_flip(differences_of(before.means, after.means))
            yield (
                f"difference: {found.mean:+.4f} (95% {found.low:+.4f} to {found.high:+.4f}, "
                f"p = {p.value:.2g}), {found.examples} examples"
            )


def _read(bundle: Bundle, path: Path) -> Entry:
    notes: list[Finding] = []
    try:
        entry = check(bundle, notes)
    except Refusal as refusal:
        raise UsageError(f"{path}: {refusal.finding}") from refusal
    for finding in notes:
        if finding.refuses:
            raise UsageError(f"{path}: {finding}")
    return entry


def _fields(prefix: str, a: msgspec.Struct, b: msgspec.Struct, left_out: tuple[str, ...]) -> Iterator[str]:
    for name in a.__struct_fields__:
        old, new = getattr(a, name), getattr(b, name)
        if name in left_out or old == new:
            continue
        if isinstance(old, msgspec.Struct) and isinstance(new, msgspec.Struct):
            yield from _fields(f"{prefix}{name}.", old, new, ())
        elif isinstance(old, str) and isinstance(new, str) and "\n" in old + new:
            yield from _unified(f"{prefix}{name}", old, new)
        else:
            yield f"{prefix}{name}: {_shown(old)} -> {_shown(new)}"


def _shown(value: object) -> str:
    """A value on one line; nothing is "none" or "empty"."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.10g}"
    if isinstance(value, tuple):
        return ", ".join(map(_shown, value)) or "none"
    return " ".join(str(value).split()) or "empty"


def _harness(a: Entry, b: Entry) -> Iterator[str]:
    if a.manifest.harness_id == b.manifest.harness_id or a.manifest.own_agent or b.manifest.own_agent:
        return
    yield from _unified("harness.py", _source(a), _source(b))


def _source(entry: Entry) -> str:
    return entry.bundle.read(harness_file(entry.manifest.harness_id), MOST_HARNESS).decode("utf-8", "replace")


def _unified(name: str, old: str, new: str) -> Iterator[str]:
    lines = unified(old, new, f"a/{name}", f"b/{name}", context=2)
    yield from [f"{name}: {first_difference(old, new)}"] if lines is None else lines
