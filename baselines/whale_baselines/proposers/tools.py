"""The tools of a proposer that is a model, as the model is told of them.

    request = Request(messages, tools=tuple(tool.schema for tool in TOOLS))

Not covered: what they do, see `workspace.py`.
"""

from typing import Any

import msgspec

LINES = 400
"""Lines that are read where the call does not say."""

_TEXT = {"type": "string"}
_NUMBER = {"type": "integer"}
_NAMES = {"type": "array", "items": {"type": "string"}}


class Tool(msgspec.Struct, frozen=True):
    """A tool as the model is told of it."""

    name: str
    description: str
    properties: dict[str, dict[str, Any]]
    required: tuple[str, ...] = ()

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON schema of the arguments."""
        return {"type": "object", "properties": self.properties, "required": list(self.required)}

    @property
    def schema(self) -> dict[str, Any]:
        """OpenAI-shaped."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


TOOLS = (
    Tool("list", "Names and sizes of what is in a folder of the archive or the workspace.", {"path": _TEXT}),
    Tool(
        "read",
        f"Text of a file: {LINES} lines from `first_line` (from 1), or as many as `lines` says.",
        {"path": _TEXT, "first_line": _NUMBER, "lines": _NUMBER},
        ("path",),
    ),
    Tool(
        "search",
        "Lines that hold `text` (no pattern, upper and lower case alike) in the files under `path`.",
        {"text": _TEXT, "path": _TEXT},
        ("text",),
    ),
    Tool(
        "write",
        "Writes a candidate to a slot, whole; a second write to the slot replaces the first.",
        {
            "path": {"type": "string", "description": "The slot, such as workspace/slot_1.py."},
            "source": {"type": "string", "description": "The whole harness file."},
            "hypothesis": {"type": "string", "description": "Why it will score higher; must be refutable."},
            "changes": {"type": "string", "description": "What differs from its parents, in a sentence."},
            "parents": {**_NAMES, "description": "Names of the archive's harnesses that it was made from."},
            "components": {**_NAMES, "description": "Short tags of its mechanisms."},
        },
        ("path", "source", "hypothesis", "changes"),
    ),
    Tool(
        "run_check",
        "Checks a slot's file against the contract, without a model: loads it and plays short rollouts.",
        {"path": _TEXT},
        ("path",),
    ),
)
