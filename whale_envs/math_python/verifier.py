r"""Judges the boxed answer of a response under both profiles at once.

    >>> from whale_envs.math_python.examples import load_examples
    >>> problem = load_examples("mini", "dev")[0]
    >>> verify(problem, rf"So the answer is \boxed{{{problem.gold}}}.").reward
    1.0
    >>> same_answer(r"\frac{1}{2}", "0.50")
    True

* `standard`: the last complete box outside thinking (`answers.read_answer`), compared as
  `equality.same` says: exactly for numbers, by math-verify in a killable process for the rest.
* `paper`: the published rule (reference §4.2). In the last 100 characters of the response as it is,
  thinking included, the content of the last `\boxed{…}` must equal the gold answer as a string.

Reasons: "correct", "wrong_answer", "no_answer", "too_complex" (not decided within the limits of
time and memory, so wrong) and "verifier_error": the helper failed, `standard` is None, and the
caller must treat that as a failure of infrastructure, not as a verdict (`raise_for_error`).

Every call returns within 5 s, whatever the text and whoever else is calling: a check is given
`worker.CHECK_SECONDS` from the call, waiting and the loading of libraries included, and 500 MB for all
checks of this process together, in other processes. Any thread may call; `averify` is for event loops.

Not covered: answers outside a box, partial credit, judging the reasoning.
"""

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from whale_envs.core import Profile, Verdict
from whale_envs.math_python.answers import read_answer
from whale_envs.math_python.equality import Symbolic, UndecidedError, same, undecided
from whale_envs.math_python.examples import MathProblem
from whale_envs.math_python.values import TooComplexError
from whale_envs.math_python.worker import POOL, Allowance, VerifierError

PAPER_TAIL = 100
"""Characters at the end of a response that the published rule looks at."""
MOST_THREADS = 64
"""Threads that wait for `averify`; they do nothing else."""
_GRACE_SECONDS = 0.3


def verify(problem: MathProblem, response: str, *, profile: Profile = "standard") -> Verdict:
    """The verdict on a final response. Total: whatever the text is, a verdict comes back."""
    allowance = Allowance()
    answer, decided = _fast(problem.gold, response)
    if decided is None:
        assert answer is not None
        decided = _slow(problem.gold, answer, allowance)
    return _verdict(problem.gold, response, answer, decided, profile)


async def averify(problem: MathProblem, response: str, *, profile: Profile = "standard") -> Verdict:
    """As `verify`, without holding up the event loop while math-verify works."""
    allowance = Allowance()
    answer, decided = _fast(problem.gold, response)
    if decided is None:
        assert answer is not None
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(_threads(), partial(_slow, problem.gold, answer, allowance))
        try:
            decided = await asyncio.wait_for(work, allowance.deadline - time.monotonic() + _GRACE_SECONDS)
        except TimeoutError:  # no thread was free
            decided = "verifier_error"
    return _verdict(problem.gold, response, answer, decided, profile)


def same_answer(gold: str, answer: str) -> bool:
    """Whether two answers without boxes are equal under the standard profile.

    Raises:
        VerifierError: the symbolic helper failed, or others took all its time.
    """
    try:
        return same(gold, answer, _symbolic(Allowance()))
    except TooComplexError:
        return False


def check(gold: str, response: str) -> bool:
    """Whether a response's boxed answer equals the gold answer under the standard profile.

    Raises:
        VerifierError: the symbolic helper failed, or others took all its time.
    """
    answer = read_answer(response)
    return answer is not None and same_answer(gold, answer)


def raise_for_error(verdict: Verdict) -> Verdict:
    """The verdict itself, if it is one.

    Raises:
        VerifierError: it only says that the verifier failed.
    """
    if verdict.reason == "verifier_error":
        raise VerifierError(f"the symbolic verifier failed on the answer {verdict.answer!r:.200}")
    return verdict


def paper_answer(response: str) -> str | None:
    r"""What the published rule reads: the last `\boxed{…}` of the last 100 characters, or None."""
    tail = response[-PAPER_TAIL:]
    start = tail.rfind("\\boxed{")
    if start < 0:
        return None
    depth = 0
    for at in range(start, len(tail)):
        depth += (tail[at] == "{") - (tail[at] == "}")
        if tail[at] == "}" and not depth:
            return tail[start + len("\\boxed{") : at]
    return None


def warm_up() -> None:
    """Starts the symbolic helper ahead of the first check, whose time its start would else count against."""
    with suppress(TooComplexError, VerifierError):  # a check will say so
        POOL.same("2", r"\sqrt{4}", Allowance(60.0))


Decision = bool | str
"""True, False, or the reason why there is neither: "too_complex" or "verifier_error"."""


def _fast(gold: str, response: str) -> tuple[str | None, Decision | None]:
    """(answer, decision), the latter None where the symbolic helper is needed."""
    answer = read_answer(response)
    if answer is None:
        return None, False
    try:
        return answer, same(gold, answer, undecided)
    except UndecidedError:
        return answer, None
    except TooComplexError:
        return answer, "too_complex"


def _slow(gold: str, answer: str, allowance: Allowance) -> Decision:
    try:
        return same(gold, answer, _symbolic(allowance))
    except TooComplexError:
        return "too_complex"
    except VerifierError:
        return "verifier_error"


def _symbolic(allowance: Allowance) -> Symbolic:
    """The helper for one check; what its comparisons may take together is bounded."""
    return partial(POOL.same, allowance=allowance)


def _verdict(gold: str, response: str, answer: str | None, decided: Decision, profile: Profile) -> Verdict:
    published = paper_answer(response)
    paper = float(published == gold)
    standard = None if decided == "verifier_error" else float(decided is True)
    read = answer if profile == "standard" else published
    reward = paper if profile == "paper" else standard or 0.0
    if profile == "standard" and isinstance(decided, str):
        reason = decided
    elif read is None:
        reason = "no_answer"
    else:
        reason = "correct" if reward else "wrong_answer"
    return Verdict(
        reward=reward,
        reason=reason,
        answer=read,
        format_ok=read is not None,
        standard=standard,
        paper=paper,
    )


_lock = threading.Lock()
_executor: tuple[int, ThreadPoolExecutor] | None = None


def _threads() -> ThreadPoolExecutor:
    """Threads that only wait for the helper's processes; a forked child gets its own."""
    global _executor  # noqa: PLW0603 - one per process, made when first needed
    with _lock:
        if _executor is None or _executor[0] != os.getpid():
            _executor = (os.getpid(), ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="math-verify"))
        return _executor[1]
