"""One process of an own agent: starts it, carries messages to it and answers back, and ends it.

    process = await AgentProcess.start(command, environment, seconds=300)
    answer = await process.ask(opening, seconds=300)

What a process writes is read all the time, so it never waits on us; of standard error only the end is
kept. A process that ends, or writes a line that is no answer to an open question or is too long, is
`broken` and is killed with its process group. `culprit` then is the rollout to blame: the one that
was in flight, where there was but one. It is the process's own end that counts: another that it has
started may hold its output open, and is not waited for.

Not covered: what becomes of the rollouts, see `host.py`; ending what has left the process group.
"""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Self

from whale_bench.agents.protocol import (
    LINE_BYTES,
    Answer,
    End,
    Fault,
    Hello,
    Observe,
    Opening,
    decode_answer,
    decode_hello,
    encode,
)
from whale_bench.text import scrub
from whale_envs.errors import InfrastructureError

CLOSE_SECONDS = 5.0
"""Longest wait for a process to end by itself when its input does."""

_TAIL = 4_000
_DRAIN_SECONDS = 1.0


class BrokenProcessError(Exception):
    """The process is of no use any more; says why."""


class _Pipes(asyncio.subprocess.SubprocessStreamProtocol):
    """A process's pipes as streams, which end soon after the process even where another holds them.

    asyncio's own `Process.wait` waits for the pipes, too.
    """

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop()
        super().__init__(limit=LINE_BYTES, loop=self._clock)
        self.exited = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._child = transport

    def process_exited(self) -> None:
        super().process_exited()
        self.exited.set()
        self._clock.call_later(_DRAIN_SECONDS, self._child.close)


class AgentProcess:
    """See the module's docstring; made by `start`."""

    hello: Hello

    def __init__(self, process: asyncio.SubprocessTransport, pipes: _Pipes, key: str) -> None:
        self.key = key
        """What stands for this process at the proxy."""
        self.broken = ""
        """Why it is of no use; empty while it is."""
        self.culprit: str | None = None
        self.served = 0
        """Rollouts that have ended."""
        self.retiring = False
        """Takes no further rollout."""
        self.in_flight: set[str] = set()
        self._process, self._pipes = process, pipes
        self._asked: dict[str, asyncio.Future[Answer]] = {}
        self._abandoned: set[str] = set()
        """Rollouts whose answer nobody waits for any more; it is dropped when it comes."""
        self._answers = 0
        self._tail = b""
        self._said = asyncio.create_task(self._keep_tail())
        self._heard: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        key: str,
        seconds: float,
        directory: str | None = None,
    ) -> Self:
        """A process that has said hello.

        Raises:
            BrokenProcessError: it did not, in that time; says what it did.
            InfrastructureError: no process can be started at all.
        """
        try:
            child = await asyncio.get_running_loop().subprocess_exec(
                _Pipes,
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment,
                cwd=directory,
                start_new_session=True,  # a Ctrl-C is the host's to handle
            )
        except (FileNotFoundError, PermissionError) as error:
            raise BrokenProcessError(f"{command[0]} cannot be run: {error}") from error
        except OSError as error:
            raise InfrastructureError(f"cannot start an agent's process: {error}") from error
        self = cls(*child, key)
        try:
            await self._meet(seconds)
        except BaseException:
            await self._kill()
            raise
        self._heard = asyncio.create_task(self._listen())
        return self

    def join(self, rollout: str) -> None:
        """A rollout begins here."""
        self.in_flight.add(rollout)

    def leave(self, rollout: str) -> None:
        """It is over; the process is told, unless it is broken."""
        self.in_flight.discard(rollout)
        self.served += 1
        if not self.broken:
            self._write(encode(End(rollout)))

    async def ask(self, message: Opening | Observe, seconds: float) -> Answer:
        """The answer to a message of a rollout in flight.

        Raises:
            BrokenProcessError: the process is broken, or breaks before it answers.
            TimeoutError: no answer in that time, though it may be at work on others' (see `silent`).
        """
        if self.broken:
            raise BrokenProcessError(self.broken)
        loop = asyncio.get_running_loop()
        asked: asyncio.Future[Answer] = loop.create_future()
        self._asked[message.rollout] = asked
        try:
            self._write(encode(message))
            await asyncio.wait({asked}, timeout=seconds)
        finally:
            del self._asked[message.rollout]
            if not asked.done():  # from this very moment on, not only once the rollout has left
                self._abandoned.add(message.rollout)
        if not asked.done():
            raise TimeoutError
        return asked.result()

    @property
    def owes(self) -> bool:
        """Whether it has yet to answer for a rollout that is over."""
        return bool(self._abandoned)

    @property
    def answers(self) -> int:
        """Answers so far, of all rollouts."""
        return self._answers

    async def break_off(self, why: str) -> None:
        """Kills the process; what it was asked raises `BrokenProcessError`."""
        if self.broken:
            return
        self.broken = why  # at once: nothing may join while the process is ended
        self.culprit = next(iter(self.in_flight)) if len(self.in_flight) == 1 else None
        self.broken += await self._ended()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(BrokenProcessError(self.broken))

    async def close(self) -> None:
        """Ends the input and waits a little for the process to end by itself."""
        if self._heard is not None:
            self._heard.cancel()
        assert self._pipes.stdin is not None
        self._pipes.stdin.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._pipes.exited.wait(), CLOSE_SECONDS)
        self.broken = self.broken or "closed"
        await self._kill()

    async def _meet(self, seconds: float) -> None:
        assert self._pipes.stdout is not None
        try:
            async with asyncio.timeout(seconds):
                line = await self._pipes.stdout.readline()
        except TimeoutError:
            raise BrokenProcessError(
                f"it did not say hello within {seconds:g} s{await self._ended()}"
            ) from None
        except ValueError:
            raise BrokenProcessError(f"its first line is longer than {LINE_BYTES:,} bytes") from None
        if not line.endswith(b"\n"):
            ended = await self._ended()
            raise BrokenProcessError(f"it{_end(self._process.get_returncode())} before it said hello{ended}")
        try:
            hello = decode_hello(line)
        except ValueError as error:
            raise BrokenProcessError(str(error)) from error
        if isinstance(hello, Fault):
            raise BrokenProcessError(hello.message)
        self.hello = hello

    async def _listen(self) -> None:
        assert self._pipes.stdout is not None
        why = ""
        while not why:
            try:
                line = await self._pipes.stdout.readline()
            except ValueError:
                why = f"it wrote a line of more than {LINE_BYTES:,} bytes"
                break
            if not line.endswith(b"\n"):
                break
            try:
                why = self._hear(decode_answer(line))
            except ValueError as error:
                why = f"it wrote what is no answer: {error}"
        if not why:
            await self._wait_for_end()
            why = f"it{_end(self._process.get_returncode())}"
        await asyncio.shield(self.break_off(why))

    def _hear(self, answer: Answer) -> str:
        """Hands an answer on; returns why it is none, else an empty string."""
        asked = self._asked.get(answer.rollout)
        if answer.rollout in self._abandoned:
            self._abandoned.discard(answer.rollout)
        elif asked is None or asked.done():
            return f"it answered for rollout {answer.rollout[:40]!r}, which had asked nothing"
        else:
            self._answers += 1
            asked.set_result(answer)
        return ""

    async def _keep_tail(self) -> None:
        assert self._pipes.stderr is not None
        while data := await self._pipes.stderr.read(65_536):
            self._tail = (self._tail + data)[-_TAIL:]

    async def _ended(self) -> str:
        """What it wrote to standard error, once it is dead."""
        await self._kill()
        said = scrub(self._tail.decode("utf-8", "replace")).strip()
        return f"; the end of its standard error:\n{said}" if said else ""

    def _write(self, data: bytes) -> None:
        assert self._pipes.stdin is not None
        if not self._pipes.stdin.is_closing():  # else the end of its output tells the reader
            self._pipes.stdin.write(data)

    async def _wait_for_end(self) -> None:
        """Its own exit status, where it comes at once; one that only closed its output is killed."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._pipes.exited.wait(), _DRAIN_SECONDS)

    async def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.get_pid(), signal.SIGKILL)  # with what it may have started
        await self._pipes.exited.wait()
        await asyncio.wait({self._said}, timeout=_DRAIN_SECONDS)
        self._said.cancel()
        self._process.close()


def _end(status: int | None) -> str:
    if status is None:
        return " closed its output"
    if status < 0:
        return f" was ended by {signal.Signals(-status).name}"
    return f" ended with exit status {status}"
