"""h0 of Math with one worked example in front of the problem.

A small model that never boxes an answer when it is only told to does so when it has seen one, and
rejection sampling has nothing to begin with where the success rate is 0.

Not covered: tools, and problems that take more than a line.
"""

from whale_bench.harness import BaseHarness, ChatMessage, View


class Harness(BaseHarness):
    EXAMPLE = "Which is largest: 31, 87, 52?"
    ANSWER = "\\boxed{87}"
    MAX_TURNS = 1
    MAX_TOKENS = 32

    def messages(self, view: View) -> list[ChatMessage]:
        return [
            {"role": "user", "content": self.EXAMPLE},
            {"role": "assistant", "content": self.ANSWER},
            {"role": "user", "content": view.opening},
        ]
