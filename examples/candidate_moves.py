"""A harness that differs from h0 in its prompt, its memory and its retries.

whale-bench eval chess_puzzles --model scripted/random -n 2 -k 2 --harness examples/candidate_moves.py
"""

from typing import ClassVar

from whale_bench.harness import Act, BaseHarness, ChatMessage, Decision, Nudge, Reply, View


class Harness(BaseHarness):
    SYSTEM_PROMPT = "You are a strong chess player. Think briefly, then give one move in <move> tags."
    MAX_TURNS = 12
    ENV_OPTIONS: ClassVar = {"illegal_retry_budget": 3}

    def messages(self, view: View) -> list[ChatMessage]:
        tried = view.state.get("tried", [])
        hint = f"\n\nAlready refused: {', '.join(tried)}" if tried else ""
        return [
            {"role": "system", "content": self.SYSTEM_PROMPT},
            {"role": "user", "content": view.observation + hint},
        ]

    def read(self, reply: Reply, view: View) -> Decision:
        _, tag, rest = reply.text.rpartition("<move>")
        move = rest.partition("</move>")[0].strip() if tag else reply.text.strip()
        if not move:
            return Nudge("You gave no move. Give one legal move in <move> tags.")
        view.state["tried"] = [*view.state.get("tried", []), move][-5:]
        return Act(move)
