"""What one of several processes does together with the others: FOLDER of the base, FOLDER to write.

All of it in one launch, for what a process takes most of is loading torch and transformers: an update, a
phase over a restart with the log-probabilities that a server's fingerprint is compared with, and the same
update with the weights spread (FSDP2).
"""

import json
import sys
from pathlib import Path

import accelerate
import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from test_rsft import make_rows
from test_rsft_loop import Recorded, Served, go
from test_rsft_loop import changed as recipe_with
from whale_baselines.checkpoint import Checkpoints
from whale_baselines.processes import follow, leading
from whale_baselines.recipe import Recipe
from whale_baselines.rsft import RsftTrainer
from whale_baselines.rsft_loop import Phase
from whale_baselines.sequences import IGNORED, Row

from whale_bench.ledger import Ledger

IDS = tuple(f"e{i}" for i in range(4))
PROMPTS = ((5, 6, 7), (8, 9))


class Asking(Served):
    """Asks for the trainer's log-probabilities when it is handed weights, as one that compares does."""

    def __init__(self, folder, trainer):
        super().__init__(folder)
        self.trainer, self.told = trainer, []

    async def reload(self, folder):
        self.told.append(self.trainer.logprobs(PROMPTS))
        return await super().reload(folder)


def update(base, out):
    trainer = RsftTrainer(base, Recipe(lr=1e-3, precision="float32", minibatch=5, micro_tokens=60))
    found = trainer.update(make_rows(10, seed=7), step=0)
    alike = trainer.update(rows_alike(), step=1)
    torch.save(trainer.model.state_dict(), out / "update.pt")
    fields = ("loss", "grad_norm", "tokens", "updates")
    return {"apart": [getattr(found, f) for f in fields], "alike": [getattr(alike, f) for f in fields]}


def rows_alike():
    """Rows that share a prompt: a minibatch of two trees, one for each process, and one of a single tree."""
    prompt = tuple(range(10, 50))
    answers = [(100 + n, *[110 + n % 3] * (1 + n % 4), 2) for n in range(8)]
    return [Row((*prompt, *answer), (*[IGNORED] * len(prompt), *answer)) for answer in answers]


def loop(base, out):
    """Two steps, and after a restart a third one."""
    recipe, lines, logprobs = recipe_with(micro_tokens=40, minibatch=3), [], []
    for steps in (2, 3):
        trainer = RsftTrainer(base, recipe)
        if not trainer.is_first:
            follow(trainer)
            continue
        with leading(trainer) as together:
            backend = Asking(base, together)
            player, checkpoints = Recorded(backend, barren={1}), Checkpoints(out / "checkpoints", 2)
            ledger = Ledger(out / "ledger.sqlite")
            metrics = out / "metrics.jsonl"
            phase = Phase(recipe, IDS, player, together, checkpoints, backend, metrics, ledger)
            lines += go(phase, base, steps)
            logprobs += backend.told
    torch.save(trainer.model.state_dict(), out / "loop.pt")
    return {"lines": lines, "logprobs": logprobs}


def spread(base, out):
    """An update, a checkpoint, and one more update, by this trainer and by one that was restored from it."""
    recipe = Recipe(lr=1e-3, precision="float32", minibatch=5, micro_tokens=60)
    rows, more = make_rows(10, seed=7), make_rows(6, seed=8)
    trainer = RsftTrainer(base, recipe)
    first = trainer.update(rows, step=0)
    (out / "spread").mkdir()
    trainer.write_weights(out / "spread")
    trainer.write_state(out / "spread")
    if torch.distributed.is_initialized():
        torch.distributed.barrier()  # in a run, the announcement of the next call comes after the files
    other = RsftTrainer(base, recipe)
    other.restore(out.parent / "first" / "spread" if torch.distributed.is_initialized() else out / "spread")
    logprobs = trainer.logprobs(PROMPTS), other.logprobs(PROMPTS)
    again = [(one.loss, one.grad_norm) for one in (trainer.update(more, step=1), other.update(more, step=1))]
    return {
        "kind": str(trainer._accelerator.distributed_type), "shareable": trainer.shareable,
        "loss": first.loss, "norm": first.grad_norm, "changed": first.changed,
        "logprobs": logprobs, "again": again,
        "here": sum(getattr(p, "to_local", lambda p=p: p)().numel() for p in trainer.model.parameters()),
    }  # fmt: skip


class Spreading(accelerate.Accelerator):
    """Accelerate takes FSDP on accelerators only; told that it is one, it takes the same path on a CPU."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.state.distributed_type = DistributedType.FSDP
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=False
        )
        self.state.fsdp_plugin = plugin
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP  # as accelerate itself does


if __name__ == "__main__":
    torch.set_num_threads(1)
    base, out = map(Path, sys.argv[1:])
    out.mkdir()
    found = {"update": update(base, out), "loop": loop(base, out)}
    AcceleratorState._reset_state()
    accelerate.Accelerator = Spreading
    found["spread"] = spread(base, out)
    (out / "found.json").write_text(json.dumps(found | {"processes": torch.distributed.get_world_size()}))
    torch.distributed.destroy_process_group()
