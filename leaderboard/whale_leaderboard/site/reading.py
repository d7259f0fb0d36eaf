"""Reads what entries' pages show and writes their replays' pages, in several processes where there are many.

    with reading(submissions, folder / "replays") as ready:
        for one, contents in ready: ...

The caller and one process for each further processor take the next bundle that nobody has taken, so that none
waits for another: a bundle is taken by who makes the file of its number. Processes answer into a file, for no
pipe can fill up then. They are this module, run as a program; `multiprocessing` would run the caller's script
again, which need not be made for that.

Not covered: what is read, see `contents.py`.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

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
_JOBS = "jobs.jsonl"


class _Job(msgspec.Struct):
    path: str
    name: str
    report: Report


class _Answer(msgspec.Struct):
    number: int
    contents: Contents | None = None
    error: str = ""
    infrastructure: bool = False


@contextmanager
def reading(
    submissions: Sequence[Submission], replays: Path
) -> Iterator[Iterator[tuple[Submission, Contents]]]:
    """Gives every submission with its contents, in no order; its replays' page is written by then.

    Args:
        submissions: to be read.
        replays: folder of the replays' pages.

    Raises:
        UsageError: a bundle is not the one that its report is of.
        InfrastructureError: a process was killed.
    """
    count = min(os.cpu_count() or 1, len(submissions) // WORTH)
    with ExitStack() as stack:
        taken = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="whale-reading-")))
        jobs = (_Job(str(one.path.resolve()), one.name, one.report) for one in submissions)
        if count > 1:
            (taken / _JOBS).write_bytes(b"".join(msgspec.json.encode(job) + b"\n" for job in jobs))
        others = [stack.enter_context(_Process(taken, replays)) for _ in range(count - 1)]
        yield _ready(submissions, taken, replays, others)


def _ready(
    submissions: Sequence[Submission], taken: Path, replays: Path, others: Sequence["_Process"]
) -> Iterator[tuple[Submission, Contents]]:
    left = dict(enumerate(submissions))
    for number in _free(len(submissions), taken):
        one = left.pop(number)
        yield one, _read(one, replays)
    for other in others:
        for number, contents in other.answers():
            yield left.pop(number), contents
    for one in left.values():
        raise InfrastructureError(f"the process that reads {one.name} was ended")


def _free(count: int, taken: Path) -> Iterator[int]:
    """Numbers of bundles that nobody has taken, each taken now."""
    for number in range(count):
        try:
            os.close(os.open(taken / str(number), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        yield number


def _read(one: Submission, replays: Path) -> Contents:
    contents = read_contents(one.path, one.report)
    assert one.report.manifest is not None
    page = shell(
        {"source": "embedded", "back": {"href": f"../{page_of(one.name)}", "label": "‹ the entry"}},
        title=f"Replays of {plain(one.report.manifest.about.agent)}",
        data=contents.replays,
    )
    (replays / f"{one.name}.html").write_text(page.html, encoding="utf-8", newline="\n")
    return contents._replace(replays=b"")


class _Process:
    """A process that reads some of the bundles; it ends with the context."""

    def __init__(self, taken: Path, replays: Path) -> None:
        self._folders = [str(taken), str(replays)]

    def __enter__(self) -> "_Process":
        self._out = tempfile.TemporaryFile()
        command = [sys.executable, "-m", "whale_leaderboard.site.reading", *self._folders]
        self._process = subprocess.Popen(command, stdout=self._out)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._out.close()

    def answers(self) -> Iterator[tuple[int, Contents]]:
        """(number, what was read), once it has ended."""
        self._process.wait()
        self._out.seek(0)
        decode = msgspec.json.Decoder(_Answer).decode
        for line in self._out:
            if not line.endswith(b"\n"):
                return
            answer = decode(line)
            if answer.contents is None:
                raise (InfrastructureError if answer.infrastructure else UsageError)(answer.error)
            yield answer.number, answer.contents


def _serve(taken: Path, replays: Path) -> Iterator[_Answer]:
    jobs = (taken / _JOBS).read_bytes().splitlines()
    decode = msgspec.json.Decoder(_Job).decode
    for number in _free(len(jobs), taken):
        job = decode(jobs[number])
        one = Submission(Path(job.path), job.name, job.report)
        try:
            yield _Answer(number, _read(one, replays))
        except (UsageError, InfrastructureError) as error:
            yield _Answer(number, error=str(error), infrastructure=isinstance(error, InfrastructureError))
            return


if __name__ == "__main__":
    with fewer_collections():  # a bundle's records are many and hold no cycles
        for answer in _serve(*map(Path, sys.argv[1:])):
            sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
