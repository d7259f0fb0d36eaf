r"""Compares answers symbolically in killable processes, many callers at a time.

    POOL.same(r"\sqrt{8}", r"2\sqrt{2}", Allowance())        # True; from any thread

An `Allowance` is what one check may take however many comparisons it needs: `CHECK_SECONDS` on the
clock from when it was made, waiting included, and `CPU_SECONDS` of computation. Which of the two
runs out matters. A text that uses up the computation or the memory is too complex: that depends on
the text alone, so it is a verdict. If the time runs out first, others or the machine are at fault:
that is a `VerifierError`, never a verdict.

At most `MOST_CHILDREN` comparisons run at once, short ones ahead of long ones, for a process loses
priority as it computes. When all places are taken, whoever waits first takes the place of the comparison
that has computed most, if that is more than `QUICK_SECONDS`; the latter begins again when nobody waits
any more. So a crowd of power towers gets out of the way of ordinary answers. A process that is
stopped, or gets no CPU time, is replaced and the comparison done again, once; so is one that dies. A
text that ends two processes is at fault itself.

Memory: a child holds at most 32 MB of its own and copies up to 20 MB of its parent's 70 MB, so that all
of them together stay below 500 MB.

Not covered: comparisons of many answers at once; the caller's threads are the queue.
"""

import atexit
import contextlib
import os
import threading
import time
from collections import deque
from typing import Any

from whale_envs.errors import InfrastructureError
from whale_envs.math_python.symbolic_process import (
    TICK_SECONDS,
    Child,
    DiedError,
    LateError,
    Parent,
    StalledError,
    activity,
)
from whale_envs.math_python.values import TooComplexError

CHECK_SECONDS = 4.0
"""Longest time for one check, from the call to its end."""
CPU_SECONDS = 1.25
"""Longest computation for one check."""
QUICK_SECONDS = 0.1
"""CPU time that every comparison gets before it may be put back."""
MOST_COMPARISONS = 60
"""Most comparisons for one check, whose answers may have many parts."""
START_SECONDS = 60.0
"""A parent that has not loaded its libraries by then is replaced."""
MOST_CHILDREN = 8
_SPARE = 4
_NEARLY = 0.9


class VerifierError(InfrastructureError):
    """The symbolic helper failed: this says nothing about the answer and is never a verdict."""


class Allowance:
    """What one check may still take."""

    def __init__(self, seconds: float = CHECK_SECONDS, cpu: float = CPU_SECONDS) -> None:
        self.deadline = time.monotonic() + seconds
        self.cpu = cpu
        self.comparisons = MOST_COMPARISONS


class _PutBackError(Exception):
    """Others took the place of a comparison."""


class SymbolicPool:
    """A warm parent with its children, started when first needed. Safe to use from any thread."""

    def __init__(self, most: int = MOST_CHILDREN) -> None:
        self._most = most
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        """Guards all that follows."""
        self._free = self._most
        self._closed = 0
        self._lines: tuple[deque[object], deque[object]] = (deque(), deque())
        """Those that wait for a place, and those that were put back."""
        self._parent: Parent | None = None
        self._spare: list[Child] = []
        self._busy: list[Child] = []

    def same(self, gold: str, answer: str, allowance: Allowance | None = None) -> bool:
        """Whether the two are equal symbolically.

        Raises:
            TooComplexError: it takes more computation or memory than is allowed.
            VerifierError: the helper failed, or others took all the time.
        """
        self._after_fork()
        allowance = allowance or Allowance()
        allowance.comparisons -= 1
        if allowance.comparisons < 0 or allowance.cpu <= 0:
            raise TooComplexError("too many parts to compare")
        reply = self._reply(gold, answer, allowance)
        allowance.cpu -= reply["cpu"]
        if "limit" in reply:
            raise TooComplexError(f"not decided: {reply['limit']}")
        if "error" in reply:
            raise VerifierError(f"the symbolic verifier failed: {reply['error']}")
        return bool(reply["same"])

    def close(self) -> None:
        """Ends all processes. Comparisons at work fail; a later one begins with new processes."""
        self._after_fork()
        with self._changed:
            self._closed += 1
            for child in self._busy:
                child.kill()
            self._drop(patience=1.0)

    @property
    def pids(self) -> list[int]:
        """The parent's id first, then those of its children as far as they are known."""
        with self._changed:
            children = [child.pid for child in (*self._spare, *self._busy) if child.pid]
            return [self._parent.process.pid, *children] if self._parent else []

    def _reply(self, gold: str, answer: str, allowance: Allowance) -> dict[str, Any]:
        """A child's reply, from the second try at the latest."""
        died = stalled = 0
        again, closed = False, self._closed
        while died < 2 and stalled < 2:
            if self._closed != closed:
                raise VerifierError("the symbolic verifier was closed")
            try:
                return self._try(gold, answer, allowance, again)
            except _PutBackError:
                again = True
            except (LateError, DiedError) as error:
                if error.cpu >= _NEARLY * allowance.cpu:
                    raise TooComplexError(f"not decided in {allowance.cpu:.2f} s of CPU time") from None
                if isinstance(error, LateError):
                    raise VerifierError("the symbolic verifier found no time for the answer") from None
                died += 1
            except StalledError:
                stalled += 1
        if self._closed != closed:
            raise VerifierError("the symbolic verifier was closed")
        if stalled == 2:
            raise VerifierError("the symbolic verifier's processes get no CPU time")
        raise TooComplexError("it ended two processes")

    def _try(self, gold: str, answer: str, allowance: Allowance, again: bool) -> dict[str, Any]:
        child, reply = None, None
        self._enter(allowance.deadline, again)
        try:
            child = self._ready_child(allowance.deadline)
            child.ask(gold, answer, allowance.cpu)
            reply = child.wait_reply(allowance.deadline)
            if "limit" in reply and child.asked > 1:  # perhaps an earlier text filled its memory
                reply = None
                raise StalledError
            return reply
        except StalledError:
            self._distrust()
            raise
        except DiedError as error:
            if child is None or not child.parent.alive:
                raise StalledError from None  # not the text's doing
            if child.killed and error.cpu < _NEARLY * allowance.cpu:
                raise _PutBackError from None
            self._distrust()
            raise
        finally:
            with self._changed:
                if child is not None:
                    self._leave(child, kept=reply is not None)
                self._free += 1
                self._changed.notify_all()

    def _distrust(self) -> None:
        """Ends the idle processes: whoever stopped or ended one may have done so to all of them."""
        with self._changed:
            if self._parent is not None and activity(self._parent.process.pid)[1]:
                self._drop()
            spare, self._spare = self._spare, []
            for child in spare:
                child.end()

    def _leave(self, child: Child, *, kept: bool) -> None:
        """Ends a child, or keeps it for another comparison."""
        self._busy.remove(child)
        if kept and child.fresh and child.parent is self._parent and len(self._spare) < self._most:
            self._spare.append(child)
        else:
            child.end()

    def _enter(self, deadline: float, again: bool) -> None:
        """Takes a place.

        Raises:
            LateError: there was none before the deadline.
        """
        me = object()
        fresh, put_back = self._lines
        line = put_back if again else fresh
        with self._changed:
            line.append(me)
            try:
                while not self._free or (fresh or put_back)[0] is not me:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise LateError
                    if not self._free and fresh and fresh[0] is me:
                        self._put_back()
                    self._changed.wait(min(left, TICK_SECONDS))
                self._free -= 1
            finally:
                line.remove(me)
                self._changed.notify_all()

    def _put_back(self) -> None:
        """Ends as many of the children that have computed most as there are others waiting."""
        ending = sum(child.killed for child in self._busy)
        greedy = [child for child in self._busy if child.cpu > QUICK_SECONDS and not child.killed]
        greedy.sort(key=lambda child: -child.cpu)
        for child in greedy[: max(0, len(self._lines[0]) - ending)]:
            child.kill()

    def _ready_child(self, deadline: float) -> Child:
        child = self._child()
        parent = child.parent
        try:
            child.wait_ready(deadline)
        except BaseException as error:
            late = isinstance(error, LateError)
            with self._changed:
                self._leave(child, kept=False)
                stuck = late and time.monotonic() - parent.began > START_SECONDS
                if self._parent is parent and (stuck or isinstance(error, StalledError | DiedError)):
                    self._drop()
            if late and not parent.loaded:
                raise VerifierError("the symbolic verifier is still loading its libraries") from None
            if isinstance(error, DiedError) and not parent.loaded:
                raise VerifierError(
                    "the symbolic verifier did not start; are sympy and math-verify installed?"
                ) from None
            raise
        return child

    def _child(self) -> Child:
        """A child that is ready, or will be; another takes its place among the spare ones."""
        with self._changed:
            for _ in range(2):
                with contextlib.suppress(DiedError):
                    if self._parent is None or not self._parent.alive:
                        self._drop()
                        self._parent = _start()
                    while len(self._spare) <= _SPARE:
                        self._spare.insert(0, self._parent.fork())
                    child = self._spare.pop()  # one that has worked has its tables at hand
                    self._busy.append(child)
                    return child
                self._drop()
        raise DiedError

    def _drop(self, patience: float = 0.0) -> None:
        """Ends the parent and the spare children, under the lock."""
        for child in self._spare:
            child.end()
        if self._parent is not None:
            self._parent.close(patience)
        self._parent, self._spare = None, []

    def _after_fork(self) -> None:
        """Processes belong to who started them: a forked copy of the host begins with none."""
        if self._pid != os.getpid():
            for child in (*self._spare, *self._busy):
                child.abandon()
            if self._parent is not None:
                self._parent.abandon()
            self._begin()


def _start() -> Parent:
    try:
        return Parent()
    except OSError as error:
        raise VerifierError(f"cannot start the symbolic verifier: {error}") from error


POOL = SymbolicPool()
"""The pool of this process."""

atexit.register(POOL.close)
