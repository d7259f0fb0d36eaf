"""Finds what `agent:TARGET:NAME` names and makes it into one `act` per rollout; in the agent's process.

What NAME is, is told apart in this order:

    a class, or a callable that can be called without arguments: a factory, called once per rollout;
        what it returns (or its coroutine's result) is a callable or an object with `act`
    a callable of one or two positional arguments: `act` itself
    anything else is refused

`act` takes (observation) or (observation, info) and returns the action, or a coroutine for it. An
object may also have `reset(info)` and `close()`. `info` is a dict with what `Opening` holds, and from
the second turn on `event` and `feedback`.

Not covered: running it, see `child.py`.
"""

import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

MOST_TRACE = 4_000
"""Most characters of a traceback that goes into a record; its end is kept."""


class AgentFault(Exception):  # noqa: N818 - it is the agent that is at fault, not this code
    """What is named cannot be an agent; one sentence, or the traceback of what it raised."""


class LoadedAgent:
    """What was named, and how it is used.

    Attributes:
        make: returns the agent of one rollout, or a coroutine for it.
        env_options: the object's or its module's `ENV_OPTIONS`.
        concurrent: its `CONCURRENT`, None where it does not say.
    """

    def __init__(self, found: Any, module: types.ModuleType, name: str) -> None:
        self.make = _factory(found, name)
        self.env_options = _constant(found, module, "ENV_OPTIONS", {})
        self.concurrent = _constant(found, module, "CONCURRENT", None)
        if not isinstance(self.concurrent, bool | None):
            raise AgentFault(f"CONCURRENT of {name} must be True or False, got {self.concurrent!r:.80}")
        if not _is_options(self.env_options):
            raise AgentFault(
                f"ENV_OPTIONS of {name} must map names to integers, got {self.env_options!r:.80}"
            )


class Hooks:
    """The functions of one rollout's agent.

    Raises:
        AgentFault: it has no `act` that takes an observation.
    """

    def __init__(self, agent: Any) -> None:
        kind = type(agent).__name__
        act = getattr(agent, "act", None) or (agent if callable(agent) else None)
        if act is None:
            raise AgentFault(f"the factory returned {agent!r:.80}: no callable, and {kind} has no `act`")
        takes = _arity(act)
        if takes not in (1, 2):
            raise AgentFault(f"`act` of {kind} must take (observation) or (observation, info)")
        self.act: Callable[..., Any] = act
        self.reset: Callable[..., Any] | None = getattr(agent, "reset", None)
        self.close: Callable[..., Any] | None = getattr(agent, "close", None)
        self.act_takes_info = takes == 2

    @property
    def sees_info(self) -> bool:
        return self.act_takes_info or self.reset is not None


def load_agent(target: str, attribute: str) -> LoadedAgent:
    """Imports the module or file and finds the attribute in it.

    Raises:
        AgentFault: it cannot be imported, has no such attribute, or that can be no agent.
    """
    name = f"{target}:{attribute}"
    try:
        module = _from_file(Path(target)) if target.endswith(".py") else importlib.import_module(target)
    except BaseException as error:
        raise AgentFault(f"{target} cannot be imported: {words(error)}") from error
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise AgentFault(f"{target} has no {attribute!r}")
        found = getattr(found, part)
    return LoadedAgent(found, module, name)


def sources(target: str) -> dict[str, str]:
    """SHA-256 of the agent's file and of what it has imported from beside it, by relative path."""
    name = "whale_agent" if target.endswith(".py") else target.partition(".")[0]
    file = getattr(sys.modules[name], "__file__", None)
    if file is None:
        return {}
    root = Path(file).resolve().parent
    if root.name in ("site-packages", "dist-packages"):  # a module among those of others
        return {Path(file).name: hashlib.sha256(Path(file).read_bytes()).hexdigest()}
    hashes = {}
    for module in tuple(sys.modules.values()):
        path = Path(getattr(module, "__file__", None) or "").resolve()
        if path.is_file() and path.is_relative_to(root):
            relative = path.relative_to(root)
            if "site-packages" not in relative.parts:
                hashes[relative.as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    return hashes


def words(error: BaseException) -> str:
    """The end of an exception's traceback, from the agent's own code on."""
    here = str(Path(__file__).parent)
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(here):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).strip()[-MOST_TRACE:]


def _from_file(path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("whale_agent", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and typing look a module up by its name
    sys.path.insert(0, str(path.parent))  # as Python does for a script
    spec.loader.exec_module(module)
    return module


def _factory(found: Any, name: str) -> Callable[[], Any]:
    make: Callable[[], Any] = found
    if not callable(found):
        raise AgentFault(f"{name} is {found!r:.80}, which is neither a class nor a callable")
    if isinstance(found, type) or _arity(found) == 0:
        return make
    if _arity(found) in (1, 2):
        return lambda: found
    raise AgentFault(
        f"{name} takes neither no arguments, as a factory, nor (observation) or (observation, info), as `act`"
    )


def _arity(function: Any) -> int | None:
    """How few positional arguments a call may have, of 0 to 2; None where none of these will do."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin does not say
        return 1
    required = [
        p for p in signature.parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]  # fmt: skip
    try:
        signature.bind(*required)
    except TypeError:  # keyword-only arguments without a default
        return None
    return len(required) if len(required) <= 2 else None


def _constant(found: Any, module: types.ModuleType, name: str, default: Any) -> Any:
    return getattr(found, name, getattr(module, name, default))


def _is_options(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(key, str) and type(number) is int for key, number in value.items()
    )
