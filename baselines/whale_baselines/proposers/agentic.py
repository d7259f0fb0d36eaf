"""The loop of a proposer that is a model with tools, over any backend that takes tools.

    proposer = AgenticProposer("openai", lambda: OpenAIBackend("NAME"), Limits(), "NAME")
    session = await proposer.propose(brief)

The model reads, writes and checks through `Workspace` until it stops calling tools with every slot written.
What it does wrong is bounded by rule, recorded in the session, and never raised:

* no tool call while slots are empty: told so, `REMINDERS` times, then the session ends;
* the same call over and over with no accepted write in between: refused from the third time, and the session
  ends at the sixth;
* `Limits`: replies, bytes read, wall seconds;
* a server that fails after the backend's own retries, a refusal, a prompt too long: the session ends.

A session that ends without any candidate is held once more (`Limits.sessions`), and is told why. What was
written counts however it ended, and everything that was used is charged, lost attempts included.

Not covered: several sessions at once; retries of one request, which are the backend's.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from whale_baselines.proposers.briefing import instructions, situation
from whale_baselines.proposers.prices import Price, cost
from whale_baselines.proposers.tools import TOOLS
from whale_baselines.proposers.workspace import Workspace
from whale_baselines.search.proposal import Brief, Session
from whale_bench.ledger import Charge
from whale_bench.models.base import (
    Backend,
    Generation,
    Message,
    Request,
    Sampling,
    UnansweredError,
    Usage,
)
from whale_envs.errors import InfrastructureError, ModelError, UsageError
from whale_envs.seeding import derive_seed

REMINDERS = 2
REFUSED_FROM, ENDED_AT = 3, 6
"""Times that the same call is made since a write was accepted."""
WARNED_AT = 5
"""Replies left from which on a session is told how many there are."""
_SAMPLING = Sampling(temperature=1.0, top_p=1.0, top_k=0)
Log: TypeAlias = list[dict[str, Any]]

_LOGGED = 4_000
"""Most characters of a text in the transcript."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a proposal."""

    turns: int = 80
    """Replies of the model in one session."""
    tool_bytes: int = 400_000
    """Bytes that tools return in one session; four make about a token."""
    seconds: float = 2_400.0
    """Wall seconds of all sessions together; the paper's."""
    reply_tokens: int = 32_000
    """Most sampled tokens of one reply."""
    sessions: int = 2
    """Sessions at most, where the first ones write nothing."""

    def __post_init__(self) -> None:
        for name in Limits.__struct_fields__:
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} of a proposer must be more than 0, got {getattr(self, name)}")


class _Ended(Exception):  # noqa: N818 - the end of a session, not an error of ours
    """Why a session ends before its model has ended it."""


class AgenticProposer:
    """See the module's docstring.

    Args:
        name: as a recipe names it.
        open_backend: makes the backend, which is entered for each proposal.
        limits: of a proposal.
        model: whose price is looked up.
        price: in place of the table's.
    """

    def __init__(
        self,
        name: str,
        open_backend: Callable[[], Backend],
        limits: Limits,
        model: str,
        price: Price | None = None,
    ) -> None:
        self.name = name
        self._open, self._limits, self._model, self._price = open_backend, limits, model, price

    async def propose(self, brief: Brief) -> Session:
        system, opening = instructions(brief), situation(brief)
        account = _Account(self._model, self._price)
        log: Log = []
        problems: list[str] = []
        outside = 0
        space = Workspace(brief, tool_bytes=self._limits.tool_bytes)
        try:
            async with asyncio.timeout(self._limits.seconds), self._open() as backend:
                for number in range(1, self._limits.sessions + 1):
                    log.append({"event": "session", "number": number, "model": backend.name})
                    seed = derive_seed("proposer", brief.seed, number)
                    talk = _Talk(backend, space, self._limits, account=account, log=log, seed=seed)
                    if problem := await talk.hold(system, _again(opening, problems)):
                        problems.append(problem)
                        log.append({"event": "end", "problem": problem})
                    if space.proposals() or number == self._limits.sessions:
                        break
                    outside += space.outside
                    space = Workspace(brief, tool_bytes=self._limits.tool_bytes)
        except TimeoutError:
            problems.append(f"ended after {self._limits.seconds:g} s")
            account.interrupted = True
        if outside := outside + space.outside:
            problems.append(f"{outside} calls that lead outside of the slots and folders were refused")
        return Session(
            space.proposals(), account.charge(), "; ".join(dict.fromkeys(problems)), transcript=tuple(log)
        )


def _again(opening: str, problems: list[str]) -> str:
    if not problems:
        return opening
    return f"{opening}\n\nAn earlier session wrote no candidate: {problems[-1]}. Write the candidates early."


class _Account:
    """What a proposal has used."""

    def __init__(self, model: str, price: Price | None) -> None:
        self._model, self._price = model, price
        self._began = time.perf_counter()
        self._calls = self._prompt = self._sampled = self._money = 0
        self._unknown = self._unpriced = False
        self.interrupted = False
        """Whether a request was under way when it ended."""

    def add(self, usage: Usage, *, answered: bool = True) -> None:
        """One request, its failed attempts included."""
        self._calls += 1
        self._prompt += (usage.prompt_tokens or 0) + usage.lost_prompt_tokens
        self._sampled += (usage.sampled_tokens or 0) + usage.lost_sampled_tokens
        counted = usage.prompt_tokens is not None and usage.sampled_tokens is not None
        self._unknown |= answered and not counted
        money = cost(self._model, usage, self._price)
        self._unpriced |= money is None
        self._money += money or 0

    def charge(self) -> Charge:
        return Charge(
            seconds=time.perf_counter() - self._began,
            proposer_calls=self._calls + self.interrupted,
            proposer_prompt_tokens=self._prompt,
            proposer_sampled_tokens=self._sampled,
            proposer_micro_usd=self._money,
            unpriced=self._unpriced,
            unmetered_tokens=self._unknown or self.interrupted,
        )


class _Talk:
    """One session."""

    def __init__(
        self, backend: Backend, space: Workspace, limits: Limits, *, account: _Account, log: Log, seed: int
    ) -> None:
        self._backend, self._space, self._limits = backend, space, limits
        self._account, self._log, self._seed = account, log, seed
        self._made: Counter[str] = Counter()
        self._reminders = 0

    async def hold(self, system: str, opening: str) -> str:
        """Runs to the end; why it ended early or short, or nothing."""
        chat = [Message("system", system), Message("user", opening)]
        self._log.append({"event": "opening", "text": opening})
        try:
            for turn in range(1, self._limits.turns + 1):
                reply = await self._ask(chat, turn)
                if reply.tool_calls or reply.text.strip():
                    chat.append(Message("assistant", reply.text, tool_calls=reply.tool_calls))
                if reply.tool_calls:
                    chat += await self._do(reply.tool_calls, self._limits.turns - turn)
                elif more := self._remind(reply):
                    chat.append(Message("user", more))
                else:
                    break
            else:
                raise _Ended(f"ended after {self._limits.turns} replies")
        except _Ended as reason:
            return f"{reason}{self._short()}"
        return self._short().removeprefix("; ")

    def _short(self) -> str:
        empty, slots = len(self._space.empty), len(self._space.slots)
        return f"; {slots - empty} of {slots} slots were written" if empty else ""

    async def _ask(self, chat: list[Message], turn: int) -> Generation:
        request = Request(
            messages=tuple(chat),
            tools=tuple(tool.schema for tool in TOOLS),
            sampling=_SAMPLING,
            max_tokens=self._limits.reply_tokens,
            seed=derive_seed("reply", self._seed, turn),
        )
        try:
            reply = await self._backend.generate(request)
        except UnansweredError as error:
            self._account.add(error.usage, answered=False)
            raise _Ended(f"the model's server failed: {error}") from error
        except InfrastructureError as error:
            self._account.add(Usage(), answered=False)
            raise _Ended(f"the model's server failed: {error}") from error
        except ModelError as error:
            self._account.add(Usage())
            raise _Ended(f"the model could not answer: {error}") from error
        self._account.add(reply.usage)
        self._log.append(
            {
                "event": "reply",
                "text": reply.text[:_LOGGED],
                "finish_reason": reply.finish_reason,
                "usage": {n: v for n, v in msgspec.structs.asdict(reply.usage).items() if v},
                "calls": [_shown(call) for call in reply.tool_calls],
            }
        )
        if reply.finish_reason in ("content_filter", "context_length"):
            raise _Ended(f"the model could not answer: {reply.finish_reason}")
        return reply

    async def _do(self, calls: tuple[dict[str, Any], ...], left: int) -> list[Message]:
        """The results of a reply's calls, in order."""
        results = []
        for call in calls:
            function = call.get("function") or {}
            name, arguments = str(function.get("name") or ""), function.get("arguments") or "{}"
            key = f"{name} {arguments if isinstance(arguments, str) else json.dumps(arguments)}"
            self._made[key] += 1
            if self._made[key] >= ENDED_AT:
                raise _Ended(f"made the same call {ENDED_AT} times: {key[:120]}")
            if self._made[key] >= REFUSED_FROM:
                text = f"[you have made this call {self._made[key]} times; its result does not change]"
                self._log.append({"event": "tool", "tool": name[:80], "refused": text, "bytes": 0})
            else:
                text = await self._space.call(name, arguments)
                self._log.append(self._space.log[-1])
                if name == "write" and not self._space.log[-1]["refused"]:
                    self._forget_looks()
            results.append(Message("tool", text, tool_call_id=str(call.get("id") or "")))
        if 0 < left <= WARNED_AT and self._space.empty:
            told = (
                f"\n\n[{left} replies are left in this session; empty slots: {', '.join(self._space.empty)}]"
            )
            results[-1] = msgspec.structs.replace(results[-1], content=results[-1].content + told)
        return results

    def _forget_looks(self) -> None:
        """What was read or checked may be otherwise after a write; the same write twice stays the same."""
        self._made = Counter({key: n for key, n in self._made.items() if key.startswith("write ")})

    def _remind(self, reply: Generation) -> str:
        """What to say to a reply without a call; nothing where the session is over."""
        if not self._space.empty or self._reminders >= REMINDERS:
            return ""
        self._reminders += 1
        cut = "Your reply was cut off at its limit. " if reply.finish_reason == "length" else ""
        return f"{cut}Not written yet: {', '.join(self._space.empty)}. Write each with the tool `write`."


def _shown(call: dict[str, Any]) -> dict[str, Any]:
    """A call as the transcript keeps it."""
    function = call.get("function") or {}
    return {"name": str(function.get("name"))[:80], "arguments": str(function.get("arguments"))[:_LOGGED]}
