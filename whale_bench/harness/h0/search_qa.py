"""h0 of SearchQA: the question, leave to search once, an answer in tags, two turns.

The published h0 (reference §4.1) had the tool from the chat template; many small models' templates have
no tools, so here one line says how to call it. One passage of 200 tokens per search. On the last turn,
and without a search in it, the reply is the final response.
"""

import json
import re
from typing import ClassVar

from whale_bench.harness import Act, BaseHarness, Decision, Reply, View

SEARCH = re.compile(r"<search>([^<>]*)</search>")


class Harness(BaseHarness):
    SYSTEM_PROMPT = "You answer factual questions. Search when you do not know."
    USER_PROMPT = (
        "Question: {observation}\n\nYou may search once, by writing <search>your query</search>. Put the "
        "final answer, and nothing else, in answer tags: <answer>…</answer>."
    )
    MAX_TURNS = 2
    ENV_OPTIONS: ClassVar = {"topk": 1, "max_doc_tokens": 200}

    def read(self, reply: Reply, view: View) -> Decision:
        asked = SEARCH.findall(reply.text)
        if not asked or len(view.turns) + 1 >= view.max_turns:
            return Act(reply.text)
        return Act(json.dumps({"tool": "search", "arguments": {"query": asked[0].strip()}}))
