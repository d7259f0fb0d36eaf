"""Runs an own agent: processes of its own for many rollouts, and a proxy that meters its model calls.

    async with OwnAgent("agent:mine.py:act") as agent:
        async with agent.play(key, opening, segments) as session:
            action = await session.begin()
            action = await session.observe(observation, event, feedback)

One process plays all rollouts where it says that it is concurrent; otherwise each rollout in flight has
one, and processes are used again.

What becomes of a rollout in which something fails is in `session.py`.

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
from whale_bench.agents.protocol import Opening
from whale_bench.agents.session import ProcessLostError, Session
from whale_bench.records import Segment
from whale_envs import DOMAINS, get_domain
from whale_envs.errors import AgentError, UnknownNameError, UsageError

if TYPE_CHECKING:
    from whale_bench.agents.proxy import Proxy

__all__ = ["OwnAgent", "ProcessLostError", "Session", "is_own_agent"]

SECONDS = 300.0
"""Longest that an agent may take for an action, and to start."""

START_SECONDS = 60.0
"""To start it has at least this, however short its actions must be."""

ALONE = 4
"""Most rollouts at a time that play again alone."""


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
    async def play(self, key: str, opening: Opening, segments: list[Segment]) -> AsyncIterator[Session]:
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


def _new_proxy(base_url: str) -> "Proxy":
    from whale_bench.agents.proxy import Proxy  # a server and a client: loaded when they are used

    return Proxy(base_url)
