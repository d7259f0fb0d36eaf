"""What the host and the supervisor say to one another: frames of numbers and bytes, never objects.

    frame = FRAME.pack(len(payload), kind, call) + payload

Not covered: versions. Both ends are always of the same installation.
"""

import struct

FRAME = struct.Struct("<IBQ")
"""Bytes that follow, kind, number of the call."""

RUN, CANCEL, PING, FORGET = 1, 2, 3, 4
"""From the host; FORGET ends a session whose name is the payload."""

RESULT, PONG, FAILED, BUSY = 11, 13, 14, 15
"""From the supervisor; FAILED says in words why it cannot serve, BUSY that a session's call runs."""

RUN_HEAD = struct.Struct("<dH")
"""Seconds, bytes of the session's name; the name and the program follow."""

FINISHED, TIMED_OUT, MEMORY, OUTPUT_LIMIT, CRASHED = 0, 1, 2, 3, 4
"""How a call ended."""

ENDED = struct.Struct("<BidddB")
"""How, exit status or minus signal, wall seconds, CPU seconds, seconds waited in the queue, whether a
session's variables are lost; two streams follow."""

STREAM = struct.Struct("<IQQI")
"""Bytes of the beginning, characters and bytes left out, bytes of the end; the two parts follow."""


class Kept:
    """The beginning and the end of a stream, `half` bytes of either, whatever its length."""

    def __init__(self, half: int) -> None:
        self.half = half
        self.total = 0
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0
        self._dropped_characters = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self.half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self.half:
            self._drop(len(self._tail) - self.half)

    def pack(self) -> bytes:
        """As it goes to the host; cut between characters."""
        if len(self._tail) > self.half:
            self._drop(len(self._tail) - self.half)
        head, tail = self._head, self._tail
        if self._dropped:
            start = next((i for i, byte in enumerate(tail[:4]) if byte & 0xC0 != 0x80), len(tail) % 4)
            end = _last_whole(head)
            whole = int(end < len(head))
            self._count(bytes(tail[:start]), 0)
            self._count(bytes(head[end:]), whole - _characters(head[end:]))
            head, tail = head[:end], tail[start:]
        numbers = STREAM.pack(len(head), self._dropped_characters, self._dropped, len(tail))
        return b"".join([numbers, head, tail])

    def _drop(self, count: int) -> None:
        self._count(bytes(self._tail[:count]), 0)
        del self._tail[:count]

    def _count(self, data: bytes, extra: int) -> None:
        self._dropped += len(data)
        self._dropped_characters += _characters(data) + extra


_CONTINUATION = bytes(range(0x80, 0xC0))


def _characters(data: bytes | bytearray) -> int:
    return len(data.translate(None, _CONTINUATION))


def _last_whole(head: bytearray) -> int:
    """Length of `head` without an unfinished last character."""
    for back in range(1, min(4, len(head)) + 1):
        byte = head[-back]
        if byte & 0xC0 != 0x80:
            needs = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(head) - back if back < needs else len(head)
    return len(head)
