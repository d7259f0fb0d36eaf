"""The command line: what it prints, its exit codes, one line for every misuse, signals."""

import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from bench_fakes import FILES, HEAD, alive, children, results, settled, wait_for

from whale_bench import cli, commands
from whale_bench.models.http_retry import Patience
from whale_bench.models.openai import OpenAIBackend
from whale_bench.store import RunStore

ROOT = Path(__file__).resolve().parent.parent.parent
EVAL = ["eval", "chess_puzzles", "-m", "scripted/random", "-n", "4", "-k", "2"]


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def whale(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """Runs the command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["whale-bench", *arguments])
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        return Done(code, *capsys.readouterr())

    return run


def process(*arguments: str) -> "subprocess.Popen[str]":
    """The command in a process of its own, which hears a Ctrl-C even where this one was told not to."""
    command = [sys.executable, "-m", "whale_bench.cli", *arguments]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.fixture
def dying_url() -> Iterator[str]:
    """A server that answers one request, the probe, and hangs up on all others."""
    command = [sys.executable, str(ROOT / "benchmarks" / "faulty_server.py"), "--answers", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.kill()


def dead_url() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/v1"


# --- list -----------------------------------------------------------------------------------------


def test_list_shows_environments_tiers_splits_models_and_harnesses(whale: Any) -> None:
    done = whale("list")
    assert (done.code, done.err) == (0, "")
    words = "chess_puzzles mini small full weight harness dev test h0/chess_puzzles.py"
    models = "scripted/oracle scripted/noisy-oracle:P openai/NAME local/PATH local/smollm2"
    for word in f"{words} {models}".split():
        assert word in done.out


def test_list_as_json_holds_the_same(whale: Any) -> None:
    found = json.loads(whale("list", "--json").out)
    chess = found["environments"]["chess_puzzles"]
    assert set(chess["tiers"]) == set(chess["sizes"]) == {"mini", "small", "full"}
    assert found["splits"] == ["weight", "harness", "dev", "test"]
    assert "scripted/oracle" in found["models"]
    assert found["harnesses"] == {f"h0/{name}.py": "shipped" for name in found["environments"]}


# --- eval -----------------------------------------------------------------------------------------


def test_eval_prints_a_table_with_what_a_reader_needs(whale: Any, tmp_path: Path) -> None:
    done = whale(*EVAL, "-m", "scripted/oracle", "--out", "runs")
    assert done.code == 0
    for word in ("4 examples × 2", "mean@2, standard", "95% interval", "mean@2, paper", "pass@1", "pass@2",
                 "sampled tokens", "missing", "legal_rate", "correct_moves", "retries", "solved",
                 "scripted/oracle (fixture)", "1.000"):  # fmt: skip
        assert word in done.out
    assert {p.name for p in (tmp_path / "runs").iterdir()} == {"0-scripted-random", "1-scripted-oracle"}
    assert "8/8" in done.err


def test_eval_as_json_prints_nothing_else(whale: Any, tmp_path: Path) -> None:
    done = whale(*EVAL, "--json", "--out", "here")
    [row] = json.loads(done.out)
    assert done.err == ""
    assert (row["model"], row["rollouts"], row["complete"], row["folder"]) == (
        "scripted/random",
        8,
        True,
        "here",
    )
    summary = json.loads((tmp_path / "here" / "summary.json").read_text())
    assert summary == {name: value for name, value in row.items() if name != "folder"}


def test_a_run_folder_holds_what_the_architecture_says(whale: Any, tmp_path: Path) -> None:
    whale(*EVAL, "--out", "here")
    names = {p.name for p in (tmp_path / "here").iterdir()}
    assert {"run.toml", "harness.py", "rollouts-0000.jsonl", "ledger.sqlite", "summary.json"} <= names


def test_without_out_each_run_gets_a_folder_of_its_own(whale: Any, tmp_path: Path) -> None:
    for _ in range(2):
        assert whale(*EVAL, "-m", "scripted/random").code == 0
    assert len(list((tmp_path / "runs").iterdir())) == 4


def test_a_finished_run_can_be_resumed_and_shows_the_same(whale: Any) -> None:
    first = json.loads(whale(*EVAL, "--json", "--out", "here").out)[0]
    again = json.loads(whale("eval", "--resume", "here", "--json").out)[0]
    assert {**first, "seconds": 0} == {**again, "seconds": 0}


def test_runs_begun_at_the_same_time_get_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    begun = [process(*EVAL, "--json") for _ in range(5)]
    folders = set()
    for number, running in enumerate(begun):
        out, err = running.communicate(timeout=60)
        assert (number, running.returncode, err) == (number, 0, "")
        folders.add(json.loads(out)[0]["folder"])
    assert {str(p.relative_to(tmp_path)) for p in (tmp_path / "runs").iterdir()} == folders
    assert len(folders) == 5


def test_a_folder_that_is_taken_in_the_same_second_is_left_alone(
    whale: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands.time, "strftime", lambda _: "now")
    taken = tmp_path / "runs" / "now-chess_puzzles-scripted-random"
    taken.mkdir(parents=True)
    done = whale(*EVAL, "-m", "scripted/random", "--json")
    assert [row["folder"] for row in json.loads(done.out)] == [
        f"runs/{taken.name}-2",
        f"runs/{taken.name}-3",
    ]
    assert not list(taken.iterdir())


def test_where_no_folder_can_be_made_is_one_line(whale: Any, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    done = whale(*EVAL)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "cannot be made into a run folder" in done.err


def test_intervals_by_resampling_are_shown_and_student_s_are_kept(whale: Any, tmp_path: Path) -> None:
    whale(*EVAL[:3], "scripted/noisy-oracle:0.7", "-n", "12", "-k", "4", "--out", "here")
    stored = (tmp_path / "here" / "summary.json").read_bytes()
    done = whale("eval", "--resume", "here", "--bootstrap")
    assert "95% interval, bootstrap" in done.out
    [shown] = json.loads(whale("eval", "--resume", "here", "--bootstrap", "--json").out)
    assert (tmp_path / "here" / "summary.json").read_bytes() == stored
    kept = json.loads(stored)
    assert (kept["interval"], shown["interval"]) == ("t", "bootstrap")
    assert shown["score"]["mean"] == kept["score"]["mean"]
    assert shown["score"]["low"] != kept["score"]["low"]
    sampled = {
        name: [value["score"]["low"] for value in found.values()] for name, found in shown["groups"].items()
    }
    assert sampled != {n: [v["score"]["low"] for v in found.values()] for n, found in kept["groups"].items()}
    without = ("score", "other_score", "groups", "interval", "folder")
    assert {n: v for n, v in shown.items() if n not in without} == {
        n: v for n, v in kept.items() if n not in without
    }


def test_a_run_goes_on_with_another_sandbox_server(whale: Any, tmp_path: Path) -> None:
    dead = dead_url().removesuffix("/v1")
    done = whale("eval", "math_python", "-m", "scripted/oracle", "-n", "1", "-k", "2", "--out", "run")
    part = tmp_path / "run" / "rollouts-0000.jsonl"
    part.write_bytes(part.read_bytes().splitlines(keepends=True)[0])
    done = whale("eval", "--resume", "run", "--python-url", dead)
    assert done.code in (0, 3), done.err  # it is taken; whether anyone answers there is another matter
    assert f'python_url = "{dead}"' in (tmp_path / "run" / "run.toml").read_text()


def test_a_resume_at_another_address_goes_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, str | None]] = []

    async def evaluate(plan: Any, folder: Path, *, report: Any, **servers: str | None) -> Any:
        asked.append(servers)

    monkeypatch.setattr(commands, "evaluate", evaluate)
    run = commands.Run(None, tmp_path, "http://new/v1", "http://u:p@r", "http://judge/v1", "http://sandbox")
    commands.evaluate_all([run], [], quiet=True)
    assert asked == [
        {
            "base_url": "http://new/v1", "retriever_url": "http://u:p@r", "judge_url": "http://judge/v1",
            "python_url": "http://sandbox", "bootstrap": False,
        }
    ]  # fmt: skip


@pytest.mark.filterwarnings("default::whale_bench.store.DamagedLineWarning")
def test_a_damaged_line_is_read_past_with_a_warning(whale: Any, tmp_path: Path) -> None:
    whale(*EVAL, "--out", "here")
    part = tmp_path / "here" / "rollouts-0000.jsonl"
    part.write_bytes(part.read_bytes()[:-20])
    for more in ([], ["--json"]):
        done = whale("eval", "--resume", "here", *more)
        assert done.code == 0
        assert done.err.count("rollouts-0000.jsonl:8: not a whole rollout, passed over") == 1
    assert len(settled(tmp_path / "here")) == 8


# --- misuse ---------------------------------------------------------------------------------------

MISUSE = {
    "environment": (["eval", "chess", "-m", "scripted/random"], ["'chess'", "chess_puzzles"]),
    "tier": ([*EVAL, "--tier", "tiny"], ["'tiny'", "mini, small, full"]),
    "split": ([*EVAL, "--split", "train"], ["'train'", "weight, harness, dev, test"]),
    "profile": ([*EVAL, "--profile", "lax"], ["'lax'", "standard, paper"]),
    "model kind": (["eval", "chess_puzzles", "-m", "gpt"], ["'gpt'", "scripted/oracle", "openai/NAME"]),
    "model name": (["eval", "chess_puzzles", "-m", "scripted/orcale"], ["'orcale'", "oracle, random"]),
    "second model": ([*EVAL, "-m", "scripted/x"], ["'x'", "oracle, random"]),
    "probability": (["eval", "chess_puzzles", "-m", "scripted/noisy-oracle:7"], ["'7'", "from 0 to 1"]),
    "address": (
        ["eval", "chess_puzzles", "-m", "openai/m", "--base-url", "nowhere"],
        ["'nowhere'", "http://"],
    ),
    "address of a fixture": ([*EVAL, "--base-url", "http://x/v1"], ["--base-url", "'scripted/random'"]),
    "too many": (["eval", "chess_puzzles", "-m", "scripted/random", "-n", "97"], ["97", "96"]),
    "none": (["eval", "chess_puzzles", "-m", "scripted/random", "-k", "0"], ["k must be", "0"]),
    "no model": (["eval", "chess_puzzles"], ["--model"]),
    "nothing": (["eval"], ["environment and --model"]),
    "no harness": ([*EVAL, "--harness", "nowhere.py"], ["'nowhere.py'"]),
    "no run": (["eval", "--resume", "nowhere"], ["nowhere", "run.toml"]),
    "resume and more": (["eval", "--resume", "r", "-n", "3", "--seed", "0"], ["--resume", "n, seed"]),
    "resume and model": (
        ["eval", "chess_puzzles", "-m", "scripted/random", "--resume", "r"],
        ["domain, model"],
    ),
    "check nothing": (["check-harness", "nowhere.py"], ["'nowhere.py'"]),
    "check where": (["check-harness", str(FILES / "good.py"), "--domain", "go"], ["'go'", "chess_puzzles"]),
    "pull": (["pull", "gpt"], ["'gpt'", "smollm2"]),
}


@pytest.mark.parametrize("what", MISUSE)
def test_misuse_is_one_line_that_names_the_value_and_the_valid_ones(
    what: str, whale: Any, tmp_path: Path
) -> None:
    arguments, words = MISUSE[what]
    done = whale(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert done.err.startswith("whale-bench: ")
    for word in words:
        assert word in done.err
    assert not list(tmp_path.iterdir())  # and nothing ran


def test_misuse_from_a_real_process_has_no_traceback() -> None:
    with process("eval", "chess_puzzles", "-m", "nope") as done:
        out, err = done.communicate(timeout=60)
    assert (done.returncode, out, err.count("\n")) == (2, "", 1)
    assert "Traceback" not in err


def test_a_folder_in_use_is_one_line(whale: Any) -> None:
    whale(*EVAL, "--out", "here")
    done = whale(*EVAL, "--out", "here")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "here is not empty" in done.err


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (HEAD + "class Harness(BaseHarness)\n    pass\n", "mine.py:2: syntax error: expected ':'"),
        (
            HEAD + "class Harness(BaseHarness):\n    def read(self, reply, view):\n        return 5\n",
            "mine.py:3: read must",
        ),
        (
            HEAD + "class Harness(BaseHarness):\n    def read(self, reply, view):\n        return x\n",
            "mine.py:4: NameError",
        ),
        ("raise ValueError('two\\nlines')\n", "mine.py:1: ValueError: two lines"),
    ],
)
def test_a_broken_harness_file_is_one_line_with_file_and_line(
    whale: Any, tmp_path: Path, source: str, words: str
) -> None:
    (tmp_path / "mine.py").write_text(source)
    done = whale(*EVAL, "--harness", "mine.py", "--out", "here")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert words in done.err
    assert not (tmp_path / "here").exists()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "settings gone": lambda run: (run / "run.toml").write_text("format = 1\n"),
    "settings edited": lambda run: edited(run / "run.toml", "k = 2", 'k = "2"'),
    "model a number": lambda run: edited(run / "run.toml", 'model = "scripted/random"', "model = 5"),
    "domain a list": lambda run: edited(run / "run.toml", '"chess_puzzles"', '["a"]'),
    "no fixture": lambda run: edited(run / "run.toml", "fixture = true", ""),
    "no toml": lambda run: (run / "run.toml").write_bytes(b"\xff\x00"),
    "settings a folder": lambda run: swapped(run / "run.toml"),
    "rollouts a folder": lambda run: swapped(run / "rollouts-0000.jsonl"),
    "summary a folder": lambda run: swapped(run / "summary.json"),
    "ledger a folder": lambda run: swapped(run / "ledger.sqlite"),
    "ledger no ledger": lambda run: (run / "ledger.sqlite").write_text("hello " * 1000),
    "lock a folder": lambda run: swapped(run / "run.lock"),
    "another run's line": lambda run: edited(run / "rollouts-0000.jsonl", '"seed":0,"h', '"seed":1,"h'),
}


def edited(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def swapped(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_run_folder_is_one_line(whale: Any, tmp_path: Path, what: str) -> None:
    whale(*EVAL, "--out", "here")
    DAMAGE[what](tmp_path / "here")
    done = whale("eval", "--resume", "here")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert done.err.startswith("whale-bench: ")


def test_a_full_disk_is_one_line_and_the_run_can_go_on(whale: Any, tmp_path: Path) -> None:
    limited = f"ulimit -f 60; exec {sys.executable} -m whale_bench.cli"  # no file longer than 60 KiB
    plan = "eval chess_puzzles -m scripted/random -n 40 -k 2 --json --out"
    done = subprocess.run(
        ["bash", "-c", f"{limited} {plan} {tmp_path / 'run'}"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert "cannot be written: " in done.stderr
    assert done.stderr.count("\n") == 1
    again = whale("eval", "--resume", str(tmp_path / "run"), "--json")
    assert json.loads(again.out)[0]["complete"]
    assert whale(*plan.split(), str(tmp_path / "whole")).code == 0
    assert settled(tmp_path / "run") == settled(tmp_path / "whole")


# --- check-harness --------------------------------------------------------------------------------


def test_check_harness_says_yes_or_what_is_wrong(whale: Any, tmp_path: Path) -> None:
    good = whale("check-harness", str(FILES / "good.py"))
    assert (good.code, good.out.count("\n")) == (0, 1)
    assert "holds the contract" in good.out
    bad = whale("check-harness", str(FILES / "wrong_type.py"))
    assert bad.code == 1
    assert "wrong_type.py:7: read must return Act, Nudge or Stop" in bad.out
    (tmp_path / "mine.py").write_text("class Harness(\n")
    assert "mine.py:1: syntax error" in whale("check-harness", "mine.py").out


# --- a server that is not there -------------------------------------------------------------------


def test_a_server_that_dies_makes_a_run_incomplete_and_names_what_is_missing(
    whale: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dying_url: str
) -> None:
    defaults: Any = OpenAIBackend.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "patience", Patience(backoff_s=0.0))
    arguments = ["eval", "chess_puzzles", "-m", "openai/m", "--base-url", dying_url, "-n", "3", "-k", "2"]
    done = whale(*arguments, "--out", "my run")
    assert done.code == 3
    assert "6 rollouts are missing" in done.out
    assert done.out.count("≥ 0.000 (incomplete)") == 1  # a bound of the run's own profile only
    lines = (tmp_path / "my run" / "run.toml").read_text()
    assert "examples_id" in lines
    summary = json.loads((tmp_path / "my run" / "summary.json").read_text())
    assert summary["score"] is None
    for key in summary["missing"]:
        assert key in done.out
    assert f"{dying_url} failed {Patience().attempts} times" in done.out
    assert "go on with: whale-bench eval --resume 'my run'" in done.out
    done = whale("eval", "--resume", "my run", "--json")
    assert (done.code, done.out) == (3, "")
    assert f"{dying_url} failed 3 times" in done.err  # found by the probe


def test_a_server_that_is_not_there_is_one_line_and_no_folder(
    whale: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    defaults: Any = OpenAIBackend.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "patience", Patience(backoff_s=0.0))
    done = whale("eval", "chess_puzzles", "-m", "openai/m", "--base-url", dead_url(), "--out", "here")
    assert (done.code, done.out, done.err.count("\n")) == (3, "", 1)
    assert "is --base-url right" in done.err
    assert not (tmp_path / "here").exists()


def test_a_server_beside_a_fixture_needs_one_address_only(
    whale: Any, monkeypatch: pytest.MonkeyPatch, dying_url: str
) -> None:
    defaults: Any = OpenAIBackend.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "patience", Patience(backoff_s=0.0))
    done = whale(*EVAL, "-m", "openai/m", "--base-url", dying_url, "--json", "--out", "both")
    assert done.code == 3
    assert [row["complete"] for row in json.loads(done.out)] == [True, False]


def test_several_servers_are_given_and_recorded_as_a_list(whale: Any, tmp_path: Path, stub_url: str) -> None:
    other = stub_url.replace("127.0.0.1", "localhost")
    servers = ["--base-url", stub_url, "--base-url", other]
    done = whale("eval", "chess_puzzles", "-m", "openai/m", *servers, "-n", "2", "-k", "1", "--out", "two")
    assert done.code == 0
    assert RunStore.open(tmp_path / "two").settings["base_url"] == [stub_url, other]
    assert whale("eval", "--resume", "two").code == 0


# --- signals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("harness", [[], ["--harness", str(FILES / "good.py")]], ids=["h0", "file"])
def test_an_interrupted_run_says_how_to_go_on_and_does(
    number: int, harness: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "my run"
    plan = ["eval", "chess_puzzles", "-m", "scripted/noisy-oracle:0.7", "-k", "24", "-c", "4", *harness]
    with process(*plan, "--out", str(folder)) as running:
        assert wait_for(lambda: any(p.stat().st_size > 2000 for p in folder.glob("rollouts-*")), running)
        workers = children(running.pid)
        assert len(workers) == len(harness) // 2
        running.send_signal(number)
        out, err = running.communicate(timeout=30)
    assert running.returncode == 130
    assert not any(alive(pid) for pid in workers)
    assert f"go on with: whale-bench eval --resume '{folder}'" in err.replace("\n", "")
    assert "Traceback" not in err
    begun = len(results(folder))
    assert 0 < begun < 96 * 24
    if not harness and number == signal.SIGINT:
        with process("eval", "--resume", str(folder), "--json") as again:
            out, _ = again.communicate(timeout=60)
        assert again.returncode == 0
        assert json.loads(out)[0]["complete"]
        assert len(settled(folder)) == 96 * 24
    shutil.rmtree(folder)


# --- start-up -------------------------------------------------------------------------------------


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['whale-bench', '--help']\n"
        "from whale_bench.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'gymnasium', 'aiohttp', 'numpy', 'torch', 'chess', 'sqlite3', 'rich.progress'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Evaluate agents" in done.stdout
    assert done.stderr == "[]\n"


def test_an_evaluation_of_scripted_models_loads_no_client_and_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from whale_bench.cli import main\n"
        f"sys.argv = ['whale-bench', *{EVAL}, '--json', '--out', {str(tmp_path / 'r')!r}]\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'aiohttp', 'torch', 'transformers'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
