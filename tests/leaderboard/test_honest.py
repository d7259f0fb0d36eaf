"""No honest bundle is refused, whatever kind of agent and run it is of."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import msgspec
import pytest
from board_fakes import ABOUT, Honest, a_move, evaluated, programs
from whale_leaderboard.archive import open_bundle
from whale_leaderboard.pack import pack
from whale_leaderboard.ranking import why_not
from whale_leaderboard.report import Replay, Report
from whale_leaderboard.verify import too_varied, verify

from whale_bench.ledger import Ledger
from whale_bench.models.scripted import load_scripted
from whale_envs import UsageError

ROOT = Path(__file__).resolve().parent.parent.parent


def refused(report: Report) -> list[str]:
    return [str(finding) for finding in report.findings if finding.refuses]


def test_weights_and_a_harness_with_all_that_was_spent_on_them(chess: Path) -> None:
    report = verify(chess, level=2)
    assert not refused(report)
    assert (report.level, report.badge, report.passed) == (2, "replayed", True)
    account, replay = report.account, report.replay
    assert account is not None
    assert replay is not None
    assert (account.charged, account.paper, account.test) == (258, 128, 768)
    assert account.executed == 258 + 5  # one failed attempt of each phase with a fourth example
    assert account.spent.proposer_micro_usd == 90_000
    assert account.spent.unmetered_tokens
    assert (replay.replayed, replay.samples) == (768 + 258, 258)
    first, last = report.curve
    assert report.selection == ("dev" if last.score >= first.score else "none")
    assert (first.rollouts, last.rollouts) == (2 + 48 + 64, 258)


def test_a_fixture_under_h0(plain: Path) -> None:
    report = verify(plain, level=3, model="scripted/noisy-oracle:0.5")
    assert not refused(report)
    assert report.level == 3
    assert report.reproduction is not None
    assert report.reproduction.examples == 64
    assert report.selection == "fixed"


def test_another_model_does_not_reproduce_it(plain: Path) -> None:
    report = verify(plain, level=3, model="scripted/random")
    assert report.level == 2
    assert [finding.code for finding in report.findings if finding.refuses] == ["not_reproduced"]
    assert report.reproduction is not None
    assert report.reproduction.p_value < report.reproduction.alpha


def test_python_runs_again_and_what_varies_is_told_apart(maths: Path) -> None:
    report = verify(maths, level=2)
    assert not refused(report)
    replay = report.replay
    assert replay is not None
    assert replay.python_calls > 10
    assert 0 < replay.python_apart < replay.python_calls
    assert report.repeatable is not None
    assert report.score is not None
    assert report.repeatable <= report.score.mean
    assert report.level == 2


def test_an_entry_most_of_whose_programs_vary_is_no_more_than_well_formed(made: Path) -> None:
    run = evaluated(made / "varies", "math_python", Honest(partial(programs, often=1)))
    pack(run, made / "varies.bundle", ABOUT)
    report = verify(made / "varies.bundle", level=2)
    assert not refused(report)
    assert report.replay is not None
    assert report.replay.python_apart == report.replay.python_calls > 20
    assert (report.level, report.findings[-1].code) == (1, "varies")


@pytest.mark.parametrize(
    ("calls", "apart", "rollouts", "too_many"),
    [(100, 10, 0, False), (100, 11, 0, True), (10, 7, 768, False), (10, 8, 768, True), (0, 0, 0, False)],
)
def test_how_many_results_may_vary(calls: int, apart: int, rollouts: int, too_many: bool) -> None:
    assert too_varied(Replay(python_calls=calls, python_apart=apart, replayed=rollouts)) is too_many


def test_searches_are_made_again_and_an_archive_is_as_good_as_a_folder(questions: Path) -> None:
    report = verify(questions, level=2)
    assert not refused(report)
    assert report.replay is not None
    assert report.replay.searches > 40
    assert report.replay.searches_recorded == 0


def test_a_run_that_was_killed_and_resumed(made: Path) -> None:
    folder = made / "killed"
    command = [sys.executable, "-m", "whale_bench.cli", "eval"]
    begin = [*command, "chess_puzzles", "--model", "scripted/random", "--out", str(folder)]
    with subprocess.Popen(begin, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while not any(part.stat().st_size > 100_000 for part in folder.glob("rollouts-*.jsonl")):
            assert process.poll() is None
            assert time.monotonic() < deadline
        os.kill(process.pid, signal.SIGKILL)
    with Ledger(folder / "ledger.sqlite") as ledger:  # as a kill between two writes leaves it
        ledger.reserve("test:in-flight:0", "test")
    with pytest.raises(UsageError, match="is missing; finish the run"):
        pack(folder, made / "half.bundle", ABOUT)
    assert not (made / "half.bundle").exists()
    subprocess.run([*command, "--resume", str(folder)], check=True, capture_output=True)
    pack(folder, made / "killed.bundle", ABOUT)
    report = verify(made / "killed.bundle", level=2)
    assert not refused(report)
    assert report.account is not None
    assert report.account.by_purpose["test"].settled.rollouts == 768
    assert report.account.by_purpose["test"].executed.rollouts > 768


def test_an_own_agent_that_nobody_metered_is_open_and_at_the_lowest_badge(made: Path) -> None:
    agent = ROOT / "examples" / "agent_python.py"
    run = evaluated(made / "own", "chess_puzzles", model=f"agent:{agent}:Agent")
    pack(run, made / "own.bundle", ABOUT)
    report = verify(made / "own.bundle", level=2)
    assert not refused(report)
    assert report.replay is not None
    assert report.replay.own == 768
    assert report.track is not None
    assert (report.level, report.badge, report.track.budget) == (1, "well-formed", "open")


def test_conditions_that_no_track_names_are_honest_and_not_ranked(made: Path) -> None:
    run = evaluated(made / "paper", "chess_puzzles", Honest(a_move), profile="paper")
    pack(run, made / "paper.bundle", ABOUT)
    report = verify(made / "paper.bundle", level=1)
    assert not refused(report)
    assert "the profile 'paper'" in why_not(report)


def test_a_model_that_thinks_and_ends_its_turns_with_a_token_of_its_own(made: Path) -> None:
    """The harness saw less than the raw text; the replay shows it the same."""

    class Thinks(Honest):
        async def generate(self, request):  # type: ignore[no-untyped-def]
            done = await super().generate(request)
            raw = f"<think>{done.text} or [a1a2]?<|pause|> Hm.</think>{done.text}<|im_end|>"
            return msgspec.structs.replace(done, raw_text=raw, reasoning=f"{done.text} or [a1a2]? Hm.")

    run = evaluated(made / "thinks", "chess_puzzles", Thinks(a_move))
    pack(run, made / "thinks.bundle", ABOUT)
    assert not refused(verify(made / "thinks.bundle", level=2))


def test_equal_runs_give_equal_bundles_byte_for_byte(made: Path, plain: Path) -> None:
    pack(made / "plain", made / "a.tar.gz", ABOUT)
    pack(made / "plain", made / "b.tar.gz", ABOUT)
    assert (made / "a.tar.gz").read_bytes() == (made / "b.tar.gz").read_bytes()
    with open_bundle(made / "a.tar.gz") as one, open_bundle(plain) as other:
        assert {n: one.sha256(n) for n in one.sizes} == {n: other.sha256(n) for n in other.sizes}


@pytest.mark.parametrize(
    ("plan", "why"),
    [({"n": 4}, "all 96 test examples"), ({"k": 2, "n": 96}, "k = 8"), ({"split": "dev"}, "of dev")],
)
def test_what_is_no_whole_test_run_cannot_be_packed(made: Path, plan: dict[str, object], why: str) -> None:
    folder = made / re.sub(r"\W", "", f"no-{plan}")
    evaluated(folder, "chess_puzzles", **({"n": 2} | plan))
    with pytest.raises(UsageError, match=why):
        pack(folder, made / "never.bundle", ABOUT)


def test_a_charged_rollout_whose_record_is_lost_cannot_be_packed(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "lost"
    evaluated(folder, "chess_puzzles", load_scripted("random"))
    part = folder / "rollouts-0000.jsonl"
    part.write_bytes(b"".join(part.read_bytes().splitlines(keepends=True)[1:]))
    with pytest.raises(UsageError, match="is charged, but its rollout is not there"):
        pack(folder, tmp_path / "lost.bundle", ABOUT)


def test_a_run_that_is_given_twice_cannot_be_packed(chess_run: Path, spent: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(spent, copy)
    with Ledger(copy / "ledger.sqlite") as ledger:  # and went on
        ledger.reserve("weight:more:0", "weight")
    for runs in ([spent, spent], [spent, copy], [chess_run]):
        with pytest.raises(UsageError, match="are one run"):
            pack(chess_run, tmp_path / "never.bundle", ABOUT, spent=runs)


def test_the_loop_of_the_caller_is_not_needed(plain: Path) -> None:
    """`verify` is a plain function; it leaves no event loop behind."""
    verify(plain, level=2)
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
