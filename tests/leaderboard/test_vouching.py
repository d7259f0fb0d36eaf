"""A report beside a bundle says nothing that was not found, unless the maintainers stand for it."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from whale_leaderboard.digests import files_digest, package_digest, verifier
from whale_leaderboard.report import Finding, Replay, Report, Reproduction
from whale_leaderboard.results import report_of
from whale_leaderboard.site.build import build
from whale_leaderboard.verify import verify
from whale_leaderboard.vouching import LIST, beyond, vouched

from whale_envs import UsageError, load_examples
from whale_envs.core import content_id
from whale_envs.suite import DOMAINS

MADE_UP = Reproduction(
    model="local/x", examples=64, samples=4, recorded=0.5, reproduced=0.5, low=-0.1, high=0.1, p_value=1.0,
    alpha=0.01,
)  # fmt: skip
NOTE = Finding(level=1, code="unpinned", place="runs/0/run.toml", message="it was judged", refuses=False)


@pytest.fixture(scope="module")
def found(plain: Path) -> Report:
    return msgspec.structs.replace(verify(plain, level=1), findings=(NOTE,), replay=Replay(replayed=768))


FORGED: dict[str, dict[str, Any]] = {
    "findings": {"findings": ()},
    "replay": {"replay": Replay(replayed=768, python_calls=3)},
    "repeatable": {"repeatable": 0.9},
    "selection": {"selection": "dev"},
    "means": {"means": (1.0,) * 96},
    "level 2": {"level": 2},
    "level 3": {"level": 3, "asked": 3, "reproduction": MADE_UP},
    "reproduction": {"reproduction": MADE_UP},
}


@pytest.mark.parametrize("name", FORGED)
def test_a_report_that_says_more_than_was_found_is_told(name: str, found: Report) -> None:
    assert beyond(found, found, "0", frozenset()) == ""
    said = msgspec.structs.replace(found, **FORGED[name])
    assert beyond(said, found, "0", frozenset({"1"}))


def test_what_the_maintainers_reproduced_is_believed_and_nothing_else_of_it(found: Report) -> None:
    said = msgspec.structs.replace(found, level=3, asked=3, reproduction=MADE_UP)
    assert beyond(said, found, "1", frozenset({"1"})) == ""
    better = msgspec.structs.replace(said, findings=())
    assert "findings" in beyond(better, found, "1", frozenset({"1"}))


def test_the_site_shows_no_reproduction_that_nobody_stands_for(plain: Path, tmp_path: Path) -> None:
    shelf = tmp_path / "submissions"
    shutil.copytree(plain, shelf / "mine")
    report = verify(plain, level=1)
    forged = msgspec.structs.replace(report, level=3, asked=3, reproduction=MADE_UP)
    beside = shelf / "mine.report.json"
    beside.write_bytes(msgspec.json.encode(forged))
    with pytest.raises(UsageError, match=rf"mine.report.json: says level 3, .* {LIST}"):
        build(shelf, tmp_path / "site")
    # Inside the folder, where a submission may put it, the list counts for nothing.
    digest = hashlib.sha256(beside.read_bytes()).hexdigest()
    text = f'[reports]\n"mine" = "{digest}"\n'
    (shelf / LIST).write_text(text)
    with pytest.raises(UsageError, match="says level 3"):
        report_of(shelf / "mine")
    (tmp_path / LIST).write_text(text)
    assert vouched(shelf) == {digest}
    assert report_of(shelf / "mine") == forged
    for broken in ("reports", "[reports]\nmine = 3\n", "reports = 3\n"):
        (tmp_path / LIST).write_text(broken)
        with pytest.raises(UsageError, match=LIST):
            vouched(shelf)


def test_a_report_of_other_sources_is_not_taken(plain: Path, tmp_path: Path) -> None:
    """A verifier that was mended since is another one."""
    shutil.copytree(plain, tmp_path / "mine")
    report = verify(plain, level=1)
    assert report.verifier == verifier()
    old = msgspec.structs.replace(
        report, verifier=report.verifier.replace(report.verifier[-64:], "0" * 64), asked=2, level=2
    )
    (tmp_path / "mine.report.json").write_bytes(msgspec.json.encode(old))
    assert report_of(tmp_path / "mine").asked == 1


def test_digests_change_with_a_source_and_with_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "some_package"
    (package / "data" / "tier").mkdir(parents=True)
    (package / "site").mkdir()
    for name in ("__init__.py", "verify.py", "data/tier/rows.jsonl", "site/page.py", "notes.txt"):
        (package / name).write_text("1")
    monkeypatch.syspath_prepend(str(tmp_path))
    first = files_digest("some_package", less="site")
    for name, counts in (
        ("notes.txt", False), ("site/page.py", False), ("verify.py", True), ("data/tier/rows.jsonl", True),
    ):  # fmt: skip
        (package / name).write_text("2")
        assert (files_digest("some_package", less="site") != first) is counts
        first = files_digest("some_package", less="site")
    assert package_digest() in verifier()


@pytest.mark.parametrize("domain", DOMAINS)
def test_an_examples_id_is_the_hash_of_what_is_shown_of_it(domain: str) -> None:
    """The ids whose hash a manifest has are of these texts; answers are in the digest of the data."""
    shown = {
        "chess_puzzles": lambda e: (e.fen, e.trigger, *e.gold),
        "math_python": lambda e: (e.problem,),
        "search_qa": lambda e: (e.question,),
    }[domain]
    tiers = [tier for tier in DOMAINS[domain].tiers if tier != "full"]
    assert tiers
    for tier in tiers:
        examples = load_examples(domain, tier, "test")
        assert all(example.id == content_id(domain, *shown(example)) for example in examples)
