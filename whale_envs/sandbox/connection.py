"""The host's end: one connection to the supervisor per event loop, many calls at once on each.

Not covered: starting and restarting the supervisor (`client`).
"""

import asyncio
import contextlib
import itertools
import socket

from whale_envs.sandbox.warm import wire

_CHUNK = 262_144
_BEAT_SECONDS = 10.0
_MOST_MISSED = 30
"""Patience with a supervisor on a machine that others keep busy; one that ended is noticed at once."""


class SupervisorLostError(Exception):
    """The supervisor ended, or has not answered for minutes."""


class Connection:
    """Belongs to the event loop that it was made in."""

    def __init__(self, sock: socket.socket) -> None:
        self.loop = asyncio.get_running_loop()
        self._sock: socket.socket | None = sock
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[tuple[int, bytes]]] = {}
        self._in, self._out = bytearray(), bytearray()
        self._beat: asyncio.TimerHandle | None = None
        self._missed = 0
        sock.setblocking(False)
        self.loop.add_reader(sock, self._on_readable)

    @property
    def alive(self) -> bool:
        return self._sock is not None

    async def call(self, kind: int, payload: bytes) -> tuple[int, bytes]:
        """(kind, payload) of the answer; a cancelled call is ended over there.

        Raises:
            SupervisorLostError: there will be no answer.
        """
        number = next(self._numbers)
        future: asyncio.Future[tuple[int, bytes]] = self.loop.create_future()
        self._calls[number] = future
        self.send(kind, payload, number)
        if self._beat is None:
            self._beat = self.loop.call_later(_BEAT_SECONDS, self._on_beat)
        try:
            return await future
        except asyncio.CancelledError:
            if self.alive:
                self.send(wire.CANCEL, b"", number)
            raise
        finally:
            self._calls.pop(number, None)

    def send(self, kind: int, payload: bytes = b"", number: int = 0) -> None:
        if self._sock is None:
            raise SupervisorLostError("the connection is closed")
        waiting = bool(self._out)
        self._out += wire.FRAME.pack(len(payload), kind, number) + payload
        if not waiting:
            self._on_writable()

    def close(self) -> None:
        """Idempotent; calls that wait are told."""
        sock, self._sock = self._sock, None
        if sock is None:
            return
        if self._beat is not None:
            self._beat.cancel()
        if not self.loop.is_closed():
            self.loop.remove_reader(sock)
            self.loop.remove_writer(sock)
            for future in self._calls.values():
                if not future.done():
                    future.set_exception(SupervisorLostError("the sandbox's supervisor ended"))
        sock.close()

    def close_from_anywhere(self) -> None:
        """As `close`, from any thread."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self.loop or self.loop.is_closed():
            self.close()
        else:
            with contextlib.suppress(RuntimeError):  # closed in the meantime
                self.loop.call_soon_threadsafe(self.close)

    # --- private -----------------------------------------------------------------------------------

    def _on_writable(self) -> None:
        if self._sock is None:
            return
        try:
            sent = self._sock.send(self._out)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return
        del self._out[:sent]
        if self._out:
            self.loop.add_writer(self._sock, self._on_writable)
        else:
            self.loop.remove_writer(self._sock)

    def _on_readable(self) -> None:
        if self._sock is None:
            return
        try:
            data = self._sock.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._missed = 0
        self._in += data
        while len(self._in) >= wire.FRAME.size:
            length, kind, number = wire.FRAME.unpack_from(self._in)
            end = wire.FRAME.size + length
            if len(self._in) < end:
                return
            payload = bytes(self._in[wire.FRAME.size : end])
            del self._in[:end]
            future = self._calls.get(number)
            if future is not None and not future.done():
                future.set_result((kind, payload))

    def _on_beat(self) -> None:
        self._beat = None
        self._missed += 1
        if not self._calls or self._sock is None:
            self._missed = 0
        elif self._missed > _MOST_MISSED:
            self.close()
        else:
            self.send(wire.PING)
            self._beat = self.loop.call_later(_BEAT_SECONDS, self._on_beat)
