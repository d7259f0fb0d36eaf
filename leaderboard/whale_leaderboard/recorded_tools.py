"""Tools in a replay: made again, and compared with what they gave then.

    interpreter = ReplayedInterpreter(row, sandbox)
    await interpreter.run(code)                          # the recorded result; `interpreter.apart` counts

A Python program that gives another result than recorded is run again, several times. Where one of these
runs gives the recorded result, or they differ among themselves, or the program reads what varies (time,
randomness, ids, hashes, the machine), or either end was a limit's doing, the result varies: it is counted
apart, and the replay goes on with the recorded one. Otherwise the recorded result is not what the program
gives: `Diverged`.

A search of an index that is not here gives what is recorded.

Not covered: results of another version of Python or of a library, which differ as false ones do.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import msgspec

from whale_bench.records import Rollout, Step
from whale_envs.core import ToolCall, parse_action
from whale_envs.math_python.tools import TIMEOUT_S, Interpreter, Result, read_call
from whale_envs.retrieval.base import Hit, Passage
from whale_envs.search_qa.tools import NO_RESULTS
from whale_leaderboard.recorded import Diverged, text_differs

AGAIN = 8
"""Further runs of a program whose result is another one."""

_VARIES = re.compile(
    r"\b(?:time|datetime|date|random|randint|randrange|choice|shuffle|sample|seed|uuid\w*|secrets|urandom|"
    r"id|hash|getpid|perf_counter|process_time|monotonic|clock|platform|uname|socket|threading|"
    r"multiprocessing|os|sys|environ|locale|set|frozenset|resource|tracemalloc|gc|object|repr)\b"
)
"""Words without which no two runs of a program on one machine differ."""

_LIMITS = ("timed_out", "memory", "output_limit", "crashed")
_DOCUMENT = re.compile(r"Document \d+: (.*)")


class _Ran(NamedTuple):
    """A result as the environment reads it."""

    ok: bool
    status: str
    text: str


class ReplayedInterpreter:
    """Runs the programs of one rollout again.

    Args:
        row: the rollout.
        real: what runs programs.
    """

    def __init__(self, row: Rollout, real: Interpreter) -> None:
        self._real = real
        self._steps = [step for step in row.steps if _code(step) is not None]
        self._codes: list[str] = []
        self.calls = self.apart = 0

    async def run(self, code: str, *, session: str | None = None, timeout_s: float = TIMEOUT_S) -> Result:
        if self.calls >= len(self._steps):
            raise Diverged(f"a program is run after the {self.calls} that are recorded")
        step = self._steps[self.calls]
        self.calls += 1
        self._codes.append(code)
        result = await self._real.run(code, session=session, timeout_s=timeout_s)
        recorded = _recorded(step)
        if _same(result, recorded):
            return result
        if recorded.status in _LIMITS or result.status in _LIMITS or _VARIES.search(code):
            self.apart += 1
        elif not await self._varies(result, recorded, session is not None, timeout_s):
            said = text_differs("result", result.text, step.observation)
            raise Diverged(f"Python call {self.calls}: {said}")
        else:
            self.apart += 1
        return recorded

    async def _varies(self, first: Result, recorded: _Ran, kept: bool, timeout_s: float) -> bool:
        """Whether further runs give the recorded result, or differ."""
        for number in range(AGAIN):
            session = f"replay-{id(self)}-{number}" if kept else None
            for code in self._codes if kept else self._codes[-1:]:
                result = await self._real.run(code, session=session, timeout_s=timeout_s)
            if session is not None:
                self._real.forget_session(session)
            if _same(result, recorded) or not _same(result, _Ran(first.ok, first.status, first.text)):
                return True
        return False

    def forget_session(self, session: str) -> None:
        self._real.forget_session(session)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None


class RecordedRetriever:
    """Gives the passages that the recorded observations show, for an index that is not here."""

    name = "recorded"
    retriever_id = "recorded"

    def __init__(self, row: Rollout) -> None:
        self._shown = [text for text in map(_result_text, row.steps) if text is not None]
        self.searches = 0

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:  # noqa: ARG002
        found: list[list[Hit]] = []
        for _ in queries:
            if self.searches >= len(self._shown):
                raise Diverged(f"a search is made after the {self.searches} that are recorded")
            found.append(_hits(self._shown[self.searches]))
            self.searches += 1
        return found

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None


class CountingRetriever:
    """The pinned index, with a count of the searches of one rollout."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.name, self.retriever_id = real.name, real.retriever_id
        self.searches = 0

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.searches += len(queries)
        found: list[list[Hit]] = await self._real.search(queries, k)
        return found

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None


def _code(step: Step) -> str | None:
    """The program that a step ran; None where it ran none."""
    call = parse_action(step.action or "")
    if not isinstance(call, ToolCall):
        return None
    code, problem = read_call(call)
    return None if problem else code


def _recorded(step: Step) -> _Ran:
    ok = step.event == "ok"
    return _Ran(ok, "finished" if step.event in ("ok", "error") else step.event, step.observation)


def _same(result: Result, recorded: _Ran) -> bool:
    return (result.ok, result.status, result.text) == (recorded.ok, recorded.status, recorded.text)


def _result_text(step: Step) -> str | None:
    """What a search that was run showed; None for any other step."""
    if step.action is None or step.event not in ("ok", "no_results"):
        return None
    try:
        shown = msgspec.json.decode(step.observation, type=dict[str, str]).get("result")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return shown


def _hits(shown: str) -> list[Hit]:
    """The passages of a result, of two lines each."""
    if shown == NO_RESULTS:
        return []
    lines = shown.split("\n")
    hits = []
    for number in range(0, len(lines) - 1, 2):
        title = _DOCUMENT.fullmatch(lines[number])
        if title is None:
            raise Diverged(f"the recorded result of a search is none: {lines[number]!r:.80}")
        hits.append(Hit(Passage(str(number), title[1], lines[number + 1]), 0.0))
    return hits
