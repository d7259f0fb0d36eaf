"""Runs the hooks of a harness file that is not ours in a confined worker process.

    async with ProcessHarness("mine.py") as harness:
        decision, state = await harness.call(view)

The host keeps each rollout's state, so a worker that hangs or dies is replaced by a fresh one and costs only
the rollout whose call it was. Of the time that all calls take together see `spending.py`.

Not covered: the worker process itself, see `workers.py`; what a harness's globals carry from one call to
the next, which `check.py` and `replaying.py` look for.
"""

import asyncio
from collections import deque
from pathlib import Path
from typing import Any, Self

import msgspec

from whale_bench.harness.base import Reply, View
from whale_bench.harness.calls import Answer, Call, Fault, HarnessFault, Start, check_answer
from whale_bench.harness.host_base import HarnessHost, HostDecision, read_source
from whale_bench.harness.spending import Spending
from whale_bench.harness.workers import MEMORY_MB, Worker
from whale_envs.errors import HarnessError, HarnessFileError, InfrastructureError, UsageError

CALL_SECONDS = 5.0
"""Longest wait for one call of a harness in a worker."""

START_SECONDS = 30.0
"""Longest wait for a harness file to be loaded."""

_MOST_TOGETHER = 64
"""Calls that a worker may have before it at a time."""


class ProcessHarness(HarnessHost):
    """For any other file: a confined worker process, in which the calls that wait at a time go together.

    A call whose worker dies or is ended beside it is made again, alone, in a fresh one; so only the call
    that ends a worker is charged with it. A call that takes too long is charged at once.

    Args:
        path: of the file, or its name where `source` is given.
        source: the file's text, where there is no file.
        call_seconds: longest wait for a call, from when the worker could begin with it.
        memory_mb: most memory of the worker, beyond what an empty one takes.
        unsafe: run it even where it cannot be confined.
        strict: whether changing what a hook was given, but for `view.state`, is a fault.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        source: str | None = None,
        call_seconds: float = CALL_SECONDS,
        memory_mb: int = MEMORY_MB,
        unsafe: bool = False,
        strict: bool = False,
    ) -> None:
        self.name = str(path)
        self.source = read_source(Path(path)) if source is None else source
        self.restarts = 0
        self._start = Start(self.name, self.source, strict)
        self._call_seconds, self._memory_mb, self._unsafe = call_seconds, memory_mb, unsafe
        self._decoder = msgspec.json.Decoder(Answer | Fault)
        self._worker: Worker | None = None
        self._starting: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[str]] = set()
        self._waiting: deque[_Pending] = deque()
        self._alone: deque[_Pending] = deque()
        """To be made again, one at a time; before those that wait."""
        self._flying: deque[_Pending] = deque()
        """Sent and not answered; the worker is at the first."""
        self._soon: asyncio.Handle | None = None
        self._clock: asyncio.TimerHandle | None = None
        self._since = 0.0
        """When the worker could begin with the first of those."""
        self._sent = 0
        self._spending = Spending()

    async def __aenter__(self) -> Self:
        if self._worker is None:
            await self._begin()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        for pending in (*self._flying, *self._alone, *self._waiting):
            pending.fail(HarnessError("harness_error", f"{self.name}: the host ended during the call"))
        self._flying.clear()
        self._alone.clear()
        self._waiting.clear()
        self._drop()
        await asyncio.gather(*self._ending)

    async def call(self, view: View, reply: Reply | None = None) -> tuple[HostDecision, dict[str, Any]]:
        if self._spending.refusal:
            raise self._refused()
        pending = _Pending(Call(view, reply), asyncio.get_running_loop().create_future())
        self._waiting.append(pending)
        self._pump_soon()
        answer = await pending.future
        return answer.decision, answer.state

    # --- private -----------------------------------------------------------------------------------

    def _pump_soon(self) -> None:
        """Once all that is ready to run has run: so calls made at the same time go as one message."""
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._soon = None
        if self._spending.refusal:
            for pending in (*self._alone, *self._waiting):
                pending.fail(self._refused())
            self._alone.clear()
            self._waiting.clear()
        if self._starting is not None or not (self._alone or self._waiting):
            return
        if self._worker is None:
            self._starting = asyncio.ensure_future(self._again())
        elif self._alone or (self._flying and self._flying[0].alone):
            if not self._flying:
                self._send([self._alone.popleft()])
        else:
            room = _MOST_TOGETHER - len(self._flying)
            if room > 0:
                self._send([self._waiting.popleft() for _ in range(min(room, len(self._waiting)))])

    def _send(self, batch: list["_Pending"]) -> None:
        batch = [pending for pending in batch if not pending.future.done()]
        if self._worker is None or not batch:
            self._pump_soon()
            return
        if not self._flying:
            self._since = self._loop.time()
        for pending in batch:
            self._sent += 1
            pending.number = self._sent
        self._flying += batch
        self._worker.send([pending.line() for pending in batch])
        if self._clock is None:
            self._clock = self._loop.call_later(self._call_seconds, self._look)

    def _on_line(self, line: bytes) -> None:
        try:
            said = self._decoder.decode(line)
            if not self._flying or said.number != self._flying[0].number:
                raise HarnessFault("an answer to no call")
            if isinstance(said, Answer):
                check_answer(said, self._flying[0].call)
        except (msgspec.DecodeError, UnicodeError, RecursionError, HarnessFault) as error:
            self._lose(f"broken answer: {error}", sure=True)
            return
        pending = self._flying.popleft()
        self._spent()
        if isinstance(said, Answer):
            pending.answer(said)
        else:
            pending.fail(HarnessError("harness_error", said.text))
        if self._alone or self._waiting:
            self._pump_soon()

    def _look(self) -> None:
        """Ends a worker whose first call takes too long."""
        self._clock = None
        if self._worker is not None and self._flying:
            self._worker.read()  # this process may have been busy itself
        if self._worker is None or not self._flying:
            return
        left = self._since + self._call_seconds - self._loop.time()
        if left > 0:
            self._clock = self._loop.call_later(left, self._look)
        else:
            self._lose(f"no answer in {self._call_seconds:g} s", "harness_timeout", sure=True)

    def _lose(self, why: str, reason: str = "harness_error", *, sure: bool = False) -> None:
        """The worker is of no more use; the call it was at is charged if it was alone or `sure` to blame."""
        calls = list(self._flying)
        self._flying.clear()
        if calls:
            self._spent()
        self._drop()
        if calls and (sure or calls[0].alone):
            during = "" if sure else " during a call"
            calls.pop(0).fail(HarnessError(reason, f"{self.name}: {why}{during}"))
        for pending in calls:
            pending.alone = True
        self._alone += calls
        self._pump_soon()

    def _drop(self) -> None:
        worker, self._worker = self._worker, None
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
        if worker is not None:
            self._spending.end(worker.cpu_seconds())
            worker.listen(lambda _: None, lambda _: None)
            task = asyncio.ensure_future(worker.end())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _spent(self, most: float | None = None) -> None:
        """Charges the time since the worker began with what is now done; not that of a machine asleep."""
        now, worker = self._loop.time(), self._worker
        seconds = min(now - self._since, self._call_seconds if most is None else most)
        self._spending.call(seconds, worker.cpu_seconds if worker is not None else lambda: 0.0)
        self._since = now

    def _refused(self) -> HarnessError:
        return HarnessError("harness_timeout", f"{self.name}: {self._spending.refusal}; no more are made")

    async def _begin(self) -> None:
        if self._ending:
            await asyncio.gather(*self._ending)
        self._loop = asyncio.get_running_loop()
        worker = await Worker.start(
            self._start, unsafe=self._unsafe, memory_mb=self._memory_mb, seconds=START_SECONDS
        )
        self.settings, self.layers = worker.settings, worker.layers
        worker.listen(self._on_line, self._lose)
        self._worker = worker

    async def _again(self) -> None:
        """A fresh worker for the calls that wait; where it does not come up, the first of them is told."""
        self.restarts += 1
        self._since = asyncio.get_running_loop().time()
        error: Exception | None = None
        try:
            await self._begin()
        except HarnessFileError as fault:  # it loaded once: what changed is its own doing
            error = HarnessError("harness_error", str(fault))
        except (InfrastructureError, UsageError) as fault:
            error = fault
        self._starting = None
        self._spent(most=START_SECONDS)
        if error is not None:
            (self._alone or self._waiting).popleft().fail(error)
        self._pump_soon()


class _Pending:
    """A call on its way."""

    def __init__(self, call: Call, future: "asyncio.Future[Answer]") -> None:
        self.call, self.future = call, future
        self.number = 0
        self.alone = False
        """Whether its worker died once and it is made again with nobody beside it."""

    def line(self) -> bytes:
        return msgspec.json.encode(msgspec.structs.replace(self.call, number=self.number))

    def answer(self, answer: Answer) -> None:
        if not self.future.done():  # the caller has gone
            self.future.set_result(answer)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)
