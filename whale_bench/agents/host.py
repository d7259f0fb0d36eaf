"""Runs an own agent: processes of its own for many rollouts, and a proxy that meters its model calls.

    async with OwnAgent("agent:mine.py:act") as agent:
        async with agent.play(key, opening, segments) as session:
            action = await session.begin()
            action = await session.observe(observation, event, feedback)

One process plays all rollouts where it says that it is concurrent; otherwise each rollout in flight has
one, and processes are used again. What fails, and what then happens:

- `act` raises, or returns what is no string: the rollout ends as "agent_error", with the traceback.
- No answer in time: "agent_timeout". The process takes no further rollout, and ends with its last.
- The process ends, is killed, or writes what is no answer: where the rollout was the only one in flight
  there, "agent_error". Where there were several nobody knows whose fault it was: all of them are
  `ProcessLostError`, and play again, each alone in a fresh process, where the rule above holds. The same
  where a process answers none of several rollouts within the time of one.
- A process that ends before its first answer of a rollout, after it had served others, is replaced.
- Any of these, or an action, after a call in which the proxy saw the server fail, and without a later one
  that was answered well: `InfrastructureError`.
- The same after a call that was refused for its key, address or model, and without a later one that was not:
  `UsageError`, or `InfrastructureError` where the server had taken the same before.

Not covered: confinement. It is the user's own code; docs/agents.md says what it could reach.
"""

import asyncio
import hashlib
import itertools
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, ClassVar, Self

import msgspec

from whale_bench.agents.metering import Meter
from whale_bench.agents.names import command_sources, is_own_agent, read_name
from whale_bench.agents.process import AgentProcess, BrokenProcessError
from whale_bench.agents.protocol import VERSION, Observe, Opening
from whale_bench.records import Segment
from whale_envs import DOMAINS, get_domain
from whale_envs.errors import AgentError, InfrastructureError, UnknownNameError, UsageError

if TYPE_CHECKING:
    from whale_bench.agents.proxy import Proxy

__all__ = ["OwnAgent", "ProcessLostError", "Session", "is_own_agent"]

SECONDS = 300.0
"""Longest that an agent may take for an action, and to start."""

START_SECONDS = 60.0
"""To start it has at least this, however short its actions must be."""

ALONE = 4
"""Most rollouts at a time that play again alone."""

_PATIENCE = 2.0
"""Seconds that the end of a rollout waits for calls of the model that are still open."""


class ProcessLostError(InfrastructureError):
    """A process that several rollouts shared was lost; this one is to be played again."""


class OwnAgent:
    """See the module's docstring; an async context manager.

    Args:
        name: agent:… or process:…, see `names.py`.
        base_url: server of the model calls; with it the agent is offered the metering proxy.
        seconds: see `SECONDS`.
        directory: where it runs, and where relative paths in its name begin; None for the working directory.

    Raises:
        UsageError: the name or the address is wrong; in `__aenter__`, the agent cannot be started.
    """

    fixture: ClassVar[bool] = False
    default_concurrency: ClassVar[int] = 8
    source: ClassVar[None] = None

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        seconds: float | None = None,
        directory: str | None = None,
    ) -> None:
        self.name = self.weights_id = name
        self.action_seconds = SECONDS if seconds is None else seconds
        self.harness_id = ""
        """The agent's id: a hash of its source files as far as they can be seen."""
        found = read_name(name, directory)
        self._directory = directory
        self._command = found.command
        self._proxy = None if base_url is None else _new_proxy(base_url)
        if not found.command:
            child = (sys.executable, "-m", "whale_bench.agents.child", found.target, found.attribute)
            self._command = (*child, "--metered") if base_url is not None else child
        self._shared: AgentProcess | None = None
        self._idle: list[AgentProcess] = []
        self._all: set[AgentProcess] = set()
        self._starting = asyncio.Lock()
        self._alone = asyncio.Semaphore(ALONE)
        self._suspects: set[str] = set()
        self._numbers = itertools.count(1)
        self._stack = AsyncExitStack()

    @property
    def offers_proxy(self) -> bool:
        return self._proxy is not None

    async def __aenter__(self) -> Self:
        if self._proxy is not None:
            await self._stack.enter_async_context(self._proxy)
        try:
            first = await self._start()
        except BrokenProcessError as error:
            await self._stack.aclose()
            raise UsageError(f"{self.name} cannot play: {error}") from error
        except BaseException:
            await self._stack.aclose()
            raise
        self._hello = first.hello
        self.harness_id = self._hash()
        if self._hello.concurrent:
            self._shared = first
        else:
            self._idle.append(first)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.gather(*(process.close() for process in self._all))
        await self._stack.aclose()

    def env_options(self, domain: str) -> dict[str, int]:
        """The options that the agent asks for, as far as the domain has them, held within its bounds.

        Raises:
            UnknownNameError: no domain has one of them.
        """
        bounds = get_domain(domain).module.ENV.BOUNDS
        known = {name for d in DOMAINS.values() for name in d.module.ENV.BOUNDS} | bounds.keys()
        for name in self._hello.env_options:
            if name not in known:
                raise UnknownNameError(f"environment option of {self.name}", name, sorted(known))
        asked = {name: value for name, value in self._hello.env_options.items() if name in bounds}
        return {name: min(max(value, bounds[name][0]), bounds[name][1]) for name, value in asked.items()}

    async def probe(self) -> None:
        """Asks the server of its model calls, where there is one; the agent itself has been started.

        Raises:
            UsageError: its address or the key are wrong.
            InfrastructureError: it does not answer.
        """
        if self._proxy is not None:
            await self._proxy.probe()

    def seconds(self) -> dict[str, float]:
        """As a backend's; nobody knows where an own agent's time goes."""
        return {}

    def warnings(self) -> list[str]:
        """As a backend's; there are none."""
        return []

    @asynccontextmanager
    async def play(self, key: str, opening: Opening, segments: list[Segment]) -> "AsyncIterator[Session]":
        """A session for one rollout.

        Args:
            key: the rollout's in its run; the agent does not see it.
            opening: what the agent is told first, without what stands for the rollout.
            segments: gets the rollout's model calls that went through the proxy.
        """
        alone = key in self._suspects
        async with self._alone if alone else nullcontext():
            session = Session(self, key, opening, segments, alone=alone)
            try:
                yield session
            finally:
                await session.end()

    # --- for sessions -------------------------------------------------------------------------

    async def take(self, *, alone: bool) -> AgentProcess:
        """A process that may play one more rollout.

        Raises:
            AgentError: none can be started any more.
        """
        try:
            if alone:
                return await self._start()
            if self._hello.concurrent:
                async with self._starting:
                    if self._shared is None or self._shared.broken or self._shared.retiring:
                        self._shared = await self._start()
                    return self._shared
            while self._idle:
                if not (process := self._idle.pop()).broken:
                    return process
            return await self._start()
        except BrokenProcessError as error:  # it started once: what changed is its own doing
            raise AgentError("agent_error", f"it cannot be started again: {error}") from error

    async def give_back(self, process: AgentProcess, *, alone: bool) -> None:
        """A rollout that played there is over."""
        if process.in_flight:
            return
        useful = not (process.broken or process.retiring or process.owes or alone)
        if useful and not self._hello.concurrent:
            self._idle.append(process)
        elif not useful:
            self._all.discard(process)
            if process.retiring or process.owes:
                await process.break_off("it is retired")
            await process.close()

    def suspect(self, key: str) -> None:
        """From now on the rollout plays alone."""
        self._suspects.add(key)

    def new_id(self) -> str:
        return f"r{next(self._numbers)}"

    def open_meter(self, process: AgentProcess, opening: Opening, meter: Meter | None) -> Opening:
        """The opening with what stands for the rollout at the proxy."""
        if self._proxy is None or meter is None:
            return opening
        key = self._proxy.open_rollout(process.key, meter)
        return msgspec.structs.replace(opening, base_url=self._proxy.url, api_key=key)

    def close_meter(self, process: AgentProcess, opening: Opening) -> None:
        """The keys stand for this rollout no longer."""
        if self._proxy is not None and opening.api_key:
            self._proxy.close_rollout(process.key, opening.api_key)

    def check_calls(self) -> None:
        """Whether every call so far could be told to be of one rollout.

        Raises:
            UsageError: one could not.
        """
        if self._proxy is not None and self._proxy.ambiguous:
            raise UsageError(
                f"{self.name} called its model with the key of its process while several rollouts were in "
                "flight there: use the start message's api_key, set CONCURRENT = False, or give -c 1"
            )

    async def _start(self) -> AgentProcess:
        environment, key = dict(os.environ), ""
        if self._proxy is not None:
            key = self._proxy.new_process()
            direct = ",".join(filter(None, (environment.get("NO_PROXY"), "127.0.0.1")))
            environment |= {
                "OPENAI_BASE_URL": self._proxy.url, "OPENAI_API_KEY": key,
                "NO_PROXY": direct, "no_proxy": direct,
            }  # fmt: skip
        seconds = max(self.action_seconds, START_SECONDS)
        process = await AgentProcess.start(
            self._command, environment, key=key, seconds=seconds, directory=self._directory
        )
        self._all.add(process)
        return process

    def _hash(self) -> str:
        sources = {**self._hello.sources, **command_sources(self._command, self._directory)}
        facts = (self.name, sorted(sources.items()), sorted(self._hello.env_options.items()))
        kind = "sha256" if sources else "unseen"
        return f"{kind}:{hashlib.sha256(msgspec.json.encode(facts)).hexdigest()}"


class Session:
    """One rollout of an own agent, made by `OwnAgent.play`."""

    def __init__(
        self, host: OwnAgent, key: str, opening: Opening, segments: list[Segment], *, alone: bool
    ) -> None:
        self._host, self._key, self._alone = host, key, alone
        self._opening = opening
        self._process: AgentProcess | None = None
        self._meter = Meter(segments) if host.offers_proxy else None

    async def begin(self) -> str:
        """The first action.

        Raises:
            AgentError: it is the agent that failed.
            ProcessLostError: its process was lost, maybe through another rollout.
            InfrastructureError: a process or the model's server failed.
            UsageError: its model calls cannot be told apart, or the server takes key, address or the
                model that it names for wrong.
        """
        while True:
            process = await self._host.take(alone=self._alone)
            fresh = process.served == 0
            opening = msgspec.structs.replace(self._opening, rollout=self._host.new_id(), version=VERSION)
            opening = self._host.open_meter(process, opening, self._meter)
            process.join(opening.rollout)
            self._process, self._opening = process, opening
            try:
                return await self._ask(opening)
            except AgentError as error:
                hung = error.reason == "agent_timeout"  # another process would have to be waited for as long
                if hung or fresh or not process.broken or process.culprit != opening.rollout:
                    raise
                await self._leave()  # it had ended, or was about to, after another rollout

    async def observe(self, observation: str, event: str, feedback: str) -> str:
        """The next action; raises as `begin`."""
        return await self._ask(Observe(self._opening.rollout, observation, event, feedback))

    async def end(self) -> None:
        """The rollout is over."""
        if self._meter is not None:
            await self._meter.close(_PATIENCE)
        await self._leave()

    async def _leave(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            self._host.close_meter(process, self._opening)
            process.leave(self._opening.rollout)
            await self._host.give_back(process, alone=self._alone)

    async def _ask(self, message: Opening | Observe) -> str:
        process = self._process
        assert process is not None
        before = process.answers
        try:
            answer = await process.ask(message, self._host.action_seconds)
        except BrokenProcessError as error:
            self._host.check_calls()
            raise self._broken(process, "agent_error") from error
        except TimeoutError:
            raise await self._late(process, before) from None
        self._host.check_calls()
        if answer.action is None:
            raise self._failure("agent_error", answer.error or "it said that it failed")
        if self._meter is not None:  # an action all the same, but not the agent's that was meant
            if self._meter.refusal is not None:
                raise self._meter.refusal
            if self._meter.problem:
                raise InfrastructureError(f"{self._meter.problem}; the agent acted without that answer")
        return answer.action

    async def _late(self, process: AgentProcess, before: int) -> Exception:
        """What an answer that did not come in time means."""
        why = f"no answer within {self._host.action_seconds:g} s"
        if process.broken:
            return self._broken(process, "agent_timeout")
        if len(process.in_flight) > 1 and process.answers > before:
            process.retiring = True
            return self._failure("agent_timeout", why)
        await process.break_off(why)
        return self._broken(process, "agent_timeout")

    def _broken(self, process: AgentProcess, reason: str) -> Exception:
        """What a broken process means for this rollout."""
        if process.culprit == self._opening.rollout:
            return self._failure(reason, process.broken)
        self._host.suspect(self._key)
        return ProcessLostError(f"the process of several rollouts was lost: {process.broken}")

    def _failure(self, reason: str, detail: str) -> AgentError | InfrastructureError | UsageError:
        """The agent's failure, or the server's where that had failed in this rollout, or refused a call."""
        refusal = None if self._meter is None else self._meter.refusal
        if isinstance(refusal, UsageError):
            return refusal
        if refusal is not None:
            return InfrastructureError(f"{refusal}; then the agent failed: {detail[:300]}")
        problem = "" if self._meter is None else self._meter.problem
        if reason == "agent_timeout" and self._meter is not None and self._meter.is_waiting:
            problem = problem or "the server behind the proxy had not answered"
        if problem:
            return InfrastructureError(f"{problem}; then the agent failed: {detail[:300]}")
        return AgentError(reason, detail)


def _new_proxy(base_url: str) -> "Proxy":
    from whale_bench.agents.proxy import Proxy  # a server and a client: loaded when they are used

    return Proxy(base_url)
