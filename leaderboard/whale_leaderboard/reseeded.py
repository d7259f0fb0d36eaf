"""A program that runs other programs under a hash seed of its own, as the sandbox runs them under 0.

    result = await sandbox.run(reseeded(["x = {'a', 'b'}", "print(x)"], seed=5))

The sandbox's template has one seed, so the programs become another interpreter. It is made to look like the
sandbox's: `__main__` is an empty module without a file, arguments, environment and folder are the same.

Not covered: what a program can tell all the same, such as the depth of its frames, the loaded modules and
`sys.flags`; whoever believes a result compares one under seed 0 first.
"""

import json
from collections.abc import Sequence

_BECOME = """
import os, sys
with open("reseeded.json", "w") as file:
    file.write({codes!r})
os.execve(
    sys.executable, [sys.executable, "-P", "-c", {start!r}], os.environ | {{"PYTHONHASHSEED": "{seed}"}}
)
"""
"""Programs that become another one under a hash seed of its own."""

_START = """
def _start():
    import builtins, contextlib, io, json, os, sys, types
    with open("reseeded.json") as file:
        codes = json.load(file)
    os.remove("reseeded.json")
    os.environ["PYTHONHASHSEED"] = "0"
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.argv, sys.orig_argv[:] = [""], ["python"]
    sys.path.insert(0, "")
    for code in codes[:-1]:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception, SystemExit):
            exec(compile(code, "<code>", "exec", dont_inherit=True), main.__dict__)
    exec(compile(codes[-1], "<code>", "exec", dont_inherit=True), main.__dict__)
_start()
"""
"""Runs them as the sandbox does, as far as a program can see; all but the last one unheard."""


def reseeded(codes: Sequence[str], seed: int) -> str:
    """A program that prints what the last of these does; the others, whose variables it has, are unheard."""
    return _BECOME.format(codes=json.dumps(list(codes)), start=_START, seed=seed)
