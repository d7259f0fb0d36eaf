"""Uses of built-in names in a harness's text, as the compiler sees them.

    >>> builtin_uses("def f(id): return id, open(id)", {"id", "open"})
    [(1, 'open')]

A name that is a parameter, a local variable or bound by the module itself is the file's own. The module binds
it by a statement of its body that always does; a function or class that begins before that may run before it,
so there the name means the built-in.

Refused though it may be the file's own: a name that the module binds by a walrus, `with`, `match`, `try` or
`if`, or that it binds by a loop and uses behind it. Not covered: branches of a class's body; a name that a
function declares global.
"""

import ast
import dis
import sys
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
    return sorted(set(_uses(code, names, _bound_by(tree), frozenset(), of_module=True)))


_Spans = dict[str, list[tuple[int, int]]]
"""By name, the lines between which it is certainly the module's own."""
_END = sys.maxsize
_CODE = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _uses(
    code: CodeType, names: Set[str], bound: _Spans, own: Set[str], *, of_module: bool
) -> Iterator[tuple[int, str]]:
    """Of this code and all inside it; `own` are names that the module has bound before this code can run."""
    stored: set[str] = set()
    line = code.co_firstlineno
    for step in dis.get_instructions(code):
        line = step.positions.lineno if step.positions and step.positions.lineno else line
        name = step.argval
        if not isinstance(name, str) or name not in names:
            continue
        if step.opname == "STORE_NAME" and (name in bound or not of_module):
            stored.add(name)
        if of_module:  # its statements run in order
            of_file = name in stored and any(line <= last for _, last in bound[name])
        else:
            of_file = name in own | stored
        if step.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")) and not of_file:
            yield line, name
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            begins = inner.co_firstlineno
            begun = {name for name, spans in bound.items() if any(a <= begins <= z for a, z in spans)}
            yield from _uses(inner, names, bound, own | begun, of_module=False)


def _bound_by(tree: ast.Module) -> _Spans:
    """Names that the module's own statements bind, whatever is true, and never delete."""
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    deleted = {node.id for node in names if isinstance(node.ctx, ast.Del)}
    bound: _Spans = {}
    for statement in tree.body:
        for name in set(_targets(statement)) - deleted:
            bound.setdefault(name, []).append(_span(statement))
    return bound


def _span(statement: ast.stmt) -> tuple[int, int]:
    """First and last line on which code that begins there finds what the statement binds."""
    last = statement.end_lineno or statement.lineno
    if isinstance(statement, ast.For):
        return statement.body[0].lineno, last
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and not statement.decorator_list:
        head = [statement.args, *([statement.returns] if statement.returns else [])]
        if not any(isinstance(node, _CODE) for part in head for node in ast.walk(part)):
            return statement.lineno, _END  # its own body cannot run before
    return last + 1, _END


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
