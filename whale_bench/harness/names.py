"""Uses of built-in names in a harness's text, as the compiler sees them.

    >>> builtin_uses("def f(id): return id, open(id)", {"id", "open"})
    [(1, 'open')]

A name that is a parameter, a local variable or bound by the module itself is the file's own.

Not covered: loops of the module that are never entered; branches of a class's body; a name that a function
declares global.
"""

import ast
import dis
import warnings
from collections.abc import Iterator, Set
from types import CodeType
from typing import TypeGuard


def builtin_uses(source: str, names: Set[str]) -> list[tuple[int, str]]:
    """(line, name) of each use of one of `names` that means the built-in; empty for what is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd comparison is the file's affair
            tree = ast.parse(source)
            code = compile(source, "harness.py", "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return sorted(set(_uses(code, names, _bound_by(tree), of_module=True)))


def _uses(code: CodeType, names: Set[str], bound: Set[str], *, of_module: bool) -> Iterator[tuple[int, str]]:
    """Of this code and all inside it; `bound` are names that the module binds."""
    stored: set[str] = set()
    line = code.co_firstlineno
    for step in dis.get_instructions(code):
        line = step.positions.lineno if step.positions and step.positions.lineno else line
        name = step.argval
        if not isinstance(name, str) or name not in names:
            continue
        if step.opname == "STORE_NAME" and (name in bound or not of_module):
            stored.add(name)
        of_file = name in stored if "NAME" in step.opname and of_module else name in bound | stored
        if step.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")) and not of_file:
            yield line, name
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _uses(inner, names, bound, of_module=False)


def _bound_by(tree: ast.Module) -> set[str]:
    """Names that the module's own statements bind, whatever is true, and never delete."""
    bound = {name for statement in tree.body for name in _targets(statement)}
    deleted = (
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del)
    )
    return bound.difference(deleted)


def _targets(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield from (node.id for node in ast.walk(target) if _is_stored(node))
    elif isinstance(statement, ast.For) or (isinstance(statement, ast.AnnAssign) and statement.value):
        yield from (node.id for node in ast.walk(statement.target) if _is_stored(node))


def _is_stored(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
