"""Reads the runs of a bundle: settings, ledger, records, and which rollouts have to be there whole.

    reader = Reader(bundle, manifest, splits, DevScores(splits), tested={}, say=say, most=768)
    runs = [reader.read(number) for number in range(len(manifest.runs))]

A ledger and its records are read once, see `audit.py`; of the records are kept those of the test rollouts of
the first run, and those that the digests choose.

Not covered: the whole rollouts, which `wellformed.py` holds against their records.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from whale_bench.ledger import Charge
from whale_bench.plan import EvalPlan, plan_of
from whale_bench.store import RunStore
from whale_envs import SPLITS, ExampleSet, UsageError, load_examples
from whale_leaderboard.accounting import Account, Accountant
from whale_leaderboard.archive import Bundle
from whale_leaderboard.audit import Audit
from whale_leaderboard.layout import MOST_EVENT, MOST_TOML, Charged, K, Manifest, is_fixture
from whale_leaderboard.report import CannotVerifyError, Refusal, Say
from whale_leaderboard.sampling import Sample, commitment
from whale_leaderboard.selection import DevScores

_EVERY = 4_096


@dataclass(slots=True)
class Run:
    """A run of the bundle, read."""

    number: int
    settings: Mapping[str, Any]
    plan: EvalPlan
    account: Account
    audit: Audit
    sampled: dict[str, tuple[Charged, Charge]]
    """Of the rollouts that have to be there whole, test apart."""

    @property
    def place(self) -> str:
        return f"runs/{self.number}"


class Splits(Mapping[str, Collection[str]]):
    """Ids of the examples that rollouts of a purpose may be of, loaded when first asked for."""

    def __init__(self, domain: str, tier: str) -> None:
        self._domain, self._tier = domain, tier

    def __getitem__(self, purpose: str) -> frozenset[str]:
        if purpose == "smoke":  # a try-out of what is to be trained or searched on
            return self["weight"] | self["harness"] | self["dev"]
        return split_ids(self._domain, self._tier, purpose)

    def __iter__(self) -> Iterator[str]:
        return iter((*SPLITS, "smoke"))

    def __len__(self) -> int:
        return len(SPLITS) + 1


@cache
def split_ids(domain: str, tier: str, split: str) -> frozenset[str]:
    """Ids of a split's examples."""
    return frozenset(examples_here(domain, tier, split).ids)


def examples_here(domain: str, tier: str, split: str) -> ExampleSet[Any]:
    """The examples of a split that is known.

    Raises:
        CannotVerifyError: their data is not on this machine.
    """
    try:
        return load_examples(domain, tier, split)
    except UsageError as error:
        raise CannotVerifyError(f"{domain}/{tier}/{split} is not on this machine: {error}") from error


@dataclass(slots=True)
class Reader:
    """Reads runs; what is of all of them together goes into `dev` and `tested`."""

    bundle: Bundle
    manifest: Manifest
    splits: Splits
    dev: DevScores
    tested: dict[str, tuple[Charged, Charge]]
    """Test rollouts of the first run, by key."""
    say: Say
    most: int
    """Test rollouts of a whole submission."""
    _begun: dict[str, str] = field(default_factory=dict)
    """Place of each run, by the hash of its ledger's first event: two with the same one are one run."""

    def read(self, number: int) -> Run:
        place, card = f"runs/{number}", self.manifest.runs[number]
        plan, settings = _read_plan(self.bundle, self.manifest, number)
        judge = settings.get("judge")
        audit = Audit(place, self.splits, Accountant(judge if isinstance(judge, str) else None))
        names = f"{place}/ledger.jsonl", f"{place}/charged.jsonl"
        agent = (self.manifest.weights_id, self.manifest.harness_id)
        sample = Sample(agent, lambda: commitment(*(self.manifest.files[name].sha256 for name in names)))
        kept: dict[str, tuple[Charged, Charge]] = {}
        events, records = (partial(self.bundle.lines, name, MOST_EVENT) for name in names)
        self.dev.begin(card.head)
        for settled in audit.settlements(events, records):
            record = settled.record
            if number == 0 and record.purpose == "test":
                _check_tested(settled.number, record, self.manifest)
                if len(self.tested) >= self.most and record.key not in self.tested:
                    raise Refusal(
                        1,
                        "completeness",
                        f"{names[1]}:{settled.number}",
                        f"{record.key!r} is one test rollout more than the {self.most} of a submission",
                    )
                self.tested[record.key] = (record, settled.charge)
            else:
                out = sample.offer(record)
                if out != record.key:
                    kept[record.key] = (record, settled.charge)
                if out is not None:
                    kept.pop(out, None)
                self.dev.add(record, settled.event.at)
            if settled.number % _EVERY == 0:
                self.say(f"{place}: charged rollouts", settled.number)
        if (card.events, card.records, card.head) != (audit.events, audit.records, audit.head):
            raise Refusal(
                1,
                "ledger_head",
                f"{place}/ledger.jsonl:{audit.events}",
                f"ends after {audit.events} events and {audit.records} records at {audit.head[:12]}…, the "
                f"manifest has {card.events}, {card.records} and {card.head[:12]}…",
            )
        if audit.first and (same := self._begun.setdefault(audit.first, place)) != place:
            raise Refusal(
                1, "same_run", f"{place}/ledger.jsonl:1", f"it begins with the event that {same} begins with"
            )
        whole = {key: kept[key] for key in sample.chosen()}
        return Run(number, settings, plan, audit.accountant.account(), audit, whole)


def _read_plan(bundle: Bundle, manifest: Manifest, number: int) -> tuple[EvalPlan, Mapping[str, Any]]:
    name = f"runs/{number}/run.toml"
    bundle.read(name, MOST_TOML)
    folder = bundle.folder / f"runs/{number}"
    try:
        store = RunStore.open(folder)
        plan = plan_of(store.settings, folder)
    except UsageError as error:
        why = str(error).replace(str(bundle.folder), "")
        raise Refusal(1, "settings", name, why) from error
    settings = store.settings
    wanted: dict[str, Any] = {"domain": manifest.domain, "tier": manifest.tier}
    wanted["settings_id"] = manifest.runs[number].settings_id
    if number == 0:
        wanted |= {
            "split": "test",
            "k": K,
            "profile": manifest.profile,
            "model": manifest.model,
            "weights_id": manifest.weights_id,
            "harness_id": manifest.harness_id,
            "fixture": manifest.fixture,
            "judge": manifest.judge,
            "examples_id": manifest.examples_id,
        }
        if ("agent_id" in settings) != manifest.own_agent:
            raise Refusal(1, "settings", name, "it and the manifest differ on whether an own agent plays")
    for field_name, value in wanted.items():
        if settings.get(field_name) != value:
            raise Refusal(
                1,
                "settings",
                name,
                f"its {field_name} is {settings.get(field_name)!r:.200}, {value!r:.200} is needed",
            )
    weights = str(settings.get("weights_id", settings.get("base_id", "")))
    if is_fixture(plan.model, weights) and settings.get("fixture") is not True:
        raise Refusal(
            1, "settings", name, f"it denies that the scripted model {plan.model!r:.100} is a fixture"
        )
    return plan, settings


def _check_tested(number: int, record: Charged, manifest: Manifest) -> None:
    for name in ("weights_id", "harness_id"):
        if getattr(record, name) != getattr(manifest, name):
            raise Refusal(
                1,
                "other_agent",
                f"runs/0/charged.jsonl:{number}",
                f"{record.key!r} was played with another {name}, {getattr(record, name)!r:.100}",
            )
