"""The sampling loop under `LocalBackend`: prompts in, exact sampled ids out, in one worker thread.

    loop = SamplingLoop(model, stop_ids={2})
    sampled = loop.submit(Job(prompt=(1, 5, 9), max_tokens=16, sampling=Sampling(), seed=7)).result()

Two facts about rollouts shape it. Prompts repeat: the samples of one example share their first
prompt, every next turn extends the one before, and all share a system message. So prompts are
computed one by one, each from the longest prefix that is still remembered (`key_values.py`), and an
equal prompt costs nothing. Answers differ in length: decoding runs as one batch, from which rows
leave when they end and which new rows join between two steps.

Results depend on the seed and, through rounding, on what else is in the batch: equal seeds give
equal samples only while the batches are equal too. Sampled logprobs are those of the model itself
(temperature 1, nothing cut off).

Not covered: models with sliding-window, linear or recurrent layers (their state cannot be cut at a
shared prefix), several devices, speculative decoding, and stop strings.
"""

from __future__ import annotations

import atexit
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from whale_bench.models.base import Sampling
from whale_bench.models.key_values import KeyValues, Prefix, PrefixCache
from whale_envs.errors import InfrastructureError, UsageError

if TYPE_CHECKING:
    import torch

CHUNK = 512
"""Prompt tokens in one forward pass: bounds the memory of activations."""
MIN_SHARED = 16
"""Tokens; a shorter shared prefix costs more (a mask, a copy) than it saves."""
MAX_ROWS = 64
ROOM = 128
"""Columns allocated ahead for tokens to sample."""
WAIT_STEPS = 32
"""Decoding steps after which even a single waiting request joins the batch."""


@dataclass(frozen=True)
class Job:
    """One prompt to continue by at most `max_tokens` (>= 1) ids."""

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    seed: int


class Sampled(NamedTuple):
    """`logprobs[i]` belongs to `ids[i]`; the id that ended a "stop" is the last one."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Literal["stop", "length"]


@dataclass(eq=False)
class _Row:
    job: Job
    future: Future[Sampled]
    rng: random.Random
    """Python's, since it takes all bits of a seed, which torch's generator on a CPU does not."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    done: bool = False

    @property
    def left(self) -> int:
        return self.job.max_tokens - len(self.ids)


def draw(logits: torch.Tensor, sampling: Sampling, uniforms: Sequence[float]) -> torch.Tensor:
    """One id per row of `logits` [rows, vocabulary] (float32), as int64 [rows].

    Temperature, then `top_k`, then `top_p` of what is left, as vLLM and transformers order them.
    `uniforms[i]` in [0, 1) picks within row i; temperature 0 takes the likeliest id.
    """
    import torch

    if sampling.temperature == 0:
        return logits.argmax(-1)
    ids = None
    if 0 < sampling.top_k < logits.shape[-1]:
        logits, ids = logits.topk(sampling.top_k)
    elif sampling.top_p < 1:
        logits, ids = logits.sort(descending=True)
    probs = (logits.double() / sampling.temperature).softmax(-1)
    if sampling.top_p < 1:
        before = probs.cumsum(-1) - probs
        probs = probs * (before < sampling.top_p)
    ladder = probs.cumsum(-1)
    point = torch.tensor(uniforms, dtype=ladder.dtype, device=ladder.device)[:, None] * ladder[:, -1:]
    pick = torch.searchsorted(ladder, point, right=True).clamp(max=ladder.shape[-1] - 1)
    return (pick if ids is None else ids.gather(-1, pick))[:, 0]


class SamplingLoop:
    """Owns the model and the thread that runs it. `submit` may be called from any thread.

    Args:
        model: a causal language model of transformers, attention set to `key_values.ATTENTION`.
        stop_ids: ids that end an answer.
        batch_bytes: most memory for the batch that decodes; at least one row always runs.
        prefix_bytes: most memory for remembered prompts.
    """

    def __init__(
        self,
        model: Any,
        stop_ids: Collection[int],
        *,
        batch_bytes: int = 2 << 30,
        prefix_bytes: int = 1 << 30,
    ) -> None:
        self.model = model
        self.stop_ids = frozenset(stop_ids)
        self.batch_bytes = batch_bytes
        self.prefixes = PrefixCache(prefix_bytes)
        self.seconds = {"prefill": 0.0, "decode": 0.0}
        self._waiting: deque[_Row] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._swap: tuple[Any, Collection[int], Callable[[], None], Future[None]] | None = None
        """The next model, its stop ids, what to call with the swap, and who waits for it."""
        self._token_bytes = 0
        self._reset()

    def submit(self, job: Job) -> Future[Sampled]:
        """Queues a job; cancelling the future drops it.

        The future raises InfrastructureError when memory runs out or the loop is closed, and
        whatever else the model raised, unchanged.
        """
        row = _Row(job, Future(), random.Random(job.seed))
        with self._wake:
            if self._closed:
                raise InfrastructureError("the local model was closed")
            self._start()
            self._waiting.append(row)
            self._wake.notify()
        return row.future

    def replace(self, model: Any, stop_ids: Collection[int], swapped: Callable[[], None]) -> Future[None]:
        """Samples from another model of the same shapes once the answers under way are finished.

        Jobs that were not begun wait for it. `swapped` is called in the loop's thread with the change.
        """
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()  # once begun it ends: a caller that gives up does not stop it
        with self._wake:
            if self._closed:
                raise InfrastructureError("the local model was closed")
            if self._swap is not None:
                raise UsageError("the local model is being replaced already")
            self._swap = (model, stop_ids, swapped, done)
            self._start()
            self._wake.notify()
        return done

    def close(self) -> None:
        """Ends the thread after the step it is in; unfinished jobs raise InfrastructureError."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
            atexit.unregister(self.close)
        left = [*self._rows, *(row for row, _ in self._joiners), *self._waiting]
        closed = InfrastructureError("the local model was closed")
        _fail(left, closed)
        if self._swap is not None:
            self._swap[-1].set_exception(closed)
        self._waiting.clear()
        self._reset()
        self.prefixes.clear()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="whale-sampling", daemon=True)
            self._thread.start()
            atexit.register(self.close)  # a thread inside torch at exit aborts the process

    def _reset(self) -> None:
        self._rows: list[_Row] = []
        self._joiners: list[tuple[_Row, Prefix]] = []
        """Rows whose prompt is computed, on their way into the batch."""
        self._batch = KeyValues(0, 0)
        self._pads: list[int] = []
        """Per row the first column that holds a token: prompts are aligned at their ends."""
        self._since_join = 0

    def _serve(self) -> None:
        import torch

        with torch.inference_mode():
            while True:
                with self._wake:
                    self._wake.wait_for(lambda: self._closed or self._waiting or self._rows or self._swap)
                    if self._closed:
                        return
                try:
                    self._exchange()
                    self._join()
                    if self._rows:
                        self._step()
                except Exception as error:  # noqa: BLE001  # belongs to those who wait for these rows
                    _fail([*self._rows, *(row for row, _ in self._joiners)], error)
                    self._reset()
                    self.prefixes.clear()  # the likeliest cause is memory

    def _exchange(self) -> None:
        """Takes the next model, if there is one and nobody waits for the present one's answer."""
        if self._swap is None or not all(row.done for row in self._rows):
            return
        model, stop_ids, swapped, done = self._swap
        self._reset()
        self.prefixes.clear()
        self.model, self.stop_ids = model, frozenset(stop_ids)
        swapped()
        self._swap = None
        done.set_result(None)

    def _join(self) -> None:
        """Lets waiting rows in and ended ones out, when it pays: the batch is copied for it."""
        import torch

        alive = sum(not row.done for row in self._rows)
        if not alive:
            self._reset()  # frees its memory before prompts need some
        if 4 * len(self._waiting) >= max(1, alive) or self._since_join >= WAIT_STEPS:
            while (row := self._next()) is not None:
                try:
                    self._joiners.append((row, self._prefill(row.job.prompt)))
                except Exception as error:  # noqa: BLE001  # this row's own; the others go on
                    _fail([row], error)
                    self.prefixes.clear()
            self._since_join = 0
        if self._joiners:
            logits = torch.stack([prefix.logits for _, prefix in self._joiners])
            self._extend([row for row, _ in self._joiners], logits)
        if self._joiners or 2 * alive < len(self._rows) or self._batch.used == self._batch.capacity:
            self._repack()

    def _next(self) -> _Row | None:
        """The next waiting row that fits beside the living ones, as long as each may become."""
        with self._wake:
            while self._waiting and self._waiting[0].future.cancelled():
                self._waiting.popleft()
            if not self._waiting or self._closed or self._swap is not None:
                return None
            beside = [row for row in [*self._rows, *(r for r, _ in self._joiners)] if not row.done]
            longest = max(len(r.job.prompt) + r.job.max_tokens for r in [*beside, self._waiting[0]])
            fits = (len(beside) + 1) * longest * self._token_bytes <= self.batch_bytes
            if beside and (len(beside) >= MAX_ROWS or not fits):
                return None
            return self._waiting.popleft()

    def _mask(self, visible: torch.Tensor) -> torch.Tensor:
        import torch

        mask = torch.zeros(visible.shape, dtype=self.model.dtype, device=visible.device)
        return mask.masked_fill_(~visible, -torch.inf)

    def _forward(self, ids: Any, positions: Any, mask: Any, past: KeyValues) -> torch.Tensor:
        out = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=past,
            use_cache=True,
            logits_to_keep=1,
        )
        past.used += ids.shape[1]
        logits: torch.Tensor = out.logits[:, -1].float()
        return logits

    def _prefill(self, prompt: tuple[int, ...]) -> Prefix:
        """Computes a prompt from the longest remembered prefix. One row: nothing is padded."""
        import torch

        started = time.perf_counter()
        device = self.model.device
        if (known := self.prefixes.get(prompt)) is not None:
            return known
        ids = np.array(prompt, dtype=np.int64)
        parent, shared = self.prefixes.longest(ids)
        shared = min(shared, len(ids) - 1)  # the last token must run: its logits are what we want
        if parent is None or shared < MIN_SHARED:
            parent, shared = None, 0
        past = KeyValues(1, len(ids))
        if parent is not None:
            for layer, like in enumerate(parent.layers):
                past.add_layer((like[0][None], like[1][None]))
                parent.copy_to(past, layer, 0, 0, shared)
            past.used = shared
        for start in range(shared, len(ids), CHUNK):
            columns = torch.arange(min(start + CHUNK, len(ids)), device=device)
            mask = self._mask(columns <= columns[start:, None])[None, None]
            chunk = torch.from_numpy(ids[start : start + CHUNK]).to(device)[None]
            logits = self._forward(chunk, columns[None, start:], mask, past)
        layers = [(k[0, :, shared:].clone(), v[0, :, shared:].clone()) for k, v in past.layers]
        entry = Prefix(prompt, ids, parent, shared, layers, logits[0])
        self._token_bytes = sum(t.nbytes for pair in past.layers for t in pair) // len(ids)
        self.prefixes.add(entry)
        self.seconds["prefill"] += time.perf_counter() - started
        return entry

    def _repack(self) -> None:
        """Rebuilds the batch from its living rows and the joiners, layer by layer to bound memory."""
        started = time.perf_counter()
        old, used = self._batch, self._batch.used
        stay = [i for i, row in enumerate(self._rows) if not row.done]
        joiners = [(row, prefix) for row, prefix in self._joiners if not row.done]
        rows = [self._rows[i] for i in stay] + [row for row, _ in joiners]
        lengths = [used - self._pads[i] for i in stay] + [len(row.job.prompt) for row, _ in joiners]
        width = max(lengths, default=0)
        pads = [width - length for length in lengths]
        batch = KeyValues(len(rows), width + min(ROOM, max((row.left for row in rows), default=0)))
        batch.used = width
        for layer in range(self.model.config.num_hidden_layers if rows else 0):
            if stay:
                key, value = old.layers[layer]  # the last reference, so that its memory goes
                old.layers[layer] = (key.new_empty(0), value.new_empty(0))
            else:
                key, value = (t[None] for t in joiners[0][1].layers[layer])
            batch.add_layer((key, value))
            for new, i in enumerate(stay):
                key_row, value_row = (t[i, :, self._pads[i] : used] for t in (key, value))
                batch.write(layer, new, pads[new], (key_row, value_row))
            for new, (row, prefix) in enumerate(joiners, start=len(stay)):
                prefix.copy_to(batch, layer, new, pads[new], len(row.job.prompt))
        self._rows, self._joiners, self._batch, self._pads = rows, [], batch, pads
        self.seconds["decode"] += time.perf_counter() - started

    def _step(self) -> None:
        """Samples one id for every row."""
        import torch

        started = time.perf_counter()
        device = self.model.device
        pads = torch.tensor(self._pads, device=device)
        last = torch.tensor([[row.ids[-1]] for row in self._rows], device=device)
        columns = torch.arange(self._batch.used + 1, device=device)
        mask = self._mask(columns >= pads[:, None])[:, None, None]
        logits = self._forward(last, (self._batch.used - pads)[:, None], mask, self._batch)
        self._extend(self._rows, logits)
        self._since_join += 1
        self.seconds["decode"] += time.perf_counter() - started

    def _extend(self, rows: list[_Row], logits: torch.Tensor) -> None:
        """Samples from `logits` [rows, vocabulary] and settles the rows that end with it."""
        kinds: dict[Sampling, list[int]] = {}
        for i, row in enumerate(rows):
            row.done = row.done or row.future.cancelled()
            if not row.done:
                kinds.setdefault(row.job.sampling, []).append(i)
        for sampling, indices in kinds.items():
            some = logits if len(indices) == len(rows) else logits[indices]
            ids = draw(some, sampling, [rows[i].rng.random() for i in indices])
            logprobs = some.gather(-1, ids[:, None])[:, 0] - some.logsumexp(-1)
            for i, token, logprob in zip(indices, ids.tolist(), logprobs.tolist(), strict=True):
                row = rows[i]
                row.ids.append(token)
                row.logprobs.append(logprob)
                stop = token in self.stop_ids
                if stop or row.left == 0:
                    row.done = True
                    if row.future.set_running_or_notify_cancel():
                        finish: Literal["stop", "length"] = "stop" if stop else "length"
                        row.future.set_result(Sampled(tuple(row.ids), tuple(row.logprobs), finish))


def _fail(rows: list[_Row], error: Exception) -> None:
    import torch

    # A full CPU raises a plain RuntimeError, told apart by its words alone.
    if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        error = InfrastructureError(f"the local model ran out of memory: {error}")
    for row in rows:
        if not row.done and row.future.set_running_or_notify_cancel():
            row.future.set_exception(error)
        row.done = True
