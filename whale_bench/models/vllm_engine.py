"""vLLM's engine in one thread of this process: prompts in, exact sampled ids out, weights swapped.

    engine = EngineThread("/models/a", precision="bfloat16", context=8192, ends=frozenset({2}))
    sampled = engine.submit(Job(prompt=(1, 5, 9), max_tokens=16, sampling=Sampling(), seed=7)).result()
    engine.reload("/models/b", swapped=print).result()

vLLM's own async engine runs in a process of its own, on a CPU in two. Here its core runs in a thread
instead, as `sampling_loop.py` does: nothing outlives this process however it is killed, a script
needs no `if __name__ == "__main__"`, and an engine on a CPU starts in 3 s instead of 15 s. The price is that
scheduling and this process's other Python share one interpreter lock. Whoever needs the last tenths of
a large GPU starts vLLM's server and uses `openai/NAME`.

A reload waits for the requests before it, and requests behind it wait for the reload. vLLM keeps
some state per process, so that one engine at a time may be open. After an error in a step the
engine is not used again.

Beside a trainer on the same GPU (`vllm_build.py`) it rests while an update is made: vLLM's second level of
sleep gives up weights, keys and values altogether, and the reload that ends it puts the next weights where
the old ones were. No weights of before are kept anywhere that could be served by mistake.

Not covered: several GPUs, LoRA, quantised weights, more than one engine in a process.
"""

import atexit
import contextlib
import itertools
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from whale_bench.models.folder import Precision
from whale_bench.models.sampling_loop import Job, Sampled
from whale_bench.models.vllm_build import build, lends
from whale_envs.errors import InfrastructureError, UsageError

_one_engine = threading.Lock()


@dataclass(frozen=True, eq=False)
class _Ask:
    job: Job
    future: Future[Sampled]


@dataclass(frozen=True, eq=False)
class _Reload:
    folder: str
    swapped: Callable[[], None]
    future: Future[None]


@dataclass(frozen=True, eq=False)
class _Rest:
    future: Future[None]


class EngineThread:
    """Owns the engine and its thread. `submit`, `rest` and `reload` may be called from any thread.

    Args:
        folder: a Hugging Face folder that vLLM can serve.
        precision: what it computes in.
        context: the model's own; memory may leave less, see the attribute.
        ends: ids that end an answer.
        beside: bytes of the GPU that a trainer in this process keeps; None where there is none.

    Raises:
        UsageError: another engine is open in this process, or vLLM cannot serve the folder.
    """

    def __init__(
        self,
        folder: str,
        *,
        precision: Precision,
        context: int,
        ends: frozenset[int],
        beside: int | None = None,
    ) -> None:
        if not _one_engine.acquire(blocking=False):
            raise UsageError(f"cannot load {folder!r}: one vllm/ model at a time can be open in a process")
        self.ends = ends
        self.seconds = 0.0
        """Spent in steps so far."""
        self.context = context
        """Most tokens of prompt and answer together, as far as memory allows."""
        self.lends = lends(beside)
        """Whether there is a GPU that a rest would leave to a trainer."""
        self.resting = False
        self._engine: Any = None
        self._queue: deque[_Ask | _Reload | _Rest] = deque()
        self._dropped: deque[str] = deque()
        self._running: dict[str, _Ask] = {}
        self._names = map(str, itertools.count())
        self._wake = threading.Condition()
        self._failed: InfrastructureError | None = None
        self._closed = False
        ready: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._serve, args=(folder, precision, beside, ready), name="whale-vllm", daemon=True
        )
        self._thread.start()
        atexit.register(self.close)  # a thread inside torch at exit aborts the process
        try:
            ready.result()
        except BaseException:
            self.close()
            raise

    def submit(self, job: Job) -> Future[Sampled]:
        """Queues a job; cancelling the future aborts it.

        The future raises InfrastructureError when the engine fails or is closed, UsageError when vLLM
        refuses the job or the engine rests.
        """
        ask = _Ask(job, Future())
        self._put(ask)
        return ask.future

    def reload(self, folder: str, *, swapped: Callable[[], None]) -> Future[None]:
        """Loads weights of the same shapes in place and forgets all cached prompts.

        `swapped` is called in the thread, after the swap and before any later request. A failure
        leaves weights that are neither the old nor the new, so it ends the engine.
        """
        order = _Reload(folder, swapped, Future())
        self._put(order)
        return order.future

    def rest(self) -> Future[None]:
        """Gives up weights and cached prompts once the requests before it have ended.

        From then on jobs are refused, until a reload. A failure ends the engine.
        """
        order = _Rest(Future())
        self._put(order)
        return order.future

    def close(self) -> None:
        """Ends the thread after the step it is in; unfinished jobs raise InfrastructureError."""
        with self._wake:
            if self._closed:
                return
            self._closed = True
            self._wake.notify()
        self._thread.join()
        atexit.unregister(self.close)
        _one_engine.release()

    def _put(self, item: _Ask | _Reload | _Rest) -> None:
        with self._wake:
            if self._closed or self._failed:
                raise self._failed or InfrastructureError("the vLLM engine was closed")
            self._queue.append(item)
            self._wake.notify()

    def _serve(self, folder: str, precision: Precision, beside: int | None, ready: Future[None]) -> None:
        try:
            self._engine = build(folder, precision=precision, context=self.context, beside=beside)
            self.context = self._engine.model_config.max_model_len
        except UsageError as error:
            ready.set_exception(error)
        except Exception as error:  # noqa: BLE001  # whatever vLLM does not like, the caller hears it
            ready.set_exception(UsageError(f"vLLM cannot serve {folder!r}: {_words(error)}"))
        else:
            ready.set_result(None)
            self._loop()
        self._fail(InfrastructureError("the vLLM engine was closed"))
        self._free()

    def _loop(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._closed or self._queue or self._dropped or self._running)
                if self._closed:
                    return
            try:
                self._abort()
                self._admit()
                if self._running:
                    self._step()
            except Exception as error:  # noqa: BLE001  # belongs to all who wait for this engine
                self._fail(InfrastructureError(f"the vLLM engine failed: {_words(error)}"))
                return

    def _abort(self) -> None:
        names = []
        while self._dropped:
            name = self._dropped.popleft()
            if self._running.pop(name, None):
                names.append(name)
        if names:
            self._engine.abort_request(names)

    def _admit(self) -> None:
        """Hands what is queued to vLLM, up to an order for which something running must end first."""
        while self._queue:
            item = self._queue[0]
            if not isinstance(item, _Ask) and self._running and not item.future.cancelled():
                return
            self._queue.popleft()
            if isinstance(item, _Ask):
                self._add(item)
            elif item.future.set_running_or_notify_cancel():
                self._carry_out(item)

    def _add(self, ask: _Ask) -> None:
        from vllm import SamplingParams
        from vllm.exceptions import VLLMClientError
        from vllm.sampling_params import RequestOutputKind

        if ask.future.cancelled():
            return
        if self.resting:
            if ask.future.set_running_or_notify_cancel():
                ask.future.set_exception(
                    UsageError("a vLLM engine that rests samples nothing until a reload")
                )
            return
        name, job = next(self._names), ask.job
        try:
            settings = SamplingParams(
                temperature=job.sampling.temperature,
                top_p=job.sampling.top_p,
                top_k=job.sampling.top_k,  # 0 is off there too
                max_tokens=job.max_tokens,
                seed=job.seed,
                logprobs=0,  # of the sampled id alone
                stop_token_ids=sorted(self.ends),
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            self._engine.add_request(name, {"prompt_token_ids": list(job.prompt)}, settings)
        except (VLLMClientError, ValueError) as error:
            if ask.future.set_running_or_notify_cancel():
                ask.future.set_exception(UsageError(f"vLLM refuses a request: {_words(error)}"))
            return
        self._running[name] = ask
        ask.future.add_done_callback(lambda future: self._drop(name) if future.cancelled() else None)

    def _drop(self, name: str) -> None:
        with self._wake:
            self._dropped.append(name)
            self._wake.notify()

    def _step(self) -> None:
        started = time.perf_counter()
        for output in self._engine.step():
            ask = self._running.pop(output.request_id, None)
            if ask is not None and ask.future.set_running_or_notify_cancel():
                ask.future.set_result(_sampled(output.outputs[0]))
        self.seconds += time.perf_counter() - started

    def _carry_out(self, order: _Reload | _Rest) -> None:
        try:
            if isinstance(order, _Reload):
                self._swap(order.folder)
                order.swapped()
            else:
                self._sleep()
        except Exception as error:
            what = f"reloading {order.folder!r}" if isinstance(order, _Reload) else "a rest"
            words = f"{what} failed half-way: {_words(error)}"
            order.future.set_exception(InfrastructureError(words))
            raise
        order.future.set_result(None)

    def _sleep(self) -> None:
        if not self.resting:
            self._engine.sleep(level=2)
        self.resting = True

    def _swap(self, folder: str) -> None:
        resting, self.resting = self.resting, False
        if resting:
            _return_memory()
            self._engine.wake_up(["weights"])  # room for them, with nothing in it
        self._engine.collective_rpc("whale_reload", args=(folder,))
        if resting:  # only now, so that a reload's copies have that room
            self._engine.wake_up(["kv_cache"])
        self._engine.reset_prefix_cache()

    def _fail(self, error: InfrastructureError) -> None:
        with self._wake:
            self._failed = self._failed or error
            left = [*self._running.values(), *self._queue]
            self._running.clear()
            self._queue.clear()
        for item in left:
            if item.future.set_running_or_notify_cancel():
                item.future.set_exception(error)

    def _free(self) -> None:
        """Gives memory back and clears vLLM's state of the process, so that another engine can start."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.engine_core.shutdown()
        del engine
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cleanup_dist_env_and_memory()


def _return_memory() -> None:
    """Gives the GPU what torch keeps of freed tensors, a trainer's gradients for instance."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _sampled(output: Any) -> Sampled:
    ids = tuple(output.token_ids)
    logprobs = tuple(place[token].logprob for place, token in zip(output.logprobs, ids, strict=True))
    return Sampled(ids, logprobs, "stop" if output.finish_reason == "stop" else "length")


def _words(error: Exception) -> str:
    """The kind of an error and its first line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
