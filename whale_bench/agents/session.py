"""One rollout of an own agent: its messages and answers, and what becomes of it where something fails.

    async with agent.play(key, opening, segments) as session:      # an `OwnAgent`, see host.py
        action = await session.begin()
        action = await session.observe(observation, event, feedback)

What fails, and what then happens:

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

Not covered: starting and sharing processes, which is the host's.
"""

from typing import TYPE_CHECKING

import msgspec

from whale_bench.agents.metering import Meter
from whale_bench.agents.process import AgentProcess, BrokenProcessError
from whale_bench.agents.protocol import VERSION, Observe, Opening
from whale_bench.records import Segment
from whale_envs.errors import AgentError, InfrastructureError, UsageError

if TYPE_CHECKING:
    from whale_bench.agents.host import OwnAgent

_PATIENCE = 2.0
"""Seconds that the end of a rollout waits for calls of the model that are still open."""


class ProcessLostError(InfrastructureError):
    """A process that several rollouts shared was lost; this one is to be played again."""


class Session:
    """One rollout of an own agent, made by `OwnAgent.play`."""

    def __init__(
        self, host: "OwnAgent", key: str, opening: Opening, segments: list[Segment], *, alone: bool
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
