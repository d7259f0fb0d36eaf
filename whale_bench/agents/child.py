"""The process of an own Python agent: speaks the protocol for it, many rollouts at a time.

    python -m whale_bench.agents.child path/to/file.py act [--metered]

Plain functions of a rollout all run in one thread of its own, so rollouts overlap and a library that is
bound to a thread works; coroutines run on the process's one event loop. What the agent prints goes to
standard error, never into the protocol. The process ends when its input does.

Not covered: time limits, which are the host's: a thread that hangs is left behind until the host
replaces the process.
"""

import asyncio
import importlib
import inspect
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, BinaryIO

import msgspec

from whale_bench.agents.loading import AgentFault, Hooks, LoadedAgent, load_agent, sources, words
from whale_bench.agents.protocol import (
    LINE_BYTES,
    VERSION,
    Answer,
    End,
    Fault,
    Hello,
    Observe,
    Opening,
    encode,
)
from whale_bench.text import scrub

_EXIT_SECONDS = 10
"""After the end of input, the longest that closing and the interpreter's exit may take."""


class _Thread:
    """One thread that runs functions in order; a daemon, so that one that hangs holds nothing up."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()

        def call() -> None:
            try:
                result, error = function(*args), None
            except BaseException as raised:  # noqa: BLE001 - it is awaited by the caller
                result, error = None, raised
            loop.call_soon_threadsafe(_settle, done, result, error)

        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()
        self._calls.put(call)
        result, error = await done
        if error is not None:
            raise error
        return result

    def end(self) -> None:
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


def _settle(done: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if not done.done():
        done.set_result((result, error))


class PlayedRollout:
    """One rollout's agent."""

    def __init__(self, make: Callable[[], Any], info: dict[str, Any]) -> None:
        self._make, self._info = make, info
        self._thread = _Thread()
        self._hooks: Hooks | None = None

    async def act(self, observation: str, news: dict[str, Any]) -> Any:
        self._info |= news
        if self._hooks is None:
            self._hooks = Hooks(await self._call(self._make))
            if self._hooks.reset is not None:
                await self._call(self._hooks.reset, dict(self._info))
        more = (dict(self._info),) if self._hooks.act_takes_info else ()
        return await self._call(self._hooks.act, observation, *more)

    async def close(self) -> None:
        try:
            if self._hooks is not None and self._hooks.close is not None:
                await self._call(self._hooks.close)
        finally:
            self._thread.end()

    async def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        if inspect.iscoroutinefunction(function):
            return await function(*args)
        result = await self._thread.run(function, *args)
        return await result if inspect.isawaitable(result) else result


class _Server:
    """Reads messages and answers them, each in a task of its own."""

    def __init__(self, agent: LoadedAgent, sink: BinaryIO) -> None:
        self._agent, self._sink = agent, sink
        self._rollouts: dict[str, PlayedRollout] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, source: asyncio.StreamReader) -> None:
        decoder = msgspec.json.Decoder(Opening | Observe | End)
        while line := await source.readline():
            task = asyncio.create_task(self._take(decoder.decode(line)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        signal.alarm(_EXIT_SECONDS)
        for rollout in tuple(self._rollouts):
            await self._close(rollout)
        closing = [task for task in self._tasks if task.get_name() == "close"]
        await asyncio.gather(*closing)

    async def _take(self, message: Opening | Observe | End) -> None:
        if isinstance(message, End):
            task = asyncio.current_task()
            assert task is not None
            task.set_name("close")
            await self._close(message.rollout)
            return
        facts = {name: value for name, value in msgspec.to_builtins(message).items() if name != "type"}
        if isinstance(message, Opening):
            facts.pop("version", None)
            self._rollouts[message.rollout] = PlayedRollout(self._agent.make, facts)
        action: Any = None
        try:
            action = await self._rollouts[message.rollout].act(message.observation, facts)
            error = None if isinstance(action, str) else f"`act` must return a string, got {action!r:.200}"
        except AgentFault as fault:
            error = str(fault)
        except BaseException as raised:  # noqa: BLE001 - the host makes a record of it
            error = words(raised)
        if error is None and len(action) > LINE_BYTES // 8:
            error = f"`act` returned {len(action):,} characters, more than {LINE_BYTES // 8:,}"
        answer = Answer(message.rollout, action=scrub(action) if error is None else None, error=error)
        self._write(answer)

    async def _close(self, name: str) -> None:
        rollout = self._rollouts.pop(name, None)
        if rollout is None:
            return
        try:
            await rollout.close()
        except BaseException as error:  # noqa: BLE001 - the rollout is judged already
            sys.stderr.write(f"close() raised: {words(error)}\n")

    def _write(self, message: msgspec.Struct) -> None:
        self._sink.write(encode(message))
        self._sink.flush()


async def main(target: str, attribute: str, *, metered: bool, source: int, sink: BinaryIO) -> None:
    """Loads the agent, says hello and serves until the input ends."""
    try:
        agent = load_agent(target, attribute)
        hooks = await construct(agent)
    except AgentFault as fault:
        sink.write(encode(Fault(scrub(str(fault)))))
        sink.flush()
        return
    # One that never sees its rollout's key can only use that of the process, which stands for one rollout.
    concurrent = agent.concurrent if agent.concurrent is not None else hooks.sees_info or not metered
    reader = asyncio.StreamReader(limit=2**26)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(source, "rb"))
    sink.write(encode(Hello(VERSION, concurrent, dict(agent.env_options), sources(target))))
    sink.flush()
    await _Server(agent, sink).serve(reader)


async def construct(agent: LoadedAgent) -> Hooks:
    """Makes an agent once, so that a factory that raises or returns none is found before any rollout."""
    thread = _Thread()
    try:
        made = await thread.run(agent.make)
        made = await made if inspect.isawaitable(made) else made
    except BaseException as error:
        raise AgentFault(f"the factory raised {words(error)}") from error
    hooks = Hooks(made)
    if hooks.close is not None:
        try:
            closed = await thread.run(hooks.close)
            if inspect.isawaitable(closed):
                await closed
        except BaseException as error:
            raise AgentFault(f"close() raised {words(error)}") from error
    thread.end()
    return hooks


if __name__ == "__main__":
    source, sink = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    importlib.invalidate_caches()
    with os.fdopen(sink, "wb") as out:
        asyncio.run(
            main(sys.argv[1], sys.argv[2], metered="--metered" in sys.argv[3:], source=source, sink=out)
        )
