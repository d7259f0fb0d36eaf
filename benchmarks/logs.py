"""Time and memory of comparing and exporting large runs.

    python benchmarks/logs.py                    # 100,000 rollouts: 12,500 examples, 8 each

Writes two made-up runs of two-call rollouts, 4 KB a line, and prints for each command its wall seconds
and the peak of its process, beside that of `whale-bench list`, which reads no run.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from whale_bench.models import Message
from whale_bench.records import Rollout, Segment, Step
from whale_bench.store import RunStore
from whale_envs import Verdict

SETTINGS = {
    "model": "openai/m", "domain": "chess_puzzles", "env_id": "whale/ChessPuzzles-v0", "tier": "full",
    "split": "test", "profile": "standard", "fixture": False, "seed": 0, "harness_id": "h", "weights_id": "w",
    "temperature": 1.0, "top_p": 1.0, "top_k": 20, "versions": {"whale-envs": "0", "python": "3"}, "k": 8,
    "examples_id": "made-up",
}  # fmt: skip


def write(folder: Path, rollouts: int, skill: float) -> None:
    """A run whose examples are of all difficulties."""
    draw = random.Random(folder.name)
    chat = (Message("system", "You play chess. " * 20), Message("user", "position " * 40))
    segment = Segment(chat, "I think about the move " * 40, prompt_tokens=300, sampled_tokens=200)
    with RunStore.create(folder, {**SETTINGS, "n": rollouts // 8}, "") as store:
        for index in range(rollouts // 8):
            ease, example_id = draw.random(), f"chess_puzzles-{index:016x}"
            for sample in range(8):
                reward = float(draw.random() < skill * 2 * ease)
                store.append(
                    Rollout(
                        key=f"test:{example_id}:{sample}", domain="chess_puzzles", example_id=example_id,
                        sample=sample, seed=0, harness_id="h", weights_id="w", opening="position " * 40,
                        segments=(segment, segment), steps=(Step("e2e4", "ok", "ok", "fine"),) * 2,
                        verdict=Verdict(reward, "solved", standard=reward, paper=reward),
                        stop_condition="solved", truncated=False, metrics={"legal_rate": 1.0},
                        groups=(("rating_band", str(index % 20)),), prompt_tokens=600, sampled_tokens=400,
                    )
                )  # fmt: skip


def measure(folder: Path, *words: str) -> tuple[float, float]:
    """Wall seconds and peak MiB of one command in a process of its own."""
    began = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.execv(sys.executable, [sys.executable, "-m", "whale_bench.cli", *words])
    _, status, used = os.wait4(pid, 0)
    assert status == 0, words
    return time.perf_counter() - began, used.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=100_000)
    rollouts = parser.parse_args().rollouts
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for run, skill in (("a", 0.30), ("b", 0.33)):
            write(folder / run, rollouts, skill)
        size = (folder / "a" / "rollouts-0000.jsonl").stat().st_size
        print(f"two runs of {rollouts:,} rollouts, {size / 1e6:,.0f} MB each")
        export = ("export", "a", "--out")
        for words in (
            ("list",),
            ("compare", "a", "b", "--json"),
            ("compare", "a", "b", "--json", "--bootstrap"),
            (*export, "log.eval", "--to", "inspect"),
            (*export, "log.json", "--to", "inspect"),
            (*export, "rows", "--to", "datasets"),
        ):
            seconds, peak = measure(folder, *words)
            print(f"{' '.join(words):44}{seconds:7.1f} s{peak:7.0f} MiB")


if __name__ == "__main__":
    main()
