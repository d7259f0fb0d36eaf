"""One real WHALE cycle, training and then search, with the largest model that there is room for.

    python benchmarks/gpu_whale_cycle.py --model FOLDER --out runs/cycle                    # a GPU
    python benchmarks/gpu_whale_cycle.py --model FOLDER --out runs/cycle --backend vllm --proposer anthropic
    python benchmarks/gpu_whale_cycle.py --model smollm2 --out runs/cycle --prompts 4 --examples 8 --dev 8

It writes the recipe, runs it by the same path as `whale-baselines run`, and prints what each phase took and
came to: seconds, rollouts, tokens sampled and trained, scores on dev with their rise. The first line says
what there is to run on. Called again with the same options, it goes on where it was stopped. `local` has one
copy of the weights for sampling and training; `vllm` has a second one, and sets aside most of a GPU for
itself.

Not covered: test; several nodes.
"""

import argparse
import asyncio
import resource
from pathlib import Path

import msgspec
from whale_baselines.history import History
from whale_baselines.plan import plan_of
from whale_baselines.readiness import check_ready, find_gpus
from whale_baselines.real_operators import real_operators
from whale_baselines.recipes import load_recipe
from whale_baselines.run_command import line_of
from whale_baselines.run_recipe import run_recipe

from whale_bench.ledger import Charge, Ledger

RECIPE = """[agent]
domain = "{domain}"
tier = "{tier}"
model = "{backend}/{model}"
max_tokens = {max_tokens}
{harness}
[recipe]
prompts = {prompts}
samples = {samples}
lr = {lr}
lora_rank = {lora_rank}
micro_tokens = {micro_tokens}
most_empty = 0

[search]
slots = {slots}
examples = {examples}
proposer = "{proposer}"

[schedule]
kind = "fixed"
steps_per_epoch = {steps}
total_epochs = 1.0
epochs = 1.0
iterations = {iterations}
search_after_last = true       # one cycle: a weight phase and a search phase

[dev]
every_steps = 0
samples = {dev_samples}
test = "none"

[filter]
dev = {dev}

[estimate]
device = "{device}"
"""


def write_recipe(asked, path):
    """The recipe of these options; the one that is there has to be the same."""
    values = vars(asked) | {"device": "GPU" if find_gpus().gpus else "CPU"}
    folder = Path(asked.model)
    values["model"] = folder.resolve() if folder.is_dir() else asked.model
    values["harness"] = f'harness = "{asked.harness.resolve()}"' if asked.harness else ""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(RECIPE.format(**values))
    return load_recipe(str(path))


def tell(folder, console=print):
    """What the cycle took and came to."""
    history = History(folder, readonly=True)
    with Ledger(folder / "ledger.sqlite", readonly=True) as ledger:
        charged, executed = ledger.charged(), ledger.executed()
        events = [event for event in ledger.events() if event.kind == "settle"]
    charges = [(event.key, msgspec.json.decode(event.charge, type=Charge)) for event in events]
    for kind, purpose in (("train", "weight"), ("search", "harness")):
        moves = [move for move in history.moves if move.kind == kind]
        seconds = sum(move.seconds for move in moves)
        sampled = sum(c.sampled_tokens for key, c in charges if key.startswith(f"{purpose}:"))
        rollouts = sum(move.rollouts for move in moves)
        told = f"{len(moves)} moves, {seconds:.1f} s, {rollouts} rollouts, {sampled} tokens sampled"
        console(f"{kind}: {told}, {sampled / max(seconds, 1e-9):.0f} tokens/s all in")
        console(f"  signal: {', '.join(f'{move.signal:.1%}' for move in moves)}")
    steps = [move.metrics for move in history.moves if move.kind == "train"]
    parts = {
        name: sum(one["seconds"].get(name, 0.0) for one in steps)
        for name in ("sample", "train", "save", "sync")
    }
    console(f"  {', '.join(f'{name} {value:.1f} s' for name, value in parts.items())}")
    sums = {name: sum(one[name] for one in steps) for name in ("accepted", "trained_tokens", "updates")}
    console(f"  {', '.join(f'{value:,} {name}' for name, value in sums.items())}")
    for point in history.points:
        console(line_of(point))
    for name, counts in (("charged", charged), ("executed", executed)):
        console(
            f"{name}: " + ", ".join(f"{purpose} {counts[purpose].rollouts}" for purpose in sorted(counts))
        )
    usd = sum(charge.proposer_micro_usd for charge in charged.values()) / 1e6
    console(f"device-seconds: {sum(c.device_seconds for c in charged.values()):.0f}; proposer: ${usd:.2f}")


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a Hugging Face folder, or smollm2")
    parser.add_argument("--out", type=Path, required=True, help="run folder; the recipe stands beside it")
    parser.add_argument("--backend", choices=("local", "vllm"), default="local")
    parser.add_argument("--harness", type=Path, help="a file; h0 without")
    parser.add_argument("--domain", default="math_python")
    parser.add_argument("--tier", default="small")
    parser.add_argument("--steps", type=int, default=2, help="of the weight phase")
    parser.add_argument(
        "--iterations", type=int, default=3, help="of the search phase, the incoming one included"
    )
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--examples", type=int, default=64, help="of the harness split")
    parser.add_argument("--slots", type=int, default=3)
    parser.add_argument("--dev", type=int, default=64, help="examples of dev")
    parser.add_argument("--dev-samples", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--micro-tokens", type=int, default=16_384)
    parser.add_argument("--lr", type=float, default=1e-6)
    parser.add_argument("--lora-rank", type=int, default=0)
    parser.add_argument("--proposer", default="mutate")
    asked = parser.parse_args(words)
    gpus, why = find_gpus()
    print(
        "runs on: " + (", ".join(f"{gpu.name}, {gpu.memory / 1e9:.0f} GB" for gpu in gpus) or f"CPU; {why}")
    )
    recipe = write_recipe(asked, asked.out.with_suffix(".toml"))
    check_ready(recipe)
    most = plan_of(recipe).most
    print(f"at most {most.weight:,} rollouts of training, {most.harness:,} of search, {most.dev:,} on dev")
    asyncio.run(
        run_recipe(
            recipe,
            asked.out,
            operators=real_operators,
            report=lambda record: print(line_of(record), flush=True),
        )
    )
    tell(asked.out)
    if gpus:
        import torch

        print(f"GPU memory: {torch.cuda.max_memory_reserved() / 1e9:.1f} GB reserved by torch at most")
    print(f"memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f} GB at most")


if __name__ == "__main__":
    main()
