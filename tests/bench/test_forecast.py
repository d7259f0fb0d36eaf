"""What a dry run says holds for the run, and nothing is loaded or written."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench_fakes import HEAD, run
from typer.testing import CliRunner

from whale_bench import EvalPlan
from whale_bench.cli import app
from whale_bench.forecast import Forecast, forecast
from whale_bench.judge import ATTEMPTS
from whale_envs import DOMAINS, UsageError, get_domain


def told(folder: Path | None = None, **plan: Any) -> Forecast:
    if folder is not None:
        return asyncio.run(forecast(None, folder))
    return asyncio.run(forecast(EvalPlan(**{"domain": "chess_puzzles", "model": "openai/m", **plan}), None))


def test_the_published_limits_are_multiplied_out() -> None:
    found = told(n=10, k=4)
    assert (found.rollouts, found.turns, found.model_calls) == (40, 9, 360)
    assert (found.sampled_tokens_per_rollout, found.sampled_tokens) == (8_129, 40 * 8_129)
    assert (found.harness, found.finished, found.judge_calls) == ("h0/chess_puzzles.py", 0, 0)
    assert told().examples == 96


@pytest.mark.parametrize(
    ("limits", "per_rollout"),
    [
        ({"max_tokens": 16}, 9 * 16),
        ({"token_budget": 100}, 100),
        ({"token_budget": 100, "max_tokens": 16}, 100),
        ({"token_budget": 1_000, "max_tokens": 16}, 144),
    ],
)
def test_the_smaller_limit_counts(limits: dict[str, int], per_rollout: int) -> None:
    assert told(n=1, k=1, **limits).sampled_tokens_per_rollout == per_rollout


def test_a_harness_file_has_its_own_limits(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        HEAD + "class Harness(BaseHarness):\n    MAX_TURNS = 3\n    MAX_TOKENS = 7\n"
    )
    found = told(n=2, k=1, harness=str(tmp_path / "mine.py"), max_tokens=50)
    assert (found.turns, found.sampled_tokens_per_rollout, found.model_calls) == (3, 21, 6)


def test_no_run_takes_more_than_was_told(tmp_path: Path) -> None:
    plan: dict[str, Any] = {"model": "scripted/random", "n": 5, "k": 3, "split": "dev"}
    found = told(**plan)
    summary = run(EvalPlan(domain="chess_puzzles", **plan), tmp_path / "run")
    lines = (tmp_path / "run" / "rollouts-0000.jsonl").read_text().splitlines()
    calls = [len(json.loads(line)["segments"]) for line in lines]
    assert summary.rollouts == found.rollouts
    assert sum(calls) <= found.model_calls
    assert max(calls) <= found.turns
    assert (summary.sampled_tokens or 0) <= found.sampled_tokens


def test_of_a_begun_run_only_the_rest_is_told(tmp_path: Path) -> None:
    run(EvalPlan(domain="chess_puzzles", model="scripted/random", n=3, k=2), tmp_path / "run")
    part = tmp_path / "run" / "rollouts-0000.jsonl"
    part.write_text("".join(line + "\n" for line in part.read_text().splitlines()[:4]))
    found = told(tmp_path / "run")
    assert (found.finished, found.rollouts, found.model_calls) == (4, 2, 18)


def test_every_attempt_of_a_judge_is_told() -> None:
    assert told(domain="search_qa", n=5, k=2, judge="openai/j").judge_calls == 10 * ATTEMPTS


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"n": 1_000}, "fewer than the 1000"),
        ({"model": "gpt"}, "'gpt'"),
        ({"judge": "openai/j"}, "no tool search"),
        ({"domain": "go"}, "'go'"),
    ],
)
def test_misuse_is_found_as_in_a_real_run(plan: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        told(**plan)


# --- the command ----------------------------------------------------------------------------------

DRY = ["eval", "chess_puzzles", "-m", "openai/a", "-m", "scripted/random", "-n", "4", "-k", "2", "--dry-run"]


def test_the_command_prints_a_column_for_each_model_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, DRY)
    assert done.exit_code == 0
    for words in ("nothing has run", "openai/a", "scripted/random", "rollouts to run", "65,032", "72"):
        assert words in done.output
    assert not list(tmp_path.iterdir())


def test_the_command_prints_json() -> None:
    rows = json.loads(CliRunner().invoke(app, [*DRY, "--json"]).output)
    assert [(row["model"], row["rollouts"]) for row in rows] == [("openai/a", 8), ("scripted/random", 8)]


def test_a_dry_run_of_a_local_model_loads_no_weights(tmp_path: Path) -> None:
    code = (
        "import sys; from whale_bench.cli import main\n"
        "sys.argv = ['whale-bench', 'eval', 'math_python', '-m', 'local/nowhere', '--dry-run', '--json']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'aiohttp', 'torch', 'transformers', 'sympy'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert json.loads(done.stdout)[0]["model"] == "local/nowhere"
    assert done.stderr == "[]\n"


def test_a_dry_resume_is_allowed(tmp_path: Path) -> None:
    run(EvalPlan(domain="chess_puzzles", model="scripted/random", n=2, k=1), tmp_path / "run")
    done = CliRunner().invoke(app, ["eval", "--resume", str(tmp_path / "run"), "--dry-run", "--json"])
    assert json.loads(done.output)[0]["rollouts"] == 0


async def test_an_own_agent_has_no_limit_of_tokens_and_nothing_is_started() -> None:
    plan = EvalPlan(domain="chess_puzzles", model="process:false", n=3, k=2)
    found = await forecast(plan, None)
    assert (found.rollouts, found.turns, found.model_calls, found.sampled_tokens) == (6, 18, None, None)
    with pytest.raises(UsageError):
        await forecast(EvalPlan(domain="chess_puzzles", model="process:/no/such/program"), None)


@pytest.mark.parametrize("domain", DOMAINS)
def test_no_own_agent_takes_more_turns_than_was_told(domain: str, tmp_path: Path) -> None:
    tool = {"search_qa": ("search", "query"), "math_python": ("code_interpreter", "code")}.get(domain)
    action = "no move" if tool is None else json.dumps({"tool": tool[0], "arguments": {tool[1]: ""}})
    (tmp_path / "mine.py").write_text(
        f"ENV_OPTIONS = {{'max_turns': 99, 'format_retry_budget': 99}}\ndef act(o): return {action!r}"
    )
    plan = EvalPlan(domain=domain, model=f"agent:{tmp_path / 'mine.py'}:act", n=1, k=1)
    found = asyncio.run(forecast(plan, None))
    run(plan, tmp_path / "run")
    [line] = (tmp_path / "run" / "rollouts-0000.jsonl").read_text().splitlines()
    steps = json.loads(line)["steps"]
    assert len(steps) <= found.turns
    assert len(steps) > get_domain(domain).module.ENV.DEFAULTS["max_turns"]
    shown = CliRunner().invoke(app, ["eval", domain, "-m", plan.model, "-n", "1", "-k", "1", "--dry-run"])
    assert shown.output.count("not limited") == 4
