"""A tiny model that has learned to answer some problems, now and then: it really samples and trains."""

import json
from pathlib import Path
from typing import Any

import gymnasium
from tiny_model import write_folder

import whale_envs  # noqa: F401  # registers the environments
from whale_bench.harness.h0.math_python import Harness
from whale_envs.core import Example

CONTEXT = 1_024


def write_taught(folder: Path, examples: dict[str, list[Any]], *, rounds: int, seed: int = 0) -> Path:
    """A model folder; trained so long on the answers of these examples (by split) under h0."""
    import torch
    import transformers

    write_folder(folder, seed=seed)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rows = []
    for split, some in examples.items():
        for example in some:
            prompt = tokenizer.apply_chat_template(
                [{"role": "user", "content": _prompt(split, example)}],
                add_generation_prompt=True, tokenize=True, return_dict=False,
            )  # fmt: skip
            answer = tokenizer.encode(f"\\boxed{{{example.gold}}}", add_special_tokens=False)
            rows.append((prompt, [*answer, model.config.eos_token_id]))
    longest = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids = torch.full((len(rows), longest), model.config.pad_token_id)
    labels = torch.full((len(rows), longest), -100)
    for number, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        ids[number, :end] = torch.tensor([*prompt, *answer])
        labels[number, len(prompt) : end] = torch.tensor(answer)
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.train()
    for _ in range(rounds):
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    return folder


def _prompt(split: str, example: Example) -> str:
    env = gymnasium.make("whale/MathPython-v0", tier="small", split=split)
    observation, _ = env.reset(seed=0, options={"example_id": example.id})
    env.close()
    return Harness.USER_PROMPT.replace("{observation}", observation)
