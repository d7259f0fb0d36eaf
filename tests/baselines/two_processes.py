"""One of several processes that make the same update together: FOLDER of the base, FOLDER to write."""

import json
import sys
from pathlib import Path

import torch
from test_rsft import make_rows
from whale_baselines.recipe import Recipe
from whale_baselines.rsft import RsftTrainer

if __name__ == "__main__":
    torch.set_num_threads(1)
    base, out = map(Path, sys.argv[1:])
    recipe = Recipe(lr=1e-3, precision="float32", minibatch=5, micro_tokens=60)
    trainer = RsftTrainer(base, recipe)
    update = trainer.update(make_rows(10, seed=7), step=0)
    out.mkdir()
    torch.save(trainer.model.state_dict(), out / "weights.pt")  # a model folder is the first process's alone
    summary = {"loss": update.loss, "norm": update.grad_norm, "tokens": update.tokens, "n": update.updates}
    (out / "update.txt").write_text(json.dumps(summary | {"processes": trainer._accelerator.num_processes}))
    if trainer._accelerator.num_processes > 1:
        torch.distributed.destroy_process_group()
