"""Rejection-sampling fine-tuning: the `Trainer` that makes accepted rollouts likelier.

    trainer = RsftTrainer(Path("models/base"), Recipe(lr=3e-5))
    update = trainer.update(admit(rollouts).rows, step=0)
    trainer.write_weights(folder)

A loop of its own on accelerate, not TRL's `SFTTrainer`, whose loss it shares (a test compares the two,
weight by weight). What the update here needs, that class cannot give without its loop being replaced:

- A minibatch of 64 sequences becomes as many micro-batches as its tokens need; `SFTTrainer` accumulates
  a fixed number of batches of a fixed number of rows, and counts steps by that.
- An update whose gradient is not finite is left out; that loop calls the optimizer whatever the norm is,
  no callback can veto it, and its log replaces such losses by the mean of the earlier ones.
- State after a kill is the checkpoint's and that of the recorded rollouts; that trainer resumes within a
  data set that is known when it begins, and ours is sampled between two updates.

Shuffling and dropout follow from (seed, step): there is no generator whose state could be lost.

In several processes each call is one of all of them (`processes.py`); only the first one writes. Where
accelerate spreads the weights (FSDP2), they and the optimizer are gathered to be written (`sharding.py`).

Not covered: gradient checkpointing, weights that do not fit one process when they are written.
"""

import contextlib
import copy
import datetime as dt
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whale_baselines.loss import collate, logprobs_of, nll_sum, saved_bytes
from whale_baselines.optimizer_file import read_optimizer, write_optimizer
from whale_baselines.prefix_tree import takes_trees, tree_groups, tree_nll_sum, tree_of
from whale_baselines.recipe import Recipe
from whale_baselines.sequences import Minibatch, Row, micro_batches, minibatches, padding_share, share
from whale_baselines.sharding import (
    check_sharding,
    is_sharded,
    norm_of,
    shard_again,
    summed,
    take_optimizer,
    take_whole_weights,
    whole_optimizer,
    whole_weights,
)
from whale_baselines.trainer import STATE, Update
from whale_baselines.weights import architecture, load_model, rest_of, write_model
from whale_bench.models.folder import hash_folder, native_precision
from whale_envs.errors import UsageError
from whale_envs.seeding import derive_seed

if TYPE_CHECKING:
    import torch

ADAPTER = "adapter.safetensors"
OPTIMIZER = "optimizer.safetensors"
COUNTERS = "rsft.json"

_PATIENCE = dt.timedelta(days=2)
"""Longest that processes wait for the first one, which samples and scores meanwhile."""


class RsftTrainer:
    """Weights, optimizer and the update; see `trainer.Trainer`.

    Args:
        base: folder of the model to train.
        recipe: how.

    Raises:
        UsageError: the folder cannot be trained, or an installation is missing.
    """

    def __init__(self, base: Path, recipe: Recipe) -> None:
        try:
            import torch
            from accelerate import Accelerator, InitProcessGroupKwargs
        except ImportError as error:
            raise UsageError(f'{error.name} is missing: pip install "whale-envs[train]"') from error
        self.recipe = recipe
        self.base_id = hash_folder(base)
        self._architecture = architecture(base)
        model = load_model(base)
        self._rest = rest_of(model, base)
        if recipe.lora_rank:
            model = _with_adapters(model, recipe)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.precision = native_precision(device) if recipe.precision == "auto" else recipe.precision
        """Of the forward pass."""
        self._accelerator = Accelerator(
            cpu=device == "cpu",
            mixed_precision="bf16" if self.precision == "bfloat16" else "no",
            kwargs_handlers=[InitProcessGroupKwargs(timeout=_PATIENCE)],
        )
        check_sharding(self._accelerator, adapters=recipe.lora_rank > 0)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(
            trained, lr=recipe.lr, betas=recipe.betas, weight_decay=recipe.weight_decay
        )
        self._model, self._optimizer = self._accelerator.prepare(model, optimizer)
        self._skipped_in_a_row = 0

    @property
    def accelerators(self) -> int:
        """See `Trainer.accelerators`."""
        found: int = self._accelerator.num_processes
        return 0 if self._accelerator.device.type == "cpu" else found

    @property
    def threads(self) -> int:
        """See `Trainer.threads`."""
        import torch

        return torch.get_num_threads()

    @property
    def overlaps(self) -> bool:
        """See `Trainer.overlaps`: processes write together, and accelerators add up in any order."""
        return self.processes == 1 and self.accelerators == 0 and not is_sharded(self._accelerator)

    @property
    def processes(self) -> int:
        """How many train together, see `processes.py`."""
        found: int = self._accelerator.num_processes
        return found

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that plays and writes."""
        return bool(self._accelerator.is_main_process)

    @property
    def shareable(self) -> bool:
        """Whether the parameters of `model` are, whole and in this process, what is served."""
        return not self.recipe.lora_rank and not is_sharded(self._accelerator)

    @property
    def model(self) -> Any:
        """The model without what accelerate wraps it into."""
        return self._accelerator.unwrap_model(self._model)

    def update(self, rows: Sequence[Row], *, step: int, threads: int | None = None) -> Update:
        """See `Trainer.update`."""
        with _on_threads(threads or self.threads):
            return self._update(rows, step)

    def _update(self, rows: Sequence[Row], step: int) -> Update:
        recipe = self.recipe
        done: list[tuple[Minibatch, float, float]] = []
        """(minibatch, summed loss, gradient norm) of the updates that were made."""
        skipped, padding = 0, list[float]()
        before = list(_served(self.model)) if rows else []
        self._model.train()
        for epoch in range(recipe.sft_epochs):
            for minibatch in minibatches(rows, recipe.minibatch, seed=recipe.seed, step=step, epoch=epoch):
                trees = tree_groups(minibatch.rows, recipe.micro_tokens) if takes_trees(self.model) else None
                groups = trees or micro_batches(minibatch.rows, recipe.micro_tokens)
                padding.append(0.0 if trees else padding_share(groups))
                seed = derive_seed("weight/dropout", recipe.seed, step, epoch, len(done) + skipped)
                with _seeded(self._accelerator.device, seed):
                    nll, norm = self._gradient(minibatch, groups, in_trees=trees is not None)
                if math.isfinite(norm):
                    self._optimizer.step()
                    self._skipped_in_a_row = 0
                    done.append((minibatch, nll, norm))
                else:
                    skipped += 1
                    self._skipped_in_a_row += 1
                self._optimizer.zero_grad()
                if self._skipped_in_a_row >= recipe.most_skipped:
                    raise UsageError(
                        f"step {step}: the gradients of {self._skipped_in_a_row} updates in a row were not "
                        f"finite, with lr {recipe.lr:g} and clip {recipe.clip:g}; the weights are those "
                        "before these updates"
                    )
        self._model.eval()
        tokens = sum(minibatch.tokens for minibatch, _, _ in done)
        return Update(
            updates=len(done),
            skipped=skipped,
            tokens=tokens,
            loss=math.fsum(nll for _, nll, _ in done) / tokens if done else None,
            grad_norm=math.fsum(norm for _, _, norm in done) / len(done) if done else None,
            padding=sum(padding) / len(padding) if padding else 0.0,
            changed=self._share_changed(before) if done else 0.0,
        )

    def logprobs(self, prompts: Sequence[tuple[int, ...]]) -> list[float]:
        """Log-probabilities of every token but the first of each prompt, all prompts after one another.

        Like `update` a call of all processes: where the weights are spread, each needs the others' parts.
        """
        found = logprobs_of(self.model, prompts)
        shard_again(self._accelerator, self.model)
        return found

    @property
    def checkpoint_bytes(self) -> int:
        """See `Trainer.checkpoint_bytes`: float32 weights, and two moments of each trained one."""
        parameters = list(self.model.parameters())
        moments = sum(2 * parameter.numel() for parameter in parameters if parameter.requires_grad)
        size: int = 4 * (sum(parameter.numel() for parameter in parameters) + moments)
        return size

    @property
    def held_bytes(self) -> int:
        """What this process keeps on its device between updates: weights and two moments of each trained."""
        held = 0
        for parameter in self.model.parameters():
            own = parameter.to_local() if hasattr(parameter, "to_local") else parameter  # of spread ones
            held += own.numel() * own.element_size() * (3 if parameter.requires_grad else 1)
        return held

    def activation_bytes(self, tokens: int) -> int:
        """Kept of a forward pass over so many tokens for the backward one; 0 where weights are spread.

        A straight line through two short passes: what does not grow with them are rounded copies of weights.
        """
        if is_sharded(self._accelerator):
            return 0
        with self._accelerator.autocast():
            one, two = (saved_bytes(self.model, length) for length in (32, 96))
        return one + (two - one) * (tokens - 32) // 64

    def write_weights(self, folder: Path) -> None:
        """See `Trainer.write_weights`."""
        state = None if self.recipe.lora_rank else whole_weights(self._accelerator, self._model)
        if not self.is_first:
            return  # it took part in gathering them
        if self.recipe.lora_rank:
            # Merged into a copy: to merge and unmerge would not give the same bits back.
            write_model(copy.deepcopy(self.model).merge_and_unload(), folder, self._rest)
        else:
            write_model(self.model, folder, self._rest, state)

    def write_state(self, folder: Path) -> None:
        """See `Trainer.write_state`."""
        state = whole_optimizer(self._accelerator, self._model, self._optimizer)
        if not self.is_first:
            return
        beside = folder / STATE
        beside.mkdir(exist_ok=True)
        if self.recipe.lora_rank:
            from peft import get_peft_model_state_dict
            from safetensors.torch import save_file

            save_file(get_peft_model_state_dict(self.model), beside / ADAPTER)
        write_optimizer(state, beside / OPTIMIZER)
        (beside / COUNTERS).write_text(json.dumps({"skipped_in_a_row": self._skipped_in_a_row}) + "\n")

    def restore(self, folder: Path) -> None:
        """See `Trainer.restore`."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        beside = folder / STATE
        weights = load_model(folder, like=self._architecture)
        try:
            if self.recipe.lora_rank:
                from peft import set_peft_model_state_dict

                set_peft_model_state_dict(self.model, load_file(beside / ADAPTER))
            else:
                take_whole_weights(self._accelerator, self._model, weights.state_dict())
            state = read_optimizer(beside / OPTIMIZER)
            take_optimizer(self._accelerator, self._model, self._optimizer, state)
            self._skipped_in_a_row = json.loads((beside / COUNTERS).read_text())["skipped_in_a_row"]
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            raise UsageError(f"the trainer's state in {str(beside)!r} cannot be read: {error}") from error

    def take_weights(self, folder: Path) -> bool:
        """See `Trainer.take_weights`."""
        if self.recipe.lora_rank:
            return False
        weights = load_model(folder, like=self._architecture)
        take_whole_weights(self._accelerator, self._model, weights.state_dict())
        return True

    def _share_changed(self, before: "list[torch.Tensor]") -> float:
        """Share of the served weights that are not what they were, over all processes' parts."""
        changed = total = 0
        for old, new in zip(before, _served(self.model), strict=True):
            changed += int((old != new).sum())
            total += old.numel()
        if is_sharded(self._accelerator):
            changed, total = map(int, summed(self._accelerator, changed, total))
        return changed / total if total else 0.0

    def _gradient(
        self, minibatch: Minibatch, groups: Sequence[tuple[Row, ...]], *, in_trees: bool = False
    ) -> tuple[float, float]:
        """Leaves the minibatch's clipped gradient in the weights; its summed loss and the norm before."""
        accelerator = self._accelerator
        mine = share(groups, accelerator.process_index, accelerator.num_processes)
        total = 0.0
        for number, group in enumerate(mine, start=1):
            # Spread gradients are cut up after each pass: to wait would keep whole ones in every process.
            waits = number < len(mine) and not is_sharded(accelerator)
            with accelerator.no_sync(self._model) if waits else contextlib.nullcontext():
                nll = self._nll_sum(group, in_trees)
                # Processes average their gradients; the sum over all of them is what is wanted.
                accelerator.backward(nll * (accelerator.num_processes / minibatch.tokens))
            total += nll.item()
        norm = norm_of(accelerator.clip_grad_norm_(self._model.parameters(), self.recipe.clip))
        return summed(accelerator, total)[0], norm

    def _nll_sum(self, group: Sequence[Row], in_trees: bool) -> "torch.Tensor":
        import torch

        device, temperature = self._accelerator.device, self.recipe.temperature
        if in_trees:
            dtype = getattr(torch, self.precision)
            return tree_nll_sum(self._model, tree_of(group, device, dtype), temperature)
        return nll_sum(self._model, collate(group, device), temperature)


def _with_adapters(model: Any, recipe: Recipe) -> Any:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=recipe.lora_rank,
        lora_alpha=2 * recipe.lora_rank,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    with _seeded("cpu", derive_seed("weight/adapters", recipe.seed)):
        return get_peft_model(model, config)


@contextlib.contextmanager
def _seeded(device: Any, seed: int) -> Iterator[None]:
    """Torch's generators on this seed, and afterwards as they were."""
    import torch

    with torch.random.fork_rng(devices=[] if "cpu" in str(device) else [device]):
        torch.manual_seed(seed)
        yield


@contextlib.contextmanager
def _on_threads(number: int) -> Iterator[None]:
    """Torch on so many threads of the CPU, and afterwards on as many as before."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _served(model: Any) -> "Iterator[torch.Tensor]":
    """Every trained weight as a backend in bfloat16 has it, adapters merged."""
    import torch

    with torch.no_grad():
        adapted = [module for module in model.modules() if hasattr(module, "get_delta_weight")]
        for module in adapted:
            yield (module.weight + module.get_delta_weight("default")).to(torch.bfloat16)
        if not adapted:
            for parameter in model.parameters():
                own = parameter.detach()
                own = own.to_local() if hasattr(own, "to_local") else own  # of weights that are spread
                yield own.to(torch.bfloat16, copy=True)
