"""Level 1, well-formed: the bundle is whole, its ledgers are, and its claim follows from its rollouts.

    entry = check(bundle, notes)                        # notes: a list that findings go into

Checked: every file is the manifest's; the runs are of the domain, tier and examples that are pinned here;
each ledger, see `audit.py`; exactly k rollouts of every test example, each with its record and its charge;
those whole rollouts that the digests choose; every harness by its hash; score, account and track as they
are claimed. The first fault is a `Refusal`. A file whose digest is another is noted first and read all the
same, so that the record at fault can be named.

Not covered: whether the rollouts are true, see `replay.py`; what only looks odd, see `suspicions.py`.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from whale_bench.ledger import Charge
from whale_bench.outcomes import Outcome
from whale_bench.records import Rollout
from whale_bench.statistics import Score, mean_at_k
from whale_envs import ExampleSet, UsageError, get_domain
from whale_leaderboard.accounting import Account, budget_of, size_of, together
from whale_leaderboard.archive import Bundle
from whale_leaderboard.behaviour import Behaviour, behaviour_of, small_outcome
from whale_leaderboard.digests import examples_digest
from whale_leaderboard.layout import (
    MANIFEST,
    MOST_HARNESS,
    MOST_MANIFEST,
    MOST_ROLLOUT,
    TEST,
    Charged,
    K,
    Manifest,
    Track,
    harness_file,
)
from whale_leaderboard.matrix import CROSSPLAY, MOST_CROSSPLAY, read_matrix
from whale_leaderboard.naming import doubled
from whale_leaderboard.report import Finding, Refusal, Say
from whale_leaderboard.rows import difference, digest_of, read_rollout
from whale_leaderboard.runs import Reader, Run, Splits, examples_here
from whale_leaderboard.selection import DevScores


@dataclass(slots=True)
class Entry:
    """What level 1 read out of a bundle."""

    bundle: Bundle
    manifest: Manifest
    digest: str
    examples: ExampleSet[Any]
    runs: list[Run]
    account: Account
    track: Track
    score: Score
    means: tuple[float, ...]
    behaviour: Behaviour
    dev: DevScores
    tested: Mapping[str, Charged]
    """Records of the test rollouts, by key."""
    metered: bool = True
    odd: list[str] = field(default_factory=list)


def check(bundle: Bundle, notes: list[Finding], say: Say = lambda _what, _count: None) -> Entry:
    """Reads a bundle through.

    Args:
        bundle: open.
        notes: gets what is found before the first refusal.
        say: told how far it is.

    Raises:
        Refusal: the first fault.
        CannotVerifyError: the data of the bundle's tier is not on this machine.
    """
    raw = bundle.read(MANIFEST, MOST_MANIFEST)
    manifest = _read_manifest(raw)
    _check_files(bundle, manifest, notes)
    examples = _pinned(manifest)
    splits = Splits(manifest.domain, manifest.tier)
    dev = DevScores(splits)
    tested: dict[str, tuple[Charged, Charge]] = {}
    reader = Reader(bundle, manifest, splits, dev, tested, say, len(examples) * K)
    runs = [reader.read(number) for number in range(len(manifest.runs))]
    there = {(record.example_id, record.sample) for record, _ in tested.values()}
    lost = [(id_, n) for id_ in examples.ids for n in range(K) if (id_, n) not in there]
    if lost:
        first = f"sample {lost[0][1]} of example {lost[0][0]!r}"
        raise Refusal(
            1,
            "incomplete",
            "runs/0/charged.jsonl",
            f"{len(lost)} test rollouts were never charged, {first} the first",
        )
    harnesses = _check_harnesses(bundle, manifest)
    _check_crossplay(bundle)
    account = together([run.account for run in runs])
    outcomes, metered = _check_test(bundle, manifest, examples, tested, seed=runs[0].plan.seed, say=say)
    unused = harnesses - {manifest.harness_id}
    for run in runs:
        unused -= _check_samples(bundle, run, harnesses)
    for harness_id in sorted(unused):
        name = harness_file(harness_id)
        raise Refusal(1, "harness", name, "no whole rollout of the bundle was played with it")
    each = (outcomes[at : at + K] for at in range(0, len(outcomes), K))
    rewards = [[outcome.verdict.reward for outcome in samples] for samples in each]
    score = mean_at_k(rewards)
    track = Track(
        domain=manifest.domain,
        tier=manifest.tier,
        size=size_of(manifest.about.parameters),
        budget=budget_of(account.charged, metered=metered),
    )
    _check_claim(manifest, score, account, track, metered)
    return Entry(
        bundle=bundle,
        manifest=manifest,
        digest=hashlib.sha256(raw).hexdigest(),
        examples=examples,
        runs=runs,
        account=account,
        track=track,
        score=score,
        means=tuple(sum(found) / K for found in rewards),
        behaviour=behaviour_of(runs[0].settings, runs[0].plan, outcomes),
        dev=dev,
        tested={key: record for key, (record, _) in tested.items()},
        metered=metered,
        odd=[f"{run.place}: {what}" for run in runs for what in run.audit.odd_times],
    )


def _read_manifest(raw: bytes) -> Manifest:
    try:
        manifest = msgspec.json.decode(raw, type=Manifest)
        name = doubled(raw)
    except (ValueError, RecursionError) as error:
        raise Refusal(1, "manifest", MANIFEST, f"is no manifest: {error}") from error
    if name is not None:
        raise Refusal(1, "manifest", MANIFEST, f"has the name {name!r:.80} twice in one object")
    return manifest


def _check_files(bundle: Bundle, manifest: Manifest, notes: list[Finding]) -> None:
    there, listed = bundle.sizes.keys() - {MANIFEST}, manifest.files.keys()
    for name in sorted(there - listed):
        raise Refusal(1, "unlisted_file", name, "is not in the manifest")
    for name in sorted(listed - there):
        raise Refusal(1, "missing_file", name, "is in the manifest and not in the bundle")
    for name in sorted(listed):
        said = manifest.files[name]
        if bundle.sizes[name] != said.bytes or bundle.sha256(name) != said.sha256:
            notes.append(
                Finding(
                    level=1,
                    code="digest",
                    place=name,
                    message="is not the file that the manifest has the digest of",
                    refuses=True,
                )
            )


def _pinned(manifest: Manifest) -> ExampleSet[Any]:
    try:
        known = get_domain(manifest.domain)
        if manifest.tier not in known.tiers:
            raise UsageError(f"{manifest.domain} has no tier {manifest.tier!r}")
    except UsageError as error:
        raise Refusal(1, "track", MANIFEST, str(error)) from error
    examples = examples_here(manifest.domain, manifest.tier, "test")
    if examples_digest(examples.ids) != manifest.examples_id:
        raise Refusal(
            1, "examples", MANIFEST, f"its test examples are not those of {examples.name} in this version"
        )
    return examples


def _check_harnesses(bundle: Bundle, manifest: Manifest) -> set[str]:
    """Ids of the harnesses whose sources are there."""
    found = set()
    for name in sorted(bundle.sizes):
        if name.startswith("harnesses/"):
            source = bundle.read(name, MOST_HARNESS)
            wanted = name.removeprefix("harnesses/").removesuffix(".py")
            if hashlib.sha256(source).hexdigest() != wanted:
                raise Refusal(1, "harness", name, "its text has another hash than its name")
            found.add(f"sha256:{wanted}")
    if not manifest.own_agent and manifest.harness_id not in found:
        raise Refusal(
            1, "harness", MANIFEST, f"the source of harness {manifest.harness_id} is not in the bundle"
        )
    return found


def _check_crossplay(bundle: Bundle) -> None:
    """Its form alone: it is reported, and recomputed by nobody."""
    if CROSSPLAY in bundle.sizes:
        try:
            read_matrix(bundle.read(CROSSPLAY, MOST_CROSSPLAY))
        except ValueError as error:
            raise Refusal(1, "crossplay", CROSSPLAY, str(error)) from error


def _check_test(
    bundle: Bundle,
    manifest: Manifest,
    examples: ExampleSet[Any],
    tested: dict[str, tuple[Charged, Charge]],
    *,
    seed: int,
    say: Say,
) -> tuple[list[Outcome], bool]:
    """(outcomes, whether all calls were metered) of the test rollouts, each where it belongs."""
    wanted = ((example_id, sample) for example_id in examples.ids for sample in range(K))
    outcomes: list[Outcome] = []
    metered = True
    for number, line in bundle.lines(TEST, MOST_ROLLOUT):
        example_id, sample = next(wanted, ("", 0))
        place = f"{TEST}:{number}"
        row = _read_row(line, place)
        if (row.example_id, row.sample) != (example_id, sample):
            here = f"sample {sample} of {example_id!r}" if example_id else "the end"
            raise Refusal(
                1,
                "completeness",
                place,
                f"sample {row.sample} of example {row.example_id!r} stands where {here} should",
            )
        _check_row(row, line, place, tested)
        if row.domain != manifest.domain:
            raise Refusal(1, "completeness", place, f"{row.key!r} is of {row.domain!r:.80}")
        if row.seed != seed:
            raise Refusal(
                1, "seed", place, f"{row.key!r} was played with seed {row.seed}, the run's is {seed}"
            )
        if row.groups != (groups := examples.by_id(example_id).groups):
            raise Refusal(1, "record", place, f"{row.key!r}: its groups are not those of its example")
        outcomes.append(replace(small_outcome(row), groups=groups))  # those in memory already
        metered &= row.metered
        if number % (64 * K) == 0:
            say("test rollouts", number)
    if (left := next(wanted, None)) is not None:
        raise Refusal(1, "completeness", TEST, f"sample {left[1]} of example {left[0]!r} is missing")
    return outcomes, metered


def _read_row(line: bytes, place: str) -> Rollout:
    try:
        return read_rollout(line)
    except ValueError as error:
        raise Refusal(1, "rollout", place, str(error)) from error


def _check_row(row: Rollout, line: bytes, place: str, known: Mapping[str, tuple[Charged, Charge]]) -> None:
    if row.key not in known:
        raise Refusal(1, "no_charge", place, f"{row.key!r} is in no record of what was charged")
    record, charge = known[row.key]
    if why := difference(row, record, charge):
        raise Refusal(1, "record", place, f"{row.key!r}: {why}")
    if digest_of(line) != record.digest:
        raise Refusal(
            1, "rollout_digest", place, f"{row.key!r} is not the rollout that its record has the digest of"
        )


def _check_samples(bundle: Bundle, run: Run, harnesses: set[str]) -> set[str]:
    """Exactly the rollouts that the digests choose, in the order of their records; ids of their harnesses."""
    used = set()
    name = f"{run.place}/samples.jsonl"
    wanted = iter(run.sampled)
    for number, line in bundle.lines(name, MOST_ROLLOUT):
        place = f"{name}:{number}"
        row, key = _read_row(line, place), next(wanted, None)
        if row.key != key:
            raise Refusal(
                1, "sample", place, f"{row.key!r} stands where the digests choose {key or 'nothing'!r}"
            )
        _check_row(row, line, place, run.sampled)
        if row.harness_id not in harnesses and row.harness_id.startswith("sha256:"):
            raise Refusal(
                1, "harness", place, f"the source of {row.key!r}'s harness {row.harness_id} is not there"
            )
        used.add(row.harness_id)
    if (left := next(wanted, None)) is not None:
        raise Refusal(1, "sample", name, f"{left!r}, which the digests choose, is missing")
    return used


def _check_claim(manifest: Manifest, score: Score, account: Account, track: Track, metered: bool) -> None:
    claim = manifest.claim
    found: dict[str, tuple[object, object]] = {
        "score": (claim.score, score),
        "charged": (claim.charged, account.charged),
        "paper": (claim.paper, account.paper),
        "executed": (claim.executed, account.executed),
        "test": (claim.test, account.test),
        "track": (manifest.track, track),
        "metered": (manifest.metered, metered),
    }
    for name, (said, again) in found.items():
        if said != again:
            raise Refusal(
                1, "claim", MANIFEST, f"its {name} is {_shown(said)}, its rollouts give {_shown(again)}"
            )


def _shown(value: object) -> str:
    return f"{value.mean!r}" if isinstance(value, Score) else f"{value!r}"
