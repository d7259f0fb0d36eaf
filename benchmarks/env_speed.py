"""Environment steps per second in one process, observation text included.

    python benchmarks/env_speed.py

*cold*: every position is new (small/weight, each puzzle once, played from gold). *warm*: the eight
samples of an example follow one another, as an evaluation plays them. CPU time, median of 5.
"""

import statistics
import time

from whale_envs import load_examples, make_env

EXAMPLES = 1000


def play(ids: tuple[str, ...], repeats: int, examples) -> float:
    """Steps per CPU second."""
    env, steps, began = make_env("chess_puzzles", examples=examples), 0, time.process_time()
    for example_id in ids:
        for _ in range(repeats):
            env.reset(options={"example_id": example_id})
            done = False
            while not done:
                _, _, terminated, truncated, _ = env.step(env.oracle_action())
                done = terminated or truncated
                steps += 1
    return steps / (time.process_time() - began)


def main() -> None:
    examples = load_examples("chess_puzzles", "small", "weight")
    batches = [examples.ids[i : i + EXAMPLES] for i in range(0, 5 * EXAMPLES, EXAMPLES)]
    cold = statistics.median(play(batch, 1, examples) for batch in batches)
    warm = statistics.median(play(batch[:100], 8, examples) for batch in batches)
    print(f"cold {cold:,.0f} steps/s   warm {warm:,.0f} steps/s")


if __name__ == "__main__":
    main()
