"""Requests off a kept-alive HTTP connection, for the servers of the benchmarks: no headers but the length.

Raw on purpose, so that what a benchmark measures is the client.
"""

import asyncio


class Requests(asyncio.Protocol):
    """One connection; subclasses have `handle(body)`, called for each complete request."""

    def connection_made(self, transport):
        self.transport = transport
        self.pending = b""

    def data_received(self, data):
        self.pending += data
        while (end := self.pending.find(b"\r\n\r\n")) >= 0:
            head = self.pending[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.pending) < end + 4 + length:
                return
            body = self.pending[end + 4 : end + 4 + length]
            self.pending = self.pending[end + 4 + length :]
            self.handle(body)
