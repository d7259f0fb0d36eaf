"""The script for GPUs, on a CPU with a tiny model: it samples, trains, saves and hands over."""

import importlib.util
import re
from pathlib import Path

import pytest
from tiny_model import write_folder

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("more", [[], ["--lora-rank", "2"]])
def test_a_step_runs_and_tells_what_it_took(tmp_path, capsys, more):
    spec = importlib.util.spec_from_file_location("gpu_rsft", BENCHMARKS / "gpu_rsft.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    small = ["--prompts", "2", "--samples", "2", "--reply", "5", "--micro-tokens", "400"]
    script.main(["--model", str(write_folder(tmp_path / "model")), *small, *more])
    told = capsys.readouterr().out
    (sampled,) = re.findall(r"^sampled: (\d+) tokens in ", told, re.MULTILINE)
    assert 4 <= int(sampled) <= 20
    trained = re.search(r"^trained: (\d+) tokens, (\d+) with a loss, 1 updates in ", told, re.MULTILINE)
    passed, with_a_loss = map(int, trained.groups())
    assert with_a_loss == int(sampled) < passed
    assert re.search(r"^checkpoint [\d.]+ s, hand-over [\d.]+ s$", told, re.MULTILINE)
    assert re.search(r"^told: [\d.]+ GB, memory: [\d.]+ GB at most$", told, re.MULTILINE)
