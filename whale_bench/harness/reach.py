"""What a harness's text reaches for that a harness has no use for, line by line.

    >>> reaches("x = 1; import os")
    [(1, 'imports os, which reaches outside a harness')]

Files, processes, other objects' insides, and clocks or entropy, which would make a transcript one that
cannot be replayed. The walls around a worker hold without this; it tells an author early, and a proposer
why. A harness may import the rest of the standard library, msgspec, `whale_bench.harness`, its
`python_code`, and the shipped harnesses, to subclass them.

Not covered: names that are put together at run time.
"""

import ast
import sys

_CLOCKS = frozenset({"secrets", "time", "uuid"})
_OUTSIDE = frozenset(
    {
        *(
            "_ctypes",
            "_io",
            "_posixsubprocess",
            "_socket",
            "_thread",
            "asyncio",
            "atexit",
            "builtins",
            "code",
        ),
        *("codeop", "concurrent", "ctypes", "dis", "fcntl", "fileinput", "ftplib", "gc", "getpass", "glob"),
        *("http", "imp", "importlib", "inspect", "io", "linecache", "marshal", "mmap", "multiprocessing"),
        *("os", "pathlib", "pickle", "pkgutil", "platform", "posix", "posixpath", "pty", "queue", "resource"),
        *("runpy", "sched", "select", "selectors", "shelve", "shutil", "signal", "site", "smtplib", "socket"),
        *("socketserver", "sqlite3", "ssl", "subprocess", "sys", "sysconfig", "tempfile", "threading"),
        *("trace", "traceback", "tracemalloc", "urllib", "webbrowser", "xmlrpc", "zipimport"),
    }
)
_OURS = ("whale_bench.harness", "whale_bench.harness.base", "whale_bench.harness.python_code")
_NOW = frozenset({"now", "today", "utcnow"})
_CALLS = frozenset({"__import__", "breakpoint", "compile", "eval", "exec", "globals", "input", "open"})
_INSIDES = frozenset(
    {
        *(
            "__builtins__",
            "__globals__",
            "__subclasses__",
            "__code__",
            "__closure__",
            "__loader__",
            "__spec__",
        ),
        *("__import__", "__mro__", "__bases__", "f_back", "f_globals", "f_locals", "f_builtins", "gi_frame"),
        *("__spec__", "tb_frame", "cr_frame", "SystemRandom"),
    }
)


def reaches(source: str) -> list[tuple[int, str]]:
    """(line, what) of each; empty for text that is no Python, which loading it will show."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    dates = any(
        isinstance(node, ast.Import | ast.ImportFrom) and "datetime" in _modules(node) for node in nodes
    )
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(node.lineno, why) for module in _modules(node) if (why := _about(module))}
        elif isinstance(node, ast.Name) and node.id in _CALLS:
            found.add((node.lineno, f"uses {node.id}, which reaches outside a harness"))
        elif isinstance(node, ast.Attribute) and node.attr in _INSIDES:
            found.add((node.lineno, f"uses {node.attr}, which reaches into other code or draws at random"))
        elif isinstance(node, ast.Attribute) and node.attr in _NOW and dates:
            found.add((node.lineno, f"uses {node.attr}: a clock is no input; use view.seed"))
    return sorted(found)


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [("." * node.level) + (node.module or "")]


def _about(module: str) -> str:
    """What is wrong with importing it; empty where nothing is."""
    top = module.partition(".")[0]
    if top in _CLOCKS:
        return f"imports {module}: a clock is no input; use view.seed"
    if top in _OUTSIDE:
        return f"imports {module}, which reaches outside a harness"
    known = top in sys.stdlib_module_names or top == "msgspec"
    if known or module in _OURS or module.startswith("whale_bench.harness.h0"):
        return ""
    return f"imports {module or '.'}, which is not there for a harness"
