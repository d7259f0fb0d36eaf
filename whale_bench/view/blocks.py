r"""Text of a rollout as blocks that say what they are: programs, queries, passages, boards, plain text.

    >>> [(block.kind, block.text) for block in text_blocks("so\n```python\n1 + 1\n```")]
    [('text', 'so\n```python'), ('python', '1 + 1'), ('text', '```')]

A tool call becomes a program or a query, a search result titled passages; whatever is not recognised is text.

Not covered: which blocks stand in a frame (`replay.py`), and how they are drawn (`static/`).
"""

import json
import re
from typing import Any, Literal

import msgspec

_FENCE = re.compile(
    r"^[ \t]{0,3}```[ \t]{0,4}(?:python|py|python3)[ \t]{0,4}\n(.*?)(?=^[ \t]{0,3}```|\Z)",
    re.MULTILINE | re.DOTALL,
)
_RANKS = re.compile(r"^8(?: \S){8}$", re.MULTILINE)
_DOCUMENT = re.compile(r"^Document \d+: (.*)$", re.MULTILINE)

Kind = Literal["text", "mono", "python", "output", "query", "passage", "reasoning", "call", "feedback"]


class Block(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of text and what it is."""

    kind: Kind
    text: str
    title: str = ""


def text_blocks(text: str) -> list[Block]:
    """A text with the programs in its fences apart; nothing is left out but the line breaks between."""
    blocks: list[Block] = []
    start = 0
    for fence in _FENCE.finditer(text):
        blocks += _plain(text[start : fence.start(1)].rstrip("\n"))
        blocks.append(Block("python", fence[1].rstrip("\n")))
        start = fence.end(1)
    return blocks + _plain(text[start:])


def _plain(text: str) -> list[Block]:
    return [Block("mono" if _RANKS.search(text) else "text", text)] if text else []


def call_blocks(calls: tuple[dict[str, Any], ...]) -> list[Block]:
    """OpenAI-shaped tool calls, however malformed."""
    blocks = []
    for call in calls:
        name, arguments = function_of(call)
        try:
            read = json.loads(arguments) if isinstance(arguments, str) else arguments
        except (ValueError, RecursionError):
            read = None
        if isinstance(read, dict):
            blocks.append(call_block(name, read))
        else:
            blocks.append(Block("call", arguments if isinstance(arguments, str) else _json(arguments), name))
    return blocks


def function_of(call: Any) -> tuple[str, Any]:
    """(name, arguments) of an OpenAI-shaped call or schema."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return "tool", call
    return str(function.get("name", "tool")), function.get("arguments", {})


def call_block(tool: str, arguments: dict[str, Any]) -> Block:
    if arguments.keys() == {"code"} and isinstance(arguments["code"], str):
        return Block("python", arguments["code"], f"Calls {tool}")
    if arguments.keys() == {"query"} and isinstance(arguments["query"], str):
        return Block("query", arguments["query"], f"Calls {tool}")
    return Block("call", _json(arguments), f"Calls {tool}")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)


def observed_blocks(observation: str) -> list[Block]:
    """A tool's answer: numbered documents as passages, else text."""
    try:
        read = json.loads(observation)
    except (ValueError, RecursionError):
        read = None
    text = read["result"] if isinstance(read, dict) and isinstance(read.get("result"), str) else observation
    documents = list(_DOCUMENT.finditer(text))
    if not documents or documents[0].start() != 0:
        return [Block("output", text)] if text else []
    ends = [document.start() for document in documents[1:]] + [len(text)]
    return [
        Block("passage", text[document.end() : end].strip("\n"), document[1])
        for document, end in zip(documents, ends, strict=True)
    ]
