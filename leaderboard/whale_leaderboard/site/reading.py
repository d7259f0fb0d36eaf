"""Reads what the pages of many entries show, in several processes where there are many.

    with reading(submissions) as read:
        one = read(submissions[0])
        one.contents, one.replays

Each process takes every n-th bundle, from a file of jobs to a file of answers: no pipe can fill up, and while
they work the caller ranks. They are this module, run as a program; `multiprocessing` would run the caller's
script again, which need not be made for that.

Not covered: what is read, see `contents.py`.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from whale_bench.garbage import fewer_collections
from whale_bench.view.hidden import plain
from whale_bench.view.page import shell
from whale_envs import InfrastructureError, UsageError
from whale_leaderboard.report import Report
from whale_leaderboard.results import Submission, page_of
from whale_leaderboard.site.contents import Contents, read_contents

WORTH = 16
"""Bundles for which a further process is worth its start."""


class Ready(NamedTuple):
    """What is to be shown of an entry."""

    contents: Contents
    replays: str
    """The page of its replays."""


class _Job(msgspec.Struct):
    path: str
    name: str
    report: Report


class _Answer(msgspec.Struct):
    ready: Ready | None = None
    error: str = ""
    infrastructure: bool = False


@contextmanager
def reading(submissions: Sequence[Submission]) -> Iterator[Callable[[Submission], Ready]]:
    """Gives a function that reads a submission, or waits for the process that does.

    Raises:
        UsageError: the bundle is not the one that its report is of.
        InfrastructureError: there is no room for it, or a process was killed.
    """
    count = min(os.cpu_count() or 1, len(submissions) // WORTH)
    if count < 2:
        yield _read
        return
    with ExitStack() as stack:
        running = [
            stack.enter_context(_Process(submissions[number::count], stack)) for number in range(count)
        ]
        answers: dict[str, Ready] = {}

        def read(one: Submission) -> Ready:
            while running:
                answers.update(running.pop(0).answers())
            return answers[one.name]

        yield read


def _read(one: Submission) -> Ready:
    contents = read_contents(one.path, one.report)
    assert one.report.manifest is not None
    page = shell(
        {"source": "embedded", "back": {"href": f"../{page_of(one.name)}", "label": "‹ the entry"}},
        title=f"Replays of {plain(one.report.manifest.about.agent)}",
        data=contents.replays,
    )
    return Ready(contents._replace(replays=b""), page.html)


class _Process:
    """A process that reads some of the bundles; it ends with the context."""

    def __init__(self, submissions: Sequence[Submission], stack: ExitStack) -> None:
        self._names = [one.name for one in submissions]
        # They end with the stack.
        self._jobs = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        self._out = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        for one in submissions:
            job = _Job(str(one.path.resolve()), one.name, one.report)
            self._jobs.write(msgspec.json.encode(job) + b"\n")
        self._jobs.seek(0)

    def __enter__(self) -> "_Process":
        command = [sys.executable, "-m", "whale_leaderboard.site.reading"]
        self._process = subprocess.Popen(command, stdin=self._jobs, stdout=self._out)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def answers(self) -> Iterator[tuple[str, Ready]]:
        """(name, what was read), once it has ended."""
        code = self._process.wait()
        self._out.seek(0)
        decode = msgspec.json.Decoder(_Answer).decode
        for name in self._names:
            line = self._out.readline()
            if not line.endswith(b"\n"):
                raise InfrastructureError(f"the process that reads {name} ended with {code}")
            answer = decode(line)
            if answer.ready is None:
                raise (InfrastructureError if answer.infrastructure else UsageError)(answer.error)
            yield name, answer.ready


def _serve(jobs: IO[bytes], out: IO[bytes]) -> None:
    decode = msgspec.json.Decoder(_Job).decode
    for line in jobs:
        job = decode(line)
        try:
            answer = _Answer(_read(Submission(Path(job.path), job.name, job.report)))
        except (UsageError, InfrastructureError) as error:
            answer = _Answer(error=str(error), infrastructure=isinstance(error, InfrastructureError))
        out.write(msgspec.json.encode(answer) + b"\n")
        if answer.ready is None:
            return


if __name__ == "__main__":
    with fewer_collections():  # a bundle's records are many and hold no cycles
        _serve(sys.stdin.buffer, sys.stdout.buffer)
