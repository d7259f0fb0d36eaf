"""One of several processes of one phase: FOLDER of the base, FOLDER to write. The first one plays."""

import json
import sys
from pathlib import Path

import torch
from test_rsft_loop import Recorded, Served, go
from test_rsft_loop import changed as recipe_with
from whale_baselines.checkpoint import Checkpoints
from whale_baselines.processes import follow, leading
from whale_baselines.rsft import RsftTrainer
from whale_baselines.rsft_loop import Phase

from whale_bench.ledger import Ledger

IDS = tuple(f"e{i}" for i in range(4))


def play(trainer, recipe, base, out, steps):
    """The first process's part: begins or goes on until so many steps are finished."""
    backend = Served(base)
    with leading(trainer) as together:
        phase = Phase(
            recipe,
            IDS,
            Recorded(backend, barren={1}),
            together,
            Checkpoints(out / "checkpoints", recipe.keep_last),
            backend,
            out / "metrics.jsonl",
            Ledger(out / "ledger.sqlite"),
        )
        return go(phase, base, steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    base, out = map(Path, sys.argv[1:])
    recipe = recipe_with(micro_tokens=40, minibatch=3)
    trainer = RsftTrainer(base, recipe)
    out.mkdir()
    told = []
    for steps in (2, 3):  # the second time as after a restart, from the checkpoint
        if trainer.is_first:
            told += play(trainer, recipe, base, out, steps)
        else:
            follow(trainer)
        if steps == 2:
            fresh = RsftTrainer(base, recipe)
            trainer = fresh
    torch.save(trainer.model.state_dict(), out / "weights.pt")
    (out / "update.txt").write_text(json.dumps({"processes": trainer.processes, "lines": told}))
    if trainer.processes > 1:
        torch.distributed.destroy_process_group()
