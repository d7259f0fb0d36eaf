"""Broken: answers the same call differently the second time."""

from whale_bench.harness import BaseHarness

calls = []


class Harness(BaseHarness):
    def messages(self, view):
        calls.append(view)
        return [{"role": "user", "content": f"{view.observation} {len(calls)}"}]
