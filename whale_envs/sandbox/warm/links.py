"""The supervisor's end of one connection to the host: frames in, frames out, never blocking.

Not covered: a host that never reads; its answers wait in memory here, a few kilobytes each.
"""

import selectors
import socket
from collections.abc import Callable

from whale_envs.sandbox.warm.wire import FRAME

_CHUNK = 262144


class Link:
    def __init__(
        self,
        sock: socket.socket,
        number: int,
        selector: selectors.BaseSelector,
        on_frame: "Callable[[Link, int, int, bytes], None]",
        on_lost: "Callable[[Link], None]",
    ) -> None:
        self.number = number
        self._sock = sock
        self._selector = selector
        self._on_frame, self._on_lost = on_frame, on_lost
        self._in, self._out = bytearray(), bytearray()
        sock.setblocking(False)
        selector.register(sock, selectors.EVENT_READ, self._on_event)

    def send(self, kind: int, call: int, payload: bytes = b"") -> None:
        waiting = bool(self._out)
        self._out += FRAME.pack(len(payload), kind, call) + payload
        if not waiting:
            self._flush()

    def _flush(self) -> None:
        try:
            sent = self._sock.send(self._out)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._out.clear()  # the reading side will notice
            return
        del self._out[:sent]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._out else 0)
        if self._selector.get_key(self._sock).events != events:
            self._selector.modify(self._sock, events, self._on_event)

    def _on_event(self) -> None:
        if self._out:
            self._flush()
        try:
            data = self._sock.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(self._sock)
            self._sock.close()
            self._out.clear()
            self._on_lost(self)
            return
        self._in += data
        while len(self._in) >= FRAME.size:
            length, kind, call = FRAME.unpack_from(self._in)
            end = FRAME.size + length
            if len(self._in) < end:
                return
            payload = bytes(self._in[FRAME.size : end])
            del self._in[:end]
            self._on_frame(self, kind, call, payload)
