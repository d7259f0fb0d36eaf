r"""What a harness may do to model-written code before it is run: unwrap it, and echo its last value.

    >>> normalise("```python\n6*7\n```")
    'print(6*7)'
    >>> same_code("I compute it.\\n```python\n6*7\n```", "print(6*7)")
    True

`normalise` takes the first fenced block if there is one, takes the common indent away, and shows the
value of a last statement that is an expression, as an interactive session does, but with `print`;
None is not shown. It decides by the syntax tree: an assignment, a control line, a call of print, or
text that is no Python stays as it is.

`same_code` is the provenance rule for the interpreter: code must stand in sampled text, up to that.

Pure, total, and linear in the text but for Python's own parser, which sees 100,000 characters at most.

Not covered: an expression inside a loop or a function is not echoed; nor is one in text that needs
repair.
"""

import ast
import re
import textwrap
import warnings

_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})[ \t]*([\w+.#-]*)[^`\n]*\Z")
_LANGUAGES = frozenset({"", "python", "python3", "py", "py3", "ipython", "repl", "tool_code", "code"})
_BLANKS = " \t"
_MOST_PARSED = 100_000
_MOST_TRIED = 200
_NEVER_NONE = (
    *(ast.BinOp, ast.UnaryOp, ast.Compare, ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.Set),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda),
)
_GUARD = "(lambda value: value is None or print(value))("


def normalise(code: str) -> str:
    """The program that runs for `code`; total."""
    return _echo(unwrap(code))


def unwrap(code: str) -> str:
    """The first fenced block of Python, else the whole text; without common indent and blank ends."""
    text = _plain_ends(code)
    blocks = _fenced(text)
    return _trim(blocks[0] if blocks else text)


def has_fence(text: str) -> bool:
    """Whether `text` holds a fenced block that may be Python."""
    return bool(_fenced(_plain_ends(text)))


def same_code(sampled_text: str, code: str) -> bool:
    """Whether `code` stands in `sampled_text`, as it is or normalised."""
    text, program = _plain_ends(sampled_text), _trim(_plain_ends(code))
    if not program:
        return True
    if _stands(text, program):
        return True
    plain = _without_echo(program)
    return plain is not None and _echo(plain) == program and _stands(text, plain)


# --- private -----------------------------------------------------------------------------------------


def _plain_ends(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _fenced(text: str) -> list[str]:
    """Contents of fenced blocks that may be Python; one left open ends with the text."""
    blocks: list[str] = []
    mark, wanted = "", False
    lines: list[str] = []
    for line in text.split("\n"):
        fence = _FENCE.match(line)
        if mark:
            if fence and fence[1].startswith(mark) and not fence[2]:
                blocks += ["\n".join(lines)] if wanted else []
                mark = ""
            else:
                lines.append(line)
        elif fence:
            mark, wanted, lines = fence[1], fence[2].lower() in _LANGUAGES, []
    if mark and wanted:
        blocks.append("\n".join(lines))
    return blocks


def _trim(text: str) -> str:
    lines = [line.rstrip(_BLANKS) for line in textwrap.dedent(text).split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    start = next((i for i, line in enumerate(lines) if line), 0)
    return "\n".join(lines[start:])


def _parse(program: str) -> list[ast.stmt]:
    if len(program) > _MOST_PARSED:
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape is the program's affair
            return ast.parse(program).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _span(program: str, node: ast.stmt | ast.expr) -> tuple[int, int]:
    """Where a node stands, in characters."""
    lines = program.split("\n")  # the parser knows no other ends of lines in what it accepts here

    def at(line: int, column: int) -> int:
        before = sum(len(text) + 1 for text in lines[: line - 1])
        return before + len(lines[line - 1].encode()[:column].decode())

    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)


def _echo(program: str) -> str:
    body = _parse(program)
    last = body[-1] if body else None
    if not isinstance(last, ast.Expr) or "\f" in program:
        return program
    value = last.value
    if isinstance(value, ast.Await | ast.Yield | ast.YieldFrom) or _is_print(value):
        return program
    if isinstance(value, ast.Constant) and value.value in (None, ...):
        return program
    start, end = _span(program, last)
    text = program[start:end]
    if text.startswith(_GUARD):
        return program
    if isinstance(value, ast.Tuple | ast.GeneratorExp | ast.NamedExpr):
        text = f"({text})"
    sure = isinstance(value, (*_NEVER_NONE, ast.Constant))
    return program[:start] + ("print(" if sure else _GUARD) + text + ")" + program[end:]


def _is_print(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "print"


def _without_echo(program: str) -> str | None:
    """`program` before `_echo`, if it can have gone through it."""
    body = _parse(program)
    last = body[-1] if body else None
    if not isinstance(last, ast.Expr) or not isinstance(last.value, ast.Call):
        return None
    start, end = _span(program, last)
    text = program[start:end]
    opening = next((mark for mark in (_GUARD, "print(") if text.startswith(mark)), "")
    inner = text[len(opening) : -1]
    value = last.value.args[0] if last.value.args else None
    if not opening or value is None:
        return None
    if isinstance(value, ast.Tuple | ast.GeneratorExp | ast.NamedExpr) and inner.startswith("("):
        inner = inner[1:-1]
    return program[:start] + inner + program[end:]


def _stands(text: str, program: str) -> bool:
    """Whether the lines of `program` stand in `text` one after another, all moved by one indent."""
    text = "\n".join(line.rstrip(_BLANKS) for line in text.split("\n"))
    first = program.split("\n", 1)[0]
    at = text.find(first)
    moved: dict[str, str] = {}
    for _ in range(_MOST_TRIED):
        if at < 0:
            return False
        begin = text.rfind("\n", 0, at) + 1
        before = text[begin:at]
        indent = before if not before.strip(_BLANKS) else ""
        if indent not in moved:
            moved[indent] = _indent(program, indent)[len(indent) :]
        end = at + len(moved[indent])
        if text.startswith(moved[indent], at) and _apart(text, at) and _apart(text, end):
            return True
        at = text.find(first, at + 1)
    return False


def _indent(program: str, indent: str) -> str:
    return "\n".join(indent + line if line else line for line in program.split("\n"))


def _apart(text: str, at: int) -> bool:
    """Whether no word runs across this place."""
    return not (0 < at < len(text) and _word(text[at - 1]) and _word(text[at]))


def _word(character: str) -> bool:
    return character.isalnum() or character == "_"
