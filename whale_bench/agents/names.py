"""Reads the names of own agents on the command line, and finds what can be hashed of them.

    agent:my_package.agents:Solver        a factory, class or function of a module
    agent:path/to/file.py:act             the same of a file
    process:./my_agent --depth 3          a command that speaks JSON lines (protocol.py)

Not covered: loading Python code, which happens in the agent's own process (`loading.py`).
"""

import hashlib
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from whale_envs.errors import UsageError

KINDS = {
    "agent:MODULE:NAME": "your own agent: a class, factory or function of a Python module",
    "agent:FILE.py:NAME": "the same of a Python file (docs/agents.md)",
    "process:COMMAND": "your own agent: any command that speaks JSON lines on stdin and stdout",
}
"""Every form of a name, with a line for people."""

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True)
class AgentName:
    """A name that has the right form."""

    name: str
    """As given."""
    target: str = ""
    """Module or file, of agent:…"""
    attribute: str = ""
    """What in it, of agent:…"""
    command: tuple[str, ...] = ()
    """Of process:…"""


def is_own_agent(name: str) -> bool:
    """Whether a name on the command line is that of an own agent, well formed or not."""
    return name.startswith(("agent:", "process:"))


def read_name(name: str, directory: str | None = None) -> AgentName:
    """The parts of an own agent's name.

    Args:
        name: as on the command line.
        directory: where relative paths in it begin; None for the working directory.

    Raises:
        UsageError: it has not the form of one, or its file or program does not exist.
    """
    kind, _, rest = name.partition(":")
    here = Path(directory) if directory is not None else Path.cwd()
    if kind == "process":
        return _process(name, rest, here)
    target, _, attribute = rest.rpartition(":")
    if not target or not _DOTTED.fullmatch(attribute):
        raise UsageError(f"an own agent is agent:MODULE:NAME or agent:FILE.py:NAME, got {name!r}")
    if target.endswith(".py") or "/" in target:
        if not (here / target).is_file():
            raise UsageError(f"agent file {target!r} does not exist in {here}")
        target = str((here / target).resolve())
    elif not _DOTTED.fullmatch(target):
        raise UsageError(f"{target!r} is neither a module nor a file ending in .py, in {name!r}")
    return AgentName(name, target, attribute)


def command_sources(command: tuple[str, ...], directory: str | None = None) -> dict[str, str]:
    """SHA-256 of the files that a command names, by the word that names them."""
    here = Path(directory or ".")
    found = {word: here / word for word in command if (here / word).is_file()}
    return {word: hashlib.sha256(path.read_bytes()).hexdigest() for word, path in found.items()}


def _process(name: str, rest: str, here: Path) -> AgentName:
    try:
        words = tuple(shlex.split(rest))
    except ValueError as error:
        raise UsageError(f"{name!r} cannot be read as a command: {error}") from error
    if not words:
        raise UsageError(f"process: needs a command, as in process:./my_agent, got {name!r}")
    program = str(here / words[0]) if "/" in words[0] else words[0]
    if shutil.which(program) is None:
        raise UsageError(f"{words[0]!r} is no program that can be run from {here}, in {name!r}")
    return AgentName(name, command=words)
