"""Tools in a replay: made again, and compared with what they gave then.

    interpreter = ReplayedInterpreter(row, sandbox, trials)
    await interpreter.run(code)                          # the recorded result; `interpreter.apart` counts

A Python program that gives another result than recorded is tried further (`varying.py`). Where its results
vary so that the recorded one may be one of them, it is counted apart, and the replay goes on with the
recorded one. Otherwise the recorded result is not what the program gives: `Diverged`.

A search of an index that is not here gives what is recorded.

Not covered: how results vary, see `varying.py`.
"""

import re
from collections.abc import Sequence
from typing import Any, Self

import msgspec

from whale_bench.records import Rollout, Step
from whale_envs.core import ToolCall, parse_action
from whale_envs.math_python.tools import TIMEOUT_S, Interpreter, Result, read_call
from whale_envs.retrieval.base import Hit, Passage
from whale_envs.search_qa.tools import NO_RESULTS
from whale_leaderboard.recorded import Diverged, text_differs
from whale_leaderboard.varying import Trials, ran, recorded_of

_DOCUMENT = re.compile(r"Document \d+: (.*)")


class ReplayedInterpreter:
    """Runs the programs of one rollout again.

    Args:
        row: the rollout.
        real: what runs programs.
        trials: what tells whether results vary.
    """

    def __init__(self, row: Rollout, real: Interpreter, trials: Trials) -> None:
        self._real, self._trials = real, trials
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
        first, recorded = ran(result), recorded_of(step)
        if first == recorded:
            return result
        kept = session is not None
        if not await self._trials.explain(self._codes, recorded, first, kept=kept, timeout_s=timeout_s):
            differs = (
                f"ends as {first.status}, {recorded.status} is recorded"
                if first.text == recorded.text
                else text_differs("result", first.text, recorded.text)
            )
            raise Diverged(f"Python call {self.calls}: {differs}")
        self.apart += 1
        return recorded

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
