"""h0 of Chess Puzzles, with the published behaviour (reference §4.3).

Asks for one legal move in move tags and no explanation. Earlier turns are shown as the reply and the
verifier's sentence on it; the full current position always comes last. A reply is read by tag, then
bracket, then bare UCI; the first form that occurs decides, and a form with two different moves, like
a reply with none, is handed on as it was written, for the environment to judge.
"""

import re
from typing import ClassVar

from whale_bench.harness import Act, BaseHarness, ChatMessage, Decision, Reply, View

_FORMS = (
    re.compile(r"<move>\s{0,8}([^<>]{1,40}?)\s{0,8}</move>", re.IGNORECASE),
    re.compile(r"\[([a-h][1-8][a-h][1-8][qrbn]?)\]"),
    re.compile(r"(?<![A-Za-z0-9])([a-h][1-8][a-h][1-8][qrbn]?)(?![A-Za-z0-9]|[=/(][QRBNqrbn])"),
)


class Harness(BaseHarness):
    SYSTEM_PROMPT = (
        "You are solving a chess puzzle. Each time you are shown a position, answer with exactly one "
        "legal move in UCI form between <move> and </move>. Do not explain."
    )
    USER_PROMPT = "{observation}\n\nAnswer with exactly one of the legal moves, as <move>UCI</move>."
    MAX_TURNS = 9
    ENV_OPTIONS: ClassVar = {"format_retry_budget": 1, "illegal_retry_budget": 1}

    def messages(self, view: View) -> list[ChatMessage]:
        chat: list[ChatMessage] = [{"role": "system", "content": self.SYSTEM_PROMPT}]
        for turn in view.turns:
            chat.append({"role": "assistant", "content": turn.reply.text})
            chat.append({"role": "user", "content": turn.feedback})
        prompt = self.USER_PROMPT.replace("{observation}", view.observation)
        chat.append({"role": "user", "content": prompt})
        return chat

    def read(self, reply: Reply, view: View) -> Decision:  # noqa: ARG002
        for form in _FORMS:
            moves = set(form.findall(reply.text))
            if len(moves) == 1:
                return Act(moves.pop())
            if moves:
                break
        return Act(reply.text)
