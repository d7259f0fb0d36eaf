r"""A harness file in the making: what mechanisms add to, and how it becomes source text.

    draft = Draft(user="{observation}\n\nPut your answer in \\boxed{}.", max_turns=2)
    draft.notes.append("Stops at the first box.")
    source = draft.source("math_python", header="# mutate: {}")

A draft without any mechanism behaves as the domain's h0. Mechanisms append statements (lines without
indent, over a few named variables) to the hooks' lists; the imports are what the text needs.

Not covered: what the domains' hooks look like between the statements, see `skeletons.py`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from whale_baselines.proposers.worked import WorkedExample

WIDTH = 100
"""Longest line of a text literal."""

_API = ("Act", "BaseHarness", "ChatMessage", "Decision", "Nudge", "Reply", "Turn", "View")
_CODE = ("has_fence", "normalise")


@dataclass(slots=True, kw_only=True)
class Draft:
    """See the module's docstring."""

    system: str = ""
    user: str = "{observation}"
    max_turns: int | None = None
    max_tokens: int | None = None
    options: dict[str, int] = field(default_factory=dict)
    examples: tuple[WorkedExample, ...] = ()
    answer_form: str = "{answer}"
    """How an example's answer is said."""
    notes: list[str] = field(default_factory=list)
    """Sentences for the docstring."""
    constants: list[str] = field(default_factory=list)
    """Statements of the module, before the class."""
    helpers: list[str] = field(default_factory=list)
    """Functions, after the class."""
    shown: list[str] = field(default_factory=list)
    """Over `text`, an observation of the environment, and `question`."""
    after: list[str] = field(default_factory=list)
    """Over `text`, what is shown of `turn`, and `view`."""
    tail: list[str] = field(default_factory=list)
    """Over `chat`, all but finished, and `view`."""
    keep: int | None = None
    """Latest turns that are shown; None for all."""
    early: list[str] = field(default_factory=list)
    """Over `text`, the reply's, `view` and `last`; may return a decision."""
    query: list[str] = field(default_factory=list)
    """Over `query`, what will be searched for."""
    picked: list[str] = field(default_factory=list)
    """Over `move`, what the reply plays, and `view`; may return a decision."""
    late: list[str] = field(default_factory=list)
    """As `early`, where the reply would be taken as the final response."""
    stop: list[str] = field(default_factory=list)
    """Expressions over `view`; any that is true ends the rollout."""
    pool: Mapping[str, WorkedExample] = field(default_factory=dict)
    """Worked examples that may be shown, by key."""
    evidence_first: bool = False
    """Whether what was found stands in the first message, and earlier replies nowhere."""


def literal(text: str, indent: int = 0) -> str:
    """`text` as Python source, on several lines in parentheses where it is long."""
    if len(quoted(text)) + indent <= WIDTH:
        return quoted(text)
    pad = " " * indent
    return f"(\n{pad}    {_inner_literal(text, indent + 4)}\n{pad})"


def _inner_literal(text: str, indent: int) -> str:
    """`text` as one or more literals on lines of their own, for inside parentheses."""
    pieces, line = [], ""
    for word in re.findall(r"\S*\s|\S+", text):
        if line and (line.endswith("\n") or len(quoted(line + word)) + indent > WIDTH):
            pieces.append(line)
            line = ""
        line += word
    pieces.append(line)
    return ("\n" + " " * indent).join(map(quoted, pieces))


def quoted(text: str) -> str:
    """`text` as one literal on one line."""
    plain = all(character.isprintable() or character in "\n\t" for character in text)
    return json.dumps(text, ensure_ascii=False) if plain else repr(text)


def block(statements: list[str], indent: int) -> str:
    """Statements as an indented block."""
    pad = " " * indent
    lines = "\n".join(statements).split("\n")
    return "".join(f"{pad}{line}\n" if line else "\n" for line in lines) if statements else ""


def class_constants(draft: Draft) -> str:
    """The constants of the class."""
    found = [f"    SYSTEM_PROMPT = {literal(draft.system, 4)}\n"] if draft.system else []
    found.append(f"    USER_PROMPT = {literal(draft.user, 4)}\n")
    for name, value in (("MAX_TURNS", draft.max_turns), ("MAX_TOKENS", draft.max_tokens)):
        if value is not None:
            found.append(f"    {name} = {value}\n")
    if draft.options:
        options = ", ".join(f'"{name}": {value}' for name, value in sorted(draft.options.items()))
        found.append(f"    ENV_OPTIONS: ClassVar = {{{options}}}\n")
    return "".join(found)


def example_constant(draft: Draft) -> list[str]:
    """`EXAMPLES`: of each the question, what is searched for, what that shows, and the answer."""
    if not draft.examples:
        return []
    rows = []
    for one in draft.examples:
        texts = [one.question]
        if one.query:
            texts += [one.query, one.shown]
        texts.append(draft.answer_form.replace("{answer}", one.answer))
        rows.append("    (\n" + "".join(f"        {literal(text, 8)},\n" for text in texts) + "    ),\n")
    return ["EXAMPLES: tuple[tuple[str, ...], ...] = (\n" + "".join(rows) + ")"]


def assemble(draft: Draft, domain: str, header: str, parts: list[str]) -> str:
    """The file: header, docstring, the imports that `parts` need, and `parts`."""
    body = "\n\n\n".join(part.rstrip("\n") for part in parts) + "\n"
    notes = "".join(f"* {note}\n" for note in draft.notes) or "* Nothing: this is h0.\n"
    doc = f'r"""A harness for {domain}. What differs from h0:\n\n{notes}"""\n'
    found = [name for name in ("json", "re") if re.search(rf"\b{name}\.", body)]
    imports = "".join(f"import {name}\n" for name in found)
    imports += "from typing import ClassVar\n" if "ClassVar" in body else ""
    names = [name for name in _API if re.search(rf"\b{name}\b", body)]
    imports += "\n" if imports else ""
    imports += f"from whale_bench.harness import {', '.join(names)}\n"
    code = [name for name in _CODE if re.search(rf"\b{name}\(", body)]
    imports += f"from whale_bench.harness.python_code import {', '.join(code)}\n" if code else ""
    gap = "\n\n" if not parts or parts[0].startswith("class") else "\n"
    return f"{header}\n{doc}\n{imports}{gap}{body}"
