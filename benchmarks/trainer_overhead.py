"""What an update costs beside a bare PyTorch loop over the same padded tokens, and where a step's time goes.

    python benchmarks/trainer_overhead.py                           # SmolLM2, rows as long as those of mini
    python benchmarks/trainer_overhead.py --run runs/demo           # and a run's rows and seconds
    python benchmarks/trainer_overhead.py --model FOLDER --rows 8

Both sides train the same micro-batches of the same minibatch with AdamW from the same weights, alternating,
after an update of the shortest row to warm up; what is compared is the median of CPU seconds, since other
work shares the cores. The bare loop has neither accelerate nor a share of changed weights nor a check of the
gradient. Rows that share prefixes, which a trainer computes once, are padded here, too. By default 3 rows,
twice.

Without a run, rows have the lengths of prompts of h0 over the three domains' mini tiers, and replies of 16 to
256 tokens, drawn with a fixed seed. Not covered: several processes.
"""

import argparse
import json
import random
import statistics
import time
from pathlib import Path

from whale_baselines import rsft
from whale_baselines.loss import collate
from whale_baselines.recipe import Recipe
from whale_baselines.rsft import RsftTrainer
from whale_baselines.sequences import IGNORED, Row, admit, micro_batches, minibatches, padding_share
from whale_baselines.weights import load_model

from whale_bench.models.chat_template import load_tokenizer
from whale_bench.models.folder import model_folder
from whale_bench.store import RunStore
from whale_envs import DOMAINS, load_examples, make_env


def mini_rows(tokenizer, count):
    rng, rows = random.Random(0), []
    for domain in DOMAINS:
        examples = load_examples(domain, "mini", "weight")
        env = make_env(domain, split="weight")
        for example in examples[: count // len(DOMAINS)]:
            opening, _ = env.reset(seed=0, options={"example_id": example.id})
            prompt = tokenizer.encode(str(opening), add_special_tokens=False)
            reply = [rng.randrange(5, len(tokenizer)) for _ in range(rng.randint(16, 256))]
            rows.append(Row((*prompt, *reply), (*[IGNORED] * len(prompt), *reply)))
        env.close()
    rng.shuffle(rows)
    return rows


def bare(model, optimizer, groups, tokens, clip):
    """The update as anybody would write it."""
    import torch

    for group in groups:
        batch = collate(group)
        logits = model(input_ids=batch.ids, attention_mask=batch.mask, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1).float(),
            batch.labels[:, 1:].flatten(),
            ignore_index=IGNORED,
            reduction="sum",
        )
        (loss / tokens).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()


def compare(base, rows, recipe, rounds):
    import torch

    rsft.takes_trees = lambda _model: False  # both sides in padded rows
    trainer = RsftTrainer(base, recipe)
    model = load_model(base).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.lr, betas=recipe.betas)
    minibatch = minibatches(rows, len(rows), seed=0, step=0)[0]
    groups = micro_batches(minibatch.rows, recipe.micro_tokens)
    seconds = {"ours": [], "bare": []}
    shortest = min(rows, key=lambda row: len(row.ids))
    trainer.update([shortest], step=0)
    bare(model, optimizer, [(shortest,)], shortest.tokens, recipe.clip)
    for _ in range(rounds):
        for name in ("ours", "bare"):
            began = time.process_time()
            if name == "ours":
                trainer.update(rows, step=0)
            else:
                bare(model, optimizer, groups, minibatch.tokens, recipe.clip)
            seconds[name].append(time.process_time() - began)
    size = sum(len(group) * max(len(row.ids) for row in group) for group in groups)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"{len(rows)} rows, {size} tokens with padding, {len(groups)} micro-batches")
    for name, value in medians.items():
        print(f"{name}: {value:.2f} s CPU, {size / value:.0f} tokens/s")
    print(f"overhead: {medians['ours'] / medians['bare'] - 1:+.1%} (limit +10%)")


def show_padding(rows, recipe, what):
    if not rows:
        print(f"{what}: nothing was accepted, so nothing was padded")
        return
    groups = [
        g for m in minibatches(rows, 64, seed=0, step=0) for g in micro_batches(m.rows, recipe.micro_tokens)
    ]
    lengths = sorted(len(row.ids) for row in rows)
    print(
        f"{what}: {len(rows)} rows of {lengths[0]} to {lengths[-1]} tokens, {len(rows) / len(groups):.1f} in "
        f"a micro-batch of up to {recipe.micro_tokens} tokens, padding {padding_share(groups):.1%} (limit 5%)"
    )


def show_run(folder):
    """Where the time of a run's steps went; sampling and gradients are what cannot be saved."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    seconds = {part: sum(line["seconds"][part] for line in lines) for part in lines[0]["seconds"]}
    whole = sum(seconds.values())
    print(
        f"{folder}: {len(lines)} steps, {whole:.0f} s: "
        + ", ".join(f"{k} {v:.1f} s" for k, v in seconds.items())
    )
    rest = whole - seconds["sample"] - seconds["train"]
    print(f"outside sampling and training: {rest / whole:.1%} (limit 5%)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="a folder, or smollm2")
    parser.add_argument("--rows", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--micro-tokens", type=int, default=2048)
    parser.add_argument("--run", type=Path, help="folder of a weight run")
    asked = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    base = model_folder("local", asked.model)
    recipe = Recipe(
        minibatch=asked.rows, micro_tokens=asked.micro_tokens, precision="float32", weight_decay=0.01
    )
    tokenizer = load_tokenizer(base)
    rows = mini_rows(tokenizer, 192)
    show_padding(rows, recipe, "mini")
    if asked.run:
        show_run(asked.run)
        show_padding(list(admit(RunStore.open(asked.run).rollouts()).rows), recipe, str(asked.run))
    compare(base, rows[: asked.rows], recipe, asked.rounds)


if __name__ == "__main__":
    main()
