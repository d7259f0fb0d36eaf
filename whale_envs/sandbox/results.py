r"""What a call of the interpreter tool gives back, and how it reads.

    >>> RunResult(status="finished", stdout="42\n", exit_code=0).text
    '42\n'

`text` is what a model sees: standard output, then standard error, at most 4,096 characters, cut in
the middle with a note that says how much is left out; a fixed text where nothing was printed; and a
last line that says so where the program did not end by itself. Always valid UTF-8.

Not covered: the order in which a program wrote to the two streams.
"""

from typing import Literal, get_args

import msgspec

TEXT_CHARS = 4_096
"""Longest `RunResult.text`, in characters (reference §4.2)."""

Status = Literal["finished", "timed_out", "memory", "output_limit", "crashed", "refused"]
"""How a program ended.

finished: by itself, whatever its exit status; an uncaught exception is exit status 1.
timed_out: at its wall or CPU time limit. memory: at its memory limit, by an uncaught MemoryError or
from outside. output_limit: for writing more than the limit. crashed: by a signal, its own fault or
its own doing. refused: not started, because the text is too long to be a program.

Where a program is process 1 of a namespace, the kernel passes over signals that it sends to itself and
does not handle (os.kill(os.getpid(), 9), signal.alarm), and abort is a crash by signal 11.
"""

STATUSES: tuple[Status, ...] = get_args(Status)

_LOST = "(the program ended its process or left a thread running; the session's variables are lost)"
_SAID = {
    "timed_out": "stopped at the time limit of {limit}",
    "memory": "stopped at the memory limit of {limit}",
    "output_limit": "stopped for printing more than {limit}",
    "crashed": "ended by signal {signal}",
    "refused": "not run: longer than {limit}",
}


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """One finished call. Serialises to JSON as it is."""

    status: Status
    stdout: str = ""
    """Valid text; of a long stream its beginning, a note and its end."""
    stderr: str = ""
    exit_code: int | None = None
    """None where a signal ended the program."""
    signal: int | None = None
    seconds: float = 0.0
    """Wall time of the program."""
    cpu_seconds: float = 0.0
    """Of its processes that were waited for; 0 in a session."""
    waited_seconds: float = 0.0
    """In the queue, before its time limit began."""
    left_out: int = 0
    """Characters that neither `stdout` nor `stderr` holds."""
    session_lost: bool = False
    """True where the call ended its session: the next one begins without variables."""
    limit: str = ""
    """The limit that was reached, for people, e.g. "5 s"."""

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself and without an error."""
        return self.status == "finished" and self.exit_code == 0

    @property
    def text(self) -> str:
        """What the tool shows to a model."""
        shown = self.stdout + self.stderr
        note = self._note()
        if not shown:
            return note or "(finished; nothing was printed)"
        if not note:
            return cut(shown, TEXT_CHARS, left_out=self.left_out)
        last = ("" if shown.endswith("\n") else "\n") + note
        return cut(shown, TEXT_CHARS - len(last), left_out=self.left_out) + last

    def _note(self) -> str:
        if self.status == "finished":
            return _LOST if self.session_lost else ""
        said = _SAID[self.status].format(limit=self.limit or "this call", signal=self.signal)
        lost = "; the session's variables are lost" if self.session_lost else ""
        nothing = "" if self.stdout or self.stderr else "; nothing was printed"
        return f"({said}{nothing}{lost})"


def cut(text: str, most: int, *, left_out: int = 0) -> str:
    r"""At most `most` characters of `text`: both ends, and between them how many are missing.

    `left_out` counts characters that `text` has lost before, in its middle.

    >>> cut("a" * 50 + "b" * 50, 40)
    'aaaaa\n… [91 characters left out] …\nbbbb'
    """
    if len(text) <= most:
        return text
    note = _note_of(len(text) + left_out)
    room = max(0, most - len(note))
    front, back = (room + 1) // 2, room // 2
    missing = len(text) + left_out - front - back
    return text[:front] + _note_of(missing) + text[len(text) - back :]


def _note_of(count: int) -> str:
    return f"\n… [{count:,} characters left out] …\n"


def stream_text(head: bytes, characters: int, dropped: int, tail: bytes) -> tuple[str, int]:
    """(text, characters left out) of one stream as the supervisor keeps it."""
    if not dropped:
        return (head + tail).decode("utf-8", "replace"), 0
    note = _note_of(characters)
    text = head.decode("utf-8", "replace") + note + tail.decode("utf-8", "replace")
    return text, max(0, characters - len(note))
