"""Comparing runs: which examples count, what is refused, warned of and withheld, what is printed."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from bench_fakes import record
from typer.testing import CliRunner

from whale_bench.cli import app
from whale_bench.compare import Comparison, compare
from whale_bench.statistics import paired, sign_flip
from whale_bench.store import RunStore
from whale_envs import UsageError

Rewards = Mapping[str, list[float | None]]

SETTINGS = {
    "model": "openai/m", "domain": "chess_puzzles", "env_id": "whale/ChessPuzzles-v0", "tier": "mini",
    "split": "test", "profile": "standard", "fixture": False, "seed": 0, "harness_id": "h", "weights_id": "w",
}  # fmt: skip

BEFORE: Rewards = {"a": [1.0, 0.0], "b": [0.0, 0.0], "c": [1.0, 1.0], "d": [1.0, 0.0]}
AFTER: Rewards = {"a": [1.0, 1.0], "b": [1.0, 1.0], "c": [1.0, 1.0], "d": [0.0, 0.0]}
GROUPS = {"a": (("theme", "fork"), ("theme", "pin")), "b": (("theme", "fork"),)}


def written(folder: Path, rewards: Rewards, **changes: Any) -> Path:
    """A run folder of rewards[example][sample]; None is a missing rollout."""
    k = len(next(iter(rewards.values())))
    settings = {**SETTINGS, "n": len(rewards), "k": k, "examples_id": str(sorted(rewards)), **changes}
    with RunStore.create(folder, {n: v for n, v in settings.items() if v is not None}, "") as store:
        for example, samples in rewards.items():
            for sample, reward in enumerate(samples):
                if reward is not None:
                    key = f"test:{example}:{sample}"
                    store.append(record(key, reward=reward, groups=GROUPS.get(example, ())))
    return folder


def compared(tmp_path: Path, a: Rewards = BEFORE, b: Rewards = AFTER, **options: Any) -> Comparison:
    return compare(written(tmp_path / "a", a), written(tmp_path / "b", b), **options)


def test_runs_are_compared_example_by_example(tmp_path: Path) -> None:
    found = compared(tmp_path)
    assert found.difference == paired([0.5, 0.0, 1.0, 0.5], [1.0, 1.0, 1.0, 0.0])
    assert found.p_value == sign_flip([0.5, 1.0, 0.0, -0.5])
    assert (found.a.score.mean, found.b.score.mean) == (0.5, 0.75)
    assert (found.compared, found.left_out, found.complete, found.warnings) == (4, 0, True, [])


def test_groups_and_flips_are_those_of_the_compared_examples(tmp_path: Path) -> None:
    found = compared(tmp_path)
    flips = [(f.example_id, f.a_solved, f.a_k, f.b_solved, f.b_k) for f in found.flips]
    assert flips == [("b", 0, 2, 2, 2), ("a", 1, 2, 2, 2), ("d", 1, 2, 0, 2)]
    assert {value: group.difference.mean for value, group in found.groups["theme"].items()} == {
        "fork": 0.75,
        "pin": 0.5,
    }
    pin = found.groups["theme"]["pin"].difference
    assert (pin.examples, pin.low, pin.high) == (1, -1.0, 1.0)


def test_an_incomplete_example_is_left_out_and_there_is_no_p_value(tmp_path: Path) -> None:
    after = {**AFTER, "a": [1.0, None], "b": [None, None]}
    found = compared(tmp_path, b=after)
    assert (found.compared, found.left_out, found.b.missing, found.complete) == (2, 2, 3, False)
    assert found.difference == paired([1.0, 0.5], [1.0, 0.0])
    assert found.p_value is None
    assert found.b.lower_bound == 3 / 8
    assert found.warnings == [f"{tmp_path / 'b'}: 3 rollouts are missing"]
    asked = compare(tmp_path / "a", tmp_path / "b", incomplete=True)
    assert asked.p_value == sign_flip([0.0, -0.5])


def test_runs_of_other_examples_are_compared_on_what_they_share(tmp_path: Path) -> None:
    found = compared(tmp_path, b={"b": [1.0, 1.0], "c": [0.0, 1.0], "z": [1.0, 1.0]})
    assert (found.compared, found.left_out) == (2, 3)
    [warning] = found.warnings
    assert "4 and 3: the 2 that both finished" in warning


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("k", [1.0], "k: 2 and 1"),
        ("split", "dev", "split: 'test' and 'dev'"),
        ("judge", "openai/j", "judge: not set and 'openai/j'"),
        ("token_budget", 100, "token_budget: not set and 100"),
        ("temperature", 0.5, "temperature: not set and 0.5"),
        ("top_p", 0.5, "top_p: not set and 0.5"),
        ("top_k", 5, "top_k: not set and 5"),
        ("tokenizer_id", "sha256:1", "tokenizer_id: not set and 'sha256:1'"),
        ("fixture", True, "a scripted model is a fixture"),
    ],
)
def test_other_settings_are_warned_of(name: str, value: Any, said: str, tmp_path: Path) -> None:
    after: Rewards = {e: rs[:1] for e, rs in AFTER.items()} if name == "k" else AFTER
    changes = {} if name == "k" else {name: value}
    found = compare(written(tmp_path / "a", BEFORE), written(tmp_path / "b", after, **changes))
    assert len(found.warnings) == 1
    assert said in found.warnings[0]


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("remote:http://a#sha256:e0", "remote:http://b:81#sha256:e0", True),
        ("sha256:e0", "remote:http://b#sha256:e0", True),
        ("remote:http://a#sha256:e0", "remote:http://a#sha256:e1", False),
        ("remote:http://a", "remote:http://b", False),
        ("remote:http://a#sha256:e0", "remote:http://a", False),
        (None, "sha256:e0", False),
    ],
)
def test_what_is_searched_counts_and_not_where(
    before: str | None, after: str, same: bool, tmp_path: Path
) -> None:
    a = written(tmp_path / "a", BEFORE, retriever_id=before)
    b = written(tmp_path / "b", AFTER, retriever_id=after)
    warnings = compare(a, b).warnings
    assert warnings == [] if same else "retriever_id" in warnings[0]


def test_sampling_is_no_difference_from_an_own_agent_which_has_none(tmp_path: Path) -> None:
    a = written(tmp_path / "a", BEFORE, temperature=1.0, top_k=20)
    b = written(tmp_path / "b", AFTER, agent_id="sha256:1")
    assert compare(a, b).warnings == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"domain": "go"}, "domain is 'chess_puzzles' and 'go'"),
        ({"env_id": "whale/ChessPuzzles-v1"}, "env_id is 'whale/ChessPuzzles-v0' and"),
        ({"profile": "paper"}, "profile is 'standard' and 'paper'"),
    ],
)
def test_scores_of_different_things_are_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    a, b = written(tmp_path / "a", BEFORE), written(tmp_path / "b", AFTER, **changes)
    with pytest.raises(UsageError, match=said):
        compare(a, b)


def test_runs_without_a_common_example_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no example is complete in both"):
        compared(tmp_path, b={"y": [1.0, 1.0], "z": [1.0, None]})


def test_a_sample_that_the_run_does_not_have_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "a", BEFORE)
    b = written(tmp_path / "b", AFTER, k=1)
    with pytest.raises(UsageError, match="'test:a:1' is none of this run's"):
        compare(tmp_path / "a", b)


def test_a_run_beside_itself_does_not_differ(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", BEFORE)
    found = compare(folder, folder)
    assert (found.difference.mean, found.flips) == (0.0, [])
    assert found.p_value is not None
    assert found.p_value.value == 1.0


def test_bootstrap_intervals_are_seeded_and_said_to_be_some(tmp_path: Path) -> None:
    plain = compared(tmp_path)
    found = [compare(tmp_path / "a", tmp_path / "b", bootstrap=True, seed=seed) for seed in (1, 1, 2)]
    assert found[0] == found[1]
    assert found[0].interval == "bootstrap"
    assert found[0].difference.mean == plain.difference.mean
    assert found[0].difference.low > plain.difference.low  # four examples: Student's t is far wider


# --- the command ----------------------------------------------------------------------------------


def test_the_command_prints_scores_groups_and_flips(tmp_path: Path) -> None:
    compared(tmp_path)
    done = CliRunner().invoke(app, ["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--show", "2"])
    assert done.exit_code == 0, done.output
    for words in ("4 examples, standard", "0.750", "+0.250", "p-value", "(exact)", "fork", "pin",
                  "b solves 2 examples more often than a, 1 less", "0/2", "1 more with --show"):  # fmt: skip
        assert words in done.output


def test_the_command_prints_json(tmp_path: Path) -> None:
    expected = compared(tmp_path)
    done = CliRunner().invoke(app, ["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json"])
    row = json.loads(done.output)
    assert row["difference"]["mean"] == expected.difference.mean
    assert len(row["flips"]) == 3


def test_an_incomplete_run_ends_the_command_with_3_unless_asked(tmp_path: Path) -> None:
    compared(tmp_path, b={**AFTER, "a": [1.0, None]})
    command = ["compare", str(tmp_path / "a"), str(tmp_path / "b")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 3
    for words in ("none: incomplete", "missing rollouts", "1 are left out", "≥ 0.625"):
        assert words in done.output
    asked = CliRunner().invoke(app, [*command, "--incomplete"])
    assert asked.exit_code == 0
    assert "(exact)" in asked.output


def test_misuse_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    written(tmp_path / "a", BEFORE)
    command = [sys.executable, "-m", "whale_bench.cli", "compare", str(tmp_path / "a"), "nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "nowhere is no run folder" in done.stderr
