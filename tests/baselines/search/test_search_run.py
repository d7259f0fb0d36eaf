"""The run of a search from a file: a real SIGKILL, dev, the command line, files that cannot be."""

import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from bench_fakes import lines, results, settled, wait_for
from search_fakes import H0, Obedient, Scripted, accounts, recorded, texts, told
from typer.testing import CliRunner
from whale_baselines import search_run
from whale_baselines.cli import app
from whale_baselines.search.archive import read_archive

from whale_bench.ledger import Ledger
from whale_envs.errors import UsageError

AGENT = '[agent]\ndomain = "chess_puzzles"\nmodel = "scripted/noisy-oracle:0.5"\n'
SEARCH = '[search]\nproposer = "scripted"\nexamples = 48\ndev_samples = 2\ndev_examples = 24\n'

pytestmark = pytest.mark.filterwarnings("ignore::whale_bench.store.DamagedLineWarning")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "search.toml"
    path.write_text(f"iterations = 3\n{AGENT}{SEARCH}")
    return path


def start(file, folder):
    program = Path(__file__).with_name("searching.py")
    return subprocess.Popen(
        [sys.executable, str(program), str(file), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def reached(folder, target):
    return lines(folder) >= target


def test_a_search_that_was_killed_ends_as_one_that_was_not(file, tmp_path):
    with start(file, tmp_path / "whole") as process:
        said, problem = process.communicate(timeout=300)
    assert process.returncode == 0, problem
    folder = tmp_path / "run"
    for target in (48 + 3 + 100, 2 * 48 * 3 + 60):  # the second candidate; the second session
        with start(file, folder) as process:
            assert wait_for(partial(reached, folder, target), process, seconds=300)
            process.kill()
            process.communicate()
        assert process.returncode == -signal.SIGKILL
    with start(file, folder) as process:
        again, problem = process.communicate(timeout=300)
    assert process.returncode == 0, problem
    assert again.splitlines()[-1].split()[:2] == said.splitlines()[-1].split()[:2]
    assert results(folder) == results(tmp_path / "whole")
    assert settled(folder) == settled(tmp_path / "whole")
    assert texts(folder / "archive") == texts(tmp_path / "whole" / "archive")
    assert (folder / "summary.json").read_bytes() == (tmp_path / "whole" / "summary.json").read_bytes()
    with Ledger(folder / "ledger.sqlite", readonly=True) as ledger:
        assert ledger.open_reservations() == []
        events = [event for event in ledger.events() if event.key.startswith("proposer:")]
    assert [event.kind for event in events] == ["reserve", "settle"] * 2  # bought once each


async def test_dev_is_played_before_and_after_and_charged_apart(file, tmp_path):
    plan, seen = search_run.read_plan(file), []
    proposer = Scripted([told(0.9, "a")])
    found = await search_run.run(
        plan, tmp_path / "run", backend=Obedient(), proposer=proposer, report=lambda *told: seen.append(told)
    )
    assert [kind for kind, _ in seen] == ["explain", "iteration", "iteration", "iteration"]
    assert seen[0][1]["rollouts for scores, at most"] == 7 * 48
    charged, _ = accounts(tmp_path / "run")
    assert (charged["harness"].rollouts, charged["smoke"].rollouts, charged["dev"].rollouts) == (96, 1, 96)
    dev = [record for key, record in recorded(tmp_path / "run").items() if key.startswith("dev:")]
    by_harness = {
        name: sum(one.verdict.reward for one in dev if (one.harness_id == found.accepted) is after) / 48
        for name, after in (("before", False), ("after", True))
    }
    assert by_harness == {"before": found.before.mean, "after": found.after.mean}
    assert found.after.mean - found.before.mean == pytest.approx(found.difference.mean)
    assert (tmp_path / "run" / "accepted.py").read_text() == told(0.9, "a")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["accepted"] == found.accepted
    before = lines(tmp_path / "run")
    again = await search_run.run(plan, tmp_path / "run", backend=Obedient(), proposer=Scripted())
    assert again == found
    assert lines(tmp_path / "run") == before
    other = tmp_path / "other.toml"
    other.write_text(file.read_text().replace("examples = 48", "examples = 47", 1))
    with pytest.raises(UsageError, match="cannot be"):
        await search_run.run(
            search_run.read_plan(other), tmp_path / "run", backend=Obedient(), proposer=Scripted()
        )


async def test_a_run_that_accepts_nothing_plays_dev_once(file, tmp_path):
    found = await search_run.run(
        search_run.read_plan(file), tmp_path / "run", backend=Obedient(), proposer=Scripted()
    )
    assert found.difference.mean == 0
    assert (tmp_path / "run" / "accepted.py").read_text() == H0
    assert accounts(tmp_path / "run")[0]["dev"].rollouts == 48
    assert list(read_archive(tmp_path / "run" / "archive").candidates) == ["h0"]


def test_the_command_runs_a_search_by_what_the_file_says(file, tmp_path, monkeypatch):
    monkeypatch.setattr(search_run, "load_proposer", lambda plan: Scripted([told(0.5, "a")]))
    done = CliRunner().invoke(app, ["run", str(file), "--explain"])
    assert done.exit_code == 0
    assert "smoke rollouts" in done.output
    assert list(tmp_path.iterdir()) == [file]
    done = CliRunner().invoke(app, ["run", str(file), "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.exception
    assert "phase 1, iteration 2: " in done.output
    assert "dev mean@2: " in done.output
    done = CliRunner().invoke(app, ["lineage", str(tmp_path / "run")])
    assert done.exit_code == 0, done.exception
    assert (
        "Lineage: scripted/noisy-oracle:0.5 on chess_puzzles"
        in (tmp_path / "run" / "lineage.html").read_text()
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("iterations = 0", "iterations must be a whole number from 1, got 0"),
        ("iterations = 1\nsteps = 2", "unknown steps; valid: iterations"),
        ("iterations = 1\n[agent]\nn = 3", r"has no 'n': `examples` of \[search\]"),
        ("iterations = 1\n[agent]\ndomain = 'math_python'", "lacks 'model'"),
        ("iterations = 1\n[agent]\ndomain = 'x'\nmodel = 'y'\n[search]\nslots = 0", "slots of a search"),
        ("iterations =", "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_is_refused_with_its_name(tmp_path, text, message):
    path = tmp_path / "search.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=f"search.toml: .*{message}"):
        search_run.read_plan(path)
