"""Broken: read returns text."""

from whale_bench.harness import BaseHarness


class Harness(BaseHarness):
    def read(self, reply, view):
        return reply.text
