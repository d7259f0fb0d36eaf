"""Ranking, the board's data, and the command."""

import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from board_fakes import ABOUT, Forger
from hypothesis import given, settings
from hypothesis import strategies as st
from whale_leaderboard.accounting import BUDGETS, SIZES, Accountant
from whale_leaderboard.cli import main
from whale_leaderboard.difference import differences
from whale_leaderboard.layout import Manifest, Track
from whale_leaderboard.pairs import compare_all
from whale_leaderboard.ranking import paper_rows, rank, ranks
from whale_leaderboard.report import Report
from whale_leaderboard.results import report_of
from whale_leaderboard.site.build import build
from whale_leaderboard.verify import verify

from whale_bench.statistics import differences_of, mean_at_k, paired, sign_flip
from whale_envs import UsageError

ROOT = Path(__file__).resolve().parent.parent.parent
TRACK = Track(domain="chess_puzzles", tier="mini", size="1B", budget="30k")


def entry(name: str, chance: float, form: Manifest, **changes: Any) -> Report:
    """The report of an agent that solves each of 96 examples with this chance."""
    draw = random.Random(name)
    rewards = [[float(draw.random() < chance) for _ in range(8)] for _ in range(96)]
    about = msgspec.structs.replace(ABOUT, agent=name)
    fields: dict[str, Any] = {
        "bundle": name, "asked": 2, "level": 2, "findings": (), "verifier": "v", "score": mean_at_k(rewards),
        "manifest": msgspec.structs.replace(
            form, fixture=False, model="local/a-model", weights_id="sha256:" + "ab" * 32, about=about
        ),
        "means": tuple(sum(r) / 8 for r in rewards), "account": Accountant().account(), "track": TRACK,
        "selection": "dev",
    }  # fmt: skip
    return Report(**{**fields, **changes})


@pytest.fixture(scope="module")
def manifest(plain: Path) -> Manifest:
    return msgspec.json.decode((plain / "manifest.json").read_bytes(), type=Manifest)


def test_ties_share_a_rank_and_the_next_one_is_after_them(manifest: Manifest) -> None:
    reports = [
        entry(*pair, manifest) for pair in (("a", 0.7), ("b", 0.69), ("c", 0.3), ("d", 0.31), ("e", 0.05))
    ]
    (board,) = rank(reports).tracks
    assert [(e.agent, e.rank) for e in board.entries][:2] in ([("a", 1), ("b", 1)], [("b", 1), ("a", 1)])
    assert [e.rank for e in board.entries] == [1, 1, 3, 3, 5]
    assert {e.agent for e in board.entries[2:4]} == {"c", "d"}
    assert len(board.pairs) == 10
    far = next(pair for pair in board.pairs if {pair.a, pair.b} == {"a", "e"})
    near = next(pair for pair in board.pairs if {pair.a, pair.b} == {"a", "b"})
    assert far.p_value < 1e-4 < 0.05 < near.p_value
    assert far.low > 0
    assert rank(list(reversed(reports))) == rank(reports)


intervals = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9)).map(lambda pair: (min(pair) / 10, max(pair) / 10)),
    min_size=1, max_size=9,
)  # fmt: skip


@given(intervals, st.randoms(use_true_random=False))
def test_a_rank_counts_the_intervals_wholly_above_in_any_order(
    found: list[tuple[float, float]], draw: random.Random
) -> None:
    slow = [1 + sum(low > high for low, _ in found) for _, high in found]
    assert ranks(found) == slow
    order = draw.sample(range(len(found)), len(found))
    assert ranks([found[i] for i in order]) == [slow[i] for i in order]
    assert 1 in slow
    for (_, high), place in zip(found, slow, strict=True):
        for (_, above), other in zip(found, slow, strict=True):
            assert place <= other or high < above  # monotone


@given(intervals, st.data())
def test_a_better_interval_never_ranks_lower(found: list[tuple[float, float]], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(found) - 1))
    by = data.draw(st.integers(0, 5)) / 10
    low, high = found[at]
    better = [*found[:at], (low + by, high + by), *found[at + 1 :]]
    before, after = ranks(found), ranks(better)
    assert after[at] <= before[at]
    assert all(after[i] >= before[i] for i in range(len(found)) if i != at)


def test_an_entry_is_compared_with_every_leader_above_it(manifest: Manifest) -> None:
    """The third reaches the first, whatever stands between them."""

    def one(name: str, mean: float, low: float, high: float) -> Report:
        report = entry(name, mean, manifest)
        assert report.score is not None
        return msgspec.structs.replace(
            report, score=msgspec.structs.replace(report.score, mean=mean, low=low, high=high)
        )

    reports = [one("a", 0.7, 0.6, 0.8), one("b", 0.5, 0.45, 0.55), one("c", 0.45, 0.2, 0.7)]
    (board,) = rank(reports).tracks
    assert [(e.agent, e.rank) for e in board.entries] == [("a", 1), ("c", 1), ("b", 2)]
    assert rank(reports[::-1]) == rank(reports)


def test_what_is_not_ranked_stands_below_with_its_reason(manifest: Manifest) -> None:
    fixture = msgspec.structs.replace(manifest, fixture=True)
    reports = [
        entry("oracle", 1.0, manifest, manifest=fixture),
        entry("on-test", 0.9, manifest, selection="none"),
        entry("weak", 0.1, manifest),
    ]
    (board,) = rank(reports).tracks
    assert [(e.rank, bool(e.why_not)) for e in board.entries] == [(1, False), (None, True), (None, True)]
    assert "fixture" in board.entries[1].why_not
    assert "dev" in board.entries[2].why_not
    assert not board.pairs


def test_a_reference_row_of_its_authors_choice_is_never_ranked(manifest: Manifest) -> None:
    about = msgspec.structs.replace(ABOUT, reference=True)
    mine = msgspec.structs.replace(manifest, fixture=False, about=about)
    (board,) = rank([entry("engine", 1.0, manifest, manifest=mine), entry("a", 0.2, manifest)]).tracks
    assert [(e.agent, e.rank) for e in board.entries] == [("a", 1), ("An agent", None)]


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=12))
def test_the_exact_p_value_counts_every_signing(pairs: list[tuple[int, int]]) -> None:
    a, b = ([value / 8 for value in column] for column in zip(*pairs, strict=True))
    differences = [y - x for x, y in pairs]
    sums = [abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
            for signs in product((1, -1), repeat=len(pairs))]  # fmt: skip
    wanted = sum(found >= abs(sum(differences)) for found in sums) / len(sums)
    ((_, _, there),) = compare_all([b, a])
    ((_, _, back),) = compare_all([a, b])
    assert there.p_value == back.p_value == pytest.approx(wanted, abs=1e-12)


@settings(max_examples=40)
@given(st.data())
def test_every_pair_is_compared_as_two_entries_are(data: st.DataObject) -> None:
    examples = data.draw(st.integers(1, 30))
    rows = st.lists(st.integers(0, 8).map(lambda n: n / 8), min_size=examples, max_size=examples)
    means = data.draw(st.lists(rows, min_size=1, max_size=4))
    if data.draw(st.booleans()):
        means[-1][0] = 0.3  # no eighth: pairs are compared one by one
    found = {(i, j): compared for i, j, compared in compare_all(means)}
    assert list(found) == list(combinations(range(len(means)), 2))
    for (i, j), compared in found.items():
        assert compared.difference == paired(means[j], means[i])


def test_the_exact_p_value_agrees_with_drawn_signs() -> None:
    draw = random.Random(5)
    a, b = ([draw.randint(0, 8) / 8 for _ in range(90)] for _ in range(2))
    ((_, _, exact),) = compare_all([a, b])
    ((_, _, drawn),) = compare_all([[0.3, *a], [0.1, *b]])
    assert exact.p_value == pytest.approx(sign_flip(differences_of(b, a)).value, abs=0.01)
    assert drawn.p_value == sign_flip(differences_of([0.1, *b], [0.3, *a])).value


def test_means_of_other_examples_are_not_compared() -> None:
    with pytest.raises(UsageError, match="same examples"):
        list(compare_all([[0.5, 0.5], [0.5]]))


def test_tracks_are_apart(manifest: Manifest) -> None:
    other = msgspec.structs.replace(TRACK, budget="open")
    board = rank([entry("a", 0.5, manifest), entry("b", 0.5, manifest, track=other)])
    assert [t.track.budget for t in board.tracks] == ["30k", "open"]
    with pytest.raises(UsageError, match="twice"):
        rank([entry("a", 0.5, manifest)] * 2)


def test_the_papers_rows_are_exact_counts_of_its_test_sets() -> None:
    rows = paper_rows()
    assert len(rows) == 4 * 3 + 6 * 2
    for row in rows:
        solved = row.score * row.examples * 8
        assert abs(solved - round(solved)) < 0.3, row  # printed with two digits
        assert row.status == "reported, not verified"
    whale = {row.domain: row.score for row in rows if row.method == "WHALE (0.6, 6)"}
    assert whale == {"search_qa": 0.4834, "math_python": 0.2479, "chess_puzzles": 0.2983}


def test_the_boards_data_is_the_same_each_time_and_takes_a_report_that_fits(
    plain: Path, chess: Path, tmp_path: Path
) -> None:
    shelf = tmp_path / "submissions"
    shutil.copytree(plain, shelf / "plain")
    shutil.copytree(chess, shelf / "chess")
    (shelf / "README.md").write_text("not a submission")
    report = verify(shelf / "chess", level=2)
    beside = shelf / "chess.report.json"
    beside.write_bytes(msgspec.json.encode(report))
    assert report_of(shelf / "chess") == report
    first = build(shelf, tmp_path / "one")
    build(shelf, tmp_path / "two")
    data = (tmp_path / "one" / "results.json").read_bytes()
    assert data == (tmp_path / "two" / "results.json").read_bytes()
    assert json.loads(data) == json.loads(json.dumps(first))
    mine = first["entries"][report.bundle]
    assert mine["report"]["badge"] == "replayed"
    assert mine["money"]["proposer_usd"] == 0.09
    assert mine["curve"]["rollouts_to_best"] in {p.rollouts for p in report.curve}
    assert len(first["reported"]) == len(paper_rows())
    beside.write_bytes(msgspec.json.encode(msgspec.structs.replace(report, bundle="0" * 64)))
    assert report_of(shelf / "chess").asked == 1
    beside.write_text("{}")
    with pytest.raises(UsageError, match="is no report"):
        build(shelf, tmp_path / "three")


def test_a_refused_submission_stops_the_board(plain: Path, tmp_path: Path) -> None:
    forger = Forger(plain, tmp_path / "submissions" / "forged")
    forger.write("test.jsonl", forger.lines("test.jsonl")[1:])
    with pytest.raises(UsageError, match=r"forged: refused \[digest\] test.jsonl"):
        build(tmp_path / "submissions", tmp_path / "out")


# --- the command --------------------------------------------------------------------------------------


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """The console script, in this process."""

    def run(*words: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["whale-leaderboard", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return Done(int(ended.value.code or 0), said.out, said.err)

    return run


def test_the_command_is_a_module_too() -> None:
    line = [sys.executable, "-m", "whale_leaderboard.cli", "rules"]
    assert subprocess.run(line, capture_output=True, text=True, check=True).stdout.startswith("1. An entry")


def test_pack_verify_and_their_exit_codes(
    made: Path, plain: Path, tmp_path: Path, command: Callable[..., Done]
) -> None:
    about = tmp_path / "about.toml"
    about.write_text('agent = "A"\nauthors = ["B"]\nlicence = "MIT"\nhardware = "a laptop"\n')
    packed = command("pack", made / "plain", "--about", about, "--out", tmp_path / "a.tar.gz")
    assert packed.returncode == 0, packed.stderr
    assert "0 charged rollouts" in packed.stdout
    done = command("verify", tmp_path / "a.tar.gz", "--out", tmp_path / "a.report.json")
    assert done.returncode == 0, done.stderr
    assert "replayed (level 2 of 2)" in done.stdout
    report = msgspec.json.decode((tmp_path / "a.report.json").read_bytes(), type=Report)
    assert report.level == 2
    forger = Forger(plain, tmp_path / "forged")
    forger.write("test.jsonl", forger.lines("test.jsonl")[1:])
    refused = command("verify", forger.folder, "--level", "1", "--json")
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["level"] == 0
    about.write_text('agent = "A"\n')
    for words, why in (
        (("verify", tmp_path / "nothing"), "not there"),
        (("verify", plain, "--level", "4"), "a level is one of 1, 2, 3"),
        (("verify", plain, "--level", "3"), "needs --model"),
        (("verify", plain, "--model", "scripted/random"), "no other level"),
        (("pack", made / "plain", "--about", about, "--out", tmp_path / "b"), "authors"),
        (("build", tmp_path / "nothing", "--out", tmp_path / "site"), "no folder"),
        (("serve", tmp_path), "holds no site"),
    ):
        wrong = command(*words)
        assert wrong.returncode == 2, words
        assert why in wrong.stderr
        assert wrong.stderr.strip().splitlines()[-1].startswith("whale-leaderboard: ")
    dead = command(
        "verify", plain, "--level", "3", "--model", "openai/x", "--base-url", "http://127.0.0.1:9/v1"
    )
    assert dead.returncode == 3, dead.stderr


def test_rules_and_differences(plain: Path, chess: Path, command: Callable[..., Done]) -> None:
    rules = command("rules").stdout
    assert rules == (ROOT / "leaderboard" / "whale_leaderboard" / "rules.md").read_text()
    assert rules in (ROOT / "docs" / "leaderboard.md").read_text()
    shown = command("diff", plain, chess)
    assert shown.returncode == 0, shown.stderr
    assert "+    SYSTEM_PROMPT = " in shown.stdout
    assert "rollouts charged: 0 -> 258" in shown.stdout
    assert "difference: " in shown.stdout
    assert command("diff", plain, plain).stdout.count("\n") == 2


def test_a_difference_is_only_ever_text_on_a_terminal(plain: Path, tmp_path: Path) -> None:
    """What a stranger's bundle says moves no cursor, and one field is one line."""
    forger = Forger(plain, tmp_path / "other")
    forger.manifest(lambda m: m["about"].update(agent="a\x1b[2J\u202eb", description="x\ry", parameters=2e9))
    forger.manifest(lambda m: m["track"].update(size="5B"))
    lines = list(differences(plain, forger.folder))
    assert not re.search("[\x00-\x1f\u202e]", "".join(lines))
    assert "about.agent: An agent -> a‹U+001B›[2J‹U+202E›b" in lines
    assert "about.parameters: none -> 2,000,000,000" in lines
    assert "track.size: unknown -> 5B" in lines


def test_every_finding_and_every_track_is_documented() -> None:
    page = (ROOT / "docs" / "leaderboard.md").read_text()
    sources = "".join(p.read_text() for p in (ROOT / "leaderboard" / "whale_leaderboard").glob("*.py"))
    codes = set(re.findall(r"Refusal\(\s*[123],\s*\"(\w+)\"", sources))
    codes |= set(re.findall(r"_(?:refusal|note|finding|named)\(\s*\"(\w+)\"", sources))
    assert len(codes) > 35
    assert not [code for code in sorted(codes) if f"`{code}`" not in page]
    budget = (ROOT / "docs" / "budget.md").read_text()
    assert not [name for name in (*BUDGETS, *SIZES, "open", "large", "unknown") if f"`{name}`" not in budget]
