r"""Harness sources as texts and trees: when two are the same, and what a prompt-only one may differ in.

    >>> tree_id("a = 1  # one") == tree_id("a = (1)")
    True
    >>> prompt_only_problem("SYSTEM_PROMPT = 'a'\nN = 1", "SYSTEM_PROMPT = 'b'\nN = 2")
    'line 2: only SYSTEM_PROMPT and USER_PROMPT may differ'

Not covered: whether two different trees do the same; running anything.
"""

import ast
import hashlib
import warnings

from whale_bench.text import scrub

PROMPTS = ("SYSTEM_PROMPT", "USER_PROMPT")
MOST_BYTES = 200_000
"""Largest harness file that a search takes."""


def clean(source: str) -> str:
    """A source as a file holds it: plain ends of lines, no byte order mark, nothing that UTF-8 has not."""
    return scrub(source.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n"))


def source_id(source: str) -> str:
    """The `harness_id` of a source."""
    return "sha256:" + hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()


def tree_id(source: str) -> str:
    """Equal for sources that differ in formatting and comments alone; of what is no Python, its hash."""
    tree = _parse(source)
    if tree is None:
        return source_id(source)
    return "tree:" + hashlib.sha256(ast.dump(tree).encode("utf-8", "surrogatepass")).hexdigest()


def prompt_only_problem(base: str, source: str) -> str:
    """Why `source` is no prompt-only variant of `base`; empty where it is one."""
    before, after = _parse(base), _parse(source)
    if before is None or after is None:
        return "line 1: is no Python"
    for masked in (before, after):
        problem = _mask(masked)
        if problem and masked is after:
            return problem
    if ast.dump(before) == ast.dump(after):
        return ""
    line = next(
        (b.lineno for a, b in zip(_statements(before), _statements(after), strict=False) if _differ(a, b)), 1
    )
    return f"line {line}: only {' and '.join(PROMPTS)} may differ"


def _parse(source: str) -> ast.Module | None:
    if len(source) > MOST_BYTES:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape is the file's affair
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _mask(tree: ast.Module) -> str:
    """Makes the prompts of a tree alike; what is wrong with one, if it is no plain string literal."""
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else ()
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        names = [target.id for target in targets if isinstance(target, ast.Name) and target.id in PROMPTS]
        if not names:
            continue
        assert isinstance(node, ast.Assign | ast.AnnAssign)
        if not (isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)):
            return f"line {node.lineno}: {names[0]} must be a plain string literal"
        node.value = ast.Constant("")
    return ""


def _statements(tree: ast.Module) -> list[ast.stmt]:
    """Those of the module and, in place of a class, those in it."""
    found: list[ast.stmt] = []
    for node in tree.body:
        found += [node] if not isinstance(node, ast.ClassDef) else node.body
    return found


def _differ(a: ast.stmt, b: ast.stmt) -> bool:
    return ast.dump(a) != ast.dump(b)
