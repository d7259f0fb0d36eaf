"""Packs runs into a submission, and reads it back at level 1 before it is anyone's.

    pack(Path("runs/test"), Path("entry.tar.gz"), about, spent=[Path("runs/weight")])

The first run is the evaluation on the whole test split with 8 samples; `spent` are the runs that trained
weights, searched harnesses or chose among agents for it. Everything comes from the run folders: nothing
is typed in but `About`. An unfinished run is refused, as is one whose harness sources are not in its
folder. Equal runs give equal bytes.

Memory holds a number per rollout and one whole rollout.

Not covered: sending a submission anywhere.
"""

import hashlib
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from whale_bench.export.files import fresh
from whale_bench.export.ledger import write_events
from whale_bench.records import Rollout
from whale_bench.statistics import mean_at_k
from whale_bench.store import RunStore
from whale_envs import UsageError, __version__, load_examples
from whale_envs.paths import hash_file
from whale_leaderboard.accounting import Account, budget_of, size_of, together
from whale_leaderboard.archive import ARCHIVE, Bundle, write_archive
from whale_leaderboard.digests import package_digest
from whale_leaderboard.layout import (
    MANIFEST,
    MOST_HARNESS,
    TEST,
    About,
    Charged,
    Claim,
    File,
    K,
    Manifest,
    Package,
    RunCard,
    Track,
    harness_file,
)
from whale_leaderboard.matrix import CROSSPLAY, OF_RUN, read_matrix
from whale_leaderboard.packing import first_events, read_ledger, write_ordered
from whale_leaderboard.report import Finding, Refusal, Say
from whale_leaderboard.rows import charged_of, digest_of
from whale_leaderboard.sampling import Sample, commitment
from whale_leaderboard.wellformed import check


def read_about(path: Path) -> About:
    """What the authors say, from a TOML file.

    Raises:
        UsageError: it cannot be read, or says what cannot be.
    """
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), About)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be used: {error}") from error


def pack(
    run: Path,
    out: Path,
    about: About,
    *,
    spent: Sequence[Path] = (),
    say: Say = lambda _what, _count: None,
) -> Manifest:
    """Makes a bundle, a .tar.gz where `out` ends so, else a folder.

    Args:
        run: folder of the test run.
        out: the bundle to make.
        about: what no run folder says.
        spent: folders of the runs that were spent on the agent.
        say: told how far it is.

    Raises:
        UsageError: a run cannot be submitted, or `out` cannot be made.
    """
    stores = [RunStore.open(folder) for folder in (run, *spent)]
    _check_test_run(stores[0])
    for store in stores[1:]:
        for name in ("domain", "tier"):
            if store.settings.get(name) != stores[0].settings[name]:
                raise UsageError(
                    f"{store.folder}: its {name} is {store.settings.get(name)!r}, that of {run} is "
                    f"{stores[0].settings[name]!r}"
                )
    begun: dict[str, RunStore] = {}
    for store in stores:
        for first in first_events(store):
            if (same := begun.setdefault(first.hash, store)) is not store:
                raise UsageError(
                    f"{store.folder} and {same.folder} are one run: their ledgers begin with one event"
                )
    with fresh(out) as temporary, tempfile.TemporaryDirectory(prefix="whale-pack-") as scratch:
        folder = Path(scratch) / "bundle" if out.name.endswith(ARCHIVE) else temporary
        folder.mkdir(parents=True)
        manifest = _Packer(folder, stores, about, say).pack()
        notes: list[Finding] = []
        try:
            check(_as_bundle(folder, manifest), notes, say)
        except Refusal as refusal:
            raise UsageError(f"{run} cannot be submitted: {refusal.finding}") from refusal
        if out.name.endswith(ARCHIVE):
            write_archive(folder, temporary)
    return manifest


def _check_test_run(store: RunStore) -> None:
    settings = store.settings
    size = len(load_examples(settings["domain"], settings["tier"], "test"))
    if settings.get("split") != "test" or settings.get("n") != size or settings.get("k") != K:
        raise UsageError(
            f"{store.folder}: a submission is of all {size} test examples with k = {K}, this run is of "
            f"{settings.get('n')} of {settings.get('split')} with k = {settings.get('k')}"
        )


def _as_bundle(folder: Path, manifest: Manifest) -> Bundle:
    return Bundle(folder, {name: (folder / name).stat().st_size for name in (MANIFEST, *manifest.files)})


@dataclass(slots=True)
class _Packer:
    folder: Path
    """The bundle's, to be filled."""
    stores: Sequence[RunStore]
    about: About
    say: Say

    def pack(self) -> Manifest:
        packed = [self._pack_run(number, store) for number, store in enumerate(self.stores)]
        rewards, metered = self._write_test()
        needed = {harness for one in packed for harness in one.harnesses}
        settings = self.stores[0].settings
        if "agent_id" not in settings:
            needed.add(settings["harness_id"])
        self._write_harnesses(needed)
        self._write_crossplay()
        account = together([one.account for one in packed])
        score = mean_at_k(rewards)
        manifest = Manifest(
            format=1,
            about=self.about,
            **{name: settings[name] for name in _SETTINGS},
            own_agent="agent_id" in settings,
            metered=metered,
            judge=settings.get("judge"),
            track=Track(
                domain=settings["domain"],
                tier=settings["tier"],
                size=size_of(self.about.parameters),
                budget=budget_of(account.charged, metered=metered),
            ),
            claim=Claim(
                score=score,
                charged=account.charged,
                paper=account.paper,
                executed=account.executed,
                test=account.test,
            ),
            package=Package(version=__version__, digest=package_digest()),
            runs=tuple(one.card for one in packed),
            files={
                path.relative_to(self.folder).as_posix(): _file(path)
                for path in sorted(self.folder.rglob("*"))
                if path.is_file()
            },
        )
        text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        (self.folder / MANIFEST).write_bytes(text + b"\n")
        return manifest

    def _pack_run(self, number: int, store: RunStore) -> "_Packed":
        folder = self.folder / f"runs/{number}"
        folder.mkdir(parents=True)
        shutil.copyfile(store.folder / "run.toml", folder / "run.toml")
        write_events(store, folder / "ledger.jsonl")
        order, purposes, accountant, events, head = read_ledger(store)
        write_ordered(
            (
                (
                    order[row.key],
                    msgspec.json.encode(charged_of(row, purposes[order[row.key]], digest_of(line))),
                )
                for row, line in _lines(store, order)
            ),
            folder / "charged.jsonl",
            len(order),
            lambda place: _lost(store, order, place),
        )
        ids = [hash_file(folder / name) for name in ("ledger.jsonl", "charged.jsonl")]
        settings = self.stores[0].settings
        sample = Sample((settings["weights_id"], settings["harness_id"]), lambda: commitment(*ids))
        read = msgspec.json.Decoder(Charged).decode
        with (folder / "charged.jsonl").open("rb") as lines:
            for record in map(read, lines):
                if number or record.purpose != "test":
                    sample.offer(record)
        chosen = {key: rank for rank, key in enumerate(sample.chosen())}
        harnesses: set[str] = set()
        write_ordered(
            self._chosen(store, chosen, harnesses),
            folder / "samples.jsonl",
            len(chosen),
            lambda place: _lost(store, chosen, place),
        )
        self.say(f"{store.folder}: charged rollouts", len(order))
        card = RunCard(
            settings_id=store.settings["settings_id"], events=events, records=len(order), head=head
        )
        return _Packed(card, accountant.account(), harnesses)

    def _chosen(
        self, store: RunStore, chosen: dict[str, int], harnesses: set[str]
    ) -> Iterator[tuple[int, bytes]]:
        for row, line in _lines(store, chosen) if chosen else ():
            if row.harness_id.startswith("sha256:"):
                harnesses.add(row.harness_id)
            yield chosen[row.key], line

    def _write_test(self) -> tuple[list[list[float]], bool]:
        """Writes the test rollouts; (their rewards by example, whether all their calls were metered)."""
        settings = self.stores[0].settings
        ids = load_examples(settings["domain"], settings["tier"], "test").ids
        places = {(example_id, n): i * K + n for i, example_id in enumerate(ids) for n in range(K)}
        rewards = [[0.0] * K for _ in ids]
        metered = True

        def rows() -> Iterator[tuple[int, bytes]]:
            nonlocal metered
            for row, line in _lines(self.stores[0], None):
                place = places.get((row.example_id, row.sample))
                if place is not None and row.key.startswith("test:"):
                    rewards[place // K][place % K] = row.verdict.reward
                    metered &= row.metered
                    yield place, line

        names = {place: f"sample {n} of {example_id}" for (example_id, n), place in places.items()}
        write_ordered(
            rows(),
            self.folder / TEST,
            len(places),
            lambda place: UsageError(
                f"{self.stores[0].folder}: {names[place]} is missing; finish the run with "
                f"`whale-bench eval --resume`"
            ),
        )
        return rewards, metered

    def _write_harnesses(self, needed: set[str]) -> None:
        """Writes every needed source that one of the run folders has."""
        found: dict[str, bytes] = {}
        for store in self.stores:
            for path in sorted(store.folder.rglob("*.py")):
                if not path.is_symlink() and path.stat().st_size <= MOST_HARNESS:
                    source = path.read_bytes()
                    found[f"sha256:{hashlib.sha256(source).hexdigest()}"] = source
        if lost := sorted(needed - found.keys()):
            raise UsageError(f"the source of harness {lost[0]} is in none of the run folders")
        (self.folder / "harnesses").mkdir()
        for harness_id in needed:
            (self.folder / harness_file(harness_id)).write_bytes(found[harness_id])

    def _write_crossplay(self) -> None:
        """Takes along the matrix of the first run that has one."""
        for store in self.stores:
            path = store.folder / OF_RUN
            if path.is_file() and not path.is_symlink():
                try:
                    matrix = read_matrix(path.read_bytes())
                except ValueError as error:
                    raise UsageError(f"{path}: {error}") from error
                (self.folder / CROSSPLAY).write_bytes(msgspec.json.encode(matrix))
                return


@dataclass(slots=True)
class _Packed:
    card: RunCard
    account: Account
    harnesses: set[str]
    """Ids of those that chosen rollouts were played with."""


_SETTINGS = ("domain", "tier", "profile", "model", "weights_id", "harness_id", "fixture", "examples_id")


def _lines(store: RunStore, wanted: dict[str, int] | None) -> Iterator[tuple[Rollout, bytes]]:
    """The wanted rollouts of a run, each with the line that stands for it in a bundle."""
    for row in store.rollouts():
        if wanted is None or row.key in wanted:
            yield row, msgspec.json.encode(row)


def _lost(store: RunStore, keys: dict[str, int], place: int) -> UsageError:
    key = next(key for key, at in keys.items() if at == place)
    return UsageError(
        f"{store.folder}: {key!r} is charged, but its rollout is not there; resume the run, then pack it"
    )


def _file(path: Path) -> File:
    return File(bytes=path.stat().st_size, sha256=hash_file(path))
