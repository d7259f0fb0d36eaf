"""`whale-bench view`: what it writes and prints, its exit codes, serving until a signal."""

import base64
import gzip
import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
import webbrowser
from pathlib import Path
from typing import Any

import pytest

from whale_bench import cli


@pytest.fixture
def view(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], runs: Path) -> Any:
    """Runs the command in this process; opened addresses are in `view.opened`."""
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or True)

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["whale-bench", "view", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        return code, *capsys.readouterr()

    run.opened = opened  # type: ignore[attr-defined]
    return run


def test_a_page_is_written_into_the_run_and_opened(view: Any, runs: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs / "search_qa", tmp_path / "run"))
    code, out, err = view(run)
    assert (code, out) == (0, f"{run / 'report.html'}\n")
    assert "32 rollouts" in err
    assert view.opened == [(run / "report.html").as_uri()]
    first = (run / "report.html").read_bytes()
    assert view(run, "--no-open")[0] == 0
    assert (run / "report.html").read_bytes() == first
    assert len(view.opened) == 1


def test_a_page_can_be_written_elsewhere(view: Any, runs: Path, tmp_path: Path) -> None:
    assert view(runs / "math_python", "--out", tmp_path / "page.html", "--no-open")[0] == 0
    assert (tmp_path / "page.html").is_file()
    assert not (runs / "math_python" / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "is no run folder"),
        (["{runs}"], "holds several runs"),
        (["{runs}/math_python", "--out", "/nowhere/page.html"], "cannot be written"),
        (["{runs}", "--serve", "--out", "x.html"], "--serve writes no page"),
        (["{runs}/math_python", "--port", "80"], "--port 80 is of --serve"),
        (["{runs}", "--serve", "--port", "70000"], "got 70000"),
        (["nowhere", "--serve"], "no folder of runs"),
    ],
)
def test_misuse_is_one_line(view: Any, runs: Path, arguments: list[str], words: str) -> None:
    code, out, err = view(*(argument.format(runs=runs) for argument in arguments), "--no-open")
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_a_large_run_gets_a_sample_that_is_stated(runs: Path, tmp_path: Path) -> None:
    from whale_bench.view.page import write_report

    written = write_report(runs / "chess_puzzles", tmp_path / "page.html", most=10)
    assert (written.shown, written.of) == (10, 32)


def test_a_run_of_long_rollouts_gets_those_that_fit_and_says_so(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from whale_bench.view import page

    def held(name: str) -> dict[str, Any]:
        text = (tmp_path / name).read_text()
        [data] = re.findall(r'id="data"[^>]*>([^<]*)<', text)
        found: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(data)))
        return found

    page.write_report(runs / "search_qa", tmp_path / "whole.html")
    whole = held("whole.html")
    assert "note" not in whole["sample"]
    size = len(json.dumps(whole["replays"]))
    monkeypatch.setattr(page, "MOST_BYTES", size // 2)
    written = page.write_report(runs / "search_qa", tmp_path / "part.html")
    part = held("part.html")
    assert 8 < written.shown == len(part["rows"]) == part["sample"]["shown"] < written.of == 32
    assert f"{written.shown} of 32 rollouts, as many as go into" in part["sample"]["note"]
    keys = [row["key"] for row in part["rows"]]
    assert keys == [row["key"] for row in whole["rows"] if row["key"] in keys]
    assert keys == [replay["key"] for replay in part["replays"]]
    assert part["overview"]["summary"] == whole["overview"]["summary"]
    assert part["overview"]["damaged"] == 0


def test_serving_ends_with_a_signal(runs: Path) -> None:
    command = [sys.executable, "-m", "whale_bench.cli", "view", str(runs), "--serve", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with urllib.request.urlopen(f"{url}/api/runs") as answer:
            assert b"math_python" in answer.read()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
