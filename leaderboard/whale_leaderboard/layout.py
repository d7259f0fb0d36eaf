"""What a submission holds: its files, its manifest, a record for every charged rollout, all limits.

    manifest.json                  who, what, the claim, the digest of every other file
    test.jsonl                     all k × N test rollouts, whole, by example and sample
    crossplay.json                 weights × harnesses as a run reported it, if it did (`matrix.py`)
    harnesses/SHA256.py            source of every harness that a whole rollout here was played with
    runs/0/run.toml                settings of the test run; of the runs spent on it from 1 on
    runs/0/ledger.jsonl            its ledger's events, one a line
    runs/0/charged.jsonl           a `Charged` for every settled rollout, in the order of settlement
    runs/0/samples.jsonl           those of them whole that the digests choose (`sampling.py`)

Nothing else may be in it. Every field has a limit, unknown fields are refused.

Not covered: reading and writing, see `archive.py` and `pack.py`.
"""

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from whale_bench.statistics import Score
from whale_bench.view.hidden import is_visible

K = 8
"""Samples of each test example."""

MANIFEST, TEST = "manifest.json", "test.jsonl"

NAMES = re.compile(
    r"manifest\.json|test\.jsonl|crossplay\.json|harnesses/[0-9a-f]{64}\.py"
    r"|runs/(?:0|[1-9][0-9]?)/(?:run\.toml|ledger\.jsonl|charged\.jsonl|samples\.jsonl)"
)
"""Every name that may be in a bundle."""

MOST_FILES = 4_096
MOST_BYTES = 16 * 2**30
"""Of all files of a bundle together, unpacked."""
MOST_MANIFEST = 2**22
MOST_TOML = 2**16
MOST_HARNESS = 2**18
MOST_ROLLOUT = 2**24
"""Of a line with a whole rollout."""
MOST_EVENT = 2**14
"""Of a line of a ledger or of charged rollouts."""

_Word = Annotated[str, Meta(min_length=1, max_length=200)]
_Id = Annotated[str, Meta(min_length=1, max_length=512)]
_Hex = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
_Count = Annotated[int, Meta(ge=0, le=2**53)]
_Share = Annotated[float, Meta(ge=0.0, le=1.0)]
_Link = Annotated[str, Meta(pattern=r"\Ahttps?://[^\s<>\"']{1,500}\Z", max_length=512)]


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all that is read from a bundle."""


class About(_Strict, frozen=True, kw_only=True):
    """What only the authors can say: the file given to `pack --about`. What it names can be seen."""

    agent: _Word
    authors: Annotated[tuple[_Word, ...], Meta(min_length=1, max_length=64)]
    licence: _Word
    """Of the submission."""
    hardware: _Word
    description: Annotated[str, Meta(max_length=4_000)] = ""
    links: Annotated[tuple[_Link, ...], Meta(max_length=16)] = ()
    recipe: Annotated[str, Meta(max_length=2**16)] = ""
    """Text of the recipe's file."""
    base: Annotated[str, Meta(max_length=200)] = ""
    """Model that the weights were trained from."""
    parameters: Annotated[float, Meta(gt=0, le=1e15)] | None = None
    """Of the model, all of them; None where nobody says."""
    proposer: Annotated[str, Meta(max_length=200)] = ""
    """Model that proposed harnesses, as its server names it."""
    reference: bool = False
    """Whether it is a reference row, never ranked, by its authors' own choice."""

    def __post_init__(self) -> None:
        for name in ("agent", "authors", "licence", "hardware"):
            said = getattr(self, name)
            if not all(map(is_visible, (said,) if isinstance(said, str) else said)):
                raise ValueError(f"nothing can be seen of `{name}`")


class Track(_Strict, frozen=True, kw_only=True):
    """Where entries are compared."""

    domain: _Word
    tier: _Word
    size: _Word
    budget: _Word


class Claim(_Strict, frozen=True, kw_only=True):
    """What the bundle says it holds; every number is recomputed."""

    score: Score
    charged: _Count
    paper: _Count
    executed: _Count
    test: _Count


class Package(_Strict, frozen=True, kw_only=True):
    """What scored."""

    version: _Word
    digest: _Hex
    """Of the sources of whale_envs and whale_bench."""


class RunCard(_Strict, frozen=True, kw_only=True):
    """One run and its ledger."""

    settings_id: _Id
    events: _Count
    records: _Count
    head: _Hex
    """Hash of the ledger's last event."""


class File(_Strict, frozen=True, kw_only=True):
    """A file of the bundle."""

    bytes: _Count
    sha256: _Hex


class Manifest(_Strict, frozen=True, kw_only=True):
    """What manifest.json holds."""

    format: Literal[1]
    """Version of this layout."""
    about: About
    domain: _Word
    tier: _Word
    profile: Literal["standard", "paper"]
    model: _Word
    weights_id: _Id
    harness_id: _Id
    own_agent: bool
    fixture: bool
    """True for scripted models, which are no entry of any ranking."""
    metered: bool
    """Whether the tokens of every test rollout's calls can be known."""
    judge: Annotated[str, Meta(max_length=200)] | None
    examples_id: _Id
    """Hash of the test examples' ids, in order."""
    track: Track
    claim: Claim
    package: Package
    runs: Annotated[tuple[RunCard, ...], Meta(min_length=1, max_length=100)]
    """The test run first."""
    files: Annotated[dict[str, File], Meta(max_length=MOST_FILES)]
    """Every other file, by name."""


def harness_file(harness_id: str) -> str:
    """Name of the file that holds a harness's source.

    >>> harness_file("sha256:0a")
    'harnesses/0a.py'
    """
    return f"harnesses/{harness_id.removeprefix('sha256:')}.py"


def is_fixture(model: str, weights_id: str) -> bool:
    """Whether a model is scripted, by its own names; what a bundle says of itself apart.

    >>> is_fixture("scripted/random", "scripted:random"), is_fixture("local/smollm2", "sha256:0")
    (True, False)
    """
    return model.startswith("scripted/") or weights_id.startswith("scripted:")


class Charged(_Strict, frozen=True, kw_only=True):
    """One settled rollout without its content."""

    key: _Id
    purpose: _Word
    example_id: _Id
    sample: Annotated[int, Meta(ge=0, le=2**31)]
    weights_id: _Id
    harness_id: _Id
    prompt_tokens: _Count | None
    sampled_tokens: _Count | None
    """None where nobody said."""
    model_calls: _Count
    reward: _Share
    reason: _Word
    """Of the verdict."""
    digest: _Hex
    """SHA-256 of the whole rollout's line."""
