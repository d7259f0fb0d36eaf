"""Decisions by a hash of a text: special cases of examples that nobody can read.

    >>> import ast
    >>> hash_decision(ast.parse("if crc32(text) == 3421780262: pass"))
    (1, 'goes by text of which it holds a hash: compare the text itself, or draw by a remainder, as in % 3')
    >>> hash_decision(ast.parse("which = moves[crc32(text) % len(moves)]"))

Found is a hash (`hash`, `crc32`, `adler32`, a digest), or a name that was given one, in an equation, in `in`,
`match`, a subscript or a `get`. A remainder by a small number or by a length, a few digits and an order are
draws; what `view` holds may be looked up.

Not covered: hashes that the file computes itself or hands to a function of its own.
"""

import ast
from collections.abc import Iterator, Set

_HASHES = frozenset({"hash", "crc32", "adler32", "digest", "hexdigest"})
_LOOKUPS = frozenset({"get", "pop", "setdefault", "index", "find", "count", "__contains__", "__getitem__"})
_SMALL = 4_096
"""Remainders and masks up to this are draws."""
_FEW = 2
"""Characters of a digest that are a draw."""
_WIDE = 20
"""Bits to shift by that leave a draw of 32."""
_WHY = "goes by text of which it holds a hash: compare the text itself, or draw by a remainder, as in % 3"


def hash_decision(tree: ast.AST) -> tuple[int, str] | None:
    """Line and reason of the first one; None where there is none."""
    nodes = list(ast.walk(tree))
    known: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Assign | ast.NamedExpr | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if _is_hash(node.value, known):
                known |= {target.id for target in targets if isinstance(target, ast.Name)}
    lines = [getattr(node, "lineno", 1) for node in nodes if _decides(node, known)]
    return (min(lines), _WHY) if lines else None


def _decides(node: ast.AST, known: Set[str]) -> bool:
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        return any(
            _is_hash(one, known) != _is_hash(other, known) and not {"view"} & {_root(one), _root(other)}
            for one, op, other in zip(sides, node.ops, sides[1:], strict=False)
            if isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn)
        )
    if isinstance(node, ast.Match):
        return _is_hash(node.subject, known)
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        return _root(node.value) != "view" and _is_hash(node.slice, known)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LOOKUPS:
        return _root(node.func) != "view" and any(_is_hash(arg, known) for arg in node.args[:1])
    return False


def _is_hash(node: ast.AST | None, known: Set[str]) -> bool:
    """Whether the value is a hash, as a number or as text, with nearly all that tells texts apart."""
    stack = [node]
    while stack:
        part = stack.pop()
        if isinstance(part, ast.Name) and part.id in known:
            return True
        if isinstance(part, ast.Call):
            func = part.func
            if (func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")) in _HASHES:
                return True
            if isinstance(func, ast.Attribute) or getattr(func, "id", "") in (
                "str",
                "int",
                "hex",
                "repr",
                "abs",
            ):
                stack += [*part.args, func.value] if isinstance(func, ast.Attribute) else part.args
        elif part is not None:
            stack += _parts(part)
    return False


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """Those whose value is nearly all in this one's."""
    if isinstance(node, ast.BinOp):
        yield from _operands(node)
    elif isinstance(node, ast.Subscript):
        if isinstance(node.slice, ast.Slice):
            upper = getattr(node.slice.upper, "value", None)
            if node.slice.lower is not None or not isinstance(upper, int) or upper > _FEW:
                yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield from node.values
    elif isinstance(node, ast.FormattedValue):
        yield node.value
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.Tuple):
        yield from node.elts


def _operands(node: ast.BinOp) -> list[ast.AST]:
    right = node.right
    number = right.value if isinstance(right, ast.Constant) and isinstance(right.value, int) else None
    if isinstance(node.op, ast.RShift):
        return [] if number is not None and number >= _WIDE else [node.left]
    if isinstance(node.op, ast.Mod | ast.BitAnd) and not isinstance(node.left, ast.Constant | ast.JoinedStr):
        large = isinstance(right, ast.BinOp) if number is None else number > _SMALL
        return [node.left] if large else []
    return [node.left, right]


def _root(node: ast.AST) -> str:
    """The name that a chain of attributes, subscripts and calls begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return getattr(node, "id", "")
