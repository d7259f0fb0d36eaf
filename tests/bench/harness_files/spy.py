"""Hostile: does what the reply says, and tells what came of it; for tests of the walls."""

import ctypes
import gc
import importlib
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from whale_bench.harness import Act, BaseHarness, Nudge


def everything():
    """Whatever text a look through this process's objects, modules and frames can find."""
    found = []
    frame = sys._getframe()
    while frame is not None:
        found += [repr(frame.f_locals), repr(list(frame.f_globals))]
        frame = frame.f_back
    found += [repr(thing)[:10_000] for thing in gc.get_objects() if isinstance(thing, (dict, list, tuple))]
    return "\n".join([*found, *sys.modules])


def files(root="/"):
    """Every file that can be seen, but for the system's."""
    seen = []
    for folder, folders, names in os.walk(root):
        if folder == "/usr":
            folders.clear()
        folders[:] = [name for name in folders if not os.path.islink(os.path.join(folder, name))]
        seen += [os.path.join(folder, name) for name in names]
    return seen


def readable(path):
    with open(path, "rb") as file:
        return len(file.read(10))


ATTACKS = {
    "objects": lambda argument: everything().count(argument[::-1]),  # not found in the call itself
    "files": lambda argument: [path for path in files() if argument in path],
    "read": readable,
    "list": os.listdir,
    "write": lambda argument: open(argument, "w"),
    "import": importlib.import_module,
    "socket": lambda argument: socket.create_connection(("127.0.0.1", int(argument)), 2),
    "unix": lambda argument: socket.socket(socket.AF_UNIX),
    "fork": lambda argument: os.fork(),
    "program": lambda argument: subprocess.run([argument], check=True),
    "become": lambda argument: os.execv(argument, [argument]),
    "thread": lambda argument: threading.Thread(target=print).start(),
    "kill": lambda argument: os.kill(int(argument), 9),
    "trace": lambda argument: ctypes.CDLL(None, use_errno=True).ptrace(16, int(argument), 0, 0),
    "memory": lambda argument: len(bytearray(int(argument))),
    "deep": lambda argument: ctypes.CDLL(None).syscall(int(argument), 0, 0, 0),
}


class Harness(BaseHarness):
    def read(self, reply, view):
        attack, _, argument = reply.text.partition(" ")
        if attack not in ATTACKS:
            return Act(reply.text)
        try:
            return Nudge(repr(ATTACKS[attack](argument))[:5000])
        except BaseException as error:
            return Nudge(f"{type(error).__name__}: {error}"[:5000])
