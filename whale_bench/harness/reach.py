"""What a harness's text reaches for that a harness has no use for, line by line.

    >>> reaches("x = 1; import os")
    [(1, 'imports os, which reaches outside a harness')]
    >>> reaches("import random; draw = random._urandom")
    [(1, "uses _urandom, which is another module's own")]

Files, processes, other objects' insides, and clocks, entropy or addresses, which would make a transcript one
that cannot be replayed. The walls around a worker hold without this; it tells an author early, and a
proposer why. A harness may import the modules of the standard library that compute (`COMPUTE`), msgspec,
`whale_bench.harness`, its `python_code`, and the shipped harnesses, to subclass them. Those modules have
imported others, so their attributes are looked at too: what they keep under a name that begins with `_`, and
modules among them that are not on the list.

Not covered: names that are put together at run time, but for `getattr` and its like, which must name what
they get; a module that was given another name by an assignment, but for the names in `_ELSEWHERE`.
"""

import ast
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from whale_bench.harness.names import builtin_uses

COMPUTE = frozenset(
    {
        *("__future__", "abc", "array", "ast", "base64", "binascii", "bisect", "calendar", "cmath"),
        *("collections", "collections.abc", "colorsys", "contextlib", "copy", "csv", "dataclasses"),
        *("datetime", "decimal", "difflib", "enum", "fractions", "functools", "graphlib", "hashlib"),
        *("heapq", "hmac", "html", "html.entities", "html.parser", "itertools", "json", "json.decoder"),
        *("keyword", "math", "numbers", "operator", "pprint", "random", "re", "reprlib", "shlex"),
        *("statistics", "string", "stringprep", "struct", "textwrap", "token", "types", "typing"),
        *("unicodedata", "urllib.parse", "warnings", "zlib", "msgspec", "msgspec.json", "msgspec.structs"),
    }
)
"""Modules without files, processes, clocks or entropy of their own, but see `_INSIDES` and `_UNSEEDED`."""

_CLOCKS = frozenset({"secrets", "time", "timeit", "uuid"})
_OURS = ("whale_bench.harness", "whale_bench.harness.base", "whale_bench.harness.python_code")
_NOW = frozenset({"now", "today", "utcnow"})
_UNSEEDED = frozenset({"Random", "seed"})
_BUILTINS = frozenset(
    {
        *("__build_class__", "__builtins__", "__import__", "__loader__", "__spec__", "breakpoint", "compile"),
        *("eval", "exec", "globals", "id", "input", "open", "vars"),
    }
)
"""A file's own variables may have these names."""
_BY_NAME = frozenset({"attrgetter", "delattr", "getattr", "methodcaller", "setattr"})
_INSIDES = frozenset(
    {
        *("__builtins__", "__closure__", "__code__", "__dict__", "__getattribute__", "__globals__"),
        *("__loader__", "__spec__", "__subclasses__", "__import__", "__mro__", "__bases__"),
        *("f_back", "f_globals", "f_locals", "f_builtins", "gi_frame", "tb_frame", "cr_frame"),
        "SystemRandom",
    }
)
_ELSEWHERE = frozenset(
    {"builtins", "ctypes", "gc", "importlib", "inspect", "io", "os", "posix", "socket", "subprocess", "sys"}
)
"""Modules whose names are nobody else's, and are noticed as attributes of anything."""
_PUBLIC = frozenset({"_asdict", "_field_defaults", "_fields", "_make", "_replace"})
"""Of named tuples."""

_Found = tuple[int, str]


def reaches(source: str) -> list[_Found]:
    """(line, what) of each; empty for text that is no Python, which loading it will show."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    known = _Names(nodes)
    found = {found for node in nodes for found in _of_node(node, known)}
    return sorted(found | {(line, _about_builtin(name)) for line, name in builtin_uses(source, _BUILTINS)})


class _Names:
    """What the names of a file stand for, as far as its imports and definitions say."""

    def __init__(self, nodes: list[ast.AST]) -> None:
        self.modules: dict[str, str] = {}
        """By name in the file."""
        self.own: set[str] = set()
        """Names that the file gives to something of its own."""
        for node in nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    whole = alias.name if alias.asname else alias.name.partition(".")[0]
                    self.modules[alias.asname or whole] = whole
            elif isinstance(node, ast.ClassDef | ast.FunctionDef):
                self.own.add(node.name)
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                self.own.add(node.id if isinstance(node, ast.Name) else node.attr)
        words = {node.attr for node in nodes if isinstance(node, ast.Attribute)} | set(self.modules.values())
        froms = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        self.dates = bool({"datetime", "calendar"} & (words | froms))
        """Whether there may be an object with the time of day."""

    def value(self, node: ast.AST) -> Any:
        """What a chain of attributes of an imported module is; None where that is not known."""
        names: list[str] = []
        while isinstance(node, ast.Attribute):  # a chain may be longer than the stack is deep
            names.append(node.attr)
            node = node.value
        found: Any = _module(self.modules.get(node.id, "")) if isinstance(node, ast.Name) else None
        for name in reversed(names):
            if found is None:
                return None
            found = getattr(found, name, None)
        return found


def _of_node(node: ast.AST, known: _Names) -> Iterator[_Found]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield from _said(node, _about_import(alias.name))
    elif isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        yield from _said(node, _about_import(module))
        for alias in [] if _about_import(module) else node.names:
            inner = getattr(_module(module), alias.name, None)
            yield from _said(node, _about_attribute(alias.name, inner, known, own=False))
    elif isinstance(node, ast.Attribute):
        own = _is_own(node.value) or node.attr in known.own
        yield from _said(node, _about_attribute(node.attr, known.value(node), known, own=own))
    elif isinstance(node, ast.Call):
        yield from _of_call(node, known)


def _of_call(node: ast.Call, known: _Names) -> Iterator[_Found]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    given = [arg.value if isinstance(arg, ast.Constant) else arg for arg in node.args]
    if name in _UNSEEDED and not node.keywords and (not given or given[0] is None):
        yield node.lineno, f"uses {name} without a seed: entropy is no input; use view.seed"
    if name in _BY_NAME:
        words = given[1:2] if name.endswith("attr") else given
        for word in words:
            if not isinstance(word, str):
                yield node.lineno, f"uses {name} with a name that is made at run time"
                continue
            own = name.endswith("attr") and bool(node.args) and _is_own(node.args[0])
            for part in word.split("."):
                about = _about_attribute(part, None, known, own=own or part in known.own)
                yield from _said(node, about)


def _about_builtin(name: str) -> str:
    if name == "id":
        return "uses id: an address is no input; use view.seed"
    return f"uses {name}, which reaches outside a harness"


def _said(node: Any, why: str) -> Iterator[_Found]:
    if why:
        yield node.lineno, why


def _is_own(node: ast.AST) -> bool:
    """Whether that is the harness itself."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _about_attribute(name: str, value: Any, known: _Names, *, own: bool) -> str:
    """What is wrong with an attribute; empty where nothing is."""
    if name in _INSIDES:
        return f"uses {name}, which reaches into other code or draws at random"
    if name in _NOW and known.dates:
        return f"uses {name}: a clock is no input; use view.seed"
    if isinstance(value, ModuleType) and value.__name__ not in COMPUTE and _about_import(value.__name__):
        return f"uses {name}, which reaches outside a harness"
    if name in _ELSEWHERE:
        return f"uses {name}, which reaches outside a harness"
    if name.startswith("_") and not name.startswith("__") and name not in _PUBLIC and not own:
        return f"uses {name}, which is another module's own"
    return ""


def _about_import(module: str) -> str:
    """What is wrong with importing it; empty where nothing is."""
    top = module.partition(".")[0]
    if module in COMPUTE or module in _OURS or module.startswith("whale_bench.harness.h0"):
        return ""
    if top in _CLOCKS:
        return f"imports {module}: a clock is no input; use view.seed"
    if top in sys.stdlib_module_names:
        return f"imports {module}, which reaches outside a harness"
    return f"imports {module or '.'}, which is not there for a harness"


def _module(name: str) -> ModuleType | None:
    """The module, where it is one that computes or the package of one."""
    known = name in COMPUTE or (name and any(module.startswith(f"{name}.") for module in COMPUTE))
    return importlib.import_module(name) if known else None
