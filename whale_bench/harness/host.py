"""Loads a harness and runs its hooks: shipped files in process, any other in a confined process.

    async with load_harness("chess_puzzles", file="mine.py") as harness:
        decision, state = await harness.call(view)

Both kinds answer the same calls (`calls.py`). The host keeps each rollout's state, so a worker that
hangs or dies is replaced by a fresh one and costs only the rollout whose call it was.

Not covered: the worker process itself, see `workers.py`; what a harness's globals carry from one call to
the next, which `check.py` looks for.
"""

import abc
import asyncio
import copy
import hashlib
from collections import deque
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

import msgspec

from whale_bench.harness.base import Act, Ask, Nudge, Reply, Settings, Stop, View
from whale_bench.harness.calls import (
    Answer,
    Call,
    Fault,
    HarnessFault,
    Start,
    answer_call,
    check_answer,
    load,
)
from whale_bench.harness.workers import MEMORY_MB, Worker
from whale_envs.errors import (
    HarnessError,
    HarnessFileError,
    InfrastructureError,
    UnknownNameError,
    UsageError,
)

CALL_SECONDS = 5.0
"""Longest wait for one call of a harness in a worker."""

START_SECONDS = 30.0
"""Longest wait for a harness file to be loaded."""

_MOST_TOGETHER = 64
"""Calls that a worker may have before it at a time."""

HostDecision = Ask | Act | Nudge | Stop


class HarnessHost(abc.ABC):
    """A loaded harness. Also an async context manager that ends what it started."""

    name: str
    source: str
    settings: Settings

    @property
    def harness_id(self) -> str:
        """Content hash of the file."""
        return "sha256:" + hashlib.sha256(self.source.encode()).hexdigest()

    @abc.abstractmethod
    async def call(self, view: View, reply: Reply | None = None) -> tuple[HostDecision, dict[str, Any]]:
        """(decision, new state): the next messages, or what `reply` means.

        Raises:
            HarnessError: the harness raised, broke the contract, hung or died.
        """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None


class InProcessHarness(HarnessHost):
    """For files that ship with this package."""

    def __init__(self, source: str, name: str) -> None:
        self.name, self.source = name, source
        try:
            self._harness, self.settings = load(source, name)
        except HarnessFault as fault:
            raise HarnessFileError(str(fault)) from fault

    async def call(self, view: View, reply: Reply | None = None) -> tuple[HostDecision, dict[str, Any]]:
        try:
            answer = answer_call(self._harness, Call(copy.copy(view), reply), self.name)
        except HarnessFault as fault:
            raise HarnessError("harness_error", str(fault)) from fault
        return answer.decision, answer.state


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
        self._since = self._loop.time()
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
            worker.listen(lambda _: None, lambda _: None)
            task = asyncio.ensure_future(worker.end())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

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
        error: Exception | None = None
        try:
            await self._begin()
        except HarnessFileError as fault:  # it loaded once: what changed is its own doing
            error = HarnessError("harness_error", str(fault))
        except (InfrastructureError, UsageError) as fault:
            error = fault
        self._starting = None
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


def read_source(path: Path) -> str:
    """The text of a harness file.

    Raises:
        HarnessFileError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise HarnessFileError(f"{path}: cannot be read as a harness file: {error}") from error


def shipped_harnesses() -> dict[str, str]:
    """Source of each domain's h0, by domain."""
    folder = files("whale_bench.harness") / "h0"
    return {
        entry.name.removesuffix(".py"): entry.read_text(encoding="utf-8")
        for entry in sorted(folder.iterdir(), key=lambda e: e.name)
        if entry.name.endswith(".py") and not entry.name.startswith("_")
    }


def load_harness(domain: str, file: str | Path | None = None, *, unsafe: bool = False) -> HarnessHost:
    """The domain's h0, or the harness of a file, which may run unconfined only if `unsafe`.

    Raises:
        UnknownNameError: the domain has no h0.
        HarnessFileError: the file cannot be read or used; some faults show only in `__aenter__`.
    """
    if file is None:
        shipped = shipped_harnesses()
        if domain not in shipped:
            raise UnknownNameError("environment", domain, shipped)
        return InProcessHarness(shipped[domain], f"h0/{domain}.py")
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"harness file {str(file)!r} does not exist; give a Python file, or none for h0")
    return ProcessHarness(path.resolve(), unsafe=unsafe)


def load_harness_source(domain: str, source: str, name: str, *, unsafe: bool = False) -> HarnessHost:
    """The harness of a text, such as a candidate's; in process if it is the domain's h0, word for word.

    Args:
        domain: which environment it is for.
        source: as a harness file would hold it.
        name: what faults call the file.
        unsafe: run it even where it cannot be confined.

    Raises:
        UnknownNameError: the domain has no h0.
    """
    shipped = shipped_harnesses()
    if domain not in shipped:
        raise UnknownNameError("environment", domain, shipped)
    if source == shipped[domain]:
        return InProcessHarness(source, name)
    return ProcessHarness(name, source=source, unsafe=unsafe)
