r"""The domain's tool: one search over a corpus of passages, by a retriever of the caller's choice.

    {"tool": "search", "arguments": {"query": "who painted the Night Watch"}}          # as an action
    {"result": "Document 1: The Night Watch\n…"}                                      # as an observation

As in the published tool (reference §4.1): `query_list` with the query first in it is taken too, extra
queries in it are dropped, `topk` and `max_doc_tokens` may be asked for within the bounds, and what
went wrong comes back in the same shape, in brackets.

Not covered: the retrievers, see `whale_envs.retrieval`; choosing one by name, see `retrievers.py`.
"""

from typing import Any

import msgspec

from whale_envs.core import ToolCall

TOOL = "search"

BOUNDS = {"topk": (1, 10), "max_doc_tokens": (1, 1_024)}
"""Inclusive bounds of what a call, or a harness, may ask for; anything beyond is held within."""

NO_RESULTS = "[no results]"
EMPTY_QUERY = "[empty query]"

SCHEMA: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": TOOL,
        "description": "Searches an encyclopedia and returns the best matching passages.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "One search query."}},
            "required": ["query"],
        },
    },
}
"""OpenAI-shaped schema, for harnesses in native tool mode."""


class Search(msgspec.Struct, frozen=True):
    """A call that can be made."""

    query: str
    topk: int
    max_doc_tokens: int


def call_text(query: str) -> str:
    """The action that searches for `query`."""
    return msgspec.json.encode({"tool": TOOL, "arguments": {"query": query}}).decode()


def read_call(call: ToolCall, *, topk: int, max_doc_tokens: int) -> Search | str:
    """The search that a call asks for, or what is wrong with it.

    Args:
        call: the action.
        topk: passages where the call does not say.
        max_doc_tokens: length of a passage where the call does not say.
    """
    if call.tool != TOOL:
        return f"[unknown tool {call.tool[:80]!r}; the only tool is {TOOL}]"
    arguments = dict(call.arguments)
    query: Any = arguments.pop("query", None)
    listed = arguments.pop("query_list", None)
    if query is None:
        query = listed[0] if isinstance(listed, list) and listed else listed
    if not isinstance(query, str):
        return f'[{TOOL} needs "query", a string]'
    asked = {"topk": topk, "max_doc_tokens": max_doc_tokens}
    for name, (low, high) in BOUNDS.items():
        value = arguments.pop(name, None)
        if value is None:
            continue
        if type(value) is not int:
            return f"[{name} must be an integer from {low} to {high}]"
        asked[name] = min(max(value, low), high)
    if arguments:
        return f"[{TOOL} takes only query, topk and max_doc_tokens, not {', '.join(sorted(arguments))[:80]}]"
    return Search(query, **asked) if query.strip() else EMPTY_QUERY


def result_text(text: str) -> str:
    """A result as the published tool returns it: a JSON object with one string."""
    return msgspec.json.encode({"result": text.encode("utf-8", "replace").decode()}).decode()
