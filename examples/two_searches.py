"""SearchQA with one example in the prompt and up to two searches of three passages.

    whale-bench eval search_qa --model scripted/random -n 2 -k 2 --harness examples/two_searches.py

The example shows the form of a search and of an answer, which small models need more than words; a
second search is what questions of two hops take.
"""

import json
import re
from typing import ClassVar

from whale_bench.harness import Act, BaseHarness, ChatMessage, Decision, Reply, View

SEARCH = re.compile(r"<search>([^<>]*)</search>")
ASK = "Search first: <search>words</search>."
NEXT = "Answer in answer tags, or search once more."
EXAMPLE: list[ChatMessage] = [
    {"role": "user", "content": f"Question: Which ocean is west of Portugal?\n{ASK}"},
    {"role": "assistant", "content": "<search>ocean west of Portugal</search>"},
    {"role": "user", "content": f"Document 1: Portugal\nIn the west it meets the Atlantic Ocean.\n{NEXT}"},
    {"role": "assistant", "content": "<answer>Atlantic Ocean</answer>"},
]


class Harness(BaseHarness):
    SYSTEM_PROMPT = "You answer questions in a few words, in answer tags, from what a search shows."
    USER_PROMPT = f"Question: {{observation}}\n{ASK}"
    MAX_TURNS = 3
    MAX_TOKENS = 48
    ENV_OPTIONS: ClassVar = {"topk": 3, "max_doc_tokens": 100}

    def messages(self, view: View) -> list[ChatMessage]:
        system, *chat = super().messages(view)
        for message, turn in zip(chat[2::2], view.turns, strict=True):
            message["content"] = f"{_passages(turn.observation)}\n{NEXT}"
        return [system, *EXAMPLE, *chat]

    def read(self, reply: Reply, view: View) -> Decision:
        asked = SEARCH.findall(reply.text)
        if not asked or len(view.turns) + 1 >= view.max_turns:
            return Act(reply.text)
        return Act(json.dumps({"tool": "search", "arguments": {"query": asked[0].strip()}}))


def _passages(observation: str) -> str:
    """The result without its JSON, where it is one."""
    try:
        return str(json.loads(observation)["result"])
    except (ValueError, KeyError, TypeError):
        return observation
