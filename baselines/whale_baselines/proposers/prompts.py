"""The two prompt literals of a harness file: where they stand, and other words for them.

    edited = with_prompts(source, {"USER_PROMPT": "{observation}"})       # all else byte for byte the same
    prompts_of(edited)["USER_PROMPT"]                                      # "{observation}"

Only plain string literals assigned in the body of `class Harness` count; a prompt that is computed
cannot be edited, and one that is not there is not added. New words are one literal, as prompt-only search
asks for.

Not covered: prompts set elsewhere, such as in a method; whether two files are the same but for their
prompts, which `whale_bench.harness.prompt_only` says.
"""

import ast
from collections.abc import Mapping
from typing import NamedTuple

from whale_baselines.proposers.draft import quoted
from whale_bench.harness.prompt_only import PROMPTS


class _Place(NamedTuple):
    text: str
    start: int
    end: int


def prompts_of(source: str) -> dict[str, str]:
    """The prompts that can be edited, by name; none of a file that is no Python."""
    return {name: place.text for name, place in _places(source).items()}


def with_prompts(source: str, texts: Mapping[str, str]) -> str:
    """`source` with other prompts; those that cannot be edited stay as they are."""
    places = {
        name: place for name, place in _places(source).items() if texts.get(name, place.text) != place.text
    }
    for name in sorted(places, key=lambda name: -places[name].start):
        _, start, end = places[name]
        source = source[:start] + quoted(texts[name]) + source[end:]
    return source


def _assigned(tree: ast.Module) -> dict[str, ast.Constant]:
    """The literals of the prompts, by name; the last assignment is the one that holds."""
    found: dict[str, ast.Constant] = {}
    for harness in tree.body:
        if not isinstance(harness, ast.ClassDef) or harness.name != "Harness":
            continue
        for node in harness.body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target, value = node.targets[0], node.value
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                target, value = node.target, node.value
            else:
                continue
            if isinstance(target, ast.Name) and target.id in PROMPTS:
                found.pop(target.id, None)
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    found[target.id] = value
    return found


def _places(source: str) -> dict[str, _Place]:
    if "\r" in source or "\f" in source:  # the parser counts lines otherwise than we do
        return {}
    try:
        literals = _assigned(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    lines = source.split("\n")

    def at(line: int, column: int) -> int:
        before = sum(len(text) + 1 for text in lines[: line - 1])
        return before + len(lines[line - 1].encode()[:column].decode())

    found = {}
    for name, node in literals.items():
        assert isinstance(node.value, str)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        place = _Place(node.value, at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset))
        found[name] = place
    return found
