"""h0 of Math with Python: the problem, a line that asks for a boxed answer, two turns.

The published h0 (reference §4.2) had the tool from the chat template; many small models' templates have
no tools, so here one line says how to call it, and a fenced block of Python is a call. Code is
unwrapped and its last expression echoed. On the last turn, and without a fenced block, the reply is
the final response.
"""

import json

from whale_bench.harness import Act, BaseHarness, Decision, Reply, View
from whale_bench.harness.python_code import has_fence, normalise


class Harness(BaseHarness):
    USER_PROMPT = (
        "{observation}\n\nYou may run one Python program: write it in a ```python block, and you will be "
        "shown what it prints. Put your final answer in \\boxed{}."
    )
    MAX_TURNS = 2

    def read(self, reply: Reply, view: View) -> Decision:
        last = len(view.turns) + 1 >= view.max_turns
        if last or not has_fence(reply.text):
            return Act(reply.text)
        code = normalise(reply.text)
        return Act(json.dumps({"tool": "code_interpreter", "arguments": {"code": code}}))
