r"""Whether a Python result that differs from the recorded one does so because the program's results vary.

    async with Trials(interpreter) as trials:
        await trials.explain(codes, recorded, first, kept=False, timeout_s=30.0)     # "" or why not

What a program says of itself (the names that stand in it) counts for nothing. It is run again: beside the
first run, in another life of the interpreter (other addresses), where clocks, dates and
machine names are others and unseeded `random` draws from another distribution, under other hash seeds (this
interpreter has one alone, a server's programs may each have another; believed only where the program does
under this one as it did before), and several times more. A
part of the output that is the same in all these runs has to be the same in the recorded one, too; parts that
vary may differ, but in kind (a number, a word). Items of a displayed set or dict have no order:

    >>> explained("{'b', 'a'} at 12.5", ["{'a', 'b'} at 13.0", "{'a', 'b'} at 14.25"])
    True
    >>> explained("43 at 12.5", ["42 at 13.0", "42 at 14.25"])
    False

A limit that was reached then and is not now is believed where the same program reaches it here when it has
a hundredth of the time, or a quarter of the memory. Where it is reached here and was not then, this
machine is too slow or too small to say.

Not covered: results of another version of Python or of a library, or of a network, which differ as false ones
do; hash seeds where this machine lets no program start another, or for a program that goes by more of its
process than a seed; numbers that a program draws and then prints, which could be any.
"""

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from itertools import count, takewhile
from typing import Any, NamedTuple, Self

from whale_bench.records import Step
from whale_envs.math_python.tools import Interpreter, Result
from whale_envs.sandbox import Limits, Sandbox
from whale_leaderboard.reseeded import reseeded

AGAIN = 8
"""Further runs in the first interpreter before results count as equal."""

SEEDS = 10
"""Hash seeds beside the first run's; two names of a set keep one order under all in one case of 1,024."""

LIMITS = ("timed_out", "memory", "output_limit", "crashed")
_OF_MEMORY = ("memory", "crashed")
_FASTER = 100
"""How much slower the machine of the recording may have been, where a time limit ended a program there."""
_SMALL_MB = 256
"""Memory that the machine of the recording had at least for a program."""

_TOKEN = re.compile(
    r"(?P<number>0x[0-9a-fA-F]+|(?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)"
    r"|(?P<word>[^\W\d]+)|(?P<space>\s+)|(?P<other>.)",
    re.DOTALL,
)
_BRACES = re.compile(r"\{([^{}]*)\}")

OTHER_WORLD = """
def _other_world():
    import datetime, os, platform, random, sys, time
    late = 4e7
    def clock(plain):
        def read():
            nonlocal late
            late += real.random() * 3
            return plain() + late
        return read
    real = random.Random()
    for name in ("time", "perf_counter", "monotonic", "process_time", "thread_time"):
        read = clock(getattr(time, name))
        setattr(time, name, read)
        setattr(time, name + "_ns", lambda read=read: int(read() * 1e9))
    for name in ("localtime", "gmtime", "ctime"):
        plain = getattr(time, name)
        setattr(time, name, lambda at=None, plain=plain: plain(time.time() if at is None else at))
    plain_format = time.strftime
    time.strftime = lambda form, at=None: plain_format(form, at or time.localtime())
    class date(datetime.date):
        today = classmethod(lambda cls: cls.fromtimestamp(time.time()))
    class moment(datetime.datetime):
        now = classmethod(lambda cls, tz=None: cls.fromtimestamp(time.time(), tz))
        today = classmethod(lambda cls: cls.now())
        utcnow = classmethod(lambda cls: cls.fromtimestamp(time.time()))
    moment.__name__ = moment.__qualname__ = "datetime"
    datetime.date, datetime.datetime = date, moment
    count = os.cpu_count
    os.cpu_count = lambda: count() + 3
    for name in ("node", "platform", "processor", "release", "version", "python_version", "python_build"):
        setattr(platform, name, lambda *_, **__: real.randbytes(4).hex())
    sys.version = real.randbytes(8).hex()
    class Skewed(random.Random):
        fixed = False
        def seed(self, a=None, version=2):
            self.fixed = a is not None
            super().seed(a, version)
        def random(self):
            drawn = super().random()
            return drawn if self.fixed else drawn**8
        def getrandbits(self, k):
            drawn = super().getrandbits(k)
            return drawn if self.fixed else drawn & super().getrandbits(k) & super().getrandbits(k)
    random._inst = Skewed()
    for name in random.__all__:
        if hasattr(Skewed, name):
            setattr(random, name, getattr(random._inst, name))
_other_world()
del _other_world
"""
"""Run in a session before the program: what a program may read of the world is another one there."""


class Ran(NamedTuple):
    """A result as the environment reads it."""

    ok: bool
    status: str
    text: str


def ran(result: Result) -> Ran:
    """A result of an interpreter."""
    return Ran(result.ok, result.status, result.text)


def recorded_of(step: Step) -> Ran:
    """The result that a step has on record."""
    ok = step.event == "ok"
    return Ran(ok, "finished" if step.event in ("ok", "error") else step.event, step.observation)


class Trials:
    """Runs programs again until their result is explained; other lives are begun when first needed.

    Args:
        real: the interpreter of the first run.
    """

    def __init__(self, real: Interpreter) -> None:
        self._real = real
        self._stack = AsyncExitStack()
        self._lives: dict[str, Any] = {}
        self._numbers = count()

    async def explain(
        self, codes: Sequence[str], recorded: Ran, first: Ran, *, kept: bool, timeout_s: float
    ) -> bool:
        """Whether the last program's recorded result is one that it may have given.

        Args:
            codes: the programs of the rollout so far; the last one is in question.
            recorded: its result on record.
            first: its result here.
            kept: whether the programs share their variables.
            timeout_s: of each.

        Raises:
            UsageError, InfrastructureError: a further interpreter cannot be started here.
        """
        if first.status in LIMITS and recorded.status not in LIMITS:
            return first.status in ("timed_out", "memory")
        seen = [first]
        if _one_of(recorded, seen):
            return True
        if recorded.status in LIMITS and await self._tight(codes, recorded, kept, timeout_s):
            return True
        async for result in self._runs(codes if kept else codes[-1:], kept, timeout_s):
            seen.append(result)
            if _one_of(recorded, seen):
                return True
        return recorded.ok and await self._reseeded(codes if kept else codes[-1:], recorded, seen, timeout_s)

    async def _reseeded(self, codes: Sequence[str], recorded: Ran, seen: list[Ran], timeout_s: float) -> bool:
        """Whether the result is one under another hash seed.

        A program may tell that it runs otherwise here: so it is run under the sandbox's own seed first, and
        has to give what it gave there. Where the seeds make few results, each part of the recorded one has
        to stand in one of them.
        """
        control = await self._seeded(codes, 0, timeout_s)
        if not control.ok or not _one_of(control, seen):  # as where nothing may be started
            return False
        results = [*seen, control]
        for seed in range(1, SEEDS + 1):
            results.append(await self._seeded(codes, seed, timeout_s))
            if not results[-1].ok:
                return False
            if _one_of(recorded, results) and _parts(recorded.text) <= _parts(*(r.text for r in results)):
                return True
        many = len({result.text for result in results[-SEEDS:]}) > SEEDS // 2
        return many and _one_of(recorded, results)

    async def _seeded(self, codes: Sequence[str], seed: int, timeout_s: float) -> Ran:
        return await self._run(self._real, [reseeded(codes, seed)], False, timeout_s)

    async def _runs(self, codes: Sequence[str], kept: bool, timeout_s: float) -> AsyncIterator[Ran]:
        yield await self._run(self._real, codes, kept, timeout_s)
        other = await self._life("other", Limits())
        yield await self._run(other, codes, kept, timeout_s)
        yield await self._run(other, (OTHER_WORLD, *codes), True, timeout_s)
        for _ in range(AGAIN):
            yield await self._run(self._real, codes, kept, timeout_s)

    async def _tight(self, codes: Sequence[str], recorded: Ran, kept: bool, timeout_s: float) -> bool:
        """Whether the limit is reached by the same programs where there is less of everything."""
        small = await self._life("small", Limits(memory_mb=_SMALL_MB, output_mb=8))
        seconds = timeout_s / _FASTER if recorded.status == "timed_out" else timeout_s
        result = await self._run(small, codes if kept else codes[-1:], kept, seconds)
        same = result.status == recorded.status or {result.status, recorded.status} <= set(_OF_MEMORY)
        said, here = (text.rstrip("\n").rpartition("\n")[0] for text in (recorded.text, result.text))
        shorter = min(len(said), len(here))
        return same and said[:shorter] == here[:shorter]

    async def _run(self, where: Any, codes: Sequence[str], kept: bool, timeout_s: float) -> Ran:
        """The result of the last of these programs."""
        session = f"trial-{id(self)}-{next(self._numbers)}" if kept else None
        try:
            for code in codes:
                result = await where.run(code, session=session, timeout_s=timeout_s)
        finally:
            if session is not None:
                where.forget_session(session)
        return ran(result)

    async def _life(self, name: str, limits: Limits) -> Any:
        if name not in self._lives:
            self._lives[name] = Sandbox(limits=limits)
            await self._stack.enter_async_context(self._lives[name])
        return self._lives[name]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()


def explained(recorded: str, seen: Sequence[str]) -> bool:
    """Whether a text agrees with what all texts have in common, and differs only where these vary.

    Texts of which some have more parts than others are compared by their first and last lines.
    """
    then, *now = (_tokens(text) for text in (recorded, *seen))
    if len({_shape(tokens) for tokens in now}) == 1:
        return _agrees(then, now)
    ends = [(text.split("\n", 1)[0], text.rstrip("\n").rpartition("\n")[2]) for text in (recorded, *seen)]
    return all(
        _agrees(mine, others) or _begins_and_ends(mine, others)
        for mine, *others in (map(_tokens, column) for column in zip(*ends, strict=True))
    )


def _one_of(recorded: Ran, seen: Sequence[Ran]) -> bool:
    ends = {(result.ok, result.status) for result in seen}
    if (recorded.ok, recorded.status) not in ends:
        return False
    alike = [result.text for result in seen if (result.ok, result.status) == (recorded.ok, recorded.status)]
    return explained(recorded.text, alike)


def _tokens(text: str) -> list[tuple[str, str]]:
    """(kind, text) of its numbers, words, spaces and signs, items in braces sorted."""
    ordered = _BRACES.sub(lambda found: "{" + ", ".join(sorted(found[1].split(", "))) + "}", text)
    return [(str(found.lastgroup), found[0]) for found in _TOKEN.finditer(ordered)]


def _parts(*texts: str) -> set[tuple[str, str]]:
    return {token for text in texts for token in _tokens(text)}


def _shape(tokens: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(kind for kind, _ in tokens)


def _agrees(then: list[tuple[str, str]], now: Sequence[list[tuple[str, str]]]) -> bool:
    """Whether all are of one shape, and those parts the same that are the same in all of `now`."""
    if {_shape(then)} != {_shape(tokens) for tokens in now}:
        return False
    return all(len(set(column)) > 1 or token in column for token, *column in zip(then, *now, strict=True))


def _begins_and_ends(then: list[tuple[str, str]], now: Sequence[list[tuple[str, str]]]) -> bool:
    """Whether texts of several shapes share a beginning and an end, and `then` has both."""
    if len({_shape(tokens) for tokens in now}) == 1:
        return False
    for tokens, others in ((then, now), (then[::-1], [other[::-1] for other in now])):
        columns = takewhile(lambda column: len(set(column)) == 1, zip(*others, strict=False))
        if any(token not in column for token, column in zip(tokens, columns, strict=False)):
            return False
    return True
