"""Broken: what one call leaves in the module changes the answer to another."""

from whale_bench.harness import Act, BaseHarness

seen = []


class Harness(BaseHarness):
    def messages(self, view):
        return [{"role": "user", "content": f"{view.observation} {seen}"}]

    def read(self, reply, view):
        seen[:] = [reply.text]
        return Act(reply.text)
