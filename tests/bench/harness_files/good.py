"""A harness that holds the contract: counts its turns in the state and asks once more when unsure."""

import random

from whale_bench.harness import Act, BaseHarness, ChatMessage, Decision, Nudge, Reply, View


class Harness(BaseHarness):
    SYSTEM_PROMPT = "Answer with a move."
    MAX_TURNS = 6

    def messages(self, view: View) -> list[ChatMessage]:
        print("thinking about it " * 50)
        view.state["asked"] = view.state.get("asked", 0) + 1
        word = random.Random(view.seed).choice(["please", "kindly"])
        return [{"role": "user", "content": f"{view.observation}\n{word}, {view.state['asked']}"}]

    def read(self, reply: Reply, view: View) -> Decision:
        if "not sure" in reply.text and not view.turns:
            return Nudge("Decide.")
        return Act(reply.text)
