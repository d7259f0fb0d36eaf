"""One short question with a run's own settings: before the first rollout, and where a request is refused.

    await probe_each(ask, servers, "--base-url")         # ask(server); all of them, or nobody answers
    if await suspicions.cleared(request, server):        # it takes others, so this one is to blame

A setting that a server can never take is found before there is a run only by asking with it: with the
sampling, the tools and the `max_tokens` of the first turn. So that this stays cheap, one word is asked for,
and sampling stops at the first white space where a server takes `stop`.

A request that is refused although others were answered may be one that no server takes, which is the
model's or the harness's doing, or meet a server that has changed. The same question, with the settings of
the refused request, tells which. Tools are the harness's choice as messages are: they are left out unless
the server took these before. What the server said is remembered for `REMEMBERED_S`.

Not covered: what a refusal means and who is blamed how, see `openai.py` and `anthropic_api.py`.
"""

import asyncio
import time
import warnings
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from whale_bench.models.base import Generation, Message, Request
from whale_bench.models.server import Server
from whale_bench.models.servers import Servers
from whale_envs.errors import InfrastructureError, ModelError, UsageError

ONE_WORD = (Message("user", "Reply with one word: yes"),)
STOPS = (" ", "\n")
ATTEMPTS = 3

REMEMBERED_S = 10.0
"""How long a server that took the question is taken to go on doing so."""

_TOLD_AFTER_S = 15.0
_TOOLS_KEPT = 64


def probe_of(like: Request | None) -> Request:
    """The question with the settings of `like`; without it, with the defaults and 16 tokens."""
    if like is None:
        return Request(ONE_WORD, max_tokens=16)
    return msgspec.structs.replace(like, messages=ONE_WORD, seed=0, prompt_ids=None, host=None)


async def probe_each(ask: Callable[[Server], Awaitable[object]], servers: Servers, address_from: str) -> None:
    """Asks every server; once one has answered, those that take long are rested.

    Args:
        ask: puts the question to a server.
        servers: to be asked.
        address_from: the option or variable that named them.

    Raises:
        UsageError: `ask` raised it.
        InfrastructureError: no server answers; the words are theirs.
    """
    asked = {asyncio.ensure_future(ask(server)): server for server in servers.all}
    waiting, told, ends_at = set(asked), False, float("inf")
    down: dict[Server, InfrastructureError] = {}
    try:
        while waiting and (left := ends_at - time.monotonic()) > 0:
            pause = min(left, float("inf") if told else _TOLD_AFTER_S)
            done, waiting = await asyncio.wait(
                waiting, timeout=pause if pause < float("inf") else None, return_when=asyncio.FIRST_COMPLETED
            )
            if not done and not told and time.monotonic() < ends_at:
                told = True
                names = ", ".join(sorted(asked[task].address for task in waiting))
                warnings.warn(f"waiting for {names} to answer", stacklevel=2)
            for task in done:
                error = task.exception()
                if isinstance(error, InfrastructureError):
                    down[asked[task]] = error
                elif error is None or isinstance(error, ModelError):
                    ends_at = min(ends_at, time.monotonic() + servers.patience.others_s)
                else:
                    raise error
        for task in waiting:
            asked[task].rest(servers.patience)
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    if len(down) == len(asked):
        words = "; ".join(str(down[server]) for server in servers.all)
        raise InfrastructureError(f"{words} (is {address_from} right, and does the server run?)")


class Suspicions:
    """See the module's docstring.

    Args:
        ask: puts a question to a server, and to no other; what it raises speaks against the server.
    """

    def __init__(self, ask: Callable[[Request, Server], Awaitable[Generation]]) -> None:
        self._ask = ask
        self._tools: deque[tuple[dict[str, Any], ...]] = deque(maxlen=_TOOLS_KEPT)
        self._locks: dict[Any, asyncio.Lock] = {}
        self._found: dict[Any, tuple[float, bool]] = {}
        """When a question was answered last, and whether well."""

    def took(self, tools: tuple[dict[str, Any], ...]) -> None:
        """A request with these tools was answered."""
        if tools and tools not in self._tools:
            self._tools.append(tools)

    async def cleared(self, request: Request, server: Server) -> bool:
        """Whether the server takes the settings of a refused request, so that the rest of it is to blame."""
        came_at = time.monotonic()
        tools = request.tools if request.tools in self._tools else ()
        size = (request.max_tokens or 0).bit_length()  # what is left of a budget is another each turn
        key = (server.url, request.sampling, msgspec.json.encode(tools), size)
        async with self._locks.setdefault(key, asyncio.Lock()):
            at, well = self._found.get(key, (float("-inf"), False))
            if at < (came_at - REMEMBERED_S if well else came_at):
                well = await self._asked(msgspec.structs.replace(request, tools=tools), server)
                self._found[key] = time.monotonic(), well
            return well

    async def _asked(self, request: Request, server: Server) -> bool:
        try:
            await self._ask(probe_of(request), server)
        except (InfrastructureError, ModelError, UsageError):
            return False
        return True
