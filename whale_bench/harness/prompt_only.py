r"""Whether a harness differs from its parent in its two prompts and in nothing else (FST's rule).

    >>> parent = 'class Harness(BaseHarness):\n    SYSTEM_PROMPT = "Answer."\n'
    >>> prompt_only(parent.replace("Answer.", "Answer briefly."), parent)
    >>> prompt_only(parent + "    MAX_TURNS = 4\n", parent)
    Difference(line=3, message="not in the parent: 'MAX_TURNS = 4'")

Two files pass if their syntax trees are equal once `SYSTEM_PROMPT` and `USER_PROMPT` in `class Harness`
are taken out, each set at most once, by plain or annotated assignment alike, to one plain string
literal: no f-string, no concatenation, no name, and, unless the parent says the very same, no literals
side by side. A prompt may be set where the parent has none, or left out. Docstrings and comments are
ignored.

Not covered: what the prompts say; a second `class Harness` in a file, which has to be the parent's.
"""

import ast
import io
import itertools
import tokenize
from collections.abc import Iterator
from typing import NamedTuple

PROMPTS = ("SYSTEM_PROMPT", "USER_PROMPT")

_UNMEANT = ("ctx", "type_comment", "kind")
"""Fields of the tree that say nothing more."""
_LAYOUT = (tokenize.NL, tokenize.COMMENT)


class Difference(NamedTuple):
    """Why a file is not prompt-only."""

    line: int
    """In the file, from 1."""
    message: str


class _Tree(NamedTuple):
    rest: ast.Module
    """Without prompts and docstrings."""
    prompts: dict[str, str]
    twice: list[ast.stmt]
    joined: list[ast.stmt]
    """Those that put literals side by side."""


def prompt_only(source: str, parent: str) -> Difference | None:
    """The first difference that is none of the prompts; None where the rule holds.

    Raises:
        ValueError: the parent cannot be read.
    """
    try:
        theirs = _take_apart(parent)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"the parent cannot be read: {error}") from error
    try:
        ours = _take_apart(source)
        return _breach(ours, theirs) or _compare(ours.rest, theirs.rest, source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        return Difference(line, f"cannot be read: {getattr(error, 'msg', None) or error}")


def _breach(ours: _Tree, theirs: _Tree) -> Difference | None:
    for statement in ours.twice:
        return Difference(statement.lineno, f"{_prompt_of(statement)} is set a second time")
    for statement in ours.joined:
        name = _prompt_of(statement)
        if name and ours.prompts[name] != theirs.prompts.get(name):
            return Difference(statement.lineno, f"{name} must be one plain string literal")
    return None


def _take_apart(source: str) -> _Tree:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        _drop_docstring(node)
    prompts: dict[str, str] = {}
    twice: list[ast.stmt] = []
    joined: list[ast.stmt] = []
    side_by_side = _lines_of_joined_literals(source)
    for harness in tree.body:
        if not isinstance(harness, ast.ClassDef) or harness.name != "Harness":
            continue
        rest: list[ast.stmt] = []
        for statement in harness.body:
            name = _prompt_of(statement)
            if not name:
                rest.append(statement)
                continue
            if name in prompts:
                twice.append(statement)
            prompts[name] = _text(statement)
            if side_by_side & set(range(statement.lineno, (statement.end_lineno or 0) + 1)):
                joined.append(statement)
        harness.body = [] if all(isinstance(statement, ast.Pass) for statement in rest) else rest
        break
    return _Tree(tree, prompts, twice, joined)


def _drop_docstring(node: ast.AST) -> None:
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return
    if ast.get_docstring(node, clean=False) is not None:
        del node.body[0]


def _prompt_of(statement: ast.stmt) -> str:
    """The prompt that a statement sets to a literal, by name; else empty."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign) and _is_plain(statement.annotation):
        target = statement.target
    else:
        return ""
    value = statement.value
    literal = isinstance(value, ast.Constant) and isinstance(value.value, str)
    return target.id if literal and isinstance(target, ast.Name) and target.id in PROMPTS else ""


def _is_plain(annotation: ast.expr) -> bool:
    """`str`, `ClassVar` or `ClassVar[str]`: an annotation is evaluated, and could do anything."""
    return ast.unparse(annotation) in ("str", "ClassVar", "ClassVar[str]", "typing.ClassVar[str]")


def _text(statement: ast.stmt) -> str:
    assert isinstance(statement, ast.Assign | ast.AnnAssign)
    assert isinstance(statement.value, ast.Constant)
    return str(statement.value.value)


def _lines_of_joined_literals(source: str) -> set[int]:
    """Lines where a string literal follows another one, which the tree shows as one."""
    found: set[int] = set()
    last = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == last == tokenize.STRING:
            found.add(token.start[0])
        if token.type not in _LAYOUT:
            last = token.type
    return found


def _compare(ours: ast.Module, theirs: ast.Module, source: str) -> Difference | None:
    lines = source.splitlines()
    for one, other in itertools.zip_longest(flat(ours), flat(theirs), fillvalue=(1, "")):
        if one[1] == other[1]:
            continue
        shown = lines[one[0] - 1].strip()[:80] if one[0] <= len(lines) else ""
        if one[1] == "]":
            return Difference(one[0], f"lacks, after {shown!r}, what the parent has on its line {other[0]}")
        return Difference(one[0], f"not in the parent: {shown!r}")
    return None


def flat(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, what) of everything in a tree, in the order of the text; however deep it is."""
    pending: list[tuple[object, int]] = [(tree, 1)]
    last = 1
    while pending:
        thing, line = pending.pop()
        last = max(last, line)
        if isinstance(thing, ast.AST):
            line = getattr(thing, "lineno", line)
            yield line, type(thing).__name__
            parts = [getattr(thing, name, None) for name in thing._fields if name not in _UNMEANT]
            pending += [(part, line) for part in reversed(parts)]
        elif isinstance(thing, list):
            pending += [(_END, last), *((part, line) for part in reversed(thing))]
        elif thing is _END:
            yield last, "]"
        else:
            yield line, hex(thing) if type(thing) is int else repr(thing)  # decimal has a limit


_END = object()
